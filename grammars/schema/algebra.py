"""Set algebra of value sets: union, intersection and complement, type by type.

Results may be larger than the exact set where it would have too many alternatives, never smaller; the keywords
concerned are then unchecked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from grammars.schema.forms import is_number
from grammars.schema.sets import (
    ANY_ARRAY,
    ANY_OBJECT,
    ANY_VALUE,
    BY_TYPE,
    NO_VALUE,
    ArraySet,
    Contains,
    Evaluated,
    ObjectSet,
    ValueSet,
)
from grammars.schema.terms import FALSE, TRUE, Term, Terms
from grammars.sets import numbers as numbersets
from grammars.sets import strings as textsets
from grammars.sets.strings import Texts
from grammars.unchecked import Unchecked

T = TypeVar("T", ArraySet, ObjectSet)


class ValueAlgebra:
    """Operations on the value sets of one document.

    `alternatives`: most arrays or objects that one intersection may have. `tracking`: marks of evaluation count, so
    equal values may be different alternatives.
    """

    def __init__(self, terms: Terms, texts: Texts, unchecked: Unchecked, *, alternatives: int, tracking: bool) -> None:
        self.terms, self.texts, self.unchecked = terms, texts, unchecked
        self.alternatives, self.tracking = alternatives, tracking

    # Values

    def union(self, a: ValueSet, b: ValueSet) -> ValueSet:
        if a is NO_VALUE or (b is ANY_VALUE and not self.tracking):
            return b
        if b is NO_VALUE or (a is ANY_VALUE and not self.tracking):
            return a
        return ValueSet(
            a.null or b.null,
            a.booleans | b.booleans,
            numbersets.join(a.number, b.number),
            self.texts.union(a.string, b.string),
            _union(a.arrays, b.arrays, None if self.tracking else ANY_ARRAY),
            _union(a.objects, b.objects, None if self.tracking else ANY_OBJECT),
        )

    def intersect(self, a: ValueSet, b: ValueSet, path: str, keyword: str) -> ValueSet:
        """The intersection; where it would have too many alternatives, that of `a`, and the keyword is unchecked."""
        if a is ANY_VALUE or b is NO_VALUE:
            return b
        if b is ANY_VALUE or a is NO_VALUE:
            return a
        most = self.alternatives
        wide = len(a.arrays) * len(b.arrays) > most or len(a.objects) * len(b.objects) > most
        if wide:
            self.unchecked.add(path, keyword)
        arrays, objects = a.arrays, a.objects
        if not wide:
            arrays = _distinct(m for x in arrays for y in b.arrays if (m := self.intersect_arrays(x, y)) is not None)
            objects = _distinct(
                o for x in objects for y in b.objects if (o := self.intersect_objects(x, y)) is not None
            )
        return ValueSet(
            a.null and b.null,
            a.booleans & b.booleans,
            numbersets.meet(a.number, b.number),
            self.texts.intersect(a.string, b.string),
            arrays,
            objects,
        )

    def complement(self, a: ValueSet) -> ValueSet:
        """All values outside a set that has at most one array and one object."""
        return ValueSet(
            not a.null,
            3 & ~a.booleans,
            numbersets.negate(a.number),
            self.texts.complement(a.string),
            self.complement_array(a.arrays[0], None) if a.arrays else (ANY_ARRAY,),
            self.complement_object(a.objects[0]) if a.objects else (ANY_OBJECT,),
        )

    def constant(self, value: Any) -> ValueSet:
        """The set of one value."""
        if value is None:
            return BY_TYPE["null"]
        if isinstance(value, bool):
            return NO_VALUE._replace(booleans=2 if value else 1)
        if isinstance(value, str):
            return NO_VALUE._replace(string=textsets.finite((value,)))
        if is_number(value):
            return NO_VALUE._replace(number=numbersets.finite((value,)))
        const = self.terms.const
        if isinstance(value, list):
            items = tuple(const(v) for v in value)
            return NO_VALUE._replace(arrays=(ArraySet(items, FALSE, len(items), len(items)),))
        props = tuple((k, const(v)) for k, v in value.items())
        return NO_VALUE._replace(objects=(ObjectSet(props, frozenset(value), additional=FALSE),))

    # Arrays

    def intersect_arrays(self, a: ArraySet, b: ArraySet) -> ArraySet | None:
        if a is ANY_ARRAY:
            return b
        if b is ANY_ARRAY or a == b:
            return a
        n = max(len(a.prefix), len(b.prefix))
        both = self.terms.all
        prefix = tuple(both(a.item(i), b.item(i)) for i in range(n))
        least, most = max(a.min_items, b.min_items), smaller(a.max_items, b.max_items)
        if most is not None and most < least:
            return None
        contains = tuple(dict.fromkeys(a.contains + b.contains))
        evaluated = _evaluated(a.evaluated, b.evaluated)
        return ArraySet(
            prefix, both(a.additional, b.additional), least, most, contains, a.unique or b.unique, evaluated
        )

    def complement_array(self, a: ArraySet, path: str | None) -> tuple[ArraySet, ...]:
        """Arrays outside a set. `path`: the schema whose `uniqueItems` is unchecked where it is negated."""
        negate = self.terms.negate
        out = []
        for i, term in enumerate(a.prefix):
            if term is not TRUE:
                out.append(ArraySet((TRUE,) * i + (negate(term),), min_items=i + 1))
        if a.additional is FALSE:
            out.append(ArraySet(min_items=len(a.prefix) + 1))
        elif a.additional is not TRUE:
            out.append(ArraySet(contains=(Contains(negate(a.additional), 1, None, len(a.prefix)),)))
        if a.min_items:
            out.append(ArraySet(max_items=a.min_items - 1))
        if a.max_items is not None:
            out.append(ArraySet(min_items=a.max_items + 1))
        for c in a.contains:
            if c.least:
                out.append(ArraySet(contains=(Contains(c.term, 0, c.least - 1, c.start),)))
            if c.most is not None:
                out.append(ArraySet(contains=(Contains(c.term, c.most + 1, None, c.start),)))
        if a.unique:
            if path is not None:
                self.unchecked.add(path, "uniqueItems")
            out.append(ArraySet(min_items=2))
        return tuple(out)

    # Objects

    def property_term(self, o: ObjectSet, name: str) -> Term:
        """The term of the value under a name that an object set does not declare."""
        if o.names is not textsets.ALL and not self.texts.accepts(o.names, name):
            return FALSE
        if not o.layers:
            return o.additional
        terms = [o.additional]
        for layer in o.layers:
            matching = [term for pattern, term in layer.patterns if self.texts.accepts(pattern, name)]
            terms.extend(matching or (layer.additional,))
        return self.terms.all(*terms)

    def intersect_objects(self, a: ObjectSet, b: ObjectSet) -> ObjectSet | None:
        if a is ANY_OBJECT:
            return b
        if b is ANY_OBJECT or a == b:
            return a
        both = self.terms.all
        theirs = dict(b.props)
        props: dict[str, Term] = {}
        for name, term in a.props:
            other = theirs.pop(name, None)
            props[name] = both(term, self.property_term(b, name) if other is None else other)
        for name, term in theirs.items():
            props[name] = both(self.property_term(a, name), term)
        required = a.required | b.required
        if any(props[name] is FALSE for name in required):
            return None
        least, most = max(a.min_properties, b.min_properties), smaller(a.max_properties, b.max_properties)
        if most is not None and most < max(least, len(required)):
            return None
        return ObjectSet(
            tuple(props.items()),
            required,
            tuple(dict.fromkeys(a.layers + b.layers)),
            both(a.additional, b.additional),
            least,
            most,
            self.texts.intersect(a.names, b.names),
            tuple(dict.fromkeys(a.dependent_required + b.dependent_required)),
            tuple(dict.fromkeys(a.must_contain + b.must_contain)),
            _evaluated(a.evaluated, b.evaluated),
        )

    def complement_object(self, o: ObjectSet) -> tuple[ObjectSet, ...]:
        negate = self.terms.negate
        out = [ObjectSet(((name, FALSE),)) for name, _ in o.props if name in o.required]
        for name, term in o.props:
            if term is not TRUE:
                out.append(ObjectSet(((name, negate(term)),), frozenset((name,))))
        declared = textsets.finite(tuple(name for name, _ in o.props))
        others = self.texts.complement(declared)
        for layer in o.layers:
            unmatched = others
            for pattern, term in layer.patterns:
                unmatched = self.texts.intersect(unmatched, self.texts.complement(pattern))
                if term is not TRUE:
                    out.append(ObjectSet(must_contain=((pattern, negate(term)),)))
            if layer.additional is not TRUE:
                out.append(ObjectSet(must_contain=((unmatched, negate(layer.additional)),)))
        if o.additional is not TRUE:
            out.append(ObjectSet(must_contain=((others, negate(o.additional)),)))
        if o.names is not textsets.ALL:
            out.append(ObjectSet(must_contain=((self.texts.complement(o.names), TRUE),)))
        if o.min_properties:
            out.append(ObjectSet(max_properties=o.min_properties - 1))
        if o.max_properties is not None:
            out.append(ObjectSet(min_properties=o.max_properties + 1))
        for name, needed in o.dependent_required:
            for other in needed:
                if other != name:
                    out.append(ObjectSet(((name, TRUE), (other, FALSE)), frozenset((name,))))
        return tuple(out)


def smaller(a: int | None, b: int | None) -> int | None:
    """The tighter of two upper bounds; None: no bound."""
    return b if a is None else a if b is None else min(a, b)


def having(name: str) -> ObjectSet:
    """Objects with a property of this name."""
    return ObjectSet(((name, TRUE),), frozenset((name,)))


def unevaluated(a: ValueSet) -> ValueSet:
    """The same values without marks of evaluation: a schema under `not` leaves none."""
    return a._replace(
        arrays=_distinct(x._replace(evaluated=Evaluated()) for x in a.arrays),
        objects=_distinct(x._replace(evaluated=Evaluated()) for x in a.objects),
    )


def fully_evaluated(a: ValueSet) -> ValueSet:
    """The same values, every property and item marked as evaluated."""
    done = Evaluated(all_names=True, items=None)
    return a._replace(
        arrays=tuple(x._replace(evaluated=done) for x in a.arrays),
        objects=tuple(x._replace(evaluated=done) for x in a.objects),
    )


def _distinct(sets: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(sets))


def _union(a: tuple[T, ...], b: tuple[T, ...], whole: T | None) -> tuple[T, ...]:
    if whole is not None and (whole in a or whole in b):
        return (whole,)
    if not a or not b:
        return a or b
    return tuple(dict.fromkeys(a + b))


def _evaluated(a: Evaluated, b: Evaluated) -> Evaluated:
    if a == b:
        return a
    return Evaluated(
        a.names | b.names,
        tuple(dict.fromkeys(a.patterns + b.patterns)),
        a.all_names or b.all_names,
        None if a.items is None or b.items is None else max(a.items, b.items),
        tuple(dict.fromkeys(a.contains + b.contains)),
    )
