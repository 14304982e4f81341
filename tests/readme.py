"""The fenced blocks of the READMEs and of docs/, for the tests that run them.

    @runs("Models", 1, 2, file="docs/guide.md")
    def test_the_examples(examples: tuple[Block, ...]) -> None: ...

hands a test the first two blocks under the heading "Models", as they stand. It is also how `tests/test_readme.py` knows
that somebody runs them: it looks for these decorators, and fails where a block has none.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
ADDRESS = "http://127.0.0.1:8033"
"""Where the examples' server is. A test's own has a port of its own."""


@dataclass(frozen=True)
class Block:
    language: str
    text: str

    def at(self, url: str) -> str:
        """The text, with the address of the test's own server."""
        assert ADDRESS in self.text
        return self.text.replace(ADDRESS, url)

    def exchanges(self) -> list[tuple[str, str]]:
        """Of a `console` block: each command behind a `$`, with the lines that its quotes hold, and what it prints."""
        assert self.language == "console" and self.text.startswith("$ ")
        found: list[tuple[str, str]] = []
        for line in self.text.splitlines(keepends=True):
            if line.startswith("$ "):
                found.append((line[2:], ""))
            elif _open_quote(found[-1][0]):
                found[-1] = (found[-1][0] + line, "")
            else:
                found[-1] = (found[-1][0], found[-1][1] + line)
        return [(command.rstrip("\n"), printed) for command, printed in found]


def _open_quote(command: str) -> bool:
    try:
        shlex.split(command)
    except ValueError:
        return True
    return False


@cache
def blocks(file: str = "README.md") -> Mapping[tuple[str, int], Block]:
    """Every fenced block of a page, by the heading that it stands under and its number there, from 1."""
    found: dict[tuple[str, int], Block] = {}
    heading, fence, language, number = "", "", "", 0
    lines: list[str] = []
    for line in (ROOT / file).read_text(encoding="utf-8").splitlines(keepends=True):
        if fence and line.strip() == fence:
            assert (heading, number) not in found, f"{file}: two headings are called {heading}"
            found[heading, number] = Block(language, "".join(lines))
            fence = ""
        elif fence:
            lines.append(line)
        elif opened := re.match(r"\s*(```+|~~~+)(\w*)", line):
            (fence, language), lines, number = opened.groups(), [], number + 1
        elif titled := re.match(r"#+ (.+)", line):
            heading, number = titled[1], 0
    assert not fence, f"{file}: a block has no end"
    return found


def runs(heading: str, *numbers: int, file: str = "README.md") -> pytest.MarkDecorator:
    """The decorator of a test that runs these blocks; it gets them as `examples`."""
    examples = tuple(blocks(file)[heading, number] for number in numbers)
    return pytest.mark.parametrize("examples", [examples], ids=[heading.replace(" ", "-")])


def printed(program: str, names: dict[str, Any]) -> str:
    """What a `python` block prints, run among these names, which it adds to."""
    code = compile(program, "README.md", "exec", dont_inherit=True)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, names)
    return out.getvalue()


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Shell:
    """A shell in which commands are typed one after the other; what they print, errors too, comes as they print it."""

    MARK = "--- done ---"

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            cwd=directory,
            env={**environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str) -> str:
        """What is printed up to the end of the command; one that fails, fails the test."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{{ {command}\n}} </dev/null; printf '%s %s\\n' '{self.MARK}' $?\n")
        self._process.stdin.flush()
        *lines, last = self.until(self.MARK)
        before, _, status = last.partition(self.MARK)
        said = "".join([*lines, before])
        assert status.strip() == "0", said
        return said

    def until(self, words: str) -> list[str]:
        """The lines up to one with these words, which a command in the background prints."""
        assert self._process.stdout is not None
        lines = [self._process.stdout.readline()]
        while words not in lines[-1]:
            assert lines[-1], f"it ended without {words}: {lines}"
            lines.append(self._process.stdout.readline())
        return lines

    def close(self) -> None:
        """Ends it and its commands."""
        self._process.kill()
        self._process.communicate()
