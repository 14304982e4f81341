from __future__ import annotations

import itertools
import pickle
import random
import time

import pytest

from grammars import limits
from grammars.automata.chars import LAST, after, char_set, invert
from grammars.automata.dfa import ALL, DFA, EMPTY, EPSILON, Row
from grammars.automata.minimize import minimize
from grammars.automata.nfa import NFA
from grammars.automata.operations import (
    any_string,
    characters,
    complement,
    concat,
    difference,
    intersect,
    literal,
    product_states,
    repeat,
    strings,
    union,
)
from grammars.limits import LimitExceeded
from grammars.memo import Memo

WORDS = ["".join(letters) for n in range(5) for letters in itertools.product("ab", repeat=n)]


def language(dfa: DFA) -> set[str]:
    return {word for word in WORDS if dfa.accepts(word)}


def texts(dfa: DFA, state: int = 0) -> list[str]:
    """All texts of a small finite language from a state on, in code point order."""
    out = [""] if state in dfa.accepting else []
    for lo, hi, target in dfa.transitions[state]:
        rests = texts(dfa, target)
        out += [chr(code) + rest for code in range(lo, hi + 1) for rest in rests]
    return out


def count(dfa: DFA, state: int = 0) -> int:
    """The number of texts of a small finite language from a state on."""
    number = int(state in dfa.accepting)
    for lo, hi, target in dfa.transitions[state]:
        surrogates = 0x800 if lo < 0xD800 and hi > 0xDFFF else 0
        number += (hi - lo + 1 - surrogates) * count(dfa, target)
    return number


def some_sets(seed: int, count: int) -> list[set[str]]:
    rnd = random.Random(seed)
    return [set(rnd.sample(WORDS, rnd.randrange(0, 12))) for _ in range(count)]


def test_sets_of_characters_are_sorted_merged_and_free_of_surrogates() -> None:
    assert char_set([(98, 99), (97, 97), (120, 122), (121, 130)]) == ((97, 99), (120, 130))
    assert char_set([(0xD7FF, 0xD900), (0xDF00, 0xE001)]) == ((0xD7FF, 0xE001),)
    assert char_set([(0xD800, 0xDFFF)]) == ()
    assert invert(((0, LAST),)) == () and invert(()) == ((0, LAST),)
    assert invert(((0, 0xD7FF),)) == ((0xE000, LAST),)
    assert after(0xD7FF) == 0xE000


def test_a_finite_language_has_exactly_its_texts() -> None:
    words = ["apple", "apricot", "ape", "", "é", "\U0001f600"]
    dfa = strings(words)
    assert texts(dfa) == sorted(words)
    assert count(dfa) == 6 and dfa.longest() == 7 and dfa.shortest() == ""
    assert not dfa.accepts("ap") and not dfa.accepts("apples")
    assert dfa.longest() is not None and dfa != ALL and not dfa.is_empty()


def test_endings_are_shared() -> None:
    assert len(strings([f"{a}{b}ing" for a in "abc" for b in "xyz"])) == 6


@pytest.mark.parametrize("seed", range(20))
def test_the_algebra_is_that_of_sets(seed: int) -> None:
    a, b = some_sets(seed, 2)
    x, y = strings(a), strings(b)
    assert language(union(x, y)) == a | b
    assert language(intersect(x, y)) == a & b
    assert language(difference(x, y)) == a - b
    assert language(complement(x)) == set(WORDS) - a
    assert language(concat(x, y)) == {p + q for p in a for q in b if len(p + q) <= 4}
    assert language(repeat(x, 0, 2)) == {w for w in ({""} | a | {p + q for p in a for q in a}) if len(w) <= 4}
    assert union(x, y) == strings(a | b) and hash(union(x, y)) == hash(strings(a | b))
    assert complement(complement(x)) == x
    assert intersect(x, complement(x)) == EMPTY and union(x, complement(x)) == ALL


