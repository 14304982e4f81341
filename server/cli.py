"""The command line: `nap-llm serve | chat | models | token`."""

from __future__ import annotations

import argparse
import errno
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from rich.console import Console

from server import library
from server.config import Config, ConfigError, load_config
from server.logs import LogFormat
from server.models import ModelError, cached, label
from server.state import Consent, Select, StateError, TokenStore, default_state_dir, owner_token

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8033


class CommandError(Exception):
    """A command cannot do what it was asked; the message is for the person at the terminal."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    try:
        status = options.run(options)
    except (CommandError, ConfigError, ModelError, StateError) as error:
        print(f"nap-llm: {error}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nap-llm", description="Local language models for shells (NAP-LLM).")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], words: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=words, description=words[0].upper() + words[1:] + ".")
        made.set_defaults(run=run)
        return made

    serving = command("serve", _serve, "serve the configured models")
    _add_models(serving)
    _add_state(serving)
    serving.add_argument("--host", default=DEFAULT_HOST, help="address to listen on (default: %(default)s)")
    serving.add_argument("--port", type=_port, default=DEFAULT_PORT, help="0: any free one (default: %(default)s)")
    serving.add_argument(
        "--log-format", choices=get_args(LogFormat), help="how the log is written (default: the configuration's)"
    )

    chatting = command("chat", _chat, "talk to a running server")
    chatting.add_argument("prompt", nargs="?", help="one question; without it a conversation, or what stdin holds")
    chatting.add_argument(
        "--url", default=f"http://{DEFAULT_HOST}:{DEFAULT_PORT}", help="server (default: %(default)s)"
    )
    chatting.add_argument(
        "--token",
        default=os.environ.get("NAP_LLM_TOKEN"),
        help="a shell's token (default: $NAP_LLM_TOKEN, else one made in --state for as long as this runs)",
    )
    _add_state(chatting)
    chatting.add_argument("--model", help="exact model identifier (default: the owner's choice)")
    chatting.add_argument("--system", help="system message")
    chatting.add_argument("--max-tokens", type=int, metavar="N", help="limit of each answer")
    chatting.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    chatting.add_argument("--json", action="store_true", help="answer with a JSON object")
    chatting.add_argument("--tools", type=Path, metavar="FILE", help="JSON list of tools that the model may call")
    chatting.add_argument("--tool-choice", metavar="CHOICE", help="auto, none, required, or the name of a tool")

    _add_models(command("models", _models, "list the configured connections and their files"))

    pulling = command("pull", library.pull, "fetch models, or what is new of them, and print their paths")
    listing = command("list", library.listing, "list the model files on this machine, and those still to fetch")
    removing = command("rm", library.rm, "remove fetched model files")
    what = "a connection's key, or owner/repo:file on the Hugging Face Hub"
    pulling.add_argument("what", nargs="*", metavar="WHAT", help=f"{what} (default: all connections)")
    removing.add_argument("what", nargs="+", metavar="WHAT", help=what)
    for each in (pulling, listing, removing):
        _add_models(each)

    tokens = command("token", _token_list, "make, list and revoke the tokens of shells")
    actions = tokens.add_subparsers(required=True, metavar="ACTION")
    creating = actions.add_parser("create", help="make a token and print it; it is shown this once")
    creating.add_argument("name")
    creating.add_argument(
        "--consent",
        choices=get_args(Consent),
        default="ask",
        help="ask: the owner decides each time in the console; shell: the shell asks its user; always: nobody is asked"
        " (default: %(default)s)",
    )
    creating.add_argument(
        "--select",
        choices=get_args(Select),
        default="default",
        help="default: the first connection that meets the requirements; ask: the owner chooses (default: %(default)s)",
    )
    creating.set_defaults(run=_token_create)
    revoking = actions.add_parser("revoke", help="revoke a token; what runs under it is cancelled")
    revoking.add_argument("name")
    revoking.set_defaults(run=_token_revoke)
    listing = actions.add_parser("list", help="list the tokens' names and policies")
    listing.set_defaults(run=_token_list)
    for action in (creating, revoking, listing):
        _add_state(action)
    return parser


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**16:
        raise ValueError
    return number


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models", type=Path, default=Path("models.toml"), metavar="FILE", help="configuration (default: %(default)s)"
    )


def _add_state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state", type=Path, default=default_state_dir(), metavar="DIR", help="where tokens lie (default: %(default)s)"
    )


def _serve(options: argparse.Namespace) -> int:
    config = load_config(options.models)
    listener = _listen(options.host, options.port)
    host, port = listener.getsockname()[:2]
    for connection in config.connections:
        library.fetch_shown(connection.source)

    # What the other commands do not need is imported here: they answer at once.
    from server.serving import serve

    served = serve(
        config,
        listener,
        host=options.host,
        state=options.state,
        log_format=options.log_format or config.server.log_format,
        announce=lambda: _announce(config, host, port, owner_token(options.state)),
    )
    return 0 if served else 1


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CommandError(f"port {port} of {host} is in use; choose another with --port") from error
        raise CommandError(f"cannot listen on {host} port {port}: {error.strerror}") from error


def _announce(config: Config, host: str, port: int, token: str) -> None:
    shown = {"0.0.0.0": DEFAULT_HOST, "::": "::1"}.get(host, host)
    url = f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
    names = ", ".join(connection.name for connection in config.connections)
    print(f"Serving {names} at {url}/nap/llm\nConsole: {url}/#token={token}", flush=True)


def _chat(options: argparse.Namespace) -> int:
    from server.talk import talk

    if options.token:
        return talk(options, options.token)
    store = TokenStore(options.state)
    name = f"chat-{os.getpid()}-{time.time_ns()}"
    token = store.create(name, consent="always")
    try:
        return talk(options, token)
    finally:
        store.revoke(name)


def _models(options: argparse.Namespace) -> int:
    from server.engine import Vocab

    console = Console(soft_wrap=True, highlight=False, markup=False)
    for connection in load_config(options.models).connections:
        console.print(connection.key, style="bold", end="")
        console.print(f"  {connection.name} ({connection.model})")
        path = cached(connection.source)
        if path is None:
            console.print(f"  file      not here yet: {label(connection.source)}")
            continue
        vocab = Vocab.load(str(path))
        told = vocab.metadata.get
        architecture = told("general.architecture", "?")
        trained = told(f"{architecture}.context_length", "?")
        template = connection.template or told("tokenizer.chat_template")
        own = "" if connection.template is None else " (the configuration's)"
        console.print(f"  file      {path}")
        console.print(f"  size      {path.stat().st_size / 1e6:,.1f} MB")
        console.print(f"  model     {told('general.name', '?')}, {architecture}, vocabulary {vocab.size}")
        console.print(
            f"  context   {connection.context_length or trained} of {trained} tokens, {connection.slots} slots"
        )
        console.print(f"  template  {f'{len(template)} characters{own}' if template else 'none'}")
    return 0


def _token_create(options: argparse.Namespace) -> int:
    print(TokenStore(options.state).create(options.name, consent=options.consent, select=options.select))
    return 0


def _token_revoke(options: argparse.Namespace) -> int:
    TokenStore(options.state).revoke(options.name)
    return 0


def _token_list(options: argparse.Namespace) -> int:
    for each in TokenStore(options.state).list():
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.created))
        print(f"{each.name:24} consent={each.consent:7} select={each.select:8} {created}")
    return 0


if __name__ == "__main__":
    main()
