"""Operations on regular languages: basic ones, Boolean algebra, concatenation and repetition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from grammars import limits
from grammars.automata.chars import LAST, after, before, char_set, invert
from grammars.automata.dfa import ALL, DFA, EMPTY, Row
from grammars.automata.minimize import minimize
from grammars.automata.nfa import NFA
from grammars.limits import LimitExceeded
from grammars.memo import memo

COUNT = 2_000
"""Largest length that is multiplied into an automaton of several states."""
PRODUCT = 5_000
"""States of such a product: each becomes a rule, so this bounds what one string adds to a grammar."""


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
    # one function: the compiler spends most of its time in this loop, where calls would count
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


# Texts in grammars


def bounded(language: DFA, least: int = 0, most: int | None = None) -> DFA:
    """The texts of `language` that have `least` to `most` characters."""
    if language is not ALL:
        shortest = len(language.shortest() or "")
        longest = language.longest()
        if shortest >= least:
            least = 0
        if most is not None and longest is not None and longest <= most:
            most = None
    if not least and most is None:
        return language
    top = max(least, most or 0)
    if top > COUNT or (top + 1) * len(language) > PRODUCT:
        raise LimitExceeded("states")
    return intersect(language, any_string(least, most))


@memo
def without(names: frozenset[str]) -> DFA:
    """Every text but these."""
    return difference(ALL, strings(names))


@memo
def up_to(language: DFA, marker: str) -> DFA:
    """Texts of `language` followed by `marker`, which occurs nowhere earlier: text that ends at a closing marker."""
    fail = [0] * (len(marker) + 1)  # Knuth, Morris and Pratt: longest proper border of each prefix
    length = 0
    for at in range(1, len(marker)):
        while length and marker[at] != marker[length]:
            length = fail[length]
        length += marker[at] == marker[length]
        fail[at + 1] = length

    def follow(state: int, char: str) -> int:
        while state and marker[state] != char:
            state = fail[state]
        return state + (marker[state] == char)

    alphabet = sorted(set(marker))
    others = invert(char_set([(ord(c), ord(c)) for c in alphabet]))
    rows = []
    good = []
    for state in range(len(marker)):
        row = [(lo, hi, 0) for lo, hi in others]
        for char in alphabet:
            target = follow(state, char)
            if target < len(marker):
                row.append((ord(char), ord(char), target))
        rows.append(tuple(sorted(row)))
        here, early = state, False
        for char in marker[:-1]:
            here = follow(here, char)
            if here == len(marker):
                early = True
                break
        good.append(not early)
    before_marker = minimize(0, good.__getitem__, rows)
    return concat(intersect(language, before_marker), literal(marker))
