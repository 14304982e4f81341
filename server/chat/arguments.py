"""A tool's arguments in a format's syntax: their grammar, what it leaves to validation, and how to decode them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grammars import Compiled, compile_schema
from server.chat.format import ANY_TYPE, Literals, Syntax, Tagged, Types
from server.chat.gbnf import Gbnf, choice, quote, sequence
from server.chat.spell import json_type

_NUMBER = {"integer": "number"}
_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "$comment", "readOnly", "writeOnly"}
)
_SIMPLE_ROOT = _ANNOTATIONS | {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$schema",
    "$id",
    "$defs",
    "definitions",
}
_SIMPLE_STRING = _ANNOTATIONS | {"type", "enum", "const"}


class Arguments(ABC):
    """The arguments of one tool.

    `checked`: the grammar is wider than the schema, so that completed arguments must be validated. `satisfiable`:
    some value is valid. `types`: how the parser decodes values that stand raw.
    """

    def __init__(self, schema: Compiled, types: Types, *, checked: bool = False) -> None:
        self.checked = checked or bool(schema.checks)
        self.satisfiable = schema.satisfiable
        self.types = types

    @abstractmethod
    def write(self, gbnf: Gbnf, prefix: str) -> str:
        """Add the rules, all names prefixed; what stands for the arguments in other rules."""


def arguments(schema: Mapping[str, Any], syntax: Syntax) -> Arguments:
    """Raises `UnsupportedSchema` and `InvalidSchema` of `grammars`."""
    whole = compiled(schema)
    match syntax:
        case Tagged():
            return _Elements(schema, whole, syntax)
        case Literals():
            return _Pairs(schema, whole, syntax)
    return _JsonArguments(whole)


def compiled(schema: Mapping[str, Any] | bool, **options: Any) -> Compiled:
    return compile_schema(schema, style="spaced", **options)


class _JsonArguments(Arguments):
    def __init__(self, schema: Compiled) -> None:
        super().__init__(schema, {})
        self._schema = schema

    def write(self, gbnf: Gbnf, prefix: str) -> str:
        gbnf.add(self._schema.rules(prefix))
        return f"{prefix}root"


class _Members(Arguments):
    """Properties in the schema's order, the optional ones left out or not. Undeclared ones are not offered."""

    def __init__(self, schema: Mapping[str, Any], whole: Compiled) -> None:
        properties = schema.get("properties", {})
        undeclared = [name for name in schema.get("required", ()) if name not in properties]
        self._members = {**properties, **dict.fromkeys(undeclared, schema.get("additionalProperties", True))}
        self._schema = schema
        kinds = {name: types(member, schema) for name, member in self._members.items()}
        super().__init__(whole, kinds, checked=bool(undeclared) or not _SIMPLE_ROOT.issuperset(schema))

    def _restricted(self, member: Any, group: Sequence[str]) -> Compiled:
        """The member's schema with fewer types, as JSON."""
        whole = member if set(group) == set(ANY_TYPE) else {"allOf": [member], "type": list(group)}
        if "$ref" not in json.dumps(member):
            return compiled(whole)
        # References lead into the tool's schema; give the member's own document its definitions.
        return compiled(
            {**{key: self._schema[key] for key in ("$defs", "definitions") if key in self._schema}, **whole}
        )


