"""Finite automata over Unicode text: the regular languages that strings, numbers and property names are.

The alphabet is the set of Unicode scalar values. Edges carry inclusive ranges of code points; U+D7FF and U+E000 count
as neighbours, so a range may span the surrogates, which never occur. Every `DFA` is minimal, has no dead states and is
numbered in breadth-first order of its ranges: equal languages are equal objects (Hopcroft, Motwani, Ullman,
"Introduction to Automata Theory, Languages, and Computation", 4.4).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from grammars import limits
from grammars.limits import LimitExceeded
from grammars.memo import memo

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""A set of characters: ascending, disjoint, not adjacent."""
Row: TypeAlias = tuple[tuple[int, int, int], ...]
"""The edges of one state: `(lo, hi, target)`, ascending and disjoint."""

LAST = 0x10FFFF
ANY: Ranges = ((0, LAST),)


def after(code: int) -> int:
    """The next code point of the alphabet."""
    return 0xE000 if code == 0xD7FF else code + 1


def before(code: int) -> int:
    """The previous code point of the alphabet."""
    return 0xD7FF if code == 0xE000 else code - 1


def char_set(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sorts and merges ranges; surrogates are dropped."""
    out: list[tuple[int, int]] = []
    for lo, hi in sorted(ranges):
        if 0xD800 <= lo <= 0xDFFF:
            lo = 0xE000
        if 0xD800 <= hi <= 0xDFFF:
            hi = 0xD7FF
        if lo > hi:
            continue
        if out and lo <= after(out[-1][1]):
            if hi > out[-1][1]:
                out[-1] = (out[-1][0], hi)
        else:
            out.append((lo, hi))
    return tuple(out)


def invert(ranges: Ranges) -> Ranges:
    """Every character outside the set."""
    out: list[tuple[int, int]] = []
    low = 0
    for lo, hi in ranges:
        if lo > low:
            out.append((low, before(lo)))
        low = after(hi)
    if low <= LAST:
        out.append((low, LAST))
    return tuple(out)


class DFA:
    """A regular language as a minimal partial automaton; state 0 is the start, a missing edge rejects.

    Made by the functions and methods of this module only, so that the invariant of the module holds.
    """

    __slots__ = ("_hash", "_lows", "accepting", "name", "transitions")

    accepting: frozenset[int]
    transitions: tuple[Row, ...]
    name: str | None
    """What rules of it are called, for languages that many grammars have in common; no part of its value."""

    def __init__(self, accepting: frozenset[int], transitions: tuple[Row, ...]) -> None:
        self.accepting = accepting
        self.transitions = transitions
        self.name = None
        self._hash: int | None = None
        self._lows: list[list[int] | None] | None = None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, DFA):
            return NotImplemented
        return self.accepting == other.accepting and self.transitions == other.transitions

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.accepting, self.transitions))
        return self._hash

    def __reduce__(self) -> tuple[type[DFA], tuple[frozenset[int], tuple[Row, ...]]]:
        return DFA, (self.accepting, self.transitions)

    def __len__(self) -> int:
        return len(self.transitions)

    @property
    def weight(self) -> int:
        return len(self.transitions) + sum(map(len, self.transitions))

    def __repr__(self) -> str:
        return f"<DFA of {len(self.transitions)} states>"

    # Questions

    def step(self, state: int, code: int) -> int:
        """The state after a character, -1 where there is none."""
        if self._lows is None:
            self._lows = [None] * len(self.transitions)
        row = self.transitions[state]
        lows = self._lows[state]
        if lows is None:
            lows = self._lows[state] = [edge[0] for edge in row]
        at = bisect_right(lows, code) - 1
        return row[at][2] if at >= 0 and row[at][1] >= code else -1

    def accepts(self, text: str) -> bool:
        state = 0
        for char in text:
            state = self.step(state, ord(char))
            if state < 0:
                return False
        return state in self.accepting

    def is_empty(self) -> bool:
        return not self.accepting

    def is_universal(self) -> bool:
        return self == ALL

    def is_finite(self) -> bool:
        return self.longest() is not None

    def shortest(self) -> str | None:
        """The first of the shortest texts in code point order; None where there is none."""
        if not self.accepting:
            return None
        came: dict[int, tuple[int, int]] = {0: (-1, -1)}
        queue = [0]
        for state in queue:
            if state in self.accepting:
                out = []
                while state:
                    state, code = came[state]
                    out.append(chr(code))
                return "".join(reversed(out))
            for lo, _, target in self.transitions[state]:
                if target not in came:
                    came[target] = (state, lo)
                    queue.append(target)
        raise AssertionError("a state of a trimmed automaton reaches acceptance")

    def longest(self) -> int | None:
        """Characters of the longest text; None where there is no bound. -1 for the empty language."""
        if not self.accepting:
            return -1
        order = self._topological()
        if order is None:
            return None
        depth = [0] * len(self.transitions)
        for state in reversed(order):
            depth[state] = max((1 + depth[target] for _, _, target in self.transitions[state]), default=0)
        return depth[0]

    def count(self, limit: int | None = None) -> int | None:
        """How many texts the language has; None where they are infinitely many (or more than `limit`)."""
        if not self.accepting:
            return 0
        order = self._topological()
        if order is None:
            return None
        number = [0] * len(self.transitions)
        for state in reversed(order):
            total = int(state in self.accepting)
            for lo, hi, target in self.transitions[state]:
                width = hi - lo + 1 - (0x800 if lo < 0xD800 and hi > 0xDFFF else 0)
                total += width * number[target]
            number[state] = total
        return number[0] if limit is None or number[0] <= limit else None

    def enumerate(self, limit: int = 10_000) -> list[str] | None:
        """All texts of a finite language in code point order; None where there are more than `limit`."""
        if self.count(limit) is None:
            return None
        out: list[str] = []

        def walk(state: int, text: str) -> None:
            if state in self.accepting:
                out.append(text)
            for lo, hi, target in self.transitions[state]:
                for code in range(lo, hi + 1):
                    if not 0xD800 <= code <= 0xDFFF:
                        walk(target, text + chr(code))

        if (self.longest() or 0) > 800:  # the recursion's depth
            return None
        walk(0, "")
        return out

    def _topological(self) -> list[int] | None:
        """States in topological order; None where there is a cycle (states of a DFA are all reachable and live)."""
        incoming = [0] * len(self.transitions)
        for row in self.transitions:
            for _, _, target in row:
                incoming[target] += 1
        order = [0] if not incoming[0] else []
        for state in order:
            for _, _, target in self.transitions[state]:
                incoming[target] -= 1
                if not incoming[target]:
                    order.append(target)
        return order if len(order) == len(self.transitions) else None

    # Algebra

    def complement(self) -> DFA:
        return difference(ALL, self)

    def __or__(self, other: DFA) -> DFA:
        return union(self, other)

    def __and__(self, other: DFA) -> DFA:
        return intersect(self, other)

    def __sub__(self, other: DFA) -> DFA:
        return difference(self, other)

    def __add__(self, other: DFA) -> DFA:
        return concat(self, other)


# Canonical form


def minimize(start: int, accepting: Callable[[int], bool], rows: Sequence[Row]) -> DFA:
    """The minimal automaton of the language of `start`, states in breadth-first order.

    Strongly connected components are visited successors first. A state outside any cycle is known by its acceptance
    and its edges to states already merged, so it is merged by one look-up; only cycles need partition refinement. That
    makes chains, which bounded lengths are made of, linear.
    """
    merged: dict[int, int] = {}  # state -> merged state, -1 for a dead one
    known: dict[tuple[bool, Row], int] = {}  # acceptance and edges -> merged state
    looping: dict[tuple[bool, Row], int] = {}  # the same, edges to itself spelled as -2
    cyclic: dict[tuple[bool, int], list[int]] = {}  # members of longer cycles by acceptance and number of edges
    out: list[tuple[bool, Row]] = []

    def edges(row: Row, name: Callable[[int], int]) -> Row:
        new: list[tuple[int, int, int]] = []
        for lo, hi, target in row:
            target = name(target)
            if target == -1:
                continue
            if new and new[-1][2] == target:
                last = new[-1][1]
                if lo == last + 1 or (last == 0xD7FF and lo == 0xE000):
                    new[-1] = (new[-1][0], hi, target)
                    continue
            new.append((lo, hi, target))
        return tuple(new)

    def add(accept: bool, row: Row) -> int:
        number = len(out)
        if any(target == -2 for _, _, target in row):
            looping[accept, row] = number
            row = tuple([(lo, hi, number if target == -2 else target) for lo, hi, target in row])
        known[accept, row] = number
        out.append((accept, row))
        return number

    def single(accept: bool, row: Row) -> int:
        """Merges a state whose only cycle, if any, is an edge to itself (-2)."""
        loop = any(target == -2 for _, _, target in row)
        if not accept and all(target == -2 for _, _, target in row):
            return -1
        found = (looping if loop else known).get((accept, row))
        return add(accept, row) if found is None else found

    def matches(block: int, blocks: list[tuple[bool, Row]], state: int) -> dict[int, int] | None:
        """The merged state of each block of a component if `block` is the merged state `state`."""
        same = {block: state}
        queue = [block]
        for here in queue:
            accept, row = blocks[here]
            accept2, row2 = out[same[here]]
            if accept != accept2 or len(row) != len(row2):
                return None
            for (lo, hi, target), (lo2, hi2, target2) in zip(row, row2, strict=True):
                if lo != lo2 or hi != hi2:
                    return None
                if target >= 0:
                    if target != target2:
                        return None
                    continue
                inner = -3 - target
                if inner not in same:
                    same[inner] = target2
                    queue.append(inner)
                elif same[inner] != target2:
                    return None
        return same

    def component(states: list[int]) -> None:
        block = dict.fromkeys(states, 0)
        came_from: dict[int, list[int]] = {state: [] for state in states}
        for state in states:
            for target in {edge[2] for edge in rows[state]}:
                if target in came_from:
                    came_from[target].append(state)

        def name(target: int) -> int:
            return -3 - block[target] if target in block else merged[target]

        # Parts are told apart by their edges; when a part is split, the largest piece keeps its number, so that a state
        # is looked at again only when the piece around it has at least halved (as in Hopcroft's algorithm).
        parts: list[set[int]] = [set(states)]
        stale: set[int] = set(states)
        while stale:
            limits.check()
            pieces: dict[int, dict[tuple[bool, Row], list[int]]] = {}
            for state in stale:
                key = (accepting(state), edges(rows[state], name))
                pieces.setdefault(block[state], {}).setdefault(key, []).append(state)
            moved: list[int] = []
            for number, by_edges in pieces.items():
                found = sorted(by_edges.values(), key=len)
                rest = len(parts[number]) - sum(map(len, found))
                if rest < len(found[-1]):
                    largest = found.pop()
                    if rest:
                        found.append(list(parts[number].difference(largest, *found)))
                for piece in found:
                    parts[number].difference_update(piece)
                    block.update(dict.fromkeys(piece, len(parts)))
                    parts.append(set(piece))
                    moved += piece
            stale = {source for state in moved for source in came_from[state]}
        blocks = []
        for part in parts:
            state = next(iter(part))
            blocks.append((accepting(state), edges(rows[state], name)))
        if not any(accept or any(t >= 0 for _, _, t in row) for accept, row in blocks):
            merged.update(dict.fromkeys(states, -1))
            return
        if len(blocks) == 1:
            accept, row = blocks[0]
            number = single(accept, tuple([(lo, hi, -2 if t <= -3 else t) for lo, hi, t in row]))
            merged.update(dict.fromkeys(states, number))
            return
        accept, row = blocks[0]
        for candidate in cyclic.get((accept, len(row)), ()):
            same = matches(0, blocks, candidate)
            if same is not None:
                merged.update({state: same[number] for state, number in block.items()})
                return
        base = len(out)
        for number, (accept, row) in enumerate(blocks):
            final = tuple([(lo, hi, base - 3 - t if t <= -3 else t) for lo, hi, t in row])
            out.append((accept, final))
            known[accept, final] = base + number
            if any(t == base + number for _, _, t in final):
                looping[accept, tuple([(lo, hi, -2 if t == base + number else t) for lo, hi, t in final])] = (
                    base + number
                )
            cyclic.setdefault((accept, len(row)), []).append(base + number)
        merged.update({state: base + number for state, number in block.items()})

    # Tarjan, "Depth-first search and linear graph algorithms" (1972), without recursion
    index: dict[int, int] = {start: 0}
    low = [0]
    path: list[int] = [start]
    on_path = {start}
    work: list[tuple[int, int, Iterator[int]]] = [(start, 0, iter({edge[2] for edge in rows[start]}))]
    while work:
        state, number, targets = work[-1]
        for target in targets:
            if target not in index:
                index[target] = len(low)
                low.append(len(low))
                path.append(target)
                on_path.add(target)
                work.append((target, index[target], iter({edge[2] for edge in rows[target]})))
                break
            if target in on_path and index[target] < low[number]:
                low[number] = index[target]
        else:
            work.pop()
            if work and low[number] < low[work[-1][1]]:
                low[work[-1][1]] = low[number]
            if low[number] == number:
                if path[-1] == state:
                    path.pop()
                    on_path.remove(state)

                    def name(target: int, state: int = state) -> int:
                        return -2 if target == state else merged[target]

                    merged[state] = single(accepting(state), edges(rows[state], name))
                else:
                    at = len(path) - 1
                    while path[at] != state:
                        at -= 1
                    states = path[at:]
                    del path[at:]
                    on_path.difference_update(states)
                    component(states)
    if merged[start] < 0:
        return DFA(frozenset(), ((),))
    first_out = merged[start]
    place = {first_out: 0}
    order = [first_out]
    for state in order:
        for _, _, target in out[state][1]:
            if target not in place:
                place[target] = len(order)
                order.append(target)
    return DFA(
        frozenset([n for n, state in enumerate(order) if out[state][0]]),
        tuple([tuple([(lo, hi, place[target]) for lo, hi, target in out[state][1]]) for state in order]),
    )


# Basic languages

EMPTY = DFA(frozenset(), ((),))
"""No text at all."""
ALL = DFA(frozenset([0]), (((0, LAST, 0),),))
"""Every text."""
EPSILON = DFA(frozenset([0]), ((),))
"""The empty text alone."""


def empty() -> DFA:
    return EMPTY


def everything() -> DFA:
    return ALL


def literal(text: str) -> DFA:
    rows = tuple([((ord(char), ord(char), at + 1),) for at, char in enumerate(text)])
    return DFA(frozenset([len(text)]), (*rows, ()))


def characters(ranges: Iterable[tuple[int, int]]) -> DFA:
    """Texts of one character out of a set."""
    chars = char_set(ranges)
    return DFA(frozenset([1]), (tuple([(lo, hi, 1) for lo, hi in chars]), ())) if chars else EMPTY


def strings(texts: Iterable[str]) -> DFA:
    """Exactly these texts."""
    tree: list[dict[int, int]] = [{}]
    ends: set[int] = set()
    for text in texts:
        state = 0
        for char in text:
            code = ord(char)
            following = tree[state].get(code)
            if following is None:
                following = tree[state][code] = len(tree)
                tree.append({})
            state = following
        ends.add(state)
    _bounded(len(tree))
    rows = [tuple([(code, code, target) for code, target in sorted(node.items())]) for node in tree]
    return minimize(0, ends.__contains__, rows)


@memo
def any_string(min_length: int = 0, max_length: int | None = None) -> DFA:
    """Texts of so many code points."""
    if max_length is not None and max_length < min_length:
        return EMPTY
    top = min_length if max_length is None else max_length
    _bounded(top)
    rows: list[Row] = [((0, LAST, n + 1),) for n in range(top)]
    rows.append(((0, LAST, top),) if max_length is None else ())
    return DFA(frozenset(range(min_length, top + 1)), tuple(rows))


def _bounded(states: int) -> None:
    if states > limits.STATES:
        raise LimitExceeded("states")


# Algebra


def _product(a: DFA, b: DFA, left: bool, right: bool, accept: Callable[[bool, bool], bool]) -> DFA:
    """The product automaton; `left`: go on where only `a` lives, `right`: where only `b` lives."""
    dead = -1
    pairs: dict[tuple[int, int], int] = {(0, 0): 0}
    queue = [(0, 0)]
    rows: list[Row] = []
    edges = 0

    def number(x: int, y: int) -> int:
        pair = (x, y)
        found = pairs.get(pair)
        if found is None:
            found = pairs[pair] = len(queue)
            queue.append(pair)
        return found

    for x, y in queue:
        if len(queue) > limits.STATES:
            raise LimitExceeded("states")
        row_a = a.transitions[x] if x >= 0 else ()
        row_b = b.transitions[y] if y >= 0 else ()
        new: list[tuple[int, int, int]] = []
        if not row_b:
            if left:
                new = [(lo, hi, number(t, dead)) for lo, hi, t in row_a]
        elif not row_a:
            if right:
                new = [(lo, hi, number(dead, t)) for lo, hi, t in row_b]
        else:
            i = j = 0
            lo = min(row_a[0][0], row_b[0][0])
            while i < len(row_a) or j < len(row_b):
                a_lo, a_hi, a_to = row_a[i] if i < len(row_a) else (LAST + 1, LAST + 1, dead)
                b_lo, b_hi, b_to = row_b[j] if j < len(row_b) else (LAST + 1, LAST + 1, dead)
                if a_lo < lo:
                    a_lo = lo
                if b_lo < lo:
                    b_lo = lo
                lo = a_lo if a_lo < b_lo else b_lo
                in_a, in_b = a_lo == lo, b_lo == lo
                hi = a_hi if in_a else before(a_lo)
                other = b_hi if in_b else before(b_lo)
                if other < hi:
                    hi = other
                if in_a and in_b:
                    new.append((lo, hi, number(a_to, b_to)))
                elif in_a:
                    if left:
                        new.append((lo, hi, number(a_to, dead)))
                elif right:
                    new.append((lo, hi, number(dead, b_to)))
                if in_a and a_hi == hi:
                    i += 1
                if in_b and b_hi == hi:
                    j += 1
                lo = after(hi)
        rows.append(tuple(new))
        edges += len(new)
        if edges > limits.TRANSITIONS:
            raise LimitExceeded("transitions")
        if not len(rows) & 255:
            limits.check()
    ends = [accept(x in a.accepting, y in b.accepting) for x, y in queue]
    return minimize(0, ends.__getitem__, rows)


@memo
def intersect(a: DFA, b: DFA) -> DFA:
    if a is b or b is ALL:
        return a
    if a is ALL:
        return b
    return _product(a, b, False, False, lambda x, y: x and y)


@memo
def union(a: DFA, b: DFA) -> DFA:
    if a is b or b is EMPTY:
        return a
    if a is EMPTY:
        return b
    return _product(a, b, True, True, lambda x, y: x or y)


@memo
def difference(a: DFA, b: DFA) -> DFA:
    if b is EMPTY:
        return a
    return _product(a, b, True, False, lambda x, y: x and not y)


def complement(a: DFA) -> DFA:
    return difference(ALL, a)


def product_states(machines: Sequence[DFA], limit: int = 64) -> list[tuple[tuple[int, ...], DFA]]:
    """Each combination of states (-1: dead) that the automata can be in together, and the texts that lead there."""
    start = (0,) * len(machines)
    numbers = {start: 0}
    queue = [start]
    rows: list[Row] = []
    for states in queue:
        edges = {0}
        for machine, state in zip(machines, states, strict=True):
            for lo, hi, _ in machine.transitions[state] if state >= 0 else ():
                edges |= {lo, after(hi)}
        lows = sorted(code for code in edges if code <= LAST)
        row = []
        for lo, following in zip(lows, [*lows[1:], LAST + 1], strict=True):
            new = tuple([m.step(q, lo) if q >= 0 else -1 for m, q in zip(machines, states, strict=True)])
            if new not in numbers:
                numbers[new] = len(queue)
                queue.append(new)
                if len(queue) > limit:
                    raise LimitExceeded("states")
            row.append((lo, before(following), numbers[new]))
        rows.append(tuple(row))
    return [(states, minimize(0, number.__eq__, rows)) for states, number in numbers.items()]


@memo
def concat(a: DFA, b: DFA) -> DFA:
    """A text of `a` followed by a text of `b`."""
    nfa = NFA()
    start, ends = nfa.embed(a)
    start_b, ends_b = nfa.embed(b)
    for end in ends:
        nfa.epsilon(end, start_b)
    return nfa.determinize(start, ends_b)


@memo
def repeat(a: DFA, least: int = 0, most: int | None = None) -> DFA:
    """`least` to `most` texts of `a` in a row."""
    nfa = NFA()
    start = here = nfa.state()
    finals: list[int] = []
    copies = least if most is None else most
    _bounded(copies * len(a))
    for number in range(copies):
        if number >= least:
            finals.append(here)
        begin, ends = nfa.embed(a)
        nfa.epsilon(here, begin)
        here = nfa.state()
        for end in ends:
            nfa.epsilon(end, here)
    finals.append(here)
    if most is None:
        begin, ends = nfa.embed(a)
        nfa.epsilon(here, begin)
        for end in ends:
            nfa.epsilon(end, here)
    return nfa.determinize(start, finals)


class NFA:
    """An automaton with empty moves, on its way to becoming a `DFA` by the subset construction.

    A jump may be guarded: "start" (nothing was read yet), "end" (nothing follows), or a look at the text around it:
    `(True, D)`: the whole rest of the text is in the language of D; `(False, D)`: the whole text read so far is.
    """

    def __init__(self) -> None:
        self.sets: dict[Ranges, int] = {}
        self.edges: list[list[tuple[int, int]]] = []  # per state: (number of the set, target)
        self.jumps: list[list[tuple[Guard, int]]] = []
        self.ahead: list[DFA] = []
        self.behind: list[DFA] = []

    def state(self) -> int:
        self.edges.append([])
        self.jumps.append([])
        if len(self.edges) > 4 * limits.STATES:
            raise LimitExceeded("states")
        return len(self.edges) - 1

    def edge(self, source: int, chars: Ranges, target: int) -> None:
        self.edges[source].append((self.sets.setdefault(chars, len(self.sets)), target))

    def epsilon(self, source: int, target: int, guard: Guard = None) -> None:
        self.jumps[source].append((guard, target))

    def lookaround(self, source: int, target: int, ahead: bool, language: DFA) -> None:
        """A jump for texts whose rest (or beginning) is in `language`."""
        looks = self.ahead if ahead else self.behind
        if language not in looks:
            looks.append(language)
        self.jumps[source].append(((ahead, looks.index(language)), target))

    def embed(self, dfa: DFA) -> tuple[int, list[int]]:
        """A copy of a DFA: its start and its accepting states."""
        base = len(self.edges)
        for _ in dfa.transitions:
            self.state()
        for state, row in enumerate(dfa.transitions):
            by_target: dict[int, list[tuple[int, int]]] = {}
            for lo, hi, target in row:
                by_target.setdefault(target, []).append((lo, hi))
            for target, ranges in by_target.items():
                self.edge(base + state, tuple(ranges), base + target)
        return base, [base + state for state in sorted(dfa.accepting)]

    def determinize(
        self, start: int, finals: Iterable[int], behind: tuple[int, ...] | None = None, budget: int = 200_000
    ) -> DFA:
        """The DFA. `behind`: the states that the look-behinds start in, where the text does not begin here.

        `budget` bounds the moves of subset members looked at, beyond which `LimitExceeded("states")` is raised.
        """
        subsets = SubsetConstruction(self, start, finals, behind)
        states: dict[Subset, int] = {subsets.start: 0}
        queue = [subsets.start]
        rows: list[Row] = []
        for subset in queue:
            if subsets.work > budget or len(queue) > limits.STATES:
                raise LimitExceeded("states")
            if not len(rows) & 255:
                limits.check()
            row: list[tuple[int, int, int]] = []
            for symbol, following in subsets.steps(subset):
                target = states.get(following)
                if target is None:
                    target = states[following] = len(queue)
                    queue.append(following)
                row.append((symbol, symbol, target))
            row.sort()
            rows.append(tuple(row))
        accept = [subsets.accepting(subset) for subset in queue]
        return subsets.spell(minimize(0, accept.__getitem__, rows))


Guard: TypeAlias = str | tuple[bool, int] | None
Need: TypeAlias = tuple[int, int]
"""A look-ahead under way: its number and the state it is in; it must accept when the text ends."""
Thread: TypeAlias = tuple[int, frozenset[Need]] | int
"""An NFA state, with what must still come true of the rest of the text."""
Subset: TypeAlias = tuple[frozenset[Thread], tuple[int, ...]]
"""Threads, and the state of each look-behind (-1: will never accept again)."""

_END = -1  # the thread that passed the end guard: it accepts, and reads nothing


class SubsetConstruction:
    """The subset construction of an NFA, step by step: whole for a DFA, or along one text where a DFA is too large."""

    def __init__(self, nfa: NFA, start: int, finals: Iterable[int], behind: tuple[int, ...] | None = None) -> None:
        self.nfa = nfa
        self.finals = frozenset(finals)
        everything = nfa.sets.get(ANY, -1)
        self.universal = frozenset([state for state in self.finals if (everything, state) in nfa.edges[state]])
        self.work = 0
        self.weight = 2 * len(nfa.edges)
        self._alphabet()
        self._closures: dict[tuple[int, tuple[bool, ...]], frozenset[Thread]] = {}
        behind = (0,) * len(nfa.behind) if behind is None else behind
        self.start: Subset = (self._closure(start, self._flags(behind), True), behind)

    def _alphabet(self) -> None:
        """Splits the alphabet into classes of characters that no edge tells apart."""
        sets = list(self.nfa.sets)
        for dfa in (*self.nfa.ahead, *self.nfa.behind):
            for row in dfa.transitions:
                by_target: dict[int, list[tuple[int, int]]] = {}
                for lo, hi, target in row:
                    by_target.setdefault(target, []).append((lo, hi))
                sets.extend(tuple(ranges) for ranges in by_target.values())
        toggles: dict[int, int] = {}
        bits: dict[Ranges, int] = {}
        for ranges in sets:
            if ranges in bits:
                continue
            bit = bits[ranges] = 1 << len(bits)
            for lo, hi in ranges:
                toggles[lo] = toggles.get(lo, 0) ^ bit
                toggles[after(hi)] = toggles.get(after(hi), 0) ^ bit
        symbols: dict[int, int] = {}
        self.intervals: list[tuple[int, int, int]] = []  # (lo, hi, symbol), ascending
        mask, low = 0, 0
        for code in sorted(toggles):
            if mask and code > low:
                self.intervals.append((low, before(code), symbols.setdefault(mask, len(symbols))))
            mask ^= toggles[code]
            low = code
        self.symbols: list[list[int]] = []  # per set of the NFA
        for ranges in self.nfa.sets:
            bit = bits[ranges]
            self.symbols.append([symbol for mask, symbol in symbols.items() if mask & bit])
        self.sample = [0] * len(symbols)
        for lo, _, symbol in self.intervals:
            self.sample[symbol] = lo

    def spell(self, dfa: DFA) -> DFA:
        """The automaton over symbols as one over characters."""
        ranges: dict[tuple[int, ...], Ranges] = {}
        rows: list[Row] = []
        edges = 0
        for row in dfa.transitions:
            if len(row) == 1:
                groups = [(row[0][2], tuple(range(row[0][0], row[0][1] + 1)))]
            else:
                by_target: dict[int, list[int]] = {}
                for lo, hi, target in row:
                    by_target.setdefault(target, []).extend(range(lo, hi + 1))
                groups = [(target, tuple(symbols)) for target, symbols in by_target.items()]
            new: list[tuple[int, int, int]] = []
            for target, symbols in groups:
                chars = ranges.get(symbols)
                if chars is None:
                    wanted = set(symbols)
                    chars = char_set([(lo, hi) for lo, hi, symbol in self.intervals if symbol in wanted])
                    ranges[symbols] = chars
                new.extend([(lo, hi, target) for lo, hi in chars])
            if len(groups) > 1:
                new.sort()
            rows.append(tuple(new))
            edges += len(new)
            if edges > limits.TRANSITIONS:
                raise LimitExceeded("transitions")
        # breadth-first order by symbols is not that by characters
        place = {0: 0}
        order = [0]
        for state in order:
            for _, _, target in rows[state]:
                if target not in place:
                    place[target] = len(order)
                    order.append(target)
        return DFA(
            frozenset([place[state] for state in dfa.accepting]),
            tuple([tuple([(lo, hi, place[target]) for lo, hi, target in rows[state]]) for state in order]),
        )

    def _flags(self, behind: tuple[int, ...]) -> tuple[bool, ...]:
        return tuple([q >= 0 and q in dfa.accepting for q, dfa in zip(behind, self.nfa.behind, strict=True)])

    def _closure(self, state: int, flags: tuple[bool, ...], at_start: bool = False) -> frozenset[Thread]:
        """The threads that reading goes on from, `state` having been reached."""
        key = (state, flags)
        if not at_start:
            found = self._closures.get(key)
            if found is not None:
                return found
        nfa = self.nfa
        out: set[Thread] = set()
        todo: list[tuple[int, bool, frozenset[Need]]] = [(state, False, frozenset())]
        seen = set(todo)
        while todo:
            here, ended, needs = item = todo.pop()
            if here in self.finals or (nfa.edges[here] and not ended):
                where = _END if ended else here
                out.add((where, needs) if needs else where)
            for guard, target in nfa.jumps[here]:
                after_end, after_needs = ended, needs
                if guard is None:
                    pass
                elif guard == "start":
                    if not at_start:
                        continue
                elif guard == "end":
                    after_end = True
                else:
                    assert isinstance(guard, tuple)
                    ahead, number = guard
                    if not ahead:
                        if not flags[number]:
                            continue
                    elif nfa.ahead[number].is_empty():
                        continue
                    else:
                        after_needs = needs | {(number, 0)}
                item = (target, after_end, after_needs)
                if item not in seen:
                    seen.add(item)
                    todo.append(item)
        self.work += len(seen)
        closure = self._prune(out)
        if not at_start:
            self._closures[key] = closure
        return closure

    def accepting(self, subset: Subset) -> bool:
        for thread in subset[0]:
            state, needs = thread if isinstance(thread, tuple) else (thread, ())
            if (state == _END or state in self.finals) and all(q in self.nfa.ahead[n].accepting for n, q in needs):
                return True
        return False

    def steps(self, subset: Subset) -> list[tuple[int, Subset]]:
        """The subset after each symbol that leads anywhere."""
        threads, behind = subset
        if not self.nfa.ahead and not self.nfa.behind:
            plain: dict[int, frozenset[Thread] | set[Thread]] = {}
            for thread in threads:
                assert isinstance(thread, int)
                if thread < 0:
                    continue
                for number, target in self.nfa.edges[thread]:
                    closure = self._closures.get((target, ()))
                    if closure is None:
                        closure = self._closure(target, ())
                    self.work += len(closure)
                    for symbol in self.symbols[number]:
                        old = plain.get(symbol)
                        if old is None:
                            plain[symbol] = closure
                        elif isinstance(old, set):
                            old |= closure
                        else:
                            plain[symbol] = {*old, *closure}
            return [(symbol, (self._prune(new), ())) for symbol, new in plain.items()]
        return self._guarded_steps(threads, behind)

    def _guarded_steps(self, threads: frozenset[Thread], behind: tuple[int, ...]) -> list[tuple[int, Subset]]:
        nfa = self.nfa
        moves: dict[int, set[Thread]] = {}
        contexts: dict[int, tuple[tuple[int, ...], tuple[bool, ...]]] = {}
        for thread in threads:
            state, needs = thread if isinstance(thread, tuple) else (thread, frozenset[Need]())
            if state == _END:
                continue
            for number, target in nfa.edges[state]:
                for symbol in self.symbols[number]:
                    code = self.sample[symbol]
                    if symbol not in contexts:
                        moved = tuple(
                            [-1 if q < 0 else d.step(q, code) for q, d in zip(behind, nfa.behind, strict=True)]
                        )
                        contexts[symbol] = (moved, self._flags(moved))
                    rest = self._advance(needs, code)
                    if rest is None:
                        continue
                    new = moves.setdefault(symbol, set())
                    closure = self._closure(target, contexts[symbol][1])
                    self.work += 4 + 4 * len(closure)  # dearer than without looks
                    for item in closure:
                        if not rest:
                            new.add(item)
                            continue
                        at, own = item if isinstance(item, tuple) else (item, frozenset[Need]())
                        new.add((at, own | rest))
        return [(symbol, (self._prune(new), contexts[symbol][0])) for symbol, new in moves.items()]

    def _advance(self, needs: frozenset[Need], code: int) -> frozenset[Need] | None:
        """The look-aheads after a character; None where one of them failed."""
        out = []
        for number, state in needs:
            dfa = self.nfa.ahead[number]
            state = dfa.step(state, code)
            if state < 0:
                return None
            if dfa.transitions[state] == ((0, LAST, state),) and state in dfa.accepting:
                continue  # whatever follows
            out.append((number, state))
        return frozenset(out)

    def _prune(self, threads: set[Thread] | frozenset[Thread]) -> frozenset[Thread]:
        """Drops a thread where another one at the same state needs less, and all beside one that accepts everything."""
        for state in self.universal:
            if state in threads:
                return frozenset([state])
        needs: dict[int, list[frozenset[Need]]] = {}
        if self.nfa.ahead:
            for thread in threads:
                if isinstance(thread, tuple):
                    needs.setdefault(thread[0], []).append(thread[1])
        if not needs:
            return frozenset(threads)
        out: set[Thread] = {thread for thread in threads if isinstance(thread, int)}
        for state, options in needs.items():
            if state in out:
                continue
            for option in options:
                if not any(other < option for other in options):
                    out.add((state, option))
        return frozenset(out)

    def accepts(self, text: str, budget: int = 4_000_000) -> bool:
        """Whether the text is in the language, without building the DFA; linear in the text for a given NFA."""
        self.work = 0
        subset: Subset | None = self.start
        lows = [interval[0] for interval in self.intervals]
        memo: dict[Subset, dict[int, Subset]] = {}
        for char in text:
            code = ord(char)
            at = bisect_right(lows, code) - 1
            if subset is None or at < 0 or self.intervals[at][1] < code:
                return False
            if subset not in memo:
                if self.work > budget:
                    raise LimitExceeded("states")
                memo[subset] = dict(self.steps(subset))
            subset = memo[subset].get(self.intervals[at][2])
        return subset is not None and self.accepting(subset)
