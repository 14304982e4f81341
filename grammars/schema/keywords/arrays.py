"""Keywords of arrays (core specification, section 10.3.1; validation, section 6.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grammars.schema.algebra import smaller
from grammars.schema.document import Schema
from grammars.schema.sets import ANY_ARRAY, ArraySet, Contains, Evaluated
from grammars.schema.terms import FALSE, TRUE, Scope, Term

if TYPE_CHECKING:
    from grammars.schema.normalize import Normalizer

_KEYWORDS = frozenset(
    (
        *("additionalItems", "contains", "items", "maxContains", "maxItems"),
        *("minContains", "minItems", "prefixItems", "uniqueItems"),
    )
)
_LIMITED = ("contains", "maxItems", "uniqueItems")
"""Keywords that a grammar may have to leave to validation."""


def arrays(normal: Normalizer, schema: Schema, scope: Scope) -> tuple[ArraySet, ...]:
    node = schema.node
    if not node.keys() & _KEYWORDS:
        return (ANY_ARRAY,)
    prefix, additional, open_ended = _items(normal, schema, scope)
    least, most = int(node.get("minItems", 0)), node.get("maxItems")
    contains: tuple[Contains, ...] = ()
    if "contains" in node:
        fewest, highest = int(node.get("minContains", 1)), node.get("maxContains")
        highest = None if highest is None else int(highest)
        if highest is not None and highest < fewest:
            return ()
        term = normal.terms.child(schema, node["contains"], scope, "contains")
        if term is TRUE:
            least, most = max(least, fewest), smaller(most, highest)
        elif term is FALSE:
            if fewest:
                return ()
        elif fewest or highest is not None or normal.tracking:
            contains = (Contains(term, fewest, highest, 0),)
    if most is not None and most < least:
        return ()
    evaluated = _evaluated(schema, len(prefix), open_ended, contains) if normal.tracking else Evaluated()
    unique = bool(node.get("uniqueItems", False))
    normal.unchecked.record_places(schema.path, _LIMITED, node)
    return (ArraySet(prefix, additional, least, None if most is None else int(most), contains, unique, evaluated),)


def not_arrays(normal: Normalizer, schema: Schema, scope: Scope, allowed: frozenset[str]) -> tuple[ArraySet, ...]:
    found = arrays(normal, schema, scope) if "array" in allowed else ()
    return normal.algebra.complement_array(found[0], schema.path) if found else (ANY_ARRAY,)


def _items(normal: Normalizer, schema: Schema, scope: Scope) -> tuple[tuple[Term, ...], Term, bool]:
    """Terms of the first items and of all others; third: no keyword speaks of those others."""
    node, child = schema.node, normal.terms.child
    first, others = node.get("items"), "additionalItems"
    if not isinstance(first, list):
        first, others = node.get("prefixItems", ()), "items"
    prefix = tuple(child(schema, each, scope, "items") for each in first)
    if others not in node:
        return prefix, TRUE, True
    return prefix, child(schema, node[others], scope, others), False


def _evaluated(schema: Schema, prefix: int, open_ended: bool, contains: tuple[Contains, ...]) -> Evaluated:
    """Marks of evaluation; items that satisfy `contains` count since draft 2020-12."""
    terms: tuple[Term, ...] = ()
    if schema.draft >= 2020:
        terms = (TRUE,) if schema.node.get("contains") is True else tuple(c.term for c in contains)
    return Evaluated(items=prefix if open_ended else None, contains=terms)
