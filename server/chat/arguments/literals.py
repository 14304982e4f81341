"""Arguments as `key=value` pairs whose values are literals: Python's, or a notation that is almost JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from server.chat.arguments.copied import read_copied, read_wrapped
from server.chat.arguments.json import NOTHING, read_inside, value
from server.chat.arguments.schema_types import Members
from server.chat.formats.spec import ANY_TYPE, LiteralArguments, Types
from server.chat.reader import MalformedOutput, OutputEnded, Reader, Steps
from server.wire import quoted

_BARE = re.compile(r"[^\s,\])}\[({:]*\s*")
_CLOSER = {"{": "}", "[": "]"}
_WRONG = "the arguments of a call are not written as their format has them"
_QUOTE = "a string of a call holds a quote that is not escaped"


def read_pairs(
    reader: Reader, emit: Callable[[str], None], notation: LiteralArguments, types: Types, after: str, end: str = ""
) -> Steps[None]:
    """`key=value, …` up to and with the literal that follows; `end`: what comes behind that if this may be all."""
    values = _Values(reader, emit, notation)
    alone = types.alone if notation.wrappers and isinstance(types, Members) else None
    yield from reader.expect(notation.open, "a call is not written as its format has it")
    emit("{")
    seen: set[str] = set()
    while (yield from reader.choose([after])) is None:
        if seen and (yield from reader.choose([notation.comma])) is None:
            yield from reader.not_closed(_QUOTE if values.quoted else _WRONG)
        if seen and (yield from reader.choose([after])) is not None:
            break  # a comma at the end
        key = (yield from reader.text_until(notation.pair.strip())).strip()
        if alone is not None and not seen and key == notation.wrapper(alone):
            yield from read_wrapped(reader, emit, alone)
            yield from reader.expect(after, _WRONG)
            break
        if key in seen:
            raise MalformedOutput("a call names an argument twice")
        emit(f"{', ' if seen else ''}{quoted(key)}: ")
        seen.add(key)
        if alone is not None and key == alone:
            values.quoted = yield from read_copied(reader, emit, after, end)
        else:
            yield from values.read(types.get(key, types.get(None, ANY_TYPE)))
    emit("}")


class _Values:
    """Reads values of one notation."""

    def __init__(self, reader: Reader, emit: Callable[[str], None], notation: LiteralArguments) -> None:
        self._reader = reader
        self._emit = emit
        self._notation = notation
        self.quoted = False
        """Whether the last value stood between quotes that some other text may hold."""
        self._quotes = [notation.quote] if notation.quote != '"' else ['"', "'"]

    def read(self, types: Sequence[str] = ANY_TYPE) -> Steps[None]:
        reader = self._reader
        yield from reader.skip_space()
        if not reader.waiting:
            raise OutputEnded
        quote = yield from reader.choose(self._quotes)
        self.quoted = quote is not None and self._notation.quote == '"'
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
            yield from read_inside(self._reader, self._say, quote, python=True)
        elif (yield from self._reader.until([quote], self._say)) is None:
            raise OutputEnded
        self._emit('"')

    def _say(self, text: str) -> None:
        self._emit(quoted(text)[1:-1])

    def _items(self, opening: str) -> Steps[None]:
        """What stands between brackets or braces, the opening one read."""
        reader, notation, closing = self._reader, self._notation, _CLOSER[opening]
        self._emit(opening)
        first = True
        while (yield from reader.choose([closing])) is None:
            if not first:
                if (yield from reader.choose([notation.comma])) is None:
                    yield from reader.wrong(
                        _QUOTE if self.quoted else "a list or an object is not written as its format has it"
                    )
                if (yield from reader.choose([closing])) is not None:
                    break
                self._emit(", ")
            first = False
            if opening == "{":
                yield from self._key()
            yield from self.read()
        self.quoted = False
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


def _word(notation: LiteralArguments, word: str, types: Sequence[str]) -> str:
    """The JSON of a bare word: a number, one of the notation's (or JSON's) names, or a string where only that fits."""
    if types == ("string",):
        return quoted(word)
    for names in (notation.words, ("null", "true", "false")):
        if word in names:
            return ("null", "true", "false")[names.index(word)]
    if value(word) is NOTHING:
        raise MalformedOutput("an argument of a call is no literal")
    return word
