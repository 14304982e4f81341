"""The JSON types that a schema's values may have, by which an argument is decoded whose text does not tell its type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Types = Mapping[str | None, tuple[str, ...]]
"""The JSON types that each argument may have, by its name; under None those of arguments without a declaration."""

ANY_TYPE = ("null", "boolean", "number", "string", "array", "object")

ANNOTATIONS = frozenset({"title", "description", "default", "examples", "deprecated", "$comment"})
MEMBERS = ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
MEMBERS |= {"$schema", "$id", "$defs", "definitions"}
"""Keywords of a tool's schema under which its properties are all that `argument_types` looks at."""
_DEPTH = 16
"""References and combinations that are followed."""


class SchemaTypes(tuple[str, ...]):
    """The types of a schema's values; too many rather than too few. Knows its schema, and so what a value holds."""

    schema: Any
    _root: Mapping[str, Any]

    @classmethod
    def of(cls, schema: Any, root: Mapping[str, Any]) -> SchemaTypes:
        kinds = cls(_types(schema, root, _DEPTH))
        kinds.schema, kinds._root = schema, root
        return kinds

    def member(self, name: str) -> SchemaTypes:
        """Of a member of the objects among the values."""
        found = [
            branch["properties"][name] if name in branch.get("properties", {}) else branch["additionalProperties"]
            for branch in self.branches()
            if name in branch.get("properties", {}) or "additionalProperties" in branch
        ]
        return self._any_of(found)

    def item(self) -> SchemaTypes:
        """Of an item of the arrays among the values."""
        found = [
            part
            for branch in self.branches()
            for part in [*branch.get("prefixItems", ()), *([branch["items"]] if "items" in branch else [])]
        ]
        return self._any_of(found)

    def branches(self) -> Iterator[Mapping[str, Any]]:
        """The schemas that the values may have to obey, references followed."""
        return _branches(self.schema, self._root, _DEPTH)

    def _any_of(self, schemas: list[Any]) -> SchemaTypes:
        return SchemaTypes.of(schemas[0] if len(schemas) == 1 else {"anyOf": schemas} if schemas else True, self._root)


class ArgumentTypes(dict[str | None, tuple[str, ...]]):
    """The types of a tool's arguments by their names, those of undeclared ones under None.

    `alone`: the name of the tool's only argument where it must be given and any text will do. `complete`: the schema
    has no keyword beside these that bears on a value's type.
    """

    alone: str | None = None
    complete: bool = True


def argument_types(schema: Mapping[str, Any]) -> ArgumentTypes:
    """The types of the arguments that a tool's schema allows."""
    members = ArgumentTypes(
        (name, SchemaTypes.of(member, schema)) for name, member in schema.get("properties", {}).items()
    )
    others = schema.get("additionalProperties", True)
    if others is not False:
        members[None] = SchemaTypes.of(others, schema)
    members.alone = _alone(schema)
    members.complete = MEMBERS.issuperset(schema)
    return members


def _alone(schema: Mapping[str, Any]) -> str | None:
    match schema.get("properties"), schema.get("required"):
        case {**members}, [str(name)] if members.keys() == {name} and MEMBERS.issuperset(schema):
            text = members[name]
            if isinstance(text, Mapping) and text.get("type") == "string" and text.keys() - {"type"} <= ANNOTATIONS:
                return name
    return None


def _branches(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    if not isinstance(schema, Mapping) or not depth:
        return
    yield schema
    nested: Iterable[Any] = [
        *(branch for keyword in ("allOf", "anyOf", "oneOf") for branch in schema.get(keyword, ())),
        _target(schema.get("$ref"), root),
    ]
    for each in nested:
        yield from _branches(each, root, depth - 1)


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> tuple[str, ...]:
    if not isinstance(schema, Mapping) or not depth:
        return ANY_TYPE
    found = set(ANY_TYPE)
    declared = schema.get("type")
    if declared is not None:
        names = [declared] if isinstance(declared, str) else declared
        found &= {"number" if name == "integer" else name for name in names}
    if "enum" in schema or "const" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        found &= {json_type(value) for value in values}
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            found &= {kind for branch in schema[keyword] for kind in _types(branch, root, depth - 1)}
    for branch in schema.get("allOf", ()):
        found &= set(_types(branch, root, depth - 1))
    target = _target(schema.get("$ref"), root)
    if target is not None:
        found &= set(_types(target, root, depth - 1))
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


def json_type(value: Any) -> str:
    """The JSON type of a value; integers are numbers."""
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
