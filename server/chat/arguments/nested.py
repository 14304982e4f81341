"""Arguments as elements named by their keys, with elements within: only the tool's schema tells their types."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from server.chat.arguments.json import NOTHING, to_json, value
from server.chat.arguments.schema_types import ANY_TYPE, ArgumentTypes, SchemaTypes, Types, json_type
from server.chat.arguments.syntax import MALFORMED, ArgumentGrammar, ArgumentSyntax, compile_schema
from server.chat.gbnf import choice, quote, sequence
from server.chat.reader import MalformedOutput, OutputEnded, Reader, Steps
from server.chat.template.provenance import ProvenanceStr, from_template, join
from server.wire import quoted

if TYPE_CHECKING:
    from grammars import Compiled

_DEPTH = 100
"""Elements within elements."""
_EMPTY = (("string", '""'), ("array", "[]"), ("object", "{}"), ("null", "null"))
"""The value of an element without content, by the first of these types that it may have."""
_SCALARS = ("boolean", "number", "string")
_NOTHING = '""'
_MAX_ITEMS = 64
"""Items of a list that are counted; beyond, any number may come."""
_OTHER_REFERENCES = re.compile(r'"\$(ref|dynamicRef)": "(?!#/(\$defs|definitions)/)')
"""References that mean something else where a schema stands by itself."""


@dataclass(frozen=True, slots=True)
class NestedArguments(ArgumentSyntax):
    """Arguments as elements named by their keys, `mark<key>` value `mark</key>`; so are the members of an object, and
    the items of a list, which are called `item`.

    Strings stand raw, numbers and booleans as JSON, null not at all. Nothing but the schema tells the types.
    """

    mark: str
    item: str = "item"

    @property
    def literals(self) -> tuple[str, ...]:
        return (self.mark,)

    def openings(self, after: str) -> tuple[str, ...]:
        return (self.mark,)

    def grammar(self, schema: Mapping[str, Any], types: ArgumentTypes) -> ArgumentGrammar:
        whole = compile_schema(schema)
        return ArgumentGrammar(
            lambda prefix: _GrammarWriter(schema, self, prefix).write(), whole.satisfiable, not whole.unchecked
        )

    def read(self, reader: Reader, emit: Callable[[str], None], types: Types, after: str, end: str = "") -> Steps[str]:
        elements = _Elements(reader, emit, self)

        def kinds(name: str) -> tuple[str, ...]:
            return types.get(name, types.get(None, ANY_TYPE))

        yield from reader.expect(self.mark, MALFORMED)
        tag = yield from elements.tag()
        yield from elements.members(tag, after.strip().removeprefix(self.mark).removesuffix(">"), kinds, 0)
        return ""

    def render(self, arguments: Mapping[str, Any]) -> ProvenanceStr:
        return self._content(arguments)

    def is_exact(self, types: ArgumentTypes) -> bool:
        return False  # the grammar leaves out null, undeclared members and combinations of members

    def _content(self, value: Any) -> ProvenanceStr:
        match value:
            case Mapping():
                return join(self._element(str(key), member) for key, member in value.items() if member is not None)
            case list() | tuple():
                return join(self._element(self.item, item) for item in value)
            case None:
                return ProvenanceStr("")
        return ProvenanceStr(value if isinstance(value, str) else to_json(value))

    def _element(self, key: str, value: Any) -> ProvenanceStr:
        name, end = ProvenanceStr(key), from_template(">")
        opening = [from_template(f"{self.mark}<"), name, end]
        return join([*opening, self._content(value), from_template(f"{self.mark}</"), name, end])


class _Elements:
    """A reader of elements within elements."""

    def __init__(self, reader: Reader, emit: Callable[[str], None], syntax: NestedArguments) -> None:
        self._reader = reader
        self._emit = emit
        self._syntax = syntax

    def tag(self) -> Steps[str]:
        """The text between the mark, which has been read, and `>`."""
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
                raise MalformedOutput(MALFORMED)
            self._emit("" if first else ", ")
            first = False
            yield from self._value(self._syntax.item, kinds, depth + 1)
            tag = yield from self._next()
        self._emit("]")

    def _opened(self, tag: str) -> str:
        if not tag.startswith("<") or tag.startswith("</"):
            raise MalformedOutput(MALFORMED)
        return tag[1:]

    def _next(self) -> Steps[str]:
        yield from self._reader.expect(self._syntax.mark, MALFORMED)
        return (yield from self.tag())

    def _value(self, key: str, kinds: tuple[str, ...], depth: int) -> Steps[None]:
        """One value and its closing tag; the opening one has been read."""
        if depth > _DEPTH:
            raise MalformedOutput("the arguments of a call are nested too deeply")
        end = f"</{key}"
        if kinds == ("string",):
            yield from self._text()
            if (yield from self.tag()) != end:
                raise MalformedOutput(MALFORMED)
            return
        text = yield from self._reader.text_until(self._syntax.mark)
        tag = yield from self.tag()
        if tag == end:
            self._emit(_scalar(text, kinds))
        elif text.strip() or not {"array", "object"} & set(kinds):
            raise MalformedOutput(MALFORMED)
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


class _GrammarWriter:
    """Rules of one tool's arguments: declared members in the order of the schema, items within their bounds.

    Texts, numbers and booleans are written by `grammars`, each with the tags around it; objects and lists here.
    """

    def __init__(self, root: Mapping[str, Any], syntax: NestedArguments, prefix: str) -> None:
        self._root = root
        self._syntax = syntax
        self._prefix = prefix
        self._rules: list[str] = []
        self._names: dict[tuple[str, str], str] = {}

    def write(self) -> str:
        members = self._members(SchemaTypes.of(self._root, self._root))
        self._rules.append(f"{self._prefix}root ::= {members or _NOTHING}")
        return "\n".join(self._rules)

    def _element(self, key: str, schema: Any) -> str:
        """The rule of one element; the same for the same schema, so that schemas may hold themselves."""
        known = (key, json.dumps(schema, sort_keys=True, default=str))
        if known in self._names:
            return self._names[known]
        name = self._names[known] = f"{self._prefix}e{len(self._names)}"
        kinds = SchemaTypes.of(schema, self._root)
        open, close = quote(f"{self._syntax.mark}<{key}>"), quote(f"{self._syntax.mark}</{key}>")
        ways = []
        scalar = self._scalar(key, schema, kinds)
        if scalar is not None:
            self._rules.append(scalar.rules(f"{name}-"))
            ways.append(sequence([f"{name}-root", quote(f"</{key}>")]))
        if "array" in kinds:
            ways.append(sequence([open, self._items(kinds), close]))
        if "object" in kinds:
            ways.append(sequence([open, self._members(kinds), close]))
        self._rules.append(f"{name} ::= {choice(ways or [sequence([open, close])])}")
        return name

    def _scalar(self, key: str, schema: Any, kinds: SchemaTypes) -> Compiled | None:
        """The element, up to its closing mark, with every value that is no object, no list and not null."""
        from grammars import InvalidSchema, TaggedSyntax, UnsupportedSchema  # here: the web process needs none of it

        types = [kind for kind in _SCALARS if kind in kinds]
        if not types:
            return None
        elements = TaggedSyntax(f"{self._syntax.mark}<", ">", self._syntax.mark)  # no text holds the mark
        plain: Any = {"type": types}
        definitions = {name: self._root[name] for name in ("$defs", "definitions") if name in self._root}
        exact = plain if _OTHER_REFERENCES.search(json.dumps(schema, default=str)) else {"allOf": [schema, plain]}
        for wanted in (exact, plain):
            element = {"type": "object", "properties": {key: wanted}, "required": [key], "additionalProperties": False}
            try:
                found = compile_schema({**definitions, **element}, elements)
            except (InvalidSchema, UnsupportedSchema):
                continue
            return found if found.satisfiable else None
        return None

    def _items(self, kinds: SchemaTypes) -> str:
        item = self._element(self._syntax.item, kinds.item().schema)
        least = max((branch.get("minItems", 0) for branch in kinds.branches()), default=0)
        most = min((branch.get("maxItems", _MAX_ITEMS + 1) for branch in kinds.branches()), default=_MAX_ITEMS + 1)
        return f"{item}{{{min(least, _MAX_ITEMS)},{most if most <= _MAX_ITEMS else ''}}}" if most else ""

    def _members(self, kinds: SchemaTypes) -> str:
        """The members of an object, declared and required ones."""
        lists = [branch["required"] for branch in kinds.branches() if isinstance(branch.get("required"), list)]
        required = {name for names in lists for name in names}
        declared = dict.fromkeys(name for branch in kinds.branches() for name in branch.get("properties", {}))
        parts = []
        for name in [*declared, *sorted(required - declared.keys())]:
            schema = kinds.member(name).schema
            if schema is not False and re.fullmatch(r"[^<>\s]+", name):
                parts.append(f"{self._element(name, schema)}{'' if name in required else '?'}")
        return sequence(parts)
