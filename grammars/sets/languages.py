"""Regular languages of string and number formulas: patterns, formats, lengths, and their Boolean combinations."""

from __future__ import annotations

import re

from grammars.automata import operations as automata
from grammars.automata.dfa import ALL, DFA, EMPTY
from grammars.automata.formats import FORMATS, INEXACT, format_accepts, format_dfa
from grammars.automata.numbers import PLAIN, number_dfa
from grammars.automata.regex import InvalidPattern, UnsupportedPattern
from grammars.automata.regex_nfa import pattern_accepts, pattern_dfa
from grammars.errors import InvalidSchema, UnsupportedSchema
from grammars.limits import LimitExceeded
from grammars.sets import strings as textsets
from grammars.sets.numbers import NumberSet
from grammars.sets.strings import Texts, TextSet
from grammars.unchecked import Unchecked

_LITERAL = re.compile(r"\^([A-Za-z0-9 _/:@#%&,;<>=~!'\"-]*)\$")
_CHOICE = re.compile(r"\^\((?:\?:)?([A-Za-z0-9 _/:@#%&,;<>=~!'\"|-]*)\)\$")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
"""Keywords that restrict numbers."""


class Languages:
    """Automata of the string formulas of one compilation; what exceeds a limit is widened, and unchecked.

    A pattern that neither grammar nor validation can judge (a back-reference, say) is refused instead.
    """

    def __init__(self, unchecked: Unchecked) -> None:
        self.unchecked = unchecked
        self.texts = Texts(self._atom_accepts)

    def _atom_accepts(self, atom: TextSet, text: str, widen: bool) -> bool:
        try:
            return format_accepts(atom[1], text) if atom[0] == "format" else pattern_accepts(atom[1], text)
        except LimitExceeded as error:
            if error.limit == "seconds":
                raise
        except (InvalidPattern, UnsupportedPattern) as error:
            raise self._refusal(atom, error) from None
        self.unchecked.add_text_set(atom)
        return widen

    def _refusal(self, atom: TextSet, error: ValueError) -> ValueError:
        path, keyword = self.unchecked.origin(atom)
        kind = InvalidSchema if isinstance(error, InvalidPattern) else UnsupportedSchema
        return kind(path, keyword, str(error))

    def automaton(self, atom: TextSet, widen: bool = True) -> DFA | None:
        """The automaton of an atom; None, the atom then being unchecked, where the limits allow none.

        `widen`: it may be larger than the atom's set, else smaller.
        """
        try:
            if atom[0] == "format" and atom[1] in INEXACT:
                self.unchecked.add_text_set(atom)
                if not widen:
                    return None
            return _atom_automaton(atom)
        except LimitExceeded as error:
            if error.limit == "seconds":
                raise
        except (InvalidPattern, UnsupportedPattern) as error:
            raise self._refusal(atom, error) from None
        self.unchecked.add_text_set(atom)
        return None

    def language(self, s: TextSet, widen: bool = True) -> DFA | None:
        """The automaton of a formula, parts beyond the limits widened (narrowed under `not`).

        None where nothing of the formula is left.
        """
        kind = s[0]
        if kind == "not":
            inner = self.language(s[1], not widen)
            return None if inner is None else automata.complement(inner)
        if kind not in ("and", "or"):
            return self.automaton(s, widen)
        out: DFA | None = None
        for part in s[1]:
            automaton = self.language(part, widen)
            if automaton is None:
                if (kind == "or") == widen:
                    return None
                continue
            if out is None:
                out = automaton
                continue
            try:
                out = automata.intersect(out, automaton) if kind == "and" else automata.union(out, automaton)
            except LimitExceeded as error:
                if error.limit == "seconds":
                    raise
                self.unchecked.add_text_set(part)
                if kind == "or":
                    return None
        return out

    def is_empty(self, s: TextSet) -> bool:
        """True where a formula plainly holds for no text; False where that exceeds the limits."""
        with self.unchecked.ignored():
            automaton = self.language(s)
        return automaton is not None and automaton.is_empty()


def simple_pattern(pattern: str) -> TextSet | None:
    """The finite set that `^text$` or `^(one|other)$` stands for; None for other patterns."""
    match = _LITERAL.fullmatch(pattern)
    if match:
        return textsets.finite((match[1],))
    match = _CHOICE.fullmatch(pattern)
    return textsets.finite(tuple(match[1].split("|"))) if match else None


def is_format(name: str) -> bool:
    """True for the formats that are asserted; all others are annotations."""
    return name in FORMATS


def _atom_automaton(atom: TextSet) -> DFA:
    """The automaton of a pattern, format, length or finite list; raises what building it raises."""
    kind = atom[0]
    if kind == "pattern":
        return pattern_dfa(atom[1])
    if kind == "format":
        found = format_dfa(atom[1])
        assert found is not None
        return found
    if kind == "length":
        return automata.any_string(atom[1], atom[2])
    if kind == "finite":
        return automata.strings(atom[1])
    return ALL if kind == "all" else EMPTY


def split_length(s: TextSet) -> tuple[TextSet, int, int | None]:
    """A conjunction without its length, and the length."""
    if s[0] != "and":
        return s, 0, None
    rest = tuple(part for part in s[1] if part[0] != "length")
    for part in s[1]:
        if part[0] == "length":
            return (rest[0] if len(rest) == 1 else ("and", rest)), part[1], part[2]
    return s, 0, None


def number_automaton(s: NumberSet, unchecked: Unchecked, offered: bool = True) -> DFA | None:
    """The automaton of the texts of a set of numbers; None where that exceeds the limits.

    `offered`: as a grammar should let a model write them; else all without exponent, so that complements are exact.
    """
    kind = s[0]
    if kind in ("all", "range"):
        _, integer, low, low_open, high, high_open, divisors = (
            s if kind == "range" else (0, False, None, 0, None, 0, ())
        )
        return number_dfa(
            integer=integer,
            minimum=None if low_open else low,
            exclusive_minimum=low if low_open else None,
            maximum=None if high_open else high,
            exclusive_maximum=high if high_open else None,
            multiple_of=divisors,
            offered=offered,
        )
    if kind == "finite":
        parts = [number_dfa(minimum=value, maximum=value) for value in s[1]]
    elif kind == "not":
        inner = number_automaton(s[1], unchecked, False)
        return None if inner is None else automata.difference(PLAIN, inner)
    else:
        parts = [number_automaton(part, unchecked, offered and kind == "or" and part[0] == "range") for part in s[1]]
    out: DFA | None = None
    for part in parts:
        if part is None:
            if kind != "and":
                return None
            unchecked.add_everywhere(*BOUNDS)
        elif out is None:
            out = part
        else:
            out = automata.intersect(out, part) if kind == "and" else automata.union(out, part)
    return out
