"""The automata behind string formulas: patterns, formats, lengths, and their Boolean combinations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from grammars.automata import dfa as automata
from grammars.automata.dfa import DFA
from grammars.automata.formats import FORMATS, format_dfa
from grammars.automata.numbers import PLAIN, number_dfa
from grammars.automata.regex import pattern_dfa
from grammars.limits import LimitExceeded
from grammars.schema.sets import FALSE, ObjectSet, Term
from grammars.sets import strings as textsets
from grammars.sets.numbers import NumberSet
from grammars.sets.strings import TextSet

if TYPE_CHECKING:
    from grammars.schema.normalize import Normalizer

_LITERAL = re.compile(r"\^([A-Za-z0-9 _/:@#%&,;<>=~!'\"-]*)\$")
_CHOICE = re.compile(r"\^\((?:\?:)?([A-Za-z0-9 _/:@#%&,;<>=~!'\"|-]*)\)\$")


def simple_pattern(pattern: str) -> TextSet | None:
    """The finite set that `^text$` or `^(one|other)$` stands for; None for other patterns."""
    match = _LITERAL.fullmatch(pattern)
    if match:
        return textsets.finite((match[1],))
    match = _CHOICE.fullmatch(pattern)
    return textsets.finite(tuple(match[1].split("|"))) if match else None


def is_format(name: str) -> bool:
    """Whether the format is one that is asserted; all others are annotations."""
    return name in FORMATS


def atom_automaton(atom: TextSet) -> DFA:
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
    return automata.ALL if kind == "all" else automata.EMPTY


def language(s: TextSet, normal: Normalizer, widen: bool = True) -> DFA | None:
    """The automaton of a formula. What exceeds the limits is widened (narrowed under `not`) and noted as a check; None
    where nothing of the formula is left."""
    kind = s[0]
    if kind == "not":
        inner = language(s[1], normal, not widen)
        return None if inner is None else automata.complement(inner)
    if kind in ("and", "or"):
        out: DFA | None = None
        for part in s[1]:
            automaton = language(part, normal, widen)
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
                normal.overapproximated(part)
                if kind == "or":
                    return None
        return out
    return normal.automaton(s, widen)


def split_length(s: TextSet) -> tuple[TextSet, int, int | None]:
    """A conjunction without its length, and the length."""
    if s[0] != "and":
        return s, 0, None
    rest = tuple(part for part in s[1] if part[0] != "length")
    for part in s[1]:
        if part[0] == "length":
            return (rest[0] if len(rest) == 1 else ("and", rest)), part[1], part[2]
    return s, 0, None


def is_empty(s: TextSet, normal: Normalizer) -> bool:
    """Whether a formula holds for no text; False where that exceeds the limits."""
    before = dict(normal.unchecked)
    automaton = language(s, normal)
    normal.unchecked = before
    return automaton is not None and automaton.is_empty()


def name_classes(shape: ObjectSet, normal: Normalizer) -> list[tuple[DFA, Term, int]]:
    """The undeclared names of an object, split by every pattern that says something about them.

    Each class: the automaton of its names, the term that their values satisfy, and the bits of `shape.some` whose set
    of names it lies in. Raises `LimitExceeded` where there would be too many.
    """
    names = language(shape.names, normal) if shape.names != textsets.ALL else None
    start = automata.ALL if names is None else names
    start = automata.difference(start, automata.strings(name for name, _ in shape.props))
    classes: list[tuple[DFA, tuple[Term, ...], int]] = [] if start.is_empty() else [(start, (shape.additional,), 0)]
    for layer in shape.layers:
        split: list[tuple[DFA, tuple[Term, ...], int, bool]] = [
            (dfa, terms, bits, False) for dfa, terms, bits in classes
        ]
        for pattern, term in layer.patterns:
            automaton = normal.automaton(pattern)
            assert automaton is not None
            parts = []
            for dfa, terms, bits, matched in split:
                inside, outside = automata.intersect(dfa, automaton), automata.difference(dfa, automaton)
                if not inside.is_empty():
                    parts.append((inside, (*terms, term), bits, True))
                if not outside.is_empty():
                    parts.append((outside, terms, bits, matched))
            split = parts
            if len(split) > _CLASSES:
                raise LimitExceeded("names")
        classes = [(dfa, terms if matched else (*terms, layer.additional), bits) for dfa, terms, bits, matched in split]
    for b, (where, _) in enumerate(shape.must_contain):
        automaton = language(where, normal)
        if automaton is None:
            automaton = automata.ALL
        parted = []
        for dfa, terms, bits in classes:
            inside, outside = automata.intersect(dfa, automaton), automata.difference(dfa, automaton)
            if not inside.is_empty():
                parted.append((inside, terms, bits | 1 << b))
            if not outside.is_empty():
                parted.append((outside, terms, bits))
        classes = parted
        if len(classes) > _CLASSES:
            raise LimitExceeded("names")
    out = [(dfa, normal.terms.all(*terms), bits) for dfa, terms, bits in classes]
    return [(dfa, term, bits) for dfa, term, bits in out if term is not FALSE]


_CLASSES = 64


def number_automaton(s: NumberSet, normal: Normalizer, offered: bool = True) -> DFA | None:
    """The automaton of the spellings of a set of numbers; None where that exceeds the limits.

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
        inner = number_automaton(s[1], normal, False)
        return None if inner is None else automata.difference(PLAIN, inner)
    else:
        parts = [number_automaton(part, normal, offered and kind == "or" and part[0] == "range") for part in s[1]]
    out: DFA | None = None
    for part in parts:
        if part is None:
            if kind != "and":
                return None
            normal.note(*BOUNDS)
        elif out is None:
            out = part
        else:
            out = automata.intersect(out, part) if kind == "and" else automata.union(out, part)
    return out


BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
