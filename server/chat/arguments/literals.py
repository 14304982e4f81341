"""Arguments as `key=value` pairs whose values are literals: Python's, or a notation that is almost JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.chat.arguments.copied import copied_grammar, read_copied, read_wrapped
from server.chat.arguments.json import NOTHING, read_inside, to_json, value
from server.chat.arguments.schema_types import ANY_TYPE, ArgumentTypes, Types
from server.chat.arguments.syntax import MALFORMED, ArgumentGrammar, ArgumentSyntax, compile_schema
from server.chat.reader import MalformedOutput, OutputEnded, Reader, Steps
from server.chat.template.provenance import ProvenanceStr, from_template, join
from server.wire import quoted

_BARE = re.compile(r"[^\s,\])}\[({:]*\s*")
_CLOSER = {"{": "}", "[": "]"}
_QUOTE = "a string of a call holds a quote that is not escaped"


@dataclass(frozen=True, slots=True)
class LiteralArguments(ArgumentSyntax):
    """Arguments as a row of key `pair` value between `open` and `close`; values as literals that are almost JSON.

    `notation`: its name in `grammars.rules.syntax`. Strings stand between `quote`: with escapes where that
    is `"`, raw otherwise. Keys inside objects are strings, or bare where `bare_keys`. `words`: null, true and false.

    `wrappers`: the only argument of a tool may, where it is any text, be written as it was copied
    (`server.chat.arguments.copied`), or within an object under the first of these names; under the second where the
    argument itself is called so.
    """

    notation: str
    open: str
    close: str
    pair: str
    comma: str
    colon: str
    quote: str
    words: tuple[str, str, str]
    bare_keys: bool
    wrappers: tuple[str, ...] = ()

    @property
    def literals(self) -> tuple[str, ...]:
        return (self.quote,)

    def wrapper(self, name: str) -> str:
        """The name under which the object with this argument stands."""
        return next(wrapper for wrapper in self.wrappers if wrapper != name)

    def grammar(self, schema: Mapping[str, Any], types: ArgumentTypes) -> ArgumentGrammar:
        from grammars.rules.syntax import ARGUMENT  # here, so that the web process needs none of it

        if self.wrappers and types.alone is not None and re.match(ARGUMENT, types.alone):
            return copied_grammar(schema, self, types.alone)
        return ArgumentGrammar.of(compile_schema(schema, self.notation))

    def read(self, reader: Reader, emit: Callable[[str], None], types: Types, after: str, end: str = "") -> Steps[str]:
        ending = self.close or after
        values = _Values(reader, emit, self)
        alone = types.alone if self.wrappers and isinstance(types, ArgumentTypes) else None
        yield from reader.expect(self.open, "a call is not written as its format has it")
        emit("{")
        seen: set[str] = set()
        while (yield from reader.choose([ending])) is None:
            if seen and (yield from reader.choose([self.comma])) is None:
                yield from reader.not_closed(_QUOTE if values.quoted else MALFORMED)
            if seen and (yield from reader.choose([ending])) is not None:
                break  # a comma at the end
            key = (yield from reader.text_until(self.pair.strip())).strip()
            if alone is not None and not seen and key == self.wrapper(alone):
                yield from read_wrapped(reader, emit, alone)
                yield from reader.expect(ending, MALFORMED)
                break
            if key in seen:
                raise MalformedOutput("a call names an argument twice")
            emit(f"{', ' if seen else ''}{quoted(key)}: ")
            seen.add(key)
            if alone is not None and key == alone:
                values.quoted = yield from read_copied(reader, emit, ending, end)
            else:
                yield from values.read(types.get(key, types.get(None, ANY_TYPE)))
        emit("}")
        return after if self.close else ""

    def render(self, arguments: Mapping[str, Any]) -> ProvenanceStr:
        pairs = [join([ProvenanceStr(key), self.pair, self._literal(value)]) for key, value in arguments.items()]
        return join([self.open, ProvenanceStr(self.comma).join(pairs), self.close])

    def is_exact(self, types: ArgumentTypes) -> bool:
        return types.complete

    def _literal(self, value: Any) -> ProvenanceStr:
        comma = ProvenanceStr(self.comma)
        match value:
            case str():
                if self.quote == '"':
                    return ProvenanceStr(to_json(value))
                return join([from_template(self.quote), ProvenanceStr(value), from_template(self.quote)])
            case None | bool():
                return ProvenanceStr(self.words[(None, True, False).index(value)])
            case Mapping():
                keys = value if self.bare_keys else map(to_json, value)
                pairs = [
                    join([ProvenanceStr(key), self.colon, self._literal(value[name])])
                    for key, name in zip(keys, value, strict=True)
                ]
                return join(["{", comma.join(pairs), "}"])
            case list() | tuple():
                return join(["[", comma.join([self._literal(item) for item in value]), "]"])
        return ProvenanceStr(to_json(value))


PYTHON = LiteralArguments(
    "keywords",
    "",
    "",
    "=",
    ", ",
    ": ",
    '"',
    ("None", "True", "False"),
    bare_keys=False,
    wrappers=("arguments", "parameters"),
)
"""Keyword arguments of a Python call."""

GEMMA = LiteralArguments("gemma", "{", "}", ":", ",", ":", '<|"|>', ("null", "true", "false"), bare_keys=True)
"""Gemma 4's notation: bare names, strings between tokens of their own."""


class _Values:
    """Reads values of one syntax."""

    def __init__(self, reader: Reader, emit: Callable[[str], None], syntax: LiteralArguments) -> None:
        self._reader = reader
        self._emit = emit
        self._syntax = syntax
        self.quoted = False
        """The last value stood between quotes that some other text may hold."""
        self._quotes = [syntax.quote] if syntax.quote != '"' else ['"', "'"]

    def read(self, types: Sequence[str] = ANY_TYPE) -> Steps[None]:
        reader = self._reader
        yield from reader.skip_space()
        if not reader.waiting:
            raise OutputEnded
        quote = yield from reader.choose(self._quotes)
        self.quoted = quote is not None and self._syntax.quote == '"'
        if quote is not None:
            yield from self._string(self._quotes[quote])
            return
        opening = reader.buffer[reader.at]
        if opening in _CLOSER:
            reader.at += 1
            yield from self._items(opening)
            return
        word = yield from reader.word(_BARE)
        self._emit(_word(self._syntax, word.strip(), types))

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
        """Items or members between brackets or braces, the opening one read."""
        reader, syntax, closing = self._reader, self._syntax, _CLOSER[opening]
        self._emit(opening)
        first = True
        while (yield from reader.choose([closing])) is None:
            if not first:
                if (yield from reader.choose([syntax.comma])) is None:
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
        colon = self._syntax.colon
        if self._syntax.bare_keys:
            key = yield from self._reader.text_until(colon.strip())
            self._emit(quoted(key.strip()))
        else:
            yield from self.read(("string",))
            yield from self._reader.expect(colon, "an object is not written as its format has it")
        self._emit(": ")


def _word(syntax: LiteralArguments, word: str, types: Sequence[str]) -> str:
    """The JSON of a bare word: a number, one of the notation's (or JSON's) names, or a string where only that fits."""
    if types == ("string",):
        return quoted(word)
    for names in (syntax.words, ("null", "true", "false")):
        if word in names:
            return ("null", "true", "false")[names.index(word)]
    if value(word) is NOTHING:
        raise MalformedOutput("an argument of a call is no literal")
    return word