@pytest.mark.parametrize("seed", range(20))
def test_equal_languages_are_equal_objects_whatever_they_were_built_from(seed: int) -> None:
    """Random automata, unrolled and renumbered, come out the same."""
    rnd = random.Random(seed)
    size = rnd.randrange(2, 9)
    edges = {(state, char): rnd.randrange(size + 1) for state in range(size) for char in "abc"}
    ends = {state for state in range(size) if rnd.random() < 0.4}

    def build(copies: int, order: list[int]) -> DFA:
        """`copies` interchangeable twins of each state, numbered by `order`."""
        name = {(state, twin): order[state * copies + twin] for state in range(size) for twin in range(copies)}
        rows: list[Row] = [()] * (size * copies)
        for (state, _), number in name.items():
            row = []
            for char in "abc":
                target = edges[state, char]
                if target < size:
                    row.append((ord(char), ord(char), name[target, rnd.randrange(copies)]))
            rows[number] = tuple(row)
        good = {name[state, twin] for state in ends for twin in range(copies)}
        return minimize(name[0, 0], good.__contains__, rows)

    one = build(1, list(range(size)))
    for copies in (1, 2, 3):
        order = list(range(size * copies))
        rnd.shuffle(order)
        assert build(copies, order) == one
    assert len(one) <= size


def test_loops_that_are_the_same_are_found_again_behind_another_beginning() -> None:
    tail = repeat(strings(["ab", "ba", "aab"]), 0, None)
    one = union(concat(literal("x"), tail), concat(literal("y"), tail))
    assert len(one) == len(tail) + 1
    assert len(concat(strings(["x", "yy"]), ALL)) == 3


def test_lengths_count_characters_and_chains_stay_linear() -> None:
    dfa = any_string(2, 3)
    assert dfa.accepts("é\U0001f600") and not dfa.accepts("a") and not dfa.accepts("aaaa")
    assert any_string() == ALL and any_string(0, 0) == EPSILON and any_string(3, 2) == EMPTY
    assert len(any_string(0, 5000)) == 5001
    assert intersect(any_string(0, 4000), any_string(100)) == any_string(100, 4000)
    assert complement(any_string(3)) == any_string(0, 2)


def test_characters_count_without_the_surrogates() -> None:
    assert count(any_string(1, 1)) == 0x110000 - 0x800
    assert count(characters([(97, 122)])) == 26
    assert count(EMPTY) == 0
    assert ALL.longest() is None and EMPTY.longest() == -1 and EMPTY.shortest() is None


def test_automata_travel_between_processes() -> None:
    dfa = strings(["a", "bc"])
    assert pickle.loads(pickle.dumps(dfa)) == dfa


def test_too_many_states_are_an_error_that_names_the_limit() -> None:
    with pytest.raises(LimitExceeded) as caught:
        any_string(0, limits.STATES + 1)
    assert caught.value.limit == "states"
    with pytest.raises(LimitExceeded):
        intersect(repeat(literal("ab"), 0, 7000), any_string(0, 15_000))
    hard = NFA()  # the n-th letter from the end: 2**n states
    here = hard.state()
    hard.edge(here, ((97, 98),), here)
    there = hard.state()
    hard.edge(here, ((97, 97),), there)
    for _ in range(30):
        following = hard.state()
        hard.edge(there, ((97, 98),), following)
        there = following
    with pytest.raises(LimitExceeded) as caught:
        hard.determinize(here, [there])
    assert caught.value.limit == "states"


def test_joint_states_part_all_texts() -> None:
    machines = [strings(["a", "ab"]), repeat(literal("b"), 0, None)]
    parts = product_states(machines)
    for word in WORDS:
        assert sum(prefix.accepts(word) for _, prefix in parts) == 1


def test_what_is_remembered_stays_within_its_budget() -> None:
    memo = Memo(100)
    calls = []

    @memo
    def chain(length: int) -> DFA:
        calls.append(length)
        return literal("a" * length)

    for length in (10, 10, 20, 10, 30):
        chain(length)
    assert calls == [10, 20, 30] and memo.weight <= 100
    chain(10)
    chain(20)
    assert calls == [10, 20, 30, 20]  # the 20 was the least recently used
    chain(1000)
    assert memo.weight > 100  # the last one is always kept
    chain(1)
    assert memo.weight <= 100


def test_long_cycles_are_merged_in_time_nearly_linear() -> None:
    for cycle in ["a" * 1000 + "b", "ab" * 500 + "c"]:
        loop = repeat(literal(cycle), 0, None)
        assert len(loop) == len(cycle)
        assert repeat(repeat(literal(cycle), 2, 2), 0, None) != loop
        assert union(loop, repeat(literal(cycle), 0, 1)) == loop
    rows = tuple([((97, 97, (state + 1) % 3000),) for state in range(3000)])
    began = time.process_time()
    assert len(minimize(0, lambda state: state % 3 != 1, rows)) == 3
    assert len(minimize(0, lambda state: state != 2500, rows)) == 3000
    assert time.process_time() - began < 3
