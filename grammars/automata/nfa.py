"""Nondeterministic automata with guarded empty moves, and their subset construction.

A guard is an anchor or a look at the text around a position (Rabin and Scott, "Finite automata and their decision
problems" (1959), for the construction without guards).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TypeAlias

from grammars import limits
from grammars.automata.chars import ANY, LAST, Ranges, after, before, char_set
from grammars.automata.dfa import DFA, Row
from grammars.automata.minimize import minimize
from grammars.limits import LimitExceeded

Guard: TypeAlias = str | tuple[bool, int] | None
Need: TypeAlias = tuple[int, int]
"""A look-ahead under way: its number and the state it is in; it must accept when the text ends."""
Thread: TypeAlias = tuple[int, frozenset[Need]] | int
"""An NFA state, with what must still come true of the rest of the text."""
Subset: TypeAlias = tuple[frozenset[Thread], tuple[int, ...]]
"""Threads, and the state of each look-behind (-1: will never accept again)."""

_END = -1  # the thread that passed the end guard: it accepts, and reads nothing


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
        return subsets.over_characters(minimize(0, accept.__getitem__, rows))


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

    def over_characters(self, dfa: DFA) -> DFA:
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
        """Membership of a text, without building the DFA; linear in the text for a given NFA."""
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
