"""Minimisation of deterministic automata.

Strongly connected components are visited successors first. A state outside any cycle is known by its acceptance and its
edges to states already merged, so it is merged by one look-up; only cycles need partition refinement. That makes
chains, which bounded lengths are made of, linear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from grammars import limits
from grammars.automata.dfa import DFA, Row

State: TypeAlias = tuple[bool, Row]
"""Acceptance and edges. Targets are merged states; -2: the state itself; -3 and below: blocks of its component."""

_DEAD = -1
_SELF = -2


def minimize(start: int, accepting: Callable[[int], bool], rows: Sequence[Row]) -> DFA:
    """The minimal automaton of the language of `start`, states in breadth-first order."""
    minimizer = Minimizer(accepting, rows)
    for states in minimizer.components(start):
        if len(states) == 1:
            minimizer.merge_state(states[0])
        else:
            minimizer.merge_component(states)
    return minimizer.number_states(start)


class Minimizer:
    """The merged states of one automaton. `merged` maps its states to them, dead ones to -1."""

    def __init__(self, accepting: Callable[[int], bool], rows: Sequence[Row]) -> None:
        self.accepting, self.rows = accepting, rows
        self.merged: dict[int, int] = {}
        self._out: list[State] = []
        self._known: dict[State, int] = {}
        self._looping: dict[State, int] = {}  # states with an edge to themselves, spelled as -2
        self._cyclic: dict[tuple[bool, int], list[int]] = {}  # members of longer cycles, by acceptance and edges

    def components(self, start: int) -> Iterator[list[int]]:
        """Strongly connected components, successors first.

        Tarjan, "Depth-first search and linear graph algorithms" (1972), without recursion.
        """
        rows = self.rows
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
                    at = len(path) - 1
                    while path[at] != state:
                        at -= 1
                    states = path[at:]
                    del path[at:]
                    on_path.difference_update(states)
                    yield states

    def merge_state(self, state: int) -> None:
        """Merges a state whose only cycle, if any, is an edge to itself."""
        merged = self.merged
        row = _edges(self.rows[state], lambda target: _SELF if target == state else merged[target])
        merged[state] = self._number(self.accepting(state), row)

    def _number(self, accept: bool, row: Row) -> int:
        """The merged state with these edges, a new one where there is none."""
        loops = any(target == _SELF for _, _, target in row)
        if not accept and all(target == _SELF for _, _, target in row):
            return _DEAD
        found = (self._looping if loops else self._known).get((accept, row))
        if found is not None:
            return found
        number = len(self._out)
        if loops:
            self._looping[accept, row] = number
            row = tuple([(lo, hi, number if target == _SELF else target) for lo, hi, target in row])
        self._known[accept, row] = number
        self._out.append((accept, row))
        return number

    def merge_component(self, states: list[int]) -> None:
        """Merges the states of a cycle with each other, and with an equal cycle merged before."""
        block, blocks = self._refine(states)
        merged = self.merged
        if not any(accept or any(target >= 0 for _, _, target in row) for accept, row in blocks):
            merged.update(dict.fromkeys(states, _DEAD))
            return
        accept, row = blocks[0]
        if len(blocks) == 1:
            looped = tuple([(lo, hi, _SELF if target < _SELF else target) for lo, hi, target in row])
            merged.update(dict.fromkeys(states, self._number(accept, looped)))
            return
        same = self._find_equal(blocks)
        if same is None:
            same = self._add(blocks)
        merged.update({state: same[number] for state, number in block.items()})

    def _refine(self, states: list[int]) -> tuple[dict[int, int], list[State]]:
        """Partition refinement: the block of each state, and the blocks.

        Parts are told apart by their edges; when a part is split, the largest piece keeps its number, so that a state
        is looked at again only when the piece around it has at least halved (as in Hopcroft's algorithm).
        """
        accepting, rows, merged = self.accepting, self.rows, self.merged
        block = dict.fromkeys(states, 0)
        sources: dict[int, list[int]] = {state: [] for state in states}
        for state in states:
            for target in {edge[2] for edge in rows[state]}:
                if target in sources:
                    sources[target].append(state)

        def name(target: int) -> int:
            return -3 - block[target] if target in block else merged[target]

        parts: list[set[int]] = [set(states)]
        stale: set[int] = set(states)
        while stale:
            limits.check()
            pieces: dict[int, dict[State, list[int]]] = {}
            for state in stale:
                key = (accepting(state), _edges(rows[state], name))
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
            stale = {source for state in moved for source in sources[state]}
        members = [next(iter(part)) for part in parts]
        return block, [(accepting(state), _edges(rows[state], name)) for state in members]

    def _find_equal(self, blocks: list[State]) -> dict[int, int] | None:
        """The merged state of each block, where an equal component was merged before."""
        accept, row = blocks[0]
        for candidate in self._cyclic.get((accept, len(row)), ()):
            same = self._equal_to(candidate, blocks)
            if same is not None:
                return same
        return None

    def _equal_to(self, state: int, blocks: list[State]) -> dict[int, int] | None:
        """The merged state of each block if that of the first block is `state`."""
        same = {0: state}
        queue = [0]
        for here in queue:
            accept, row = blocks[here]
            other_accept, other_row = self._out[same[here]]
            if accept != other_accept or len(row) != len(other_row):
                return None
            for (lo, hi, target), (other_lo, other_hi, other_target) in zip(row, other_row, strict=True):
                if lo != other_lo or hi != other_hi:
                    return None
                if target >= 0:
                    if target != other_target:
                        return None
                    continue
                inner = -3 - target
                if inner not in same:
                    same[inner] = other_target
                    queue.append(inner)
                elif same[inner] != other_target:
                    return None
        return same

    def _add(self, blocks: list[State]) -> dict[int, int]:
        """New merged states for the blocks of a component."""
        base = len(self._out)
        for at, (accept, row) in enumerate(blocks):
            number = base + at
            row = tuple([(lo, hi, base - 3 - target if target < _SELF else target) for lo, hi, target in row])
            self._out.append((accept, row))
            self._known[accept, row] = number
            if any(target == number for _, _, target in row):
                looped = tuple([(lo, hi, _SELF if target == number else target) for lo, hi, target in row])
                self._looping[accept, looped] = number
            self._cyclic.setdefault((accept, len(row)), []).append(number)
        return {at: base + at for at in range(len(blocks))}

    def number_states(self, start: int) -> DFA:
        """The merged states that `start` reaches, in breadth-first order."""
        first = self.merged[start]
        if first < 0:
            return DFA(frozenset(), ((),))
        place = {first: 0}
        order = [first]
        for state in order:
            for _, _, target in self._out[state][1]:
                if target not in place:
                    place[target] = len(order)
                    order.append(target)
        return DFA(
            frozenset([n for n, state in enumerate(order) if self._out[state][0]]),
            tuple([tuple([(lo, hi, place[target]) for lo, hi, target in self._out[state][1]]) for state in order]),
        )


def _edges(row: Row, name: Callable[[int], int]) -> Row:
    """The edges with their targets named, without those to dead states, neighbours of one target joined."""
    new: list[tuple[int, int, int]] = []
    for lo, hi, target in row:
        target = name(target)
        if target == _DEAD:
            continue
        if new and new[-1][2] == target:
            last = new[-1][1]
            if lo == last + 1 or (last == 0xD7FF and lo == 0xE000):
                new[-1] = (new[-1][0], hi, target)
                continue
        new.append((lo, hi, target))
    return tuple(new)
