"""`nap-llm chat`: a conversation with a running server, under a token of its own where none is given."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from server.cli.arguments import Commands, add_command, add_state, add_url
from server.state import TokenStore


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "chat",
        run,
        "talk to a running server",
        """\
With a PROMPT, or with one on standard input, prints one answer; otherwise holds a conversation. Ctrl-C stops an answer.
On a terminal thinking and calls are shown apart, and you are asked for the results of calls; piped, standard output
holds text and calls alone, one JSON object a line.""",
        examples="""\
nap-llm chat
nap-llm chat "Why is the sky blue?"
git diff | nap-llm chat --system "Write a commit message."
nap-llm chat "Weather in Paris?" --tools tools.json --tool-choice get_weather
""",
    )
    parser.add_argument(
        "prompt", nargs="?", metavar="PROMPT", help="one question; without it a conversation, or what stdin holds"
    )
    add_url(parser)
    parser.add_argument(
        "--token",
        type=_token,
        default=os.environ.get("NAP_LLM_TOKEN"),
        help="a shell's token, which other users may see here (default: $NAP_LLM_TOKEN, else one made in --state for as"
        " long as this runs)",
    )
    add_state(parser)
    parser.add_argument("--model", help="exact model identifier (default: the owner's choice)")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="tokens of each answer at most")
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="from 0, which is greedy, to 2 (default: the connection's)"
    )
    parser.add_argument("--json", action="store_true", help="answer with a JSON object")
    parser.add_argument(
        "--tools",
        type=Path,
        metavar="FILE",
        help="JSON list of tools that the model may call: name, description, parameters",
    )
    parser.add_argument(
        "--tool-choice", metavar="CHOICE", help="auto, none, required, or the name of a tool (default: auto)"
    )


def run(options: argparse.Namespace) -> int:
    from server.cli.terminal import talk

    if options.token:
        return talk(options, options.token)
    store = TokenStore(options.state)
    name = f"chat-{os.getpid()}-{time.time_ns()}"
    # A terminal that is closed, say, must not leave the token behind.
    for each in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(each, lambda number, _: sys.exit(128 + number))
    token = store.create(name, consent="always")
    try:
        return talk(options, token)
    finally:
        store.revoke(name)


def _token(text: str) -> str:
    if not all("!" <= character <= "~" for character in text):
        raise argparse.ArgumentTypeError("has characters that no token has")
    return text