class _Elements(_Members):
    """One element an argument."""

    def __init__(self, schema: Mapping[str, Any], whole: Compiled, tags: Tagged) -> None:
        super().__init__(schema, whole)
        self._tags = tags
        self.checked |= any(
            "string" in self.types[name] and not _exact(member) for name, member in self._members.items()
        )

    def write(self, gbnf: Gbnf, prefix: str) -> str:
        required = set(self._schema.get("required", ()))
        parts = []
        for index, (name, member) in enumerate(self._members.items()):
            rule = gbnf.add_rule(f"{prefix}p{index}", self._element(gbnf, f"{prefix}p{index}-", name, member))
            parts.append(rule if name in required else f"{rule}?")
        return gbnf.add_rule(f"{prefix}root", sequence(parts) or '""')

    def _element(self, gbnf: Gbnf, prefix: str, name: str, member: Any) -> str:
        tags = self._tags
        ways = [
            sequence([gbnf.literal(tags.after_key(kind)), value])
            for kind, value in self._values(gbnf, prefix, name, member)
        ]
        return sequence([gbnf.literal(tags.open), quote(name), choice(ways)])

    def _values(self, gbnf: Gbnf, prefix: str, name: str, member: Any) -> Iterable[tuple[str, str]]:
        """The ways to write a value, each with the type the element tells, up to and with the closing marker."""
        tags, kinds = self._tags, self.types[name]
        others = tuple(kind for kind in kinds if kind != "string")
        if "string" in kinds:
            exact = _texts(member)
            if exact is None:
                yield "string", gbnf.until(f"{prefix}text", tags.close)
            else:
                yield "string", sequence([choice([quote(text) for text in exact] or ['""']), gbnf.literal(tags.close)])
        if not others or ("string" in kinds and not tags.typed):
            return  # raw text covers JSON, and the parser tells them apart
        groups = [(kind,) for kind in others] if len(tags.typed) > 2 else [others]
        for index, group in enumerate(groups):
            rules = self._restricted(member, group)
            if rules.satisfiable:
                gbnf.add(rules.rules(f"{prefix}v{index}-"))
                yield group[0], sequence([f"{prefix}v{index}-root", gbnf.literal(tags.close)])


class _Pairs(_Members):
    """Keyword arguments with values as literals."""

    def __init__(self, schema: Mapping[str, Any], whole: Compiled, notation: Literals) -> None:
        super().__init__(schema, whole)
        self._notation = notation
        self.checked |= not all(self._follows(member) for member in self._members.values())

    def _follows(self, schema: Any) -> bool:
        """Whether `_value` writes exactly the values of this schema."""
        kinds = types(schema, self._schema)
        if not isinstance(schema, Mapping) or "$ref" in schema:
            return False
        if {"array", "object"}.isdisjoint(kinds):
            return self._notation.quote == '"' or "string" not in kinds or _exact(schema)
        if kinds == ("array",) and schema.keys() <= _ANNOTATIONS | {"type", "items"}:
            return self._follows(schema.get("items", True))
        if kinds == ("object",) and schema.keys() <= _SIMPLE_ROOT and schema.get("additionalProperties") is False:
            members = schema.get("properties", {})
            return set(schema.get("required", ())) <= members.keys() and all(map(self._follows, members.values()))
        return False

    def write(self, gbnf: Gbnf, prefix: str) -> str:
        notation = self._notation
        rules = _Literal(gbnf, prefix, notation, self)
        members = [(f"{name}{notation.pair}", member) for name, member in self._members.items()]
        return rules.row(members, [name in self._schema.get("required", ()) for name in self._members])


