"""One array of the normal form as grammar rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grammars import limits
from grammars.rules.counted import CountedArray
from grammars.rules.rules import Lit, Sequence
from grammars.schema.sets import ArraySet
from grammars.schema.terms import FALSE, Term

if TYPE_CHECKING:
    from grammars.rules.builder import GrammarBuilder

_LISTED = 20
"""Most values of an item that are told apart for uniqueItems."""


class ArrayRules:
    """One array: the items of the prefix, then any number of further items within the bounds."""

    def __init__(self, writer: GrammarBuilder, shape: ArraySet) -> None:
        self.writer, self.shape, self.grammar = writer, shape, writer.grammar
        self.comma = Lit(writer.spelling.layout.comma)

    def write(self) -> tuple[Sequence, ...]:
        shape = self.shape
        prefix, most = shape.prefix, shape.max_items
        for i, term in enumerate(prefix):
            if term is FALSE:
                prefix, most = prefix[:i], i if most is None else min(most, i)
                break
        else:
            if shape.additional is FALSE:
                most = len(prefix) if most is None else min(most, len(prefix))
        if most is not None:
            prefix = prefix[:most]
            if most < shape.min_items:
                return ()
        contains = tuple(c for c in shape.contains if c.least or c.most is not None)
        shape = shape._replace(prefix=prefix, max_items=most, contains=contains)
        if contains or (shape.unique and (most is None or most > 1)):
            out = self._counted(shape)
            if out is not None:
                return out
        return self._plain(shape)

    def _plain(self, shape: ArraySet) -> tuple[Sequence, ...]:
        prefix, least, most, n = shape.prefix, shape.min_items, shape.max_items, len(shape.prefix)
        closing: Sequence = (Lit("]"),)
        if most == 0:
            return ((Lit("[]"),),)
        out: list[Sequence] = [(Lit("[]"),)] if least == 0 else []
        if most is not None and most <= n:
            rest: Sequence = closing
        else:
            item = self.writer.term(shape.additional)
            lower, upper = max(0, least - n), None if most is None else most - n
            if n == 0:
                lower, upper = max(0, lower - 1), None if upper is None else upper - 1
            if upper == 0:
                rest = closing
            else:
                more = self.grammar.add(((self.comma, *item),), "i")
                rest = (*self.writer.repeat(more, lower, upper, "maxItems"), *closing)
            if n == 0:
                out.append((Lit("["), *item, *rest))
                return tuple(out)
        for i in range(n - 1, 0, -1):
            after: Sequence = (self.comma, *self.writer.term(prefix[i]), *rest)
            rest = after if least > i else (self.grammar.add((closing, after), "i"),)
        out.append((Lit("["), *self.writer.term(prefix[0]), *rest))
        return tuple(out)

    def _counted(self, shape: ArraySet) -> tuple[Sequence, ...] | None:
        """contains and uniqueItems; None where they are left to validation."""
        normal = self.writer.normal
        values: dict[Term, list[tuple[Any, Any]]] | None = None
        if shape.unique and (shape.max_items is None or shape.max_items > 1):
            listed = {term: normal.values(term, _LISTED) for term in {*shape.prefix, shape.additional}}
            values = {term: found for term, found in listed.items() if found is not None}
            if len(values) < len(listed):
                normal.unchecked.add_everywhere("uniqueItems")
                values = None
        if values is None and not shape.contains:
            return None
        try:
            return CountedArray(self, shape, values).write()
        except limits.LimitExceeded as error:
            if error.limit != "states":
                raise
        keywords = (*(("contains",) if shape.contains else ()), *(("uniqueItems",) if shape.unique else ()))
        normal.unchecked.add_everywhere(*keywords)
        return None
