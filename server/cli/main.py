"""The command line: `nap-llm COMMAND`."""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import os
import shutil
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

from server.cli import models as library
from server.cli import rpc
from server.config import Config, ConfigError, ModelSource, load_config
from server.engine import EngineError
from server.logs import LogFormat, start_logging
from server.state import Consent, Select, StateError, TokenStore, default_state_dir, owner_token
from server.weights.files import ModelError, cache_directory, cached, fetch, label

log = logging.getLogger(__name__)

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8033


class CommandError(Exception):
    """A command cannot do what it was asked; the message is for the person at the terminal."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    try:
        status = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has had enough, as `head` has; what is left in the buffer must not fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 128 + signal.SIGPIPE
    except (CommandError, ConfigError, EngineError, ModelError, StateError) as error:
        print(f"nap-llm: {error}", file=sys.stderr)
        status = 1
    except OSError as error:
        # What another user owns, say, or a disk that is full.
        print(
            f"nap-llm: {error.filename}: {error.strerror}" if error.filename else f"nap-llm: {error}", file=sys.stderr
        )
        status = 1
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)


class _Help(argparse.HelpFormatter):
    """Paragraphs stay paragraphs, what is indented stays as it is, and no name is broken at its hyphens."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=min(100, shutil.get_terminal_size().columns))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip("\n").split("\n\n")
        return "\n\n".join(each if "\n  " in each else self._wrap(each, width) for each in paragraphs)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return self._wrap(text, width).splitlines()

    def _wrap(self, text: str, width: int) -> str:
        return textwrap.fill(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)


_ENDING = """\
files:
  models.toml
      what is served; the one that comes with nap-llm shows every key
  {state}
      the shells' tokens (hashed) and the owner's token; see --state
  {cache}
      fetched models

environment:
  NAP_LLM_TOKEN
      the token of `nap-llm chat`

exit status:
  0   success
  1   it cannot be done; standard error says why
  2   the command line is wrong
  130 interrupted

`nap-llm COMMAND --help` explains a command.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nap-llm",
        formatter_class=_Help,
        description="Local language models for shells (programs that host napplets), over the NAP-LLM wire.",
        epilog=_ENDING.format(state=default_state_dir(), cache=cache_directory()),
    )
    parser.add_argument("--version", action="version", version=f"nap-llm {version('nap-llm')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")

    def command(
        name: str,
        run: Callable[[argparse.Namespace], int],
        words: str,
        more: str = "",
        *,
        examples: str = "",
        among: argparse._SubParsersAction[argparse.ArgumentParser] = commands,
    ) -> argparse.ArgumentParser:
        """A command: what it does in a line, then in paragraphs, then by example."""
        made = among.add_parser(
            name,
            help=words,
            formatter_class=_Help,
            description=f"{words[0].upper()}{words[1:]}.\n\n{more}".rstrip(),
            epilog=f"examples:\n{textwrap.indent(examples, '  ')}" if examples else None,
        )
        made.set_defaults(run=run)
        return made

    serving = command(
        "serve",
        _serve,
        "serve the configured models",
        """\
Fetches what is missing, then answers until SIGTERM or Ctrl-C, and prints the link of the owner's console. Whoever has
that link is the owner. Models are loaded when they are first used.

