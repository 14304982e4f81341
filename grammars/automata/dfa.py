"""Deterministic finite automata over Unicode text: the regular languages that strings, numbers and names are.

Every `DFA` is minimal, has no dead states and is numbered in breadth-first order of its ranges: equal languages are
equal objects (Hopcroft, Motwani, Ullman, "Introduction to Automata Theory, Languages, and Computation", 4.4).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TypeAlias

from grammars.automata.chars import LAST

Row: TypeAlias = tuple[tuple[int, int, int], ...]
"""The edges of one state: `(lo, hi, target)`, ascending and disjoint."""


class DFA:
    """A regular language as a minimal partial automaton; state 0 is the start, a missing edge rejects.

    Made by `minimize` and by functions that keep its invariant.
    """

    __slots__ = ("_hash", "_lows", "accepting", "name", "transitions")

    accepting: frozenset[int]
    transitions: tuple[Row, ...]
    name: str | None
    """Prefix of the names of its rules, for languages that many grammars have in common; no part of its value."""

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


EMPTY = DFA(frozenset(), ((),))
"""No text at all."""
ALL = DFA(frozenset([0]), (((0, LAST, 0),),))
"""Every text."""
EPSILON = DFA(frozenset([0]), ((),))
"""The empty text alone."""
