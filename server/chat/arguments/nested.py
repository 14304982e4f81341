"""Arguments as elements named by their keys, with elements within: only the tool's schema tells their types."""

from __future__ import annotations

from collections.abc import Callable

from server.chat.arguments.json import NOTHING, value
from server.chat.arguments.render import json_type
from server.chat.arguments.schema_types import SchemaTypes
from server.chat.formats.spec import ANY_TYPE, NestedArguments, Types
from server.chat.reader import MalformedOutput, OutputEnded, Reader, Steps
from server.wire import quoted

_DEPTH = 100
"""Elements within elements."""
_WRONG = "the arguments of a call are not written as their format has them"
_EMPTY = (("string", '""'), ("array", "[]"), ("object", "{}"), ("null", "null"))
"""What an element without content is, by the first of these types that it may have."""


def read_nested(
    reader: Reader, emit: Callable[[str], None], syntax: NestedArguments, types: Types, after: str
) -> Steps[None]:
    """The elements up to and with the literal that follows them all, a closing tag."""
    elements = _Elements(reader, emit, syntax)

    def kinds(name: str) -> tuple[str, ...]:
        return types.get(name, types.get(None, ANY_TYPE))

    yield from reader.expect(syntax.mark, _WRONG)
    tag = yield from elements.tag()
    yield from elements.members(tag, after.strip().removeprefix(syntax.mark).removesuffix(">"), kinds, 0)


class _Elements:
    def __init__(self, reader: Reader, emit: Callable[[str], None], syntax: NestedArguments) -> None:
        self._reader = reader
        self._emit = emit
        self._syntax = syntax

    def tag(self) -> Steps[str]:
        """What stands between the mark, which has been read, and `>`."""
        return (yield from self._reader.text_until(">")).strip()

    def members(self, tag: str, end: str, kinds: Callable[[str], tuple[str, ...]], depth: int) -> Steps[None]:
        """Elements as an object, up to and with the closing tag; the first tag has been read."""
        seen: set[str] = set()
        self._emit("{")
        while tag != end:
            key = self._opened(tag)
            if key in seen:
                raise MalformedOutput("a call names an argument twice")
            self._emit(f"{', ' if seen else ''}{quoted(key)}: ")
            seen.add(key)
            yield from self._value(key, kinds(key), depth + 1)
            tag = yield from self._next()
        self._emit("}")

    def _items(self, tag: str, end: str, kinds: tuple[str, ...], depth: int) -> Steps[None]:
        first = True
        self._emit("[")
        while tag != end:
            if self._opened(tag) != self._syntax.item:
                raise MalformedOutput(_WRONG)
            self._emit("" if first else ", ")
            first = False
            yield from self._value(self._syntax.item, kinds, depth + 1)
            tag = yield from self._next()
        self._emit("]")

    def _opened(self, tag: str) -> str:
        if not tag.startswith("<") or tag.startswith("</"):
            raise MalformedOutput(_WRONG)
        return tag[1:]

    def _next(self) -> Steps[str]:
        yield from self._reader.expect(self._syntax.mark, _WRONG)
        return (yield from self.tag())

    def _value(self, key: str, kinds: tuple[str, ...], depth: int) -> Steps[None]:
        """One value and its closing tag; the opening one has been read."""
        if depth > _DEPTH:
            raise MalformedOutput("the arguments of a call are nested too deeply")
        end = f"</{key}"
        if kinds == ("string",):
            yield from self._text()
            if (yield from self.tag()) != end:
                raise MalformedOutput(_WRONG)
            return
        text = yield from self._reader.text_until(self._syntax.mark)
        tag = yield from self.tag()
        if tag == end:
            self._emit(_scalar(text, kinds))
        elif text.strip() or not {"array", "object"} & set(kinds):
            raise MalformedOutput(_WRONG)
        elif "array" in kinds and (tag == f"<{self._syntax.item}" or "object" not in kinds):
            yield from self._items(tag, end, kinds.item() if isinstance(kinds, SchemaTypes) else ANY_TYPE, depth)
        else:
            member = kinds.member if isinstance(kinds, SchemaTypes) else lambda name: ANY_TYPE
            yield from self.members(tag, end, member, depth)

    def _text(self) -> Steps[None]:
        """A text as it comes, up to and with the next mark."""
        self._emit('"')
        if (yield from self._reader.until([self._syntax.mark], self._say)) is None:
            raise OutputEnded
        self._emit('"')

    def _say(self, text: str) -> None:
        self._emit(quoted(text)[1:-1])


def _scalar(text: str, kinds: tuple[str, ...]) -> str:
    """The JSON of an element's text: of a type that it may have."""
    if not text:
        empty = next((empty for kind, empty in _EMPTY if kind in kinds), None)
        if empty is None:
            raise MalformedOutput("an argument of a call is empty")
        return empty
    found = value(text)
    if found is not NOTHING and json_type(found) in kinds and json_type(found) != "string":
        return text.strip()
    if "string" in kinds:
        return quoted(text)
    if found is NOTHING:
        raise MalformedOutput("an argument of a call is not JSON")
    return text.strip()  # of a type that its schema refuses, and will say so