Told to end, it accepts nothing new, lets running generations finish for as long as `[server] drain` says, and settles
the rest. Told again, it ends at once. /healthz and /readyz are for supervisors, /metrics for Prometheus (with the
owner's token).""",
        examples="""\
nap-llm serve
nap-llm serve --models ~/models.toml --port 0
nap-llm serve --log-format json 2>> nap-llm.log
""",
    )
    _add_models(serving)
    _add_state(serving)
    serving.add_argument("--host", default=DEFAULT_HOST, help="address to listen on (default: %(default)s)")
    serving.add_argument(
        "--port", type=_port, default=DEFAULT_PORT, help="port to listen on; 0: any free one (default: %(default)s)"
    )
    serving.add_argument(
        "--log-format",
        choices=get_args(LogFormat),
        help="lines to read, or a JSON object a line, on standard error (default: `[server] log_format`, else console)",
    )

    chatting = command(
        "chat",
        _chat,
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
    chatting.add_argument(
        "prompt", nargs="?", metavar="PROMPT", help="one question; without it a conversation, or what stdin holds"
    )
    _add_url(chatting)
    chatting.add_argument(
        "--token",
        type=_secret,
        default=os.environ.get("NAP_LLM_TOKEN"),
        help="a shell's token, which other users may see here (default: $NAP_LLM_TOKEN, else one made in --state for as"
        " long as this runs)",
    )
    _add_state(chatting)
    chatting.add_argument("--model", help="exact model identifier (default: the owner's choice)")
    chatting.add_argument("--system", metavar="TEXT", help="system message")
    chatting.add_argument("--max-tokens", type=int, metavar="N", help="tokens of each answer at most")
    chatting.add_argument(
        "--temperature", type=float, metavar="T", help="from 0, which is greedy, to 2 (default: the connection's)"
    )
    chatting.add_argument("--json", action="store_true", help="answer with a JSON object")
    chatting.add_argument(
        "--tools",
        type=Path,
        metavar="FILE",
        help="JSON list of tools that the model may call: name, description, parameters",
    )
    chatting.add_argument(
        "--tool-choice", metavar="CHOICE", help="auto, none, required, or the name of a tool (default: auto)"
    )

    models = command(
        "models",
        library.models,
        "list the configured connections and their files",
        "Reads the headers of the files that are here: size, architecture, context, chat template.",
    )
    models.add_argument(
        "--plan", action="store_true", help="also how each model is laid over this machine's memory, with every figure"
    )
    pulling = command("pull", library.pull, "fetch models, or what is new of them, and print their paths")
    listing = command("list", library.listing, "list the model files on this machine, and those still to fetch")
    removing = command("rm", library.rm, "remove fetched model files")
    showing = command("show", library.show, "show what a model's file says, what it can do, and how it would be loaded")
    what = "a connection's key, or owner/repo:file on the Hugging Face Hub"
    pulling.add_argument("what", nargs="*", metavar="WHAT", help=f"{what} (default: all connections)")
    removing.add_argument("what", nargs="+", metavar="WHAT", help=what)
    showing.add_argument("what", metavar="WHAT", help=f"{what}, or the path of a GGUF")
    lending = command(
        "lend",
        _lend,
        "lend this machine to models of another, which names it by `rpc`",
        "What it becomes is llama.cpp's RPC server, which knows no passwords and no encryption: only ever in a network"
        " that you trust.",
        examples="nap-llm lend --host 10.0.0.2   # its own address there",
    )
    lending.add_argument("--host", default=DEFAULT_HOST, help="address to listen on (default: %(default)s)")
    lending.add_argument("--port", type=_port, default=50052, help="port to listen on (default: %(default)s)")
    for each in (models, pulling, listing, removing, showing):
        _add_models(each)

    tokens = command(
        "token",
        _token_list,
        "make, list and revoke the tokens of shells",
        """\
Every shell has a token of its own. Its policy says who decides about a generation, and who chooses the model. A running
server notices at once.""",
        examples="""\
nap-llm token create editor --consent shell
nap-llm token create scripts --consent always
nap-llm token revoke editor
""",
    )
    actions = tokens.add_subparsers(required=True, metavar="ACTION", title="actions")
    creating = command("create", _token_create, "make a token and print it; it is shown this once", among=actions)
    creating.add_argument("name", metavar="NAME", help="1 to 64 of A-Z a-z 0-9 _ . -")
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
    revoking = command("revoke", _token_revoke, "revoke a token; what runs under it is cancelled", among=actions)
    revoking.add_argument("name", metavar="NAME", help="the name it was made under")
    naming = command("list", _token_list, "list the tokens' names and policies", among=actions)
    for action in (creating, revoking, naming):
        _add_state(action)

    linking = command(
        "console",
        _console,
        "print the link of the owner's console",
        "For servers that run where nobody reads what they print. Whoever has the link is the owner.",
        examples="nap-llm console --url http://127.0.0.1:8033",
    )
    _add_url(linking)
    _add_state(linking)

    completing = command(
        "completion",
        _completion,
        "print a script that completes these commands in a shell",
        examples="""\
nap-llm completion bash > ~/.local/share/bash-completion/completions/nap-llm
nap-llm completion zsh > ~/.zfunc/_nap-llm        # a directory of $fpath
nap-llm completion fish > ~/.config/fish/completions/nap-llm.fish
""",
    )
    completing.add_argument("shell", choices=("bash", "zsh", "fish"), help="for which shell")
    return parser


def _port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) >= 2**16:
        raise argparse.ArgumentTypeError("must be a number from 0 to 65535")
    return int(text)


