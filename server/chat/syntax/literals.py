"""Arguments as `key=value` pairs whose values are literals: Python's, or a notation that is almost JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from server.chat.format import ANY_TYPE, Literals, Types
from server.chat.reader import MalformedOutput, OutputEnded, Reader, Steps
from server.chat.syntax.objects import NOTHING, decode, value
from server.wire import quoted

_BARE = re.compile(r"[^\s,\])}\[({:]*\s*")
_CLOSER = {"{": "}", "[": "]"}


def read_pairs(
    reader: Reader, emit: Callable[[str], None], notation: Literals, types: Types, after: str
) -> Steps[None]:
    """`key=value, …` up to and with the literal that follows."""
    values = _Values(reader, emit, notation)
    yield from reader.expect(notation.open, "a call is not written as its format has it")
    emit("{")
    seen: set[str] = set()
    while (yield from reader.choose([after])) is None:
        if seen and (yield from reader.choose([notation.comma])) is None:
            yield from reader.wrong("the arguments of a call are not written as their format has them")
        if seen and (yield from reader.choose([after])) is not None:
            break  # a comma at the end
        key = (yield from reader.text_until(notation.pair.strip())).strip()
        if key in seen:
            raise MalformedOutput("a call names an argument twice")
        emit(f"{', ' if seen else ''}{quoted(key)}: ")
        seen.add(key)
        yield from values.read(types.get(key, types.get(None, ANY_TYPE)))
    emit("}")


class _Values:
    """Reads values of one notation."""

    def __init__(self, reader: Reader, emit: Callable[[str], None], notation: Literals) -> None:
        self._reader = reader
        self._emit = emit
        self._notation = notation
        self._quotes = [notation.quote] if notation.quote != '"' else ['"', "'"]

    def read(self, types: Sequence[str] = ANY_TYPE) -> Steps[None]:
        reader = self._reader
        yield from reader.skip_space()
        if not reader.waiting:
            raise OutputEnded
        quote = yield from reader.choose(self._quotes)
        if quote is not None:
            yield from self._string(self._quotes[quote])
            return
        opening = reader.buffer[reader.at]
        if opening in _CLOSER:
            reader.at += 1
            yield from self._items(opening)
            return
        word = yield from reader.word(_BARE)
        self._emit(_word(self._notation, word.strip(), types))

    def _string(self, quote: str) -> Steps[None]:
        self._emit('"')
        if quote in ("'", '"'):
            yield from self._escaped(quote)
        elif (yield from self._reader.until([quote], self._say)) is None:
            raise OutputEnded
        self._emit('"')

    def _say(self, text: str) -> None:
        self._emit(quoted(text)[1:-1])

    def _escaped(self, quote: str) -> Steps[None]:
        """The inside of a Python string literal, as the inside of a JSON string."""
        reader = self._reader
        while True:
            text, reader.at, waiting = decode(reader.buffer, reader.at, quote, python=True)
            self._say(text)
            if not waiting:
                return
            yield from reader.more()

    def _items(self, opening: str) -> Steps[None]:
        """What stands between brackets or braces, the opening one read."""
        reader, notation, closing = self._reader, self._notation, _CLOSER[opening]
        self._emit(opening)
        first = True
        while (yield from reader.choose([closing])) is None:
            if not first:
                if (yield from reader.choose([notation.comma])) is None:
                    yield from reader.wrong("a list or an object is not written as its format has it")
                if (yield from reader.choose([closing])) is not None:
                    break
                self._emit(", ")
            first = False
            if opening == "{":
                yield from self._key()
            yield from self.read()
        self._emit(closing)

    def _key(self) -> Steps[None]:
        colon = self._notation.colon
        if self._notation.bare_keys:
            key = yield from self._reader.text_until(colon.strip())
            self._emit(quoted(key.strip()))
        else:
            yield from self.read(("string",))
            yield from self._reader.expect(colon, "an object is not written as its format has it")
        self._emit(": ")


def _word(notation: Literals, word: str, types: Sequence[str]) -> str:
    """The JSON of a bare word: a number, one of the notation's (or JSON's) names, or a string where only that fits."""
    if types == ("string",):
        return quoted(word)
    for names in (notation.words, ("null", "true", "false")):
        if word in names:
            return ("null", "true", "false")[names.index(word)]
    if value(word) is NOTHING:
        raise MalformedOutput("an argument of a call is no literal")
    return word
