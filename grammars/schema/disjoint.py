"""Disjointness of value sets, as far as it shows without building automata of whole values."""

from __future__ import annotations

from collections.abc import Callable

from grammars.schema.algebra import ValueAlgebra, smaller
from grammars.schema.sets import ArraySet, ObjectSet, ValueSet
from grammars.schema.terms import FALSE, TRUE, Circular, Term
from grammars.sets import numbers as numbersets
from grammars.sets import strings as textsets
from grammars.sets.languages import Languages
from grammars.sets.strings import TextSet


class Disjointness:
    """Tells whether two value sets share no value. `depth` bounds the nesting looked into."""

    def __init__(self, value_set: Callable[[Term], ValueSet], algebra: ValueAlgebra, languages: Languages) -> None:
        self._value_set, self._algebra, self._languages = value_set, algebra, languages
        self._known: dict[tuple[Term, Term], bool] = {}

    def values(self, a: ValueSet, b: ValueSet, depth: int) -> bool:
        """True where no value is in both sets; False where that is not plain to see."""
        if (a.null and b.null) or a.booleans & b.booleans:
            return False
        if numbersets.meet(a.number, b.number) != numbersets.NONE:
            return False
        if not self._is_empty(self._algebra.texts.intersect(a.string, b.string)):
            return False
        if any(not self._arrays(x, y, depth) for x in a.arrays for y in b.arrays):
            return False
        return not any(not self._objects(x, y, depth) for x in a.objects for y in b.objects)

    def _is_empty(self, s: TextSet) -> bool:
        if s == textsets.NONE:
            return True
        return s[0] == "and" and self._languages.is_empty(s)

    def _terms(self, a: Term, b: Term, depth: int) -> bool:
        if a is FALSE or b is FALSE:
            return True
        if a is TRUE or b is TRUE or a is b or depth <= 0:
            return False
        known = self._known.get((a, b))
        if known is None:
            try:
                known = self.values(self._value_set(a), self._value_set(b), depth - 1)
            except Circular:  # asked while one of the two is being made
                return False
            self._known[a, b] = known
        return known

    def _arrays(self, a: ArraySet, b: ArraySet, depth: int) -> bool:
        least, most = max(a.min_items, b.min_items), smaller(a.max_items, b.max_items)
        if most is not None and least > most:
            return True
        shared = min(least, max(len(a.prefix), len(b.prefix)) + 1)
        return any(self._terms(a.item(i), b.item(i), depth) for i in range(shared))

    def _objects(self, a: ObjectSet, b: ObjectSet, depth: int) -> bool:
        ours, theirs = dict(a.props), dict(b.props)
        names = a.required | b.required
        if (b.max_properties is not None and b.max_properties < max(a.min_properties, len(names))) or (
            a.max_properties is not None and a.max_properties < max(b.min_properties, len(names))
        ):
            return True
        for name in names:
            x = ours.get(name) or self._algebra.property_term(a, name)
            y = theirs.get(name) or self._algebra.property_term(b, name)
            if self._terms(x, y, depth):
                return True
        return False
