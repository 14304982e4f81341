"""One array of the normal form as grammar rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grammars import limits
from grammars.rules.rules import Lit, Ref, Sequence
from grammars.schema.sets import ArraySet
from grammars.schema.terms import FALSE, Term

if TYPE_CHECKING:
    from grammars.rules.builder import GrammarBuilder

_ANY = object()  # stands for the key of a value that need not be told from others
_STATES = 1_000
"""States of one array whose items must be counted or told apart."""


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
        """contains and uniqueItems: a state is (index, items so far, matches per contains, values used)."""
        normal, terms = self.writer.normal, self.writer.normal.terms
        prefix, least, most, n = shape.prefix, shape.min_items, shape.max_items, len(shape.prefix)
        unique = shape.unique and (most is None or most > 1)
        values: dict[Term, list[Any]] = {}
        if unique:
            listed = {term: normal.values(term, 20) for term in {*prefix, shape.additional}}
            if any(v is None for v in listed.values()):
                normal.unchecked.add_everywhere("uniqueItems")
                unique = False
            else:
                values = {term: v for term, v in listed.items() if v is not None}
        if not unique and not shape.contains:
            return None
        cap = max(least, most or 0, n, *(c.start for c in shape.contains))
        states: dict[Any, str] = {}
        queue: list[Any] = []

        def rest(state: Any) -> Sequence:
            if state not in states:
                if len(states) >= _STATES:
                    raise limits.LimitExceeded("states")
                states[state] = self.grammar.fresh("i")
                queue.append(state)
            return (Ref(states[state]),)

        def items(count: int, matches: tuple[int, ...], used: frozenset[Any]) -> list[Sequence]:
            if most is not None and count >= most:
                return []
            term = prefix[count] if count < n else shape.additional
            out = []
            choices: list[tuple[Term, Any]] = [(term, _ANY)]
            if unique:
                choices = [(terms.const(value), key) for key, value in values[term] if key not in used]
            for choice, key in choices:
                branches: list[tuple[Term, tuple[int, ...]]] = [(choice, ())]
                for c, have in zip(shape.contains, matches, strict=True):
                    if count < c.start:
                        branches = [(t, (*m, have)) for t, m in branches]
                        continue
                    limit = c.least if c.most is None else c.most
                    matching = [
                        (terms.all(t, c.term), (*m, have + 1 if c.most is not None else min(have + 1, limit)))
                        for t, m in branches
                        if c.most is None or have < c.most
                    ]
                    if c.most is None:
                        if have >= c.least:
                            branches = [(t, (*m, have)) for t, m in branches]
                        else:
                            branches = matching + [(t, (*m, have)) for t, m in branches]
                    else:
                        branches = matching + [(terms.all(t, terms.negate(c.term)), (*m, have)) for t, m in branches]
                for t, m in branches:
                    if t is not FALSE:
                        used_now = used if key is _ANY else used | {key}
                        out.append((*self.writer.term(t), *rest((min(count + 1, cap), m, used_now))))
            return out

        def may_end(count: int, matches: tuple[int, ...]) -> bool:
            return count >= least and all(m >= c.least for m, c in zip(matches, shape.contains, strict=True))

        try:
            zero = (0,) * len(shape.contains)
            start: list[Sequence] = [(Lit("["), *item) for item in items(0, zero, frozenset())]
            if may_end(0, zero):
                start.append((Lit("[]"),))
            while queue:
                limits.check()
                state = queue.pop()
                count, matches, used = state
                rule: list[Sequence] = [(Lit("]"),)] if may_end(count, matches) else []
                rule += [(self.comma, *item) for item in items(count, matches, used)]
                self.grammar.define(states[state], tuple(rule))
        except limits.LimitExceeded as error:
            if error.limit != "states":
                raise
            for name in states.values():  # rules that lead to states never written
                self.grammar.rules.pop(name, None)
            normal.unchecked.add_everywhere(
                *(("contains",) if shape.contains else ()), *(("uniqueItems",) if shape.unique else ())
            )
            return None
        return tuple(start)
