"""Arguments as elements, one each: strings raw, everything else as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from server.chat.arguments.json import NOTHING, to_json, value
from server.chat.arguments.schema_types import ANY_TYPE, ArgumentTypes, Types, json_type
from server.chat.arguments.syntax import MALFORMED, ArgumentGrammar, ArgumentSyntax, compile_schema
from server.chat.reader import MalformedOutput, OutputEnded, Reader, Steps, tokens
from server.chat.template.provenance import ProvenanceStr, from_template, join
from server.wire import quoted

if TYPE_CHECKING:
    from grammars import TaggedSyntax


@dataclass(frozen=True, slots=True)
class TaggedArguments(ArgumentSyntax):
    """One element an argument: `open` key `named` value `close`.

    A string stands raw and ends before `close`; every other value is JSON. `typed`: the element also tells the type
    of its value, so `named` differs: by JSON type, with "other" for those not listed.
    """

    open: str
    named: str
    close: str
    typed: tuple[tuple[str, str], ...] = ()

    @property
    def literals(self) -> tuple[str, ...]:
        return (self.open, self.named, self.close, *(text for _, text in self.typed))

    def openings(self, after: str) -> tuple[str, ...]:
        return (self.open, after)

    def grammar(self, schema: Mapping[str, Any], types: ArgumentTypes) -> ArgumentGrammar:
        return ArgumentGrammar.of(compile_schema(schema, self._elements()))

    def read(self, reader: Reader, emit: Callable[[str], None], types: Types, after: str, end: str = "") -> Steps[str]:
        seen: set[str] = set()
        emit("{")
        while True:
            choice = yield from reader.choose([self.open, after])
            if choice is None:
                yield from reader.wrong(MALFORMED)
            if choice == 1:
                break
            key, allowed = yield from _key(reader, self, types)
            if key in seen:
                raise MalformedOutput("a call names an argument twice")
            emit(f"{', ' if seen else ''}{quoted(key)}: ")
            seen.add(key)
            yield from _value(reader, emit, self.close, allowed)
        emit("}")
        return ""

    def render(self, arguments: Mapping[str, Any]) -> ProvenanceStr:
        return join(self._element(key, value) for key, value in arguments.items())

    def is_exact(self, types: ArgumentTypes) -> bool:
        # Raw text that is JSON of another type the argument may have is read as that.
        return types.complete and (
            bool(self.typed) or all("string" not in kinds or len(kinds) == 1 for kinds in types.values())
        )

    def _elements(self) -> TaggedSyntax:
        from grammars import TaggedSyntax  # here, so that the web process needs none of it

        return TaggedSyntax(self.open, self.named, self.close, self.typed)

    def _element(self, key: str, value: Any) -> ProvenanceStr:
        text = value if isinstance(value, str) else to_json(value)
        named = self._elements().after_name(json_type(value))
        parts = [from_template(self.open), ProvenanceStr(key), from_template(named), ProvenanceStr(text)]
        return join([*parts, from_template(self.close)])


def _key(reader: Reader, tags: TaggedArguments, types: Types) -> Steps[tuple[str, Sequence[str]]]:
    """An argument's name and the types its value may have."""
    kinds = dict(tags.typed) or {"": tags.named}
    key = (yield from reader.text_until(tokens(next(iter(kinds.values())))[0])).strip()
    choice = yield from reader.choose(["".join(tokens(named)[1:]) for named in kinds.values()])
    if choice is None:
        yield from reader.wrong(MALFORMED)
    allowed: Sequence[str] = types.get(key, types.get(None, ANY_TYPE))
    if tags.typed:
        allowed = ("string",) if list(kinds)[choice or 0] == "string" else tuple(set(ANY_TYPE) - {"string"})
    if tags.named.endswith("\n"):
        yield from reader.skip_newline()
    return key, allowed


def _value(reader: Reader, emit: Callable[[str], None], close: str, types: Sequence[str]) -> Steps[None]:
    """One value up to its closing marker: text as it stands, everything else as JSON."""
    markers = [close.rstrip(), close.strip()]
    if types == ("string",):
        emit('"')
        if (yield from reader.until(markers, lambda text: emit(quoted(text)[1:-1]))) is None:
            raise OutputEnded
        emit('"')
        return
    read: list[str] = []
    if (yield from reader.until(markers, read.append)) is None:
        raise OutputEnded
    text = "".join(read)
    found = value(text)
    if found is not NOTHING and json_type(found) in types and json_type(found) != "string":
        emit(text.strip())
    elif "string" in types:
        emit(quoted(text))
    elif found is not NOTHING:
        emit(text.strip())  # of a type that its schema refuses, and will say so
    else:
        raise MalformedOutput("an argument of a call is not JSON")
