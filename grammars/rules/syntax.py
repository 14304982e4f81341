"""How values are written: JSON, and the other syntaxes that tool-call formats have for arguments.

Each value has one spelling, except that a free string accepts every legal escape.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple

from grammars.automata.dfa import DFA
from grammars.automata.regex_nfa import pattern_dfa
from grammars.rules.escapes import JSON, PYTHON_DOUBLE, StringEscapes
from grammars.rules.rules import Chars

_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
JSON_ESCAPES = {chr(n): _SHORT.get(chr(n), f"\\u{n:04x}") for n in (*range(32), ord('"'), ord("\\"))}
JSON_PLAIN = Chars(((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF)))
_JSON_TABLE = {ord(k): v for k, v in JSON_ESCAPES.items()}


def escaped(text: str) -> str:
    """The inside of a JSON string in double quotes; Python reads the same."""
    return text.translate(_JSON_TABLE)


class ObjectSyntax(NamedTuple):
    """The texts around the members of an object. `names`: names stand bare, and only these can; None: quoted, any."""

    open: str
    close: str
    comma: str
    colon: str
    names: DFA | None = None


class TaggedSyntax(NamedTuple):
    """Arguments as one element each: `open` name `named` value `close`.

    A string stands raw and ends before `close`; every other value is JSON. `typed` tells what stands in place of
    `named`, by JSON type, "other" for those not listed.
    """

    open: str
    named: str
    close: str
    typed: tuple[tuple[str, str], ...] = ()

    def after_name(self, kind: str) -> str:
        table = dict(self.typed)
        return table.get(kind, table.get("other", self.named))


class ValueSyntax(NamedTuple):
    """How values are written. `marker`: strings stand raw between two of them; else quoted as `text` says.

    `root`: the layout of the outermost object where it differs from that of the others; nothing but an object can then
    be written.
    """

    layout: ObjectSyntax
    root: ObjectSyntax | TaggedSyntax | None = None
    text: StringEscapes = JSON
    marker: str = ""
    true: str = "true"
    false: str = "false"
    null: str = "null"


ARGUMENT = "^[A-Za-z_$@][A-Za-z0-9_$@./-]*$"
"""Names that keyword arguments may have. Models write the names of a schema as they stand, `from="x"` or `user-id=1`,
though Python allows neither; whoever reads such a call takes all up to the `=`."""
_STYLES = {"compact": (",", ":", "="), "spaced": (", ", ": ", "=")}


def value_syntax(name: str | TaggedSyntax, style: str) -> ValueSyntax:
    """The spelling of a name: "json", "python" (literals), "keywords" (the outermost object as keyword arguments of a
    Python call), "gemma" (bare names, strings between `<|"|>`); or elements of which each holds an argument."""
    comma, colon, equals = _STYLES[style]
    objects = ObjectSyntax("{", "}", comma, colon)
    if isinstance(name, TaggedSyntax):
        return ValueSyntax(objects, name)
    if name == "json":
        return ValueSyntax(objects)
    if name == "gemma":
        bare = pattern_dfa("^[A-Za-z0-9_$@./-]+$")
        return ValueSyntax(ObjectSyntax("{", "}", ",", ":", bare), marker='<|"|>')
    if name not in ("python", "keywords"):
        raise ValueError(f"no spelling is called {name!r}")
    root = None
    if name == "keywords":
        root = ObjectSyntax("", "", comma, equals, pattern_dfa(ARGUMENT))
    return ValueSyntax(objects, root, PYTHON_DOUBLE, true="True", false="False", null="None")


ELEMENT_NAMES = "^[A-Za-z0-9_$@./:-]+$"
"""Undeclared names that an element may have."""


def number_texts(value: Any) -> tuple[str, ...]:
    """The spellings offered for one number: digits where it is a whole number, and as the schema writes it."""
    if isinstance(value, int):
        return (str(value),)
    written = _decimal_text(value)
    if value == value.to_integral_value() and abs(value) < 10**21:
        return tuple(dict.fromkeys((str(int(value)), written)))
    return (written,)


def _decimal_text(value: Decimal) -> str:
    return str(value).replace("E", "e")