class _Literal:
    """Writes the values of schemas as literals, following arrays and objects as deep as schemas are plain."""

    def __init__(self, gbnf: Gbnf, prefix: str, notation: Literals, owner: _Members) -> None:
        self._gbnf, self._prefix, self._notation, self._owner = gbnf, prefix, notation, owner
        self._names = 0
        self._any = ""

    def _new(self, body: str) -> str:
        self._names += 1
        return self._gbnf.add_rule(f"{self._prefix}l{self._names}", body)

    def row(self, members: Sequence[tuple[str, Any]], required: Sequence[bool]) -> str:
        """Members (what stands before the value, its schema) with commas between those that are there."""
        comma = quote(self._notation.comma)
        after, first = "", ""
        for (before, schema), needed in reversed(list(zip(members, required, strict=True))):
            member = sequence([quote(before), self.value(schema)])
            alone = sequence([member, after])
            later = sequence([comma, alone])
            first = self._new(alone if needed else choice([alone, first or '""']))
            after = self._new(later if needed else choice([later, after or '""']))
        return first or '""'

    def value(self, schema: Any) -> str:
        kinds = types(schema, self._owner._schema)
        if set(kinds) == set(ANY_TYPE):
            return self.any()
        ways = [way for kind in kinds for way in self._of(schema, kind)]
        return self._new(choice(ways)) if ways else self.any()

    def _of(self, schema: Mapping[str, Any], kind: str) -> Iterable[str]:
        gbnf, notation = self._gbnf, self._notation
        if kind in ("null", "boolean"):
            listed = schema.get("enum", [schema["const"]] if "const" in schema else [None, True, False])
            values = [value for value in listed if json_type(value) == kind]
            return [quote(notation.words[(None, True, False).index(value)]) for value in values]
        if kind == "string" and notation.quote != '"':
            texts = _texts(schema)
            if texts is None:
                return [self._text()]
            return [
                sequence([gbnf.literal(notation.quote), quote(text), gbnf.literal(notation.quote)]) for text in texts
            ]
        if kind in ("string", "number"):
            rules = self._owner._restricted(schema, (kind,))
            self._names += 1
            prefix = f"{self._prefix}j{self._names}-"
            if not rules.satisfiable:
                return []
            gbnf.add(rules.rules(prefix))
            return [f"{prefix}root"]
        if kind == "array":
            return [self._array(self.value(schema["items"]) if "items" in schema else self.any())]
        if "properties" in schema and "patternProperties" not in schema:
            return [self._object(schema)]
        return [self._any_object()]

    def _text(self) -> str:
        self._names += 1
        text = self._gbnf.until(f"{self._prefix}s{self._names}", self._notation.quote)
        return sequence([self._gbnf.literal(self._notation.quote), text])

    def _array(self, item: str) -> str:
        more = sequence([quote(self._notation.comma), item])
        return sequence(['"["', f"({item} ({more})*)?", '"]"'])

    def _object(self, schema: Mapping[str, Any]) -> str:
        members = [
            (f"{self._key(name)}{self._notation.colon}", member) for name, member in schema["properties"].items()
        ]
        needed = set(schema.get("required", ()))
        return sequence(['"{"', self.row(members, [name in needed for name in schema["properties"]]), '"}"'])

    def _key(self, name: str) -> str:
        return name if self._notation.bare_keys else json.dumps(name, ensure_ascii=False)

    def any(self) -> str:
        if not self._any:
            self._any = f"{self._prefix}any"
            words = [quote(word) for word in self._notation.words]
            scalars = compiled({"type": ["number"] if self._notation.bare_keys else ["number", "string"]})
            self._gbnf.add(scalars.rules(f"{self._prefix}anyj-"))
            texts = [self._text()] if self._notation.bare_keys else []
            ways = [*words, f"{self._prefix}anyj-root", *texts, self._array(self._any), self._any_object()]
            self._gbnf.add_rule(self._any, choice(ways))
        return self._any

    def _any_object(self) -> str:
        key = "[a-zA-Z0-9_.-]+" if self._notation.bare_keys else self._string_key()
        member = sequence([key, quote(self._notation.colon), self.any()])
        more = sequence([quote(self._notation.comma), member])
        return sequence(['"{"', f"({member} ({more})*)?", '"}"'])

    def _string_key(self) -> str:
        self._names += 1
        prefix = f"{self._prefix}k{self._names}-"
        self._gbnf.add(compiled({"type": "string"}).rules(prefix))
        return f"{prefix}root"


def types(schema: Any, root: Mapping[str, Any], depth: int = 16) -> tuple[str, ...]:
    """The JSON types a schema's values may have; too many rather than too few."""
    if not isinstance(schema, Mapping) or not depth:
        return ANY_TYPE
    found = set(ANY_TYPE)
    declared = schema.get("type")
    if declared is not None:
        names = [declared] if isinstance(declared, str) else declared
        found &= {_NUMBER.get(name, name) for name in names}
    if "enum" in schema or "const" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        found &= {json_type(value) for value in values}
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            found &= {kind for branch in schema[keyword] for kind in types(branch, root, depth - 1)}
    for branch in schema.get("allOf", ()):
        found &= set(types(branch, root, depth - 1))
    target = _target(schema.get("$ref"), root)
    if target is not None:
        found &= set(types(target, root, depth - 1))
    return tuple(kind for kind in ANY_TYPE if kind in found) or ANY_TYPE


def _target(reference: Any, root: Mapping[str, Any]) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    target: Any = root
    for key in reference[2:].split("/"):
        if not isinstance(target, Mapping):
            return None
        target = target.get(key.replace("~1", "/").replace("~0", "~"))
    return target


def _exact(schema: Any) -> bool:
    """Whether the raw grammar of a schema that allows strings accepts its values alone."""
    return isinstance(schema, Mapping) and schema.get("type") == "string" and _SIMPLE_STRING.issuperset(schema)


def _texts(schema: Any) -> list[str] | None:
    """The strings of an enumeration; None where the strings are not listed."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]] if isinstance(schema["const"], str) else []
    values = schema.get("enum")
    return None if values is None else [value for value in values if isinstance(value, str)]
