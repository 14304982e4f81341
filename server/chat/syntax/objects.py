"""JSON as it comes: an object's text as it stands, a string's text decoded (RFC 8259)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from server.chat.reader import MalformedOutput, Reader, Steps

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
_PLAIN = {'"': re.compile(r'[^"\\]+'), "'": re.compile(r"[^'\\]+")}
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_WORD = re.compile(r"[-+.0-9A-Za-z]*")
_CLOSER = {"{": "}", "[": "]"}
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

NOTHING = object()
"""What `value` says of text that is no JSON."""


@dataclass(slots=True)
class Brackets:
    """Looks for the end of the object or array that a text begins with, as far as brackets and strings tell."""

    _closers: list[str] = field(default_factory=list)
    _quoted: bool = False

    def scan(self, text: str, at: int) -> tuple[int, bool]:
        """Goes on at `at`: how far all is looked at, and whether that is the end. Raises `MalformedOutput`."""
        while match := (_INSIDE if self._quoted else _OUTSIDE).search(text, at):
            char = match.group()
            if char == "\\" and match.end() == len(text):
                return match.start(), False
            at = match.end()
            if char == '"':
                self._quoted = not self._quoted
            elif char == "\\":
                at += 1
            elif char in _CLOSER:
                self._closers.append(_CLOSER[char])
            elif self._closers.pop() != char:
                raise MalformedOutput("the brackets of a JSON object do not match")
            elif not self._closers:
                return at, True
        return len(text), False


def read_object(reader: Reader, emit: Callable[[str], None]) -> Steps[None]:
    """One JSON object, its text as it stands. Whether it is valid is for those who read the whole of it."""
    yield from reader.skip_space()
    if not reader.buffer.startswith("{", reader.at):
        yield from reader.wrong("what should be a JSON object is none")
    yield from _bracketed(reader, emit)


def _bracketed(reader: Reader, emit: Callable[[str], None]) -> Steps[None]:
    brackets = Brackets()
    while True:
        start = reader.at
        reader.at, whole = brackets.scan(reader.buffer, start)
        emit(reader.buffer[start : reader.at])
        if whole:
            return
        yield from reader.more()


def read_json(reader: Reader, emit: Callable[[str], None]) -> Steps[None]:
    """One JSON value of any type, its text as it stands. Whether it is valid is for those who read the whole of it."""
    yield from reader.skip_space()
    first = reader.buffer[reader.at : reader.at + 1]
    if first in _CLOSER:
        yield from _bracketed(reader, emit)
        return
    if not first:
        yield from reader.more()
    pattern = _TEXT if first == '"' else _WORD
    while (match := pattern.match(reader.buffer, reader.at)) is None or match.end() == len(reader.buffer):
        yield from reader.more()
    emit(match.group())
    reader.at = match.end()


def read_string(reader: Reader, emit: Callable[[str], None]) -> Steps[None]:
    """One JSON string, decoded as it comes. A surrogate without its other half becomes U+FFFD."""
    yield from reader.expect('"', "what should be a JSON string is none")
    while True:
        text, reader.at, waiting = decode(reader.buffer, reader.at)
        emit(text)
        if not waiting:
            return
        yield from reader.more()


def decode(text: str, at: int, quote: str = '"', *, python: bool = False) -> tuple[str, int, bool]:
    """The inside of a string from `at` on: what is certain of it, where that ends, and whether more is needed.

    `python`: a backslash before what is no escape stands for itself.
    """
    out: list[str] = []
    while at < len(text):
        plain = _PLAIN[quote].match(text, at)
        if plain:
            out.append(plain.group())
            at = plain.end()
            continue
        if text[at] == quote:
            return "".join(out), at + 1, False
        kind = text[at + 1 : at + 2]
        if kind == "u":
            char, size = _unit(text, at)
            if not size:
                break
            out.append(char)
            at += size
        elif kind in _ESCAPES:
            out.append(_ESCAPES[kind])
            at += 2
        elif kind and python:
            out.append("\\")
            at += 1
        elif kind:
            raise MalformedOutput("a JSON string holds an unknown escape")
        else:
            break
    return "".join(out), at, True


def _unit(text: str, at: int) -> tuple[str, int]:
    """The character of the `\\u` escape or escapes at `at`, and their size; zero where more is needed."""
    code = _hex(text[at + 2 : at + 6])
    if code is None:
        return "", 0
    if 0xD800 <= code < 0xDC00:
        second = text[at + 6 : at + 12]
        if second[:2] == "\\u"[: len(second)]:
            low = _hex(second[2:]) if len(second) > 1 else None
            if low is None:
                return "", 0
            if 0xDC00 <= low < 0xE000:
                return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), 12
    return ("\N{REPLACEMENT CHARACTER}" if 0xD800 <= code < 0xE000 else chr(code)), 6


def _hex(digits: str) -> int | None:
    if not re.fullmatch(r"[0-9A-Fa-f]*", digits):
        raise MalformedOutput("a JSON string holds an unknown escape")
    return int(digits, 16) if len(digits) == 4 else None


def value(text: str) -> object:
    """The JSON value a text is, or `NOTHING`."""
    try:
        found: object = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return NOTHING
    return found


def _no_constant(name: str) -> object:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
