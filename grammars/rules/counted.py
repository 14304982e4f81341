"""Arrays and objects whose members are counted or depend on each other, as state machines of rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from grammars import limits
from grammars.rules.names import Node
from grammars.rules.rules import Grammar, Lit, Ref, Sequence
from grammars.schema.sets import ArraySet, Contains
from grammars.schema.terms import FALSE, TRUE, Term

if TYPE_CHECKING:
    from grammars.rules.arrays import ArrayRules
    from grammars.rules.objects import ObjectRules

S = TypeVar("S", bound=NamedTuple)

_OBJECT_STATES = 4_000
_ARRAY_STATES = 1_000


class StateRules(Generic[S]):
    """Rules of one state machine: each state is a rule of its end, where it may end, and of its next members."""

    def __init__(self, grammar: Grammar, hint: str, most: int) -> None:
        self.grammar, self.hint, self.most = grammar, hint, most
        self._refs: dict[S, Ref] = {}
        self._queue: list[S] = []

    def rest(self, state: S) -> Sequence:
        """The rule of a state. Raises `LimitExceeded("states")` where there are too many."""
        ref = self._refs.get(state)
        if ref is None:
            if len(self._refs) >= self.most:
                raise limits.LimitExceeded("states")
            ref = self._refs[state] = Ref(self.grammar.fresh(self.hint))
            self._queue.append(state)
        return (ref,)

    def write(
        self,
        first: S,
        members: Callable[[S], list[Sequence]],
        may_end: Callable[[S], bool],
        marks: tuple[str, str, str],
    ) -> tuple[Sequence, ...]:
        """The alternatives of the whole; `marks`: its opening, comma and closing.

        A machine with too many states leaves no rules, and raises `LimitExceeded("states")`.
        """
        opening, comma, closing = marks
        try:
            start: list[Sequence] = [(Lit(opening), *member) for member in members(first)]
            if may_end(first):
                start.append((Lit(opening + closing),))
            while self._queue:
                limits.check()
                state = self._queue.pop()
                rule: list[Sequence] = [(Lit(closing),)] if may_end(state) else []
                rule += [(Lit(comma), *member) for member in members(state)]
                self.grammar.define(self._refs[state].name, tuple(rule))
        except limits.LimitExceeded as error:
            if error.limit == "states":
                for ref in self._refs.values():  # rules that lead to states never written
                    self.grammar.rules.pop(ref.name, None)
            raise
        return tuple(start)


class _ArrayState(NamedTuple):
    length: int
    matches: tuple[int, ...]  # items so far that satisfy each of `contains`
    used: frozenset[Any]  # keys of values that may not come again


class CountedArray:
    """An array with `contains`, or with distinct items out of the values listed for each term.

    `values`: the values of each term, each with its key; None: items need not be distinct.
    """

    def __init__(self, rules: ArrayRules, a: ArraySet, values: dict[Term, list[tuple[Any, Any]]] | None) -> None:
        self.a, self.values = a, values
        self.builder, self.terms = rules.writer, rules.writer.normal.terms
        self.comma = rules.comma.text
        self.cap = max(a.min_items, a.max_items or 0, len(a.prefix), *(c.start for c in a.contains))
        self.states = StateRules[_ArrayState](rules.grammar, "i", _ARRAY_STATES)

    def write(self) -> tuple[Sequence, ...]:
        first = _ArrayState(0, (0,) * len(self.a.contains), frozenset())
        return self.states.write(first, self._items, self._may_end, ("[", self.comma, "]"))

    def _may_end(self, state: _ArrayState) -> bool:
        enough = all(m >= c.least for m, c in zip(state.matches, self.a.contains, strict=True))
        return state.length >= self.a.min_items and enough

    def _items(self, state: _ArrayState) -> list[Sequence]:
        if self.a.max_items is not None and state.length >= self.a.max_items:
            return []
        out: list[Sequence] = []
        length = min(state.length + 1, self.cap)
        for choice, used in self._choices(state):
            branches: list[tuple[Term, tuple[int, ...]]] = [(choice, ())]
            for c, have in zip(self.a.contains, state.matches, strict=True):
                branches = self._matched(branches, c, have, counts=state.length >= c.start)
            for term, matches in branches:
                if term is not FALSE:
                    rest = self.states.rest(_ArrayState(length, matches, used))
                    out.append((*self.builder.term(term), *rest))
        return out

    def _choices(self, state: _ArrayState) -> list[tuple[Term, frozenset[Any]]]:
        """The terms that the next item may have, each with the keys used behind it."""
        term, used = self.a.item(state.length), state.used
        if self.values is None:
            return [(term, used)]
        return [(self.terms.const(value), used | {key}) for key, value in self.values[term] if key not in used]

    def _matched(
        self, branches: list[tuple[Term, tuple[int, ...]]], c: Contains, have: int, counts: bool
    ) -> list[tuple[Term, tuple[int, ...]]]:
        """Each branch with and without satisfying `c`, which `have` items satisfy so far."""
        same = [(term, (*matches, have)) for term, matches in branches]
        if not counts or (c.most is None and have >= c.least):
            return same
        both, negate = self.terms.all, self.terms.negate
        matching = [(both(term, c.term), (*matches, have + 1)) for term, matches in branches]
        if c.most is None:
            return matching + same
        failing = [(both(term, negate(c.term)), matches) for term, matches in same]
        return matching + failing if have < c.most else failing


class _ObjectState(NamedTuple):
    at: int  # the next declared property
    members: int
    seen: frozenset[str]  # names that a later one depends on
    pending: frozenset[str]  # names that must come
    bits: int  # which of `must_contain` are satisfied


class CountedObject:
    """An object whose members are counted, depend on each other or must satisfy `must_contain`, in declared order."""

    def __init__(self, rules: ObjectRules) -> None:
        self.rules, self.o, self.normal = rules, rules.shape, rules.writer.normal
        o, names = self.o, rules.names
        self.states = StateRules[_ObjectState](rules.grammar, "o", _OBJECT_STATES)
        self.index = index = {name: i for i, name in enumerate(names)}
        self.needs: dict[str, set[str]] = {}
        self.impossible: set[str] = set()  # names that need one that cannot come
        for name, needed in o.dependent_required:
            if name in index:
                if any(other not in index for other in needed):
                    self.impossible.add(name)
                self.needs.setdefault(name, set()).update(n for n in needed if n in index and n != name)
        self.last_use: dict[str, int] = {}
        for name, wanted in self.needs.items():
            for other in wanted:
                self.last_use[other] = max(self.last_use.get(other, -1), index[name])
        self.all_bits = (1 << len(o.must_contain)) - 1
        self.cap = max(o.min_properties, o.max_properties or 0)
        self.last_required = max((index[name] for name in o.required if name in index), default=-1)
        accepts = self.normal.texts.accepts
        self.bits = {
            name: sum(1 << b for b, (where, _) in enumerate(o.must_contain) if accepts(where, name)) for name in names
        }

    def write(self) -> tuple[Sequence, ...]:
        rules = self.rules
        if self.impossible & self.o.required:
            return ()
        if rules.others and self.o.min_properties > len(self.o.required):
            self.normal.unchecked.add_everywhere("minProperties")  # undeclared names may repeat
        first = _ObjectState(0, 0, frozenset(), frozenset(), 0)
        marks = (rules.opening, rules.comma, rules.closing)
        return self.states.write(first, self._members, self._may_end, marks)

    def _may_end(self, state: _ObjectState) -> bool:
        return (
            state.members >= self.o.min_properties
            and not state.pending
            and state.bits == self.all_bits
            and state.at > self.last_required
        )

    def _members(self, state: _ObjectState) -> list[Sequence]:
        o, rules, index = self.o, self.rules, self.index
        if o.max_properties is not None and state.members >= o.max_properties:
            return []
        count = min(state.members + 1, self.cap)
        node: Node | None = None
        for j in range(state.at, len(rules.names)):
            name = rules.names[j]
            wanted = self.needs.get(name, set())
            if name not in self.impossible and all(n in state.seen or index[n] > j for n in wanted):
                ahead = {n for n in wanted if index[n] > j and n not in o.required}
                seen = frozenset(n for n in (*state.seen, name) if self.last_use.get(n, -1) > j)
                following = _ObjectState(j + 1, count, seen, (state.pending | ahead) - {name}, state.bits)
                node = rules.insert(node, name, self._leaf(rules.terms[name], self.bits[name], following))
            if name in o.required or name in state.pending:
                break
        out = [rules.declared(node)] if node else []
        if state.at > self.last_required and not state.pending:
            following = state._replace(members=count)
            out += [rules.other(each, self._leaf(each.term, each.bits, following)) for each in rules.others]
        return out

    def _leaf(self, term: Term, applicable: int, state: _ObjectState) -> Sequence:
        """The part behind a name: the value, with or without satisfying each of `must_contain`, and the rest."""
        options = [(term, state.bits)]
        for b, (_, wanted) in enumerate(self.o.must_contain):
            if not state.bits >> b & 1 and applicable >> b & 1:
                if wanted is TRUE:
                    options = [(t, bits | 1 << b) for t, bits in options]
                else:
                    options += [(self.normal.terms.all(t, wanted), bits | 1 << b) for t, bits in options]
        leaves = [
            self.rules.value(t, self.states.rest(state._replace(bits=bits))) for t, bits in options if t is not FALSE
        ]
        return leaves[0] if len(leaves) == 1 else (self.rules.grammar.add(tuple(leaves), "m"),)
