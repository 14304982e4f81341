"""The policy alone, without llama.cpp."""

from __future__ import annotations

from array import array

from server.engine import Job, Sampling
from server.engine.scheduler import Scheduler, Sequence, common_prefix, share


def job(number: int, tokens: list[int], scope: str = "s") -> Job:
    return Job(number, array("i", tokens), Sampling(), scope, deadline=0)


def admitted(scheduler: Scheduler) -> list[tuple[Sequence, int]]:
    found = []
    while (one := scheduler.admit()) is not None:
        found.append(one)
    return found


def test_common_prefix() -> None:
    for one, other, length in [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 9, 3], 1), ([5], [6], 0)]:
        assert common_prefix(array("i", one), array("i", other)) == length


def test_the_smallest_come_first_and_none_starves() -> None:
    assert share([1600, 24], 64) == [40, 24]
    assert share([1600, 1600, 1600, 24], 64) == [24, 8, 8, 24]
    assert share([5, 6], 64) == [5, 6]
    assert share([9] * 8, 4) == [1] * 8
    assert share([], 64) == []


def test_a_step_decodes_everything_and_shares_the_chunk() -> None:
    scheduler = Scheduler(slots=4, chunk=8)
    for number, length in enumerate([1, 20, 3, 1]):
        scheduler.submit(job(number, list(range(length))))
    admitted(scheduler)
    plan = {sequence.job.id: count for sequence, count in scheduler.plan()}
    assert plan == {0: 1, 3: 1, 1: 1, 2: 3}


def test_a_prefill_alone_takes_the_whole_chunk() -> None:
    scheduler = Scheduler(slots=4, chunk=8)
    scheduler.submit(job(1, list(range(20))))
    admitted(scheduler)
    assert [count for _, count in scheduler.plan()] == [8]


def test_jobs_wait_in_order_for_a_slot() -> None:
    scheduler = Scheduler(slots=2, chunk=8)
    for number in range(4):
        scheduler.submit(job(number, [number, number]))
    first, second = [sequence for sequence, _ in admitted(scheduler)]
    scheduler.drop(2)
    scheduler.release(second)
    assert [sequence.job.id for sequence, _ in admitted(scheduler)] == [3]
    assert first in scheduler.running and not scheduler.queue


def test_a_job_takes_the_slot_it_begins_like_within_its_scope() -> None:
    scheduler = Scheduler(slots=3, chunk=8)
    for number, scope in enumerate(["a", "b", "a"]):
        scheduler.submit(job(number, [1, 2, 3, number], scope))
    slots = {}
    for sequence, _ in admitted(scheduler):
        sequence.past = 4
        slots[sequence.job.id] = sequence.slot
        scheduler.release(sequence)
    scheduler.submit(job(10, [1, 2, 3, 2, 7], "a"))
    scheduler.submit(job(11, [1, 2, 3, 1, 7], "a"))
    scheduler.submit(job(12, [8, 8], "a"))
    (best, common), (other, common_other), (rest, common_rest) = admitted(scheduler)
    assert (best.slot, common) == (slots[2], 4)
    assert (other.slot, common_other) == (slots[0], 3)
    assert (rest.slot, common_rest) == (slots[1], 0)  # what "b" left there is never shared


def test_a_short_common_beginning_overwrites_no_other_conversation() -> None:
    scheduler = Scheduler(slots=2, chunk=8)
    scheduler.submit(job(1, list(range(20))))
    [(sequence, _)] = admitted(scheduler)
    sequence.past = 20
    scheduler.release(sequence)
    scheduler.submit(job(2, [0, 1, *range(50, 60)]))
    [(other, common)] = admitted(scheduler)
    assert other.slot is not sequence.slot and common == 0


def test_room_is_made_by_idle_slots_then_by_the_newest_sequence() -> None:
    scheduler = Scheduler(slots=3, chunk=8)
    for number in range(3):
        scheduler.submit(job(number, [number, number]))
    one, two, three = [sequence for sequence, _ in admitted(scheduler)]
    three.past = 2
    scheduler.release(three)
    assert scheduler.evict() is three.slot
    three.slot.tokens = array("i")
    assert scheduler.evict() is None
    two.past = 1
    assert scheduler.park() is two and two.past == 0
    assert [sequence for sequence, _ in scheduler.plan()] == [one]
    scheduler.submit(job(9, [9, 9]))
    assert scheduler.admit() is None  # who stepped aside comes first
    assert scheduler.park() is None
    scheduler.release(one)
    assert [sequence for sequence, _ in scheduler.plan()] == [two]
