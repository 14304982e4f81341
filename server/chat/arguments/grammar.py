"""A tool's arguments in a format's syntax: their grammar, what it leaves to validation, and how to decode them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from grammars import Compiled, compile_schema
from grammars.rules.syntax import ARGUMENT, TaggedSyntax
from server.chat.arguments.copied_grammar import CopiedGrammar
from server.chat.arguments.nested_grammar import NestedGrammar
from server.chat.arguments.schema_types import MEMBERS, argument_types
from server.chat.formats.spec import (
    ArgumentSyntax,
    JsonArguments,
    LiteralArguments,
    NestedArguments,
    TaggedArguments,
    Types,
)
from server.chat.gbnf import Gbnf

__all__ = ["Arguments", "argument_types", "compile_arguments"]


class Arguments:
    """The arguments of one tool, as the spellings of a format write them.

    `checked`: the grammar, or what the parser makes of raw text, is wider than the schema, so that completed arguments
    must be validated. `satisfiable`: some value is valid. `types`: how the parser decodes values that stand raw.
    Raises `UnsupportedSchema` and `InvalidSchema` of `grammars`.
    """

    def __init__(self, schema: Mapping[str, Any], syntaxes: Iterable[ArgumentSyntax]) -> None:
        self._compiled = {syntax: _grammar(schema, syntax) for syntax in syntaxes}
        self.satisfiable = all(each.satisfiable for each in self._compiled.values())
        raw = [syntax for syntax in self._compiled if not isinstance(syntax, JsonArguments)]
        self.types: Types = argument_types(schema) if raw else {}
        self.checked = any(each.unchecked for each in self._compiled.values()) or any(
            isinstance(syntax, NestedArguments)
            or not MEMBERS.issuperset(schema)
            or not all(_certain(syntax, kinds) for kinds in self.types.values())
            for syntax in raw
        )

    def write(self, gbnf: Gbnf, prefix: str, syntax: ArgumentSyntax) -> str:
        """Add the rules, all names prefixed; what stands for the arguments in other rules."""
        gbnf.add(self._compiled[syntax].rules(prefix))
        return f"{prefix}root"

    def unclosed(self, prefix: str, syntax: ArgumentSyntax) -> str:
        """What stands in place of the arguments where the turn's calls end behind them; empty where nothing else does.
        Its rules are those that `write` adds."""
        return f"{prefix}unclosed" if isinstance(self._compiled[syntax], CopiedGrammar) else ""


def _grammar(schema: Mapping[str, Any], syntax: ArgumentSyntax) -> Compiled | CopiedGrammar | NestedGrammar:
    if isinstance(syntax, NestedArguments):
        return NestedGrammar(schema, syntax)
    alone = argument_types(schema).alone
    if isinstance(syntax, LiteralArguments) and syntax.wrappers and alone is not None and re.match(ARGUMENT, alone):
        return CopiedGrammar(schema, syntax, alone)
    return compile_arguments(schema, syntax)


def _certain(syntax: ArgumentSyntax, kinds: tuple[str, ...]) -> bool:
    """Whether a raw value of these types is read as what the grammar took it for."""
    untold = isinstance(syntax, TaggedArguments) and not syntax.typed
    return not untold or "string" not in kinds or len(kinds) == 1


def compile_arguments(schema: Mapping[str, Any] | bool, syntax: ArgumentSyntax | None = None) -> Compiled:
    """A schema's grammar in a syntax, JSON by default. Raises `UnsupportedSchema` and `InvalidSchema`."""
    match syntax:
        case TaggedArguments():
            elements = TaggedSyntax(syntax.open, syntax.named, syntax.close, syntax.typed)
            return compile_schema(schema, style="spaced", spelling=elements)
        case LiteralArguments():
            return compile_schema(schema, style="spaced", spelling=syntax.spelling)
    return compile_schema(schema, style="spaced")
