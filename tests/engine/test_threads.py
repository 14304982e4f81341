"""The thread count follows the cores that are free."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from server.engine import EngineConfig
from server.engine.worker.loader import LoadedModel
from server.engine.worker.threads import ThreadTuner


def step(threads: ThreadTuner, now: float, cores: float) -> int:
    """A judged stretch of steps that got so many cores."""
    threads.note(0.4, 0.4 * cores, now)
    return threads.count


def test_an_idle_machine_gives_all_its_cores() -> None:
    threads = ThreadTuner(4)
    assert [step(threads, now, 3.9) for now in range(10)] == [4] * 10
    assert not threads.note(0.01, 0.0, 11)  # one short step says nothing


def test_a_busy_neighbour_leaves_as_many_threads_as_there_are_cores_for() -> None:
    threads = ThreadTuner(4)
    assert [step(threads, now, 2.7) for now in (0, 1)] == [4, 2]
    assert [step(threads, now, 1.1) for now in (1, 2)] == [2, 1]
    threads = ThreadTuner(2)
    assert [step(threads, now, 1.5) for now in range(4)] == [2] * 4


def test_one_hiccup_changes_nothing() -> None:
    threads = ThreadTuner(2)
    assert [step(threads, now, cores) for now, cores in enumerate([2.0, 0.5, 2.0, 0.5, 2.0])] == [2] * 5


def test_one_step_of_seconds_is_enough() -> None:
    threads = ThreadTuner(2)
    assert threads.note(1.9, 0.4, 0) and threads.count == 1


def test_all_threads_are_tried_again_ever_more_rarely() -> None:
    threads = ThreadTuner(2)
    tried = []
    for now in range(400):
        if threads.count == 1 and step(threads, now, 1.0) == 2:
            tried.append(now)
        elif threads.count == 2:
            step(threads, now, 1.2)
    waits = [later - earlier for earlier, later in pairwise(tried)]
    assert waits[0] <= 8 and waits == sorted(waits) and waits[-1] >= 60
    step(threads, 1000, 1.0)
    assert [step(threads, now, 2.0) for now in (1001, 1002)] == [2, 2]
    assert [step(threads, now, 1.0) for now in (1003, 1004)] == [2, 1]
    assert step(threads, 1007, 1.0) == 2  # calm has been: patience is short again


def test_they_are_not_tried_where_even_fewer_do_not_get_their_cores() -> None:
    threads = ThreadTuner(2)
    assert [step(threads, now, 0.4) for now in range(0, 200, 10)] == [2] + [1] * 19
    assert step(threads, 300, 1.0) == 2


def test_one_thread_stays_one() -> None:
    threads = ThreadTuner(1)
    assert not any(threads.note(1.0, 0.1, now) for now in range(100))


@pytest.mark.parametrize("threads", [0, 2])
def test_loading_tells_of_the_cores_before_the_first_request(
    random_model: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """A configured count is kept."""
    monkeypatch.setattr("server.engine.worker.loader.cores", lambda: 2)
    counts: list[int] = []
    monkeypatch.setattr(LoadedModel, "use_threads", lambda self, count: counts.append(count))
    monkeypatch.setattr(ThreadTuner, "note", lambda self, *step: setattr(self, "count", 1) or True)
    LoadedModel.load(EngineConfig(str(random_model), context_length=128, threads=threads), repack=False).close()
    assert counts == ([] if threads else [1])
