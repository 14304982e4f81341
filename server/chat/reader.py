"""A reader of output that is still coming: literals, words, and text up to a marker.

Every step is a coroutine that pauses where it needs text that has not come yet. Its result does not depend on
how the text was cut into pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A computation that yields while it waits for more text."""

SPACE = re.compile(r"\s*")
WORD = re.compile(r"[A-Za-z0-9_.-]*")


class MalformedOutput(Exception):
    """A completed output breaks its format. `reason` holds nothing of the output."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class OutputEnded(Exception):
    """The output ended where more was needed."""


class Reader:
    """The text that has come and is not read yet: `buffer` from `at` on; `ended` where no more will come.

    `text` is read first and does not belong to the output.
    """

    def __init__(self, text: str = "") -> None:
        self.buffer = text
        self.at = 0
        self.ended = False
        self._dropped = -len(text)
        self._kept: int | None = None

    @property
    def place(self) -> int:
        """Characters of the output that are read."""
        return self._dropped + self.at

    def feed(self, text: str) -> None:
        """More text has come."""
        done = self.at if self._kept is None else self._kept
        self.buffer = self.buffer[done:] + text
        self.at -= done
        self._dropped += done
        self._kept = None if self._kept is None else 0

    def tried(self, steps: Steps[T]) -> Steps[T | None]:
        """The result of these steps; None where they fail, and nothing has been read then."""
        self._kept = self.at
        try:
            return (yield from steps)
        except (MalformedOutput, OutputEnded):
            self.at = self._kept
            return None
        finally:
            self._kept = None

    @property
    def waiting(self) -> int:
        """Characters that have come and are not read."""
        return len(self.buffer) - self.at

    def more(self) -> Steps[None]:
        """Wait for more text. Raises `OutputEnded`."""
        if self.ended:
            raise OutputEnded
        yield

    def skip_space(self) -> Steps[None]:
        while True:
            match = SPACE.match(self.buffer, self.at)
            self.at = match.end() if match else self.at
            if self.waiting or self.ended:
                return
            yield

    def skip_newline(self) -> Steps[None]:
        """Read one line feed, where one stands."""
        while not self.waiting:
            yield from self.more()
        self.at += self.buffer.startswith("\n", self.at)

    def until(self, markers: Sequence[str], emit: Callable[[str], None]) -> Steps[str | None]:
        """Emits text up to the first of the markers and returns that one, or None where the output ends first.

        Of markers that begin together the longest counts, so one that may still become another is waited for.
        """
        pattern = _alternatives(tuple(markers))
        while True:
            match = pattern.search(self.buffer, self.at) if markers else None
            open = len(self.buffer) if self.ended else self._partial(markers)
            if match and open > match.start():
                end = match.start()
            else:
                match, end = None, open
            if end > self.at:
                emit(self.buffer[self.at : end])
            self.at = match.end() if match else end
            if match or self.ended:
                return match.group() if match else None
            yield

    def _partial(self, markers: Sequence[str]) -> int:
        """Where the text that may become a marker, or a longer one, begins: the end of the buffer where none does."""
        size = min(max(map(len, markers), default=1) - 1, self.waiting)
        while size > 0:
            tail = self.buffer[-size:]
            if any(len(marker) > size and marker.startswith(tail) for marker in markers):
                break
            size -= 1
        return len(self.buffer) - size

    def text_until(self, marker: str) -> Steps[str]:
        """The text up to a marker, which is read too. Raises `OutputEnded`."""
        read: list[str] = []
        if (yield from self.until([marker], read.append)) is None:
            raise OutputEnded
        return "".join(read)

    def choose(self, literals: Sequence[str]) -> Steps[int | None]:
        """Reads the one of the literals that stands here and returns its index; None where none does."""
        while True:
            coming = False
            for index, literal in enumerate(literals):
                whole, end = walk(self.buffer, self.at, literal)
                if whole:
                    self.at = end
                    return index
                coming |= end == len(self.buffer)
            if self.ended or not coming:
                return None
            yield

    def expect(self, literal: str, reason: str) -> Steps[None]:
        """Read a literal that must stand here."""
        if (yield from self.choose([literal])) is None:
            yield from self.wrong(reason)

    def wrong(self, reason: str) -> Steps[None]:
        """Something else stands here, or nothing where the output has ended. Raises `MalformedOutput` or
        `OutputEnded`."""
        yield from self.skip_space()
        raise MalformedOutput(reason) if self.waiting else OutputEnded

    def not_closed(self, reason: str) -> Steps[None]:
        """As `wrong`, where calls or a call's arguments should end: models of one format close them as another does."""
        if (yield from self.choose(["</"])) is not None:
            raise MalformedOutput("a call is closed by the tag of another format")
        yield from self.wrong(reason)

    def word(self, pattern: re.Pattern[str] = WORD) -> Steps[str]:
        """A name or an id: it ends where a character stands that cannot be in one."""
        yield from self.skip_space()
        while True:
            word = pattern.match(self.buffer, self.at)
            end = word.end() if word else self.at
            if end < len(self.buffer):
                self.at, start = end, self.at
                return self.buffer[start:end]
            yield from self.more()


@lru_cache(maxsize=256)
def _alternatives(markers: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(markers, key=len, reverse=True))))


@lru_cache(maxsize=1024)
def tokens(literal: str) -> tuple[str, ...]:
    """A literal's parts between white space."""
    return tuple(literal.split())


@lru_cache(maxsize=1024)
def _spaced(literal: str) -> re.Pattern[str]:
    """A literal, or as much of it as there is, with white space before any of its characters; a group where all is."""
    pattern = "()"
    for char in reversed("".join(tokens(literal))):
        pattern = rf"(?:\s*{re.escape(char)}{pattern})?"
    return re.compile(pattern)


def walk(text: str, at: int, literal: str) -> tuple[bool, int]:
    """Match `literal` along `text`, white space aside.

    Returns true where all of it stands there, and the position up to which it does.
    """
    found = _spaced(literal).match(text, at)
    assert found is not None
    if found.lastindex:
        return True, found.end()
    space = SPACE.match(text, found.end())
    return False, space.end() if space else found.end()
