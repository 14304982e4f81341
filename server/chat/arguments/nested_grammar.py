"""The grammar of arguments as elements within elements (`format.Nested`), by the tool's schema.

Texts, numbers and booleans are written by `grammars`, each with the tags around it; objects and lists here: declared
members in the order of the schema, items within their bounds. Null is not written. What that leaves out of a schema is
left to validation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from grammars import Compiled, InvalidSchema, UnsupportedSchema, compile_schema
from grammars.rules.syntax import TaggedSyntax
from server.chat.arguments.schema_types import SchemaTypes
from server.chat.formats.spec import NestedArguments
from server.chat.gbnf import choice, quote, sequence

_SCALARS = ("boolean", "number", "string")
_NOTHING = '""'
_MOST = 64
"""Items of a list that are counted; beyond, any number may come."""
_OTHER_REFERENCES = re.compile(r'"\$(ref|dynamicRef)": "(?!#/(\$defs|definitions)/)')
"""References that mean something else where a schema stands by itself."""


class NestedGrammar:
    """The rules of one tool's arguments. Raises what `compile_schema` raises."""

    def __init__(self, schema: Mapping[str, Any], syntax: NestedArguments) -> None:
        self._schema = schema
        self._syntax = syntax
        whole = compile_schema(schema, style="spaced")
        self.satisfiable = whole.satisfiable
        self.unchecked = whole.unchecked

    def rules(self, prefix: str) -> str:
        """The rules, every name prefixed; the entry is `{prefix}root`."""
        return _Writer(self._schema, self._syntax, prefix).write()


class _Writer:
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
        types = [kind for kind in _SCALARS if kind in kinds]
        if not types:
            return None
        elements = TaggedSyntax(f"{self._syntax.mark}<", ">", self._syntax.mark)  # no text holds the mark
        plain: Any = {"type": types}
        definitions = {name: self._root[name] for name in ("$defs", "definitions") if name in self._root}
        exact = plain if _OTHER_REFERENCES.search(json.dumps(schema, default=str)) else {"allOf": [schema, plain]}
        for value in (exact, plain):
            alone = {"type": "object", "properties": {key: value}, "required": [key], "additionalProperties": False}
            try:
                found = compile_schema({**definitions, **alone}, style="spaced", spelling=elements)
            except (InvalidSchema, UnsupportedSchema):
                continue
            return found if found.satisfiable else None
        return None

    def _items(self, kinds: SchemaTypes) -> str:
        item = self._element(self._syntax.item, kinds.item().schema)
        least = max((branch.get("minItems", 0) for branch in kinds.branches()), default=0)
        most = min((branch.get("maxItems", _MOST + 1) for branch in kinds.branches()), default=_MOST + 1)
        return f"{item}{{{min(least, _MOST)},{most if most <= _MOST else ''}}}" if most else ""

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
