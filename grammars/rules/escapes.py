"""String literals of JSON and Python: quotes and escapes."""

from __future__ import annotations

from dataclasses import dataclass, field

from grammars.automata.chars import Ranges, char_set


@dataclass(frozen=True)
class StringEscapes:
    """Spelling of text: its quotes, the characters behind a backslash, and the letter or number that stands for them.

    `key` begins the names of the rules that every string of this spelling shares, so spellings can share a grammar.
    `short` maps a code point to the letter behind the backslash; every other character of `escaped` is written as
    `prefix` and two hexadecimal digits. Without quotes nothing is escaped, and the automaton is the spelling.
    """

    key: str
    quote: str
    escaped: Ranges = ()
    short: tuple[tuple[int, str], ...] = ()
    prefix: str = ""
    letters: dict[int, str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "letters", dict(self.short))


_CONTROLS = ((8, "b"), (9, "t"), (10, "n"), (12, "f"), (13, "r"))
JSON = StringEscapes("", '"', char_set([(0, 31), (34, 34), (92, 92)]), ((34, '"'), (92, "\\"), *_CONTROLS), "u00")
"""RFC 8259, section 7."""
PYTHON_DOUBLE = StringEscapes(
    "python", '"', char_set([(0, 31), (34, 34), (92, 92)]), ((34, '"'), (92, "\\"), *_CONTROLS), "x"
)
"""The Python Language Reference, 2.4.1 "String and Bytes literals"."""
RAW = StringEscapes("raw-", "")
