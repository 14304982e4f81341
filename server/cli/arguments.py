"""Arguments that commands share, and how a command's parser is made."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from server.state import default_state_dir

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""Subparsers, to which a command adds its own."""

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8033


class CommandError(Exception):
    """A command cannot be carried out; the message is for the person at the terminal."""


class Help(argparse.HelpFormatter):
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


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    words: str,
    more: str = "",
    *,
    examples: str = "",
    aliases: tuple[str, ...] = (),
) -> argparse.ArgumentParser:
    """A command's parser: its purpose in a line, then in paragraphs, then by example. `run` returns the exit status."""
    parser = commands.add_parser(
        name,
        aliases=aliases,
        help=words,
        formatter_class=Help,
        description=f"{words[0].upper()}{words[1:]}.\n\n{more}".rstrip(),
        epilog=f"examples:\n{textwrap.indent(examples, '  ')}" if examples else None,
    )
    parser.set_defaults(run=run)
    return parser


def every_parser(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of all its commands, each once."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            # An alias has its command's parser.
            for each in dict.fromkeys(action.choices.values()):
                yield from every_parser(each)


def port(text: str) -> int:
    """A TCP port, 0 for any free one."""
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


def add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models", type=Path, default=Path("models.toml"), metavar="FILE", help="configuration (default: %(default)s)"
    )


def add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        type=_url,
        default=f"http://{DEFAULT_HOST}:{DEFAULT_PORT}",
        help="where the server answers (default: %(default)s)",
    )


def add_state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state", type=Path, default=default_state_dir(), metavar="DIR", help="where tokens lie (default: %(default)s)"
    )
