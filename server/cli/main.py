"""The command line `nap-llm COMMAND`: its parser, and exit statuses for errors."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version

from server.cli import chat, completion, console, models, rpc, serve, tokens
from server.cli.arguments import CommandError, Help
from server.config import ConfigError
from server.engine import EngineError
from server.state import StateError, default_state_dir
from server.weights import WeightsError, cache_directory

COMMANDS = (serve, chat, models, rpc, tokens, console, completion)
"""In the order of the help."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = build_parser().parse_args(arguments)
    try:
        status = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has had enough, as `head` has; what is left in the buffer must not fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 128 + signal.SIGPIPE
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("server", "grammars"):
            raise
        print(f"nap-llm: {error.name} is not installed; this command needs nap-llm[server]", file=sys.stderr)
        status = 1
    except (CommandError, ConfigError, EngineError, WeightsError, StateError) as error:
        print(f"nap-llm: {error}", file=sys.stderr)
        status = 1
    except OSError as error:
        # A file that another user owns, say, or a disk that is full.
        print(
            f"nap-llm: {error.filename}: {error.strerror}" if error.filename else f"nap-llm: {error}", file=sys.stderr
        )
        status = 1
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)


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


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands. A parsed command line says by `run` which function carries it out."""
    parser = argparse.ArgumentParser(
        prog="nap-llm",
        formatter_class=Help,
        description="Local language models for shells (programs that host napplets), over the NAP-LLM wire.",
        epilog=_ENDING.format(state=default_state_dir(), cache=cache_directory()),
    )
    parser.add_argument("--version", action="version", version=f"nap-llm {version('nap-llm')}")
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for each in COMMANDS:
        each.add_parser(commands)
    return parser


if __name__ == "__main__":
    main()
