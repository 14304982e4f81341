"""A tool's arguments in a format's syntax: their grammar, what it leaves to validation, and how to decode them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from grammars import Compiled, compile_schema
from grammars.spelling import Elements
from server.chat.format import Json, Literals, Nested, Syntax, Tagged, Types
from server.chat.gbnf import Gbnf
from server.chat.kinds import member_types
from server.chat.nested import NestedGrammar

__all__ = ["Arguments", "compiled", "member_types"]

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
        self._compiled = {
            syntax: NestedGrammar(schema, syntax) if isinstance(syntax, Nested) else compiled(schema, syntax)
            for syntax in syntaxes
        }
        self.satisfiable = all(each.satisfiable for each in self._compiled.values())
        raw = [syntax for syntax in self._compiled if not isinstance(syntax, Json)]
        self.types: Types = member_types(schema) if raw else {}
        self.checked = any(each.checks for each in self._compiled.values()) or any(
            isinstance(syntax, Nested)
            or not _NAMED.issuperset(schema)
            or not all(_certain(syntax, kinds) for kinds in self.types.values())
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


def compiled(schema: Mapping[str, Any] | bool, syntax: Syntax | None = None) -> Compiled:
    """A schema's grammar in a syntax, JSON by default. Raises `UnsupportedSchema` and `InvalidSchema`."""
    match syntax:
        case Tagged():
            elements = Elements(syntax.open, syntax.named, syntax.close, syntax.typed)
            return compile_schema(schema, style="spaced", spelling=elements)
        case Literals():
            return compile_schema(schema, style="spaced", spelling=syntax.spelling)
    return compile_schema(schema, style="spaced")
