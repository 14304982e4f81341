"""What is encoded, for whom, and how long it is kept."""

from __future__ import annotations

import queue

import numpy as np
import pytest

from server.engine import RgbImage
from server.engine.vision.encoder import Embeddings, EncoderResult, ImageEncoder
from server.engine.vision.projector import ProjectorError
from tests.fixtures.projectors import picture

A, B, C = (picture(number, 2, 2) for number in range(3))


class Bench:
    """An encoder that encodes when it is let."""

    def __init__(self, **options: int) -> None:
        self.done: queue.SimpleQueue[EncoderResult] = queue.SimpleQueue()
        self.encoded: list[RgbImage] = []
        self.gate: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.encoder = ImageEncoder(self, self.done.put, **options)

    def encode(self, picture: RgbImage) -> Embeddings:
        self.gate.get()
        self.encoded.append(picture)
        if picture is C:
            raise ProjectorError("no")
        return [np.zeros((4, 8), np.float32), np.ones((4, 8), np.float32)]

    def settle(self) -> set[int]:
        """Who waited for the next picture."""
        self.gate.put(None)
        return self.encoder.complete(self.done.get(timeout=10))


def test_who_wants_the_same_waits_for_one_encoding() -> None:
    bench = Bench()
    for job in (1, 2):
        assert bench.encoder.request(job, "s", A) is None
    assert bench.encoder.request(3, "other", A) is None
    assert bench.encoder.request(1, "s", B) is None
    assert bench.encoder.waiting == 3 and bench.encoder.busy
    assert bench.settle() == {1, 2}
    found = bench.encoder.request(4, "s", A)
    assert found is not None and len(found) == 2
    assert bench.settle() == {3} and bench.settle() == {1}
    assert not bench.encoder.busy and bench.encoder.waiting == 0
    assert bench.encoded == [A, A, B]
    assert bench.encoder.bytes == 3 * 256


def test_scopes_take_turns() -> None:
    bench = Bench()
    pictures = {scope: [picture(10 * place + n, 2, 2) for n in range(4)] for place, scope in enumerate("abc", 1)}
    for scope, job in (("a", 1), ("b", 2)):
        for each in pictures[scope]:
            bench.encoder.request(job, scope, each)
    order = [bench.settle() for _ in range(2)]
    for each in pictures["c"]:
        bench.encoder.request(3, "c", each)
    order += [bench.settle() for _ in range(10)]
    assert [job for [job] in order] == [1, 2, 1, 3, 2, 1, 3, 2, 1, 3, 2, 3]
    assert [each for each in bench.encoded if each in pictures["a"]] == pictures["a"]
    bench.encoder.request(1, "a", A)
    assert bench.settle() == {1} and len(bench.encoder._turns) == 0


def test_what_nobody_wants_any_more_is_not_begun_or_dropped() -> None:
    bench = Bench()
    bench.encoder.request(1, "s", A)
    bench.encoder.request(2, "s", B)
    bench.encoder.abort(1)
    bench.encoder.abort(2)
    assert bench.encoder.busy, "it cannot be interrupted"
    assert bench.settle() == set()
    assert not bench.encoder.busy and bench.encoder.bytes == 0 and bench.encoded == [A]
    bench.encoder.request(3, "s", A)
    bench.encoder.request(4, "s", A)
    bench.encoder.abort(3)
    assert bench.settle() == {4}


def test_who_comes_after_it_was_forgotten_gets_what_is_still_under_way() -> None:
    bench = Bench()
    bench.encoder.request(1, "s", A)
    bench.encoder.abort(1)
    bench.encoder.request(2, "s", A)
    assert bench.settle() == {2}
    assert bench.encoder.request(3, "s", A) is not None and bench.encoded == [A]


def test_the_longest_unused_is_forgotten_first() -> None:
    bench = Bench(kept=2 * 256)
    for number, each in enumerate((A, B)):
        bench.encoder.request(number, "s", each)
        bench.settle()
    assert bench.encoder.request(3, "s", A) is not None
    bench.encoder.request(4, "t", A)
    bench.settle()
    assert bench.encoder.bytes == 2 * 256
    assert bench.encoder.request(5, "s", A) is not None
    assert bench.encoder.request(6, "s", B) is None


def test_what_is_larger_than_all_that_is_kept_is_given_and_not_kept() -> None:
    bench = Bench(kept=100)
    bench.encoder.request(1, "s", A)
    assert bench.settle() == {1} and bench.encoder.bytes == 0


def test_a_picture_that_cannot_be_encoded_is_told_to_those_that_wait() -> None:
    bench = Bench()
    bench.encoder.request(1, "s", C)
    bench.encoder.request(1, "s", A)
    bench.gate.put(None)
    told = bench.done.get(timeout=10)
    assert told.embeddings is None and bench.encoder.complete(told) == {1}
    assert bench.settle() == {1}, "and the next is encoded"
    assert bench.encoder.request(1, "s", C) is None, "it is tried again"


def test_an_error_of_our_own_is_raised_where_the_loop_is() -> None:
    bench = Bench()
    bench.encode = lambda picture: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    bench.encoder.request(1, "s", A)
    with pytest.raises(ZeroDivisionError):
        bench.encoder.complete(bench.done.get(timeout=10))
