"""One tool's arguments in the syntaxes of a format: their grammars, their types, and the need to validate them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from server.chat.arguments.schema_types import Types, argument_types
from server.chat.arguments.syntax import ArgumentSyntax
from server.chat.gbnf import Gbnf


class ToolArguments:
    """The arguments of one tool, by its schema.

    `satisfiable`: some value is valid. `types`: by these the parser decodes values that stand raw; empty where no
    syntax needs them. `checked`: completed arguments must be validated, since a grammar, or the reading of raw text,
    is wider than the schema. Raises `UnsupportedSchema` and `InvalidSchema` of `grammars`.
    """

    def __init__(self, schema: Mapping[str, Any], syntaxes: Iterable[ArgumentSyntax]) -> None:
        types = argument_types(schema)
        self._grammars = {syntax: syntax.grammar(schema, types) for syntax in syntaxes}
        self.satisfiable = all(grammar.satisfiable for grammar in self._grammars.values())
        self.types: Types = {} if all(syntax.self_describing for syntax in self._grammars) else types
        self.checked = not all(grammar.exact and syntax.is_exact(types) for syntax, grammar in self._grammars.items())

    def write(self, gbnf: Gbnf, prefix: str, syntax: ArgumentSyntax) -> str:
        """Add the rules, all names prefixed. Returns the name that stands for the arguments in other rules."""
        gbnf.add(self._grammars[syntax].rules(prefix))
        return f"{prefix}root"

    def unclosed(self, prefix: str, syntax: ArgumentSyntax) -> str:
        """The name, among the rules that `write` adds, of arguments behind which the turn's calls must end; empty where
        the syntax has none."""
        return f"{prefix}unclosed" if self._grammars[syntax].unclosed else ""
