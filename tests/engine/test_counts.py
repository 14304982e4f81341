"""Histograms and the counters of engines."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from server.engine import engine as client
from server.engine.counters import GAPS, EngineCounters
from server.engine.engine import Engine, TokenStream
from server.engine.histogram import Histogram
from server.engine.protocol import StepOutput
from server.engine.types import EngineConfig
from tests.engine.test_client import JOB


def test_an_observation_counts_below_its_bound_and_at_it() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5):
        histogram.observe(seconds)
    histogram.observe(7.0, 2)
    assert list(histogram.cumulative()) == [(0.1, 2), (1.0, 3), (math.inf, 5)]
    assert histogram.count == 5 and histogram.sum == pytest.approx(14.65)


def test_counts_add_up() -> None:
    one, other = EngineCounters(output_tokens=3, hangs=1), EngineCounters(output_tokens=4)
    one.gaps.observe(0.01)
    other.gaps.observe(20.0)
    one.add(other)
    assert (one.output_tokens, one.hangs, one.gaps.count) == (7, 1, 2)
    assert (other.output_tokens, other.gaps.count) == (4, 1)
    with pytest.raises(ValueError):
        one.gaps.add(Histogram((1.0,)))


def test_gaps_are_counted_from_the_second_output_of_a_job_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(EngineConfig(""), None)
    times = iter((100.0, 100.02, 100.06))
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: next(times)))
    for number in (1, 2):
        engine._live[number] = TokenStream(replace(JOB, id=number), lambda _: None)
    engine._on_output(StepOutput([(1, b"a", 1)], [], 1, 0))
    engine._on_output(StepOutput([(1, b"b", 1), (2, b"a", 1)], [], 2, 0))
    engine._on_output(StepOutput([(1, b"c", 1), (2, b"b", 3)], [], 2, 0))
    engine._on_output(StepOutput([], [], 1, 0))  # says nothing of time
    gaps = engine.counts.gaps
    assert gaps.count == 3 and gaps.sum == pytest.approx(0.02 + 2 * 0.04)
    assert dict(gaps.cumulative())[GAPS[3]] == 1, "one of 20 ms"
    assert engine.counts.output_tokens == 7
    assert (engine.stats().output_tokens, engine.stats().worker_active) == (7, 0), "nobody is there yet"
