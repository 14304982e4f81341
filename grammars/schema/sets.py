"""Value sets, the normal form of schemas: a union over the JSON types.

A `ValueSet` holds null or not, booleans, a set of numbers, a set of strings, alternatives of arrays and alternatives
of objects. Items and properties are terms (`grammars.schema.terms`), so recursive schemas stay finite.
"""

from __future__ import annotations

from typing import NamedTuple

from grammars.schema.terms import TRUE, Term
from grammars.sets import numbers as numbersets
from grammars.sets import strings as textsets
from grammars.sets.numbers import NumberSet
from grammars.sets.strings import TextSet


class PatternLayer(NamedTuple):
    """One schema's word on names that its `properties` does not declare: by pattern, and for names that match none."""

    patterns: tuple[tuple[TextSet, Term], ...]
    additional: Term


class Evaluated(NamedTuple):
    """Names and indices (below `items`; None: all) that in-place applicators have evaluated.

    Items that satisfy a term of `contains` are evaluated too.
    """

    names: frozenset[str] = frozenset()
    patterns: tuple[TextSet, ...] = ()
    all_names: bool = False
    items: int | None = 0
    contains: tuple[Term, ...] = ()


class Contains(NamedTuple):
    """Of the items from index `start` on, `least` to `most` satisfy `term`."""

    term: Term
    least: int
    most: int | None
    start: int


class ArraySet(NamedTuple):
    """Arrays of `prefix` item by item, then `additional`; `min_items` to `max_items` of them."""

    prefix: tuple[Term, ...] = ()
    additional: Term = TRUE
    min_items: int = 0
    max_items: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: bool = False
    evaluated: Evaluated = Evaluated()

    def item(self, index: int) -> Term:
        """The term of the item at an index."""
        return self.prefix[index] if index < len(self.prefix) else self.additional


class ObjectSet(NamedTuple):
    """Objects by declared properties in order (those of `required` always among them) and the other names.

    `additional` and every layer apply to each undeclared name; `names` restricts undeclared names.
    `dependent_required`: where the first name is present, so are the others. `must_contain`: for each pair, an
    undeclared name out of the set with a value of the term.
    """

    props: tuple[tuple[str, Term], ...] = ()
    required: frozenset[str] = frozenset()
    layers: tuple[PatternLayer, ...] = ()
    additional: Term = TRUE
    min_properties: int = 0
    max_properties: int | None = None
    names: TextSet = textsets.ALL
    dependent_required: tuple[tuple[str, frozenset[str]], ...] = ()
    must_contain: tuple[tuple[TextSet, Term], ...] = ()
    evaluated: Evaluated = Evaluated()


class ValueSet(NamedTuple):
    """Per type, the values in the set. `booleans` is a bit mask: 1 false, 2 true."""

    null: bool
    booleans: int
    number: NumberSet
    string: TextSet
    arrays: tuple[ArraySet, ...]
    objects: tuple[ObjectSet, ...]


ANY_ARRAY = ArraySet()
ANY_OBJECT = ObjectSet()
ANY_VALUE = ValueSet(True, 3, numbersets.ALL, textsets.ALL, (ANY_ARRAY,), (ANY_OBJECT,))
NO_VALUE = ValueSet(False, 0, numbersets.NONE, textsets.NONE, (), ())

BY_TYPE = {
    "null": NO_VALUE._replace(null=True),
    "boolean": NO_VALUE._replace(booleans=3),
    "number": NO_VALUE._replace(number=numbersets.ALL),
    "integer": NO_VALUE._replace(number=numbersets.INTEGER),
    "string": NO_VALUE._replace(string=textsets.ALL),
    "array": NO_VALUE._replace(arrays=(ANY_ARRAY,)),
    "object": NO_VALUE._replace(objects=(ANY_OBJECT,)),
}
