"""JSON (RFC 8259): the syntax of arguments that are one object, and readers of JSON text as it comes.

An object is passed on as it stands, the text of a string decoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from server.chat.arguments.schema_types import ArgumentTypes, Types
from server.chat.arguments.syntax import ArgumentGrammar, ArgumentSyntax, compile_schema
from server.chat.reader import MalformedOutput, Reader, Steps
from server.chat.template.provenance import ProvenanceStr

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
_PLAIN = {'"': re.compile(r'[^"\\]+'), "'": re.compile(r"[^'\\]+")}
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_WORD = re.compile(r"[-+.0-9A-Za-z]*")
_HEX = re.compile(r"[0-9A-Fa-f]*")
_CLOSER = {"{": "}", "[": "]"}
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

NOTHING = object()
"""The answer of `value` for text that is no JSON."""


@dataclass(frozen=True, slots=True)
class JsonArguments(ArgumentSyntax):
    """Arguments as one JSON object."""

    self_describing: ClassVar[bool] = True

    def openings(self, after: str) -> tuple[str, ...]:
        return ("{",)

    def grammar(self, schema: Mapping[str, Any], types: ArgumentTypes) -> ArgumentGrammar:
        return ArgumentGrammar.of(compile_schema(schema))

    def read(self, reader: Reader, emit: Callable[[str], None], types: Types, after: str, end: str = "") -> Steps[str]:
        yield from read_object(reader, emit)
        return after

    def render(self, arguments: Mapping[str, Any]) -> ProvenanceStr:
        return ProvenanceStr(to_json(arguments))

    def is_exact(self, types: ArgumentTypes) -> bool:
        return True


def to_json(value: Any) -> str:
    """A value's JSON as histories show it: spaced, no character escaped that need not be."""
    return json.dumps(value, ensure_ascii=False)


@dataclass(slots=True)
class Brackets:
    """A search for the end of the object or array that a text begins with, by its brackets and strings."""

    _closers: list[str] = field(default_factory=list)
    _quoted: bool = False

    def scan(self, text: str, at: int) -> tuple[int, bool]:
        """Continue at `at`. Returns the position up to which the text is seen, and true where the end lies there.

        Raises `MalformedOutput`.
        """
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
    """One JSON object, its text as it stands; it is not checked beyond its brackets."""
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
    """One JSON value of any type, its text as it stands; it is not checked beyond its end."""
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
    yield from read_inside(reader, emit, '"')


def read_inside(reader: Reader, emit: Callable[[str], None], quote: str, *, python: bool = False) -> Steps[None]:
    """A string behind its opening quote, up to and with the closing one, decoded as it comes."""
    while True:
        text, reader.at, waiting = decode(reader.buffer, reader.at, quote, python=python)
        emit(text)
        if not waiting:
            return
        yield from reader.more()


def decode(text: str, at: int, quote: str = '"', *, python: bool = False) -> tuple[str, int, bool]:
    """The inside of a string from `at` on: its text as far as that is certain, the position behind it, and true where
    more is needed.

    `python`: as Python has it (Language Reference, 2.4.1): a backslash before what is no escape stands for itself.
    """
    escape = _python_escape if python else _escape
    out: list[str] = []
    while at < len(text):
        plain = _PLAIN[quote].match(text, at)
        if plain:
            out.append(plain.group())
            at = plain.end()
            continue
        if text[at] == quote:
            return "".join(out), at + 1, False
        char, size = escape(text, at)
        if not size:
            break
        out.append(char)
        at += size
    return "".join(out), at, True


def _escape(text: str, at: int) -> tuple[str, int]:
    """The character of the escape at `at` and its size; zero where more is needed."""
    kind = text[at + 1 : at + 2]
    if kind == "u":
        if not _HEX.fullmatch(text[at + 2 : at + 6]):
            raise MalformedOutput("a JSON string holds an unknown escape")
        return _unit(text, at)
    if kind and kind not in _ESCAPES:
        raise MalformedOutput("a JSON string holds an unknown escape")
    return (_ESCAPES[kind], 2) if kind else ("", 0)


def _python_escape(text: str, at: int) -> tuple[str, int]:
    kind = text[at + 1 : at + 2]
    if kind in ("x", "u"):
        size = 4 if kind == "x" else 6
        digits = text[at + 2 : at + size]
        if not _HEX.fullmatch(digits):
            return "\\", 1
        if kind == "u":
            return _unit(text, at)
        return (chr(int(digits, 16)), size) if len(digits) == 2 else ("", 0)
    if kind and (kind == "/" or kind not in _ESCAPES):
        return "\\", 1
    return _escape(text, at)


def _unit(text: str, at: int) -> tuple[str, int]:
    """The character of the `\\u` escape or escapes at `at`, and their size; zero where more is needed."""
    digits = text[at + 2 : at + 6]
    if len(digits) < 4:
        return "", 0
    code = int(digits, 16)
    if 0xD800 <= code < 0xDC00:
        second = text[at + 6 : at + 12]
        if second[:2] == "\\u"[: len(second)] and _HEX.fullmatch(second[2:]):
            if len(second) < 6:
                return "", 0
            low = int(second[2:], 16)
            if 0xDC00 <= low < 0xE000:
                return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), 12
    return ("\N{REPLACEMENT CHARACTER}" if 0xD800 <= code < 0xE000 else chr(code)), 6


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
