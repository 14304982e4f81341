"""Prefixes shared by many prompts are read from the KV cache once, and never by requests of another scope."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np

from server.engine import EngineRequest, Finished, Sampling
from server.engine.protocol import AddRequest
from server.engine.worker.prefix import PrefixCache, PrefixEntry
from tests.engine.bench import Bench


def entry(scope: str, tokens: range, size: int = 10) -> PrefixEntry:
    return PrefixEntry(scope, array("i", tokens), np.zeros(size, np.uint8))


def test_the_longest_entry_of_the_scope_that_is_a_prefix() -> None:
    cache = PrefixCache(1000)
    short, long, foreign = entry("a", range(10)), entry("a", range(20)), entry("b", range(30))
    for each in (long, short, foreign):
        cache.insert(each)
    assert cache.match("a", array("i", range(40))) is long
    assert cache.match("a", array("i", range(20))) is short, "a token must be left to decode"
    assert cache.match("a", array("i", [*range(15), 99, 98])) is short
    assert cache.match("b", array("i", range(20))) is None
    assert cache.match("c", array("i", range(40))) is None


def test_entries_longest_unused_go_and_those_too_large_never_come() -> None:
    cache = PrefixCache(100)
    one, two, three = (entry(name, range(10), 40) for name in "abc")
    cache.insert(one)
    cache.insert(two)
    assert cache.match("a", array("i", range(20))) is one
    cache.insert(three)
    cache.insert(entry("d", range(10), 60))
    cache.insert(entry("e", range(7)))
    found = [cache.match(name, array("i", range(20))) for name in "abcde"]
    assert found == [one, None, three, None, None]


class Copies:
    """One job after another, and how much of its prompt each had from where."""

    def __init__(self, path: Path, scopes: list[str]) -> None:
        bench = Bench(path, context_length=400)
        context = bench.worker.loaded.context
        self.written: list[int] = []
        self.copied: list[int] = []
        write, copy = context.load_state, context.seq_cp
        context.load_state = lambda *each: self.written.append(each[2]) or write(*each)  # type: ignore[method-assign]
        context.seq_cp = lambda *each: self.copied.append(each[2]) or copy(*each)  # type: ignore[method-assign]
        opening = [5 * n % 500 for n in range(30)]
        for number, scope in enumerate(scopes):
            prompt = array("i", [*opening, 300 + number, *[number + 40] * 50])
            bench.worker.channel.put(
                AddRequest(EngineRequest(number, prompt, Sampling(temperature=0), scope, 0, max_tokens=20))
            )
            bench.worker.step()
            while bench.worker.scheduler.running:
                bench.worker.step()
        bench.close()
        ends = [bench.ends[number] for number in range(len(scopes))]
        self.outputs = [bench.outputs[number] for number in range(len(scopes))]
        self.read = [end.cache_read_tokens for end in ends if isinstance(end, Finished)]


def test_requests_that_begin_alike_give_the_same_with_and_without_the_cache(random_model: Path) -> None:
    alone = Copies(random_model, ["a", "b", "c", "d", "e", "f"])
    assert alone.read == [0] * 6 and not alone.written
    shared = Copies(random_model, ["same"] * 6)
    assert shared.read == [0, *[30] * 5]
    assert shared.copied == [30], "read from a slot once"
    assert shared.written == [30] * 5
    assert shared.outputs == alone.outputs
