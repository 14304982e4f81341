"""Normal form: a schema as a union of typed shapes, and terms, which stand for schemas not yet normalised.

A `Shape` says per JSON type which values are in: null, booleans, a set of numbers, a set of strings, alternatives of
arrays and alternatives of objects. Children of arrays and objects are `Term`s: formulas over schemas that are
normalised only when the grammar reaches them, so recursive schemas stay finite.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from grammars.sets import numbers as numbersets
from grammars.sets import strings as textsets
from grammars.sets.numbers import NumberSet
from grammars.sets.strings import TextSet


class Term:
    """A formula over schemas; interned by `Terms`, so compared by identity.

    kind and args: "true", "false"; "leaf": (Schema, holds: bool, dynamic scope); "all" and "any": a tuple of terms;
    "const": (frozen value, value, holds: bool).
    """

    __slots__ = ("args", "kind")

    def __init__(self, kind: str, args: tuple[Any, ...] = ()) -> None:
        self.kind, self.args = kind, args

    def __repr__(self) -> str:
        if self.kind == "leaf":
            return f"{'' if self.args[1] else '!'}<{self.args[0].path}>"
        return f"{self.kind}{self.args if self.args else ''}"


TRUE = Term("true")
FALSE = Term("false")


def freeze(value: Any) -> Any:
    """A hashable key under which equal JSON values (1 and 1.0, but not 1 and true) are equal."""
    if isinstance(value, bool):
        return ("b", value)
    if isinstance(value, list):
        return ("l", tuple(freeze(v) for v in value))
    if isinstance(value, dict):
        return ("o", frozenset((k, freeze(v)) for k, v in value.items()))
    return value


class Terms:
    """Makes terms; equal formulas are the same object."""

    def __init__(self) -> None:
        self._known: dict[Any, Term] = {}

    def _intern(self, kind: str, key: Any, args: tuple[Any, ...]) -> Term:
        term = self._known.get(key)
        if term is None:
            term = self._known[key] = Term(kind, args)
        return term

    def leaf(self, schema: Any, holds: bool, scope: tuple[Any, ...]) -> Term:
        return self._intern("leaf", (schema, holds, scope), (schema, holds, scope))

    def const(self, value: Any, holds: bool = True) -> Term:
        key = freeze(value)
        return self._intern("const", ("const", key, holds), (key, value, holds))

    def all(self, *terms: Term) -> Term:
        return self._combine("all", TRUE, FALSE, terms)

    def any(self, *terms: Term) -> Term:
        return self._combine("any", FALSE, TRUE, terms)

    def _combine(self, kind: str, neutral: Term, absorbing: Term, terms: tuple[Term, ...]) -> Term:
        parts: dict[Term, None] = {}
        for term in terms:
            if term is absorbing:
                return absorbing
            if term.kind == kind:
                parts.update(dict.fromkeys(term.args))
            elif term is not neutral:
                parts[term] = None
        if not parts:
            return neutral
        if len(parts) == 1:
            return next(iter(parts))
        if kind == "all":
            for part in parts:
                if part.kind in ("leaf", "const") and self.negate(part) in parts:
                    return absorbing
        return self._intern(kind, (kind, frozenset(parts)), tuple(parts))

    def negate(self, term: Term) -> Term:
        if term is TRUE:
            return FALSE
        if term is FALSE:
            return TRUE
        if term.kind == "leaf":
            schema, holds, scope = term.args
            return self.leaf(schema, not holds, scope)
        if term.kind == "const":
            key, value, holds = term.args
            return self._intern("const", ("const", key, not holds), (key, value, not holds))
        parts = [self.negate(part) for part in term.args]
        return self.any(*parts) if term.kind == "all" else self.all(*parts)


class PatternLayer(NamedTuple):
    """What one schema says about names that no `properties` declares: by pattern, and for all that match none."""

    patterns: tuple[tuple[TextSet, Term], ...]
    additional: Term


class Evaluated(NamedTuple):
    """Names (and indices below `items`; None: all) that in-place applicators have already looked at;
    items that satisfy a term of `contains` are too."""

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
    """`prefix` item by item, then `rest`; `least` to `most` items."""

    prefix: tuple[Term, ...] = ()
    additional: Term = TRUE
    min_items: int = 0
    max_items: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: bool = False
    evaluated: Evaluated = Evaluated()


class ObjectSet(NamedTuple):
    """Declared properties in order (those of `required` always among them), then what holds for the other names.

    `rest` and every layer apply to each undeclared name; `names` restricts undeclared names. `needs`: where the first
    name is present, so are the others. `some`: for each, an undeclared name out of the set with a value of the term.
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
