"""How values are spelled: JSON compact or spaced. The other spellings of tool formats stand here too."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple

from .rules import Chars

_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
JSON_ESCAPES = {chr(n): _SHORT.get(chr(n), f"\\u{n:04x}") for n in (*range(32), ord('"'), ord("\\"))}
JSON_PLAIN = Chars(((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF)))
_JSON_TABLE = {ord(k): v for k, v in JSON_ESCAPES.items()}


class Spelling(NamedTuple):
    """The texts around values. One spelling per value: each character of a string has exactly one form."""

    comma: str = ","
    colon: str = ":"
    quote: str = '"'
    true: str = "true"
    false: str = "false"
    null: str = "null"

    def text(self, value: str) -> str:
        """The inside of a string."""
        return value.translate(_JSON_TABLE)


STYLES = {"compact": Spelling(), "spaced": Spelling(comma=", ", colon=": ")}


def number_texts(value: Any) -> tuple[str, ...]:
    """The spellings offered for one number: digits where it is a whole number, and as the schema writes it."""
    if isinstance(value, int):
        return (str(value),)
    written = _decimal_text(value)
    if value == value.to_integral_value() and abs(value) < 10**21:
        return tuple(dict.fromkeys((str(int(value)), written)))
    return (written,)


def _decimal_text(value: Decimal) -> str:
    text = str(value)
    return text.replace("E", "e") if "E" in text else text
