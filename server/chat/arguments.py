"""A tool's arguments in a format's syntax: their grammar, what it leaves to validation, and how to decode them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grammars import Compiled, compile_schema
from server.chat.format import ANY_TYPE, Json, Syntax, Tagged, Types
from server.chat.gbnf import Gbnf, choice, quote, sequence

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
_BASE = "tool:arguments"


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
    return _JsonArguments(whole) if isinstance(syntax, Json) else _Elements(schema, whole, syntax)


def compiled(schema: Mapping[str, Any] | bool, **options: Any) -> Compiled:
    return compile_schema(schema, style="spaced", **options)


class _JsonArguments(Arguments):
    def __init__(self, schema: Compiled) -> None:
        super().__init__(schema, {})
        self._schema = schema

    def write(self, gbnf: Gbnf, prefix: str) -> str:
        gbnf.add(self._schema.rules(prefix))
        return f"{prefix}root"


class _Elements(Arguments):
    """Properties in the schema's order, the optional ones left out or not. Undeclared ones are not offered."""

    def __init__(self, schema: Mapping[str, Any], whole: Compiled, tags: Tagged) -> None:
        properties = schema.get("properties", {})
        undeclared = [name for name in schema.get("required", ()) if name not in properties]
        members = {**properties, **dict.fromkeys(undeclared, schema.get("additionalProperties", True))}
        kinds = {name: types(member, schema) for name, member in members.items()}
        loose = any("string" in kinds[name] and not self._exact(member) for name, member in members.items())
        simple = not undeclared and _SIMPLE_ROOT.issuperset(schema)
        super().__init__(whole, kinds, checked=loose or not simple)
        self._schema = schema
        self._tags = tags
        self._members = members

    @staticmethod
    def _exact(member: Any) -> bool:
        """Whether the raw grammar of a schema that allows strings accepts its values alone."""
        return isinstance(member, Mapping) and member.get("type") == "string" and _SIMPLE_STRING.issuperset(member)

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
            rules = self._restricted(name, member, group if len(group) < len(kinds) else None)
            if rules.satisfiable:
                gbnf.add(rules.rules(f"{prefix}v{index}-"))
                yield group[0], sequence([f"{prefix}v{index}-root", gbnf.literal(tags.close)])

    def _restricted(self, name: str, member: Any, group: Sequence[str] | None) -> Compiled:
        if name not in self._schema.get("properties", {}) or "$ref" not in json.dumps(member):
            return compiled(member if group is None else {"allOf": [member], "type": list(group)})
        pointer = name.replace("~", "~0").replace("/", "~1").replace("%", "%25")
        reference: dict[str, Any] = {"$ref": f"{_BASE}#/properties/{pointer}"}
        if group is not None:
            reference["type"] = list(group)
        return compiled(reference, resources={_BASE: self._schema})


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
        found &= {_type(value) for value in values}
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


def _texts(schema: Any) -> list[str] | None:
    """The strings of an enumeration; None where the strings are not listed."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]] if isinstance(schema["const"], str) else []
    values = schema.get("enum")
    return None if values is None else [value for value in values if isinstance(value, str)]


def _type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
    return "array"
