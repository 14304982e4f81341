"""The grammar of a tool's only argument as small models copy it into a call (`server.chat.arguments.copied`).

Beside the string literal of the notation: a path with its drive, bare text, and the arguments wrapped in an object. A
literal may not begin by what could be a path or an escape (`C:\\new`), so that no spelling means two texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import ascii_letters
from typing import Any

from grammars import Compiled, compile_schema
from server.chat.arguments.copied import (
    BRACKETS,
    CONTROLS,
    ESCAPE_DIGITS,
    ESCAPE_LETTERS,
    ESCAPED,
    HEX,
    NOT_IN_BRACKETS,
    NOT_IN_PATHS,
    NOT_IN_QUOTES,
    NOT_IN_WORDS,
)
from server.chat.arguments.render import to_json
from server.chat.formats.spec import LiteralArguments
from server.chat.gbnf import any_of, choice, others_than, quote, sequence

_STOPS = CONTROLS + '\\"'
"""What ends a string literal or has a meaning in it, and what never stands there."""
_BLUR = " ,"
"""What a path without its quote may not end in."""


class CopiedGrammar:
    """The rules for a tool whose only argument is called `name`. Raises what `compile_schema` raises."""

    def __init__(self, schema: Mapping[str, Any], syntax: LiteralArguments, name: str) -> None:
        self._syntax = syntax
        self._name = name
        whole = compile_schema(schema, style="spaced", spelling=syntax.spelling)
        self.satisfiable = whole.satisfiable
        self.unchecked = whole.unchecked
        self._others = _others(schema, syntax, name)
        self._json = compile_schema({"type": "string"}, style="spaced")

    def rules(self, prefix: str) -> str:
        """The rules, every name prefixed. The entry is `{prefix}root`; or `{prefix}unclosed`, behind which the turn's
        calls must end."""
        rules = [f"{prefix}{name} ::= {body}" for name, body in self._rules(prefix).items()]
        rules.append(self._json.rules(f"{prefix}json-"))
        if self._others is not None:
            rules.append(self._others.rules(f"{prefix}others-"))
        return "\n".join(rule.rstrip("\n") for rule in rules)

    def _rules(self, p: str) -> dict[str, str]:
        syntax, name = self._syntax, self._name
        key = quote(f"{name}{syntax.pair}")
        wrapper = quote(f"{syntax.wrapper(name)}{syntax.pair}{{{to_json(name)}:")
        others = f"({quote(syntax.comma)} {p}others-root)?" if self._others is not None else ""
        end = quote(syntax.quote)
        char, escaped = others_than(_STOPS), f"{p}escape {p}literal"
        path, last = others_than(NOT_IN_PATHS), others_than(NOT_IN_PATHS + _BLUR)
        word, apostrophe = others_than(NOT_IN_WORDS), quote("'")
        inner, within = others_than(NOT_IN_BRACKETS), others_than(NOT_IN_QUOTES + '\\"')
        return {
            "root": choice([sequence([wrapper, quote(" ") + "?", f"{p}json-root", quote("}")]), f"{key} {p}value"]),
            "unclosed": sequence([key, end, "[A-Za-z]", quote(":\\"), f"{p}kind", f"{path}*", last]),
            "value": choice([sequence([end, f"{p}first", others]), f"{p}bare"]),
            # Literals and paths: the first characters tell which.
            "first": f"{end} | {escaped} | [A-Za-z] {p}second | {others_than(_STOPS + ascii_letters)} {p}literal",
            "second": f'{end} | {escaped} | ":" {p}third | {others_than(_STOPS + ":")} {p}literal',
            "third": f"{end} | {quote(chr(92))} {p}fourth | {char} {p}literal",
            "fourth": f"{any_of(ESCAPED)} {p}literal | {p}kind {p}path",
            "literal": f"{end} | {escaped} | {char} {p}literal",
            "escape": f'{quote(chr(92))} ({any_of(ESCAPED + ESCAPE_LETTERS)} | "x" {any_of(HEX)} {any_of(HEX)})',
            "kind": f"{any_of(ESCAPE_DIGITS)} {others_than(NOT_IN_PATHS + _BLUR + HEX)}"
            f" | {others_than(NOT_IN_PATHS + _BLUR + ESCAPED + ESCAPE_LETTERS + ESCAPE_DIGITS)}",
            "path": f"{end} | {path} {p}path",
            # Bare text.
            "bare": f'{p}word ((" " | "," " "?) {p}word)*',
            "word": f"({p}group | {word}) ({apostrophe} | {p}group | {word})*",
            "group": " | ".join(f"{quote(open)} {p}inner* {quote(close)}" for open, close in BRACKETS.items()),
            "inner": f"{p}group | {end} {p}quoted* {end} | {inner}",
            "quoted": f"{quote(chr(92))} {others_than(NOT_IN_QUOTES)} | {within}",
        }


def _others(schema: Mapping[str, Any], syntax: LiteralArguments, name: str) -> Compiled | None:
    """The arguments that the schema does not declare, at least one; None where there are none."""
    if schema.get("additionalProperties", True) is False:
        return None
    rest = {**schema, "properties": {name: False}, "required": [], "minProperties": 1}
    found = compile_schema(rest, style="spaced", spelling=syntax.spelling)
    return found if found.satisfiable else None