def _url(text: str) -> str:
    with contextlib.suppress(ValueError):
        parts = urlsplit(text)
        # Reading the port refuses one that is no number.
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return text
    raise argparse.ArgumentTypeError(f"must be an address such as http://{DEFAULT_HOST}:{DEFAULT_PORT}")


def _secret(text: str) -> str:
    if not all("!" <= character <= "~" for character in text):
        raise argparse.ArgumentTypeError("has characters that no token has")
    return text


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models", type=Path, default=Path("models.toml"), metavar="FILE", help="configuration (default: %(default)s)"
    )


def _add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        type=_url,
        default=f"http://{DEFAULT_HOST}:{DEFAULT_PORT}",
        help="where the server answers (default: %(default)s)",
    )


def _add_state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state", type=Path, default=default_state_dir(), metavar="DIR", help="where tokens lie (default: %(default)s)"
    )


def _serve(options: argparse.Namespace) -> int:
    config = load_config(options.models)
    listener = _listen(options.host, options.port)
    host, port = listener.getsockname()[:2]
    log_format = options.log_format or config.server.log_format
    if any(connection.rpc for connection in config.connections):
        os.environ.setdefault("GGML_BACKEND_PATH", str(rpc.built() / rpc.LIBRARY))
    fetch_one: Callable[[ModelSource], Path] = library.fetch_shown
    if log_format == "json":
        start_logging(log_format)
        fetch_one = _fetch_logged
    for connection in config.connections:
        for source in connection.sources:
            fetch_one(source)

    # What the other commands do not need is imported here: they answer at once.
    from server.cli.serve import serve

    served = serve(
        config,
        listener,
        host=options.host,
        state=options.state,
        log_format=log_format,
        announce=lambda: _announce(config, host, port, owner_token(options.state)),
    )
    return 0 if served else 1


def _lend(options: argparse.Namespace) -> int:
    """Becomes llama.cpp's RPC server."""
    directory = rpc.built()
    server = str(directory / rpc.SERVER)
    environment = {**os.environ, "GGML_BACKEND_PATH": str(directory / rpc.LIBRARY)}
    os.execve(server, [server, "--host", options.host, "--port", str(options.port)], environment)


def _fetch_logged(source: ModelSource) -> Path:
    """For a log that nothing but records may stand in."""
    if source.path is None and cached(source) is None:
        log.info("fetching %s", label(source))
    return fetch(source)


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
    from server.cli.chat import talk

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


def _console(options: argparse.Namespace) -> int:
    print(f"{options.url.rstrip('/')}/#token={owner_token(options.state)}")
    return 0


def _completion(options: argparse.Namespace) -> int:
    import shtab

    parser = _parser()
    for each in _every(parser):
        for action in each._actions:
            if action.type is Path:
                # shtab reads what to complete from here.
                action.complete = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=options.shell))
    return 0


def _every(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of all its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _every(each)


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
