"""A tool's arguments in a format's syntax: their grammar, what it leaves to validation, and how to decode them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from grammars import Compiled, compile_schema
from grammars.spelling import Elements
from server.chat.format import ANY_TYPE, Json, Literals, Syntax, Tagged, Types
from server.chat.gbnf import Gbnf
from server.chat.spell import json_type

_NAMED = frozenset(
    {"type", "properties", "required", "additionalProperties", "$schema", "$id", "$defs", "definitions"}
    | {"title", "description", "default", "examples", "deprecated", "$comment"}
)
"""Keywords of a tool's schema under which its properties are all that `member_types` looks at."""


class Arguments:
    """The arguments of one tool, as the spellings of a format write them.

    `checked`: the grammar, or what the parser makes of raw text, is wider than the schema, so that completed arguments
    must be validated. `satisfiable`: some value is valid. `types`: how the parser decodes values that stand raw.
    Raises `UnsupportedSchema` and `InvalidSchema` of `grammars`.
    """

    def __init__(self, schema: Mapping[str, Any], syntaxes: Iterable[Syntax]) -> None:
        self._compiled = {syntax: compiled(schema, syntax) for syntax in syntaxes}
        self.satisfiable = all(each.satisfiable for each in self._compiled.values())
        raw = [syntax for syntax in self._compiled if not isinstance(syntax, Json)]
        self.types: Types = member_types(schema) if raw else {}
        self.checked = any(each.checks for each in self._compiled.values()) or any(
            not _NAMED.issuperset(schema) or not all(_certain(syntax, kinds) for kinds in self.types.values())
            for syntax in raw
        )

    def write(self, gbnf: Gbnf, prefix: str, syntax: Syntax) -> str:
        """Add the rules, all names prefixed; what stands for the arguments in other rules."""
        gbnf.add(self._compiled[syntax].rules(prefix))
        return f"{prefix}root"


def _certain(syntax: Syntax, kinds: tuple[str, ...]) -> bool:
    """Whether a raw value of these types is read as what the grammar took it for."""
    untold = isinstance(syntax, Tagged) and not syntax.typed
    return not untold or "string" not in kinds or len(kinds) == 1


def compiled(schema: Mapping[str, Any], syntax: Syntax | None = None) -> Compiled:
    """A schema's grammar in a syntax, JSON by default. Raises `UnsupportedSchema` and `InvalidSchema`."""
    match syntax:
        case Tagged():
            elements = Elements(syntax.open, syntax.named, syntax.close, syntax.typed)
            return compile_schema(schema, style="spaced", spelling=elements)
        case Literals():
            return compile_schema(schema, style="spaced", spelling=syntax.spelling)
    return compile_schema(schema, style="spaced")


def member_types(schema: Mapping[str, Any]) -> Types:
    """The JSON types of a tool's arguments, those that are not declared under None."""
    members = {name: types(member, schema) for name, member in schema.get("properties", {}).items()}
    others = schema.get("additionalProperties", True)
    return members if others is False else {**members, None: types(others, schema)}


def types(schema: Any, root: Mapping[str, Any], depth: int = 16) -> tuple[str, ...]:
    """The JSON types a schema's values may have; too many rather than too few."""
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
