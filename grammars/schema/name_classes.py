"""Undeclared property names of an object set in classes, split by every pattern that restricts their values."""

from __future__ import annotations

from typing import NamedTuple

from grammars.automata.dfa import ALL, DFA
from grammars.automata.operations import difference, intersect, strings
from grammars.limits import LimitExceeded
from grammars.schema.sets import ObjectSet
from grammars.schema.terms import FALSE, Term, Terms
from grammars.sets import strings as textsets
from grammars.sets.languages import Languages

_CLASSES = 64
"""Most classes of one object."""


class NameClass(NamedTuple):
    """Names (None: all) whose values satisfy `term`; `bits`: the sets of `ObjectSet.must_contain` they lie in."""

    names: DFA | None
    term: Term
    bits: int


class _Class(NamedTuple):
    names: DFA
    terms: tuple[Term, ...]
    bits: int = 0
    matched: bool = False  # by a pattern of the layer at hand


def name_classes(o: ObjectSet, languages: Languages, terms: Terms) -> list[NameClass]:
    """Every undeclared name that may occur, in one class. Raises `LimitExceeded` where there would be too many."""
    names = languages.language(o.names) if o.names != textsets.ALL else None
    start = ALL if names is None else names
    start = difference(start, strings(name for name, _ in o.props))
    classes = [] if start.is_empty() else [_Class(start, (o.additional,))]
    for layer in o.layers:
        classes = [each._replace(matched=False) for each in classes]
        for pattern, term in layer.patterns:
            automaton = languages.automaton(pattern)
            assert automaton is not None
            classes = [
                each._replace(terms=(*each.terms, term), matched=True) if inside else each
                for each, inside in _split(classes, automaton)
            ]
        classes = [each if each.matched else each._replace(terms=(*each.terms, layer.additional)) for each in classes]
    for b, (where, _) in enumerate(o.must_contain):
        automaton = languages.language(where)
        if automaton is None:
            automaton = ALL
        classes = [
            each._replace(bits=each.bits | 1 << b) if inside else each for each, inside in _split(classes, automaton)
        ]
    out = [NameClass(each.names, terms.all(*each.terms), each.bits) for each in classes]
    return [each for each in out if each.term is not FALSE]


def _split(classes: list[_Class], automaton: DFA) -> list[tuple[_Class, bool]]:
    """Each class inside and outside a language, as far as there are such names; second: inside."""
    out = []
    for each in classes:
        inside, outside = intersect(each.names, automaton), difference(each.names, automaton)
        if not inside.is_empty():
            out.append((each._replace(names=inside), True))
        if not outside.is_empty():
            out.append((each._replace(names=outside), False))
    if len(out) > _CLASSES:
        raise LimitExceeded("names")
    return out
