"""unevaluatedProperties and unevaluatedItems (core specification, section 11)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from grammars.schema.document import Schema
from grammars.schema.sets import (
    ANY_ARRAY,
    ANY_OBJECT,
    NO_VALUE,
    ArraySet,
    ObjectSet,
    PatternLayer,
    ValueSet,
)
from grammars.schema.terms import TRUE, Scope, Term

if TYPE_CHECKING:
    from grammars.schema.normalize import Normalizer


def restricted(normal: Normalizer, schema: Schema, scope: Scope, found: ValueSet) -> ValueSet:
    """The values of a schema's other keywords whose unevaluated properties and items satisfy these two."""
    node, child = schema.node, normal.terms.child
    if "unevaluatedProperties" in node:
        term = child(schema, node["unevaluatedProperties"], scope, "unevaluatedProperties")
        objects = [_object(normal, o, term) for o in found.objects]
        found = found._replace(objects=tuple(o for o in objects if o is not None))
    if "unevaluatedItems" in node:
        term = child(schema, node["unevaluatedItems"], scope, "unevaluatedItems")
        arrays = [_array(normal, a, term) for a in found.arrays]
        found = found._replace(arrays=tuple(a for a in arrays if a is not None))
    return found


def negated(normal: Normalizer, schema: Schema) -> Iterator[ValueSet]:
    """Objects or arrays of any kind: the negation is left to validation."""
    for keyword, whole in (
        ("unevaluatedProperties", NO_VALUE._replace(objects=(ANY_OBJECT,))),
        ("unevaluatedItems", NO_VALUE._replace(arrays=(ANY_ARRAY,))),
    ):
        if schema.node.get(keyword, True) is not True:
            normal.unchecked.add(schema.path, keyword)
            yield whole


def _object(normal: Normalizer, o: ObjectSet, term: Term) -> ObjectSet | None:
    evaluated = o.evaluated
    met: ObjectSet | None = o
    if not evaluated.all_names:
        known = tuple((name, TRUE) for name in sorted(evaluated.names))
        others = ObjectSet(known, additional=term)
        if evaluated.patterns:
            layer = PatternLayer(tuple((pattern, TRUE) for pattern in evaluated.patterns), term)
            others = ObjectSet(known, layers=(layer,))
        met = normal.algebra.intersect_objects(o, others)
    return met and met._replace(evaluated=met.evaluated._replace(all_names=True))


def _array(normal: Normalizer, a: ArraySet, term: Term) -> ArraySet | None:
    evaluated = a.evaluated
    met: ArraySet | None = a
    if evaluated.items is not None:
        others = normal.terms.any(term, *evaluated.contains)
        met = normal.algebra.intersect_arrays(a, ArraySet((TRUE,) * evaluated.items, others))
    return met and met._replace(evaluated=met.evaluated._replace(items=None))
