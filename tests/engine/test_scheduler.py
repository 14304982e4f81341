"""The policy alone, without llama.cpp."""

from __future__ import annotations

from array import array

import numpy as np

from server.engine import EngineRequest, Sampling
from server.engine.scheduler.budget import PrefillBudget
from server.engine.scheduler.scheduler import (
    PrefixMatch,
    ScheduledBatch,
    Scheduler,
    Sequence,
    common_prefix,
    count_runs,
    split_budget,
)
from server.engine.vision.placeholders import ImageSpan
from server.engine.vision.projector import ImageChunk
from tests.fixtures.projectors import picture


def job(number: int, tokens: list[int], scope: str = "s") -> EngineRequest:
    return EngineRequest(number, array("i", tokens), Sampling(), scope, deadline=0)


def admitted(scheduler: Scheduler) -> list[tuple[Sequence, int]]:
    """The sequences that get a slot, and how many tokens they reuse."""
    found = []
    while (one := scheduler.admit()) is not None:
        found.append((one.sequence, one.prefix.count))
    return found


def admit(scheduler: Scheduler) -> tuple[Sequence, PrefixMatch]:
    one = scheduler.admit()
    assert one is not None
    return one.sequence, one.prefix


def finished(scheduler: Scheduler, number: int, tokens: list[int], scope: str = "s") -> Sequence:
    """A job that has run alone; what it was stays in its slot."""
    scheduler.submit(job(number, tokens, scope))
    [(sequence, _)] = admitted(scheduler)
    sequence.num_computed_tokens = len(tokens)
    scheduler.finish(sequence)
    return sequence


def taken(scheduler: Scheduler) -> list[tuple[Sequence, int]]:
    """What the next step takes."""
    turn = scheduler.schedule()
    return [] if turn is None else list(turn.entries)


def test_common_prefix() -> None:
    for one, other, length in [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 9, 3], 1), ([5], [6], 0)]:
        assert common_prefix(array("i", one), array("i", other)) == length


def test_the_smallest_come_first_and_none_starves() -> None:
    assert split_budget([1600, 24], 64) == [40, 24]
    assert split_budget([1600, 1600, 1600, 24], 64) == [40, 0, 0, 24]
    assert split_budget([24, 20, 1600], 64) == [24, 20, 20]
    assert split_budget([5, 6], 64) == [5, 6]
    assert split_budget([9] * 4, 4) == [4, 0, 0, 0]
    assert split_budget([], 64) == []


def test_a_step_decodes_everything_and_shares_the_chunk() -> None:
    scheduler = Scheduler(slots=4, chunk=24)
    for number, length in enumerate([1, 20, 3, 1]):
        scheduler.submit(job(number, list(range(length))))
    admitted(scheduler)
    plan = {sequence.request.id: count for sequence, count in taken(scheduler)}
    assert plan == {0: 1, 3: 1, 1: 9, 2: 3}


def test_many_that_wait_come_before_few_that_decode() -> None:
    scheduler = Scheduler(slots=8, chunk=64)
    for number in range(8):
        scheduler.submit(job(number, [number, *range(200)]))
    first, *_ = [sequence for sequence, _ in admitted(scheduler)]
    first.num_computed_tokens = 200
    assert sum(count for _, count in taken(scheduler)) == 1 + 64 * 6 // 7
    for sequence in scheduler.running[:5]:
        sequence.num_computed_tokens = 200
    assert sum(count for _, count in taken(scheduler)) == 5 + scheduler.budget.tokens


def test_a_prefill_alone_takes_the_whole_chunk() -> None:
    scheduler = Scheduler(slots=4, chunk=8)
    scheduler.submit(job(1, list(range(20))))
    admitted(scheduler)
    assert [count for _, count in taken(scheduler)] == [8]


def test_jobs_wait_in_order_for_a_slot() -> None:
    scheduler = Scheduler(slots=2, chunk=8)
    for number in range(4):
        scheduler.submit(job(number, [number, number]))
    first, second = [sequence for sequence, _ in admitted(scheduler)]
    scheduler.abort(2)
    scheduler.finish(second)
    assert [sequence.request.id for sequence, _ in admitted(scheduler)] == [3]
    assert first in scheduler.running and not scheduler.queue


def test_a_job_takes_the_slot_it_begins_like_within_its_scope() -> None:
    scheduler = Scheduler(slots=3, chunk=8)
    for number, scope in enumerate(["a", "b", "a"]):
        scheduler.submit(job(number, [1, 2, 3, number], scope))
    slots = {}
    for sequence, _ in admitted(scheduler):
        sequence.num_computed_tokens = 4
        slots[sequence.request.id] = sequence.slot
        scheduler.finish(sequence)
    scheduler.submit(job(10, [1, 2, 3, 2, 7], "a"))
    scheduler.submit(job(11, [1, 2, 3, 1, 7], "a"))
    scheduler.submit(job(12, [8, 8], "a"))
    (best, common), (other, common_other), (rest, common_rest) = admitted(scheduler)
    assert (best.slot, common) == (slots[2], 4)
    assert (other.slot, common_other) == (slots[0], 3)
    assert (rest.slot, common_rest) == (slots[1], 0)  # what "b" left there is never shared


def test_a_short_common_beginning_overwrites_no_other_conversation() -> None:
    scheduler = Scheduler(slots=2, chunk=8)
    sequence = finished(scheduler, 1, list(range(20)))
    scheduler.submit(job(2, [0, 1, *range(50, 60)]))
    [(other, common)] = admitted(scheduler)
    assert other.slot is not sequence.slot and common == 0


def test_room_is_made_by_idle_slots_then_by_the_newest_sequence() -> None:
    scheduler = Scheduler(slots=3, chunk=8)
    for number in range(3):
        scheduler.submit(job(number, [number, number]))
    one, two, three = [sequence for sequence, _ in admitted(scheduler)]
    three.num_computed_tokens = 2
    scheduler.finish(three)
    assert scheduler.evict() is three.slot
    three.slot.tokens = array("i")
    assert scheduler.evict() is None
    two.num_computed_tokens = 1
    assert scheduler.preempt() is two and two.num_computed_tokens == 0
    assert [sequence for sequence, _ in taken(scheduler)] == [one]
    scheduler.submit(job(9, [9, 9]))
    assert scheduler.admit() is None  # who stepped aside comes first
    assert scheduler.preempt() is None
    scheduler.finish(one)
    assert [sequence for sequence, _ in taken(scheduler)] == [two]


def test_a_beginning_is_copied_from_where_it_is_held() -> None:
    scheduler = Scheduler(slots=4, chunk=8)
    system = list(range(40))
    first = finished(scheduler, 1, [*system, *range(100, 160)])
    scheduler.submit(job(2, [*system, 7]))
    second, prefix = admit(scheduler)
    assert second.slot is not first.slot, "the other conversation is kept"
    assert (prefix.slot, prefix.count, prefix.exact) == (first.slot, 40, False)
    second.num_computed_tokens = 41
    scheduler.submit(job(3, [*system, 7, 8]))
    third, prefix = admit(scheduler)
    assert third.prefix_owner is None and (prefix.slot, prefix.count) == (second.slot, 41), "of a running sequence too"
    scheduler.submit(job(4, [*system, 7], "other"))
    [(_, count)] = admitted(scheduler)
    assert count == 0, "never from another scope"
    scheduler.finish(third)
    scheduler.submit(job(5, [*system, 100, 101, 3]))
    fifth, prefix = admit(scheduler)
    assert (fifth.slot, prefix.slot, prefix.count) == (third.slot, first.slot, 42)


def test_a_short_common_beginning_is_worth_no_copy() -> None:
    scheduler = Scheduler(slots=2, chunk=8)
    first = finished(scheduler, 1, list(range(1000)))
    scheduler.submit(job(2, [*range(15), 7]))
    [(second, count)] = admitted(scheduler)
    assert second.slot is not first.slot and count == 0, "a thousand tokens would be copied for fifteen"


def test_a_memory_that_cannot_be_cut_is_not_copied() -> None:
    scheduler = Scheduler(slots=2, chunk=8, can_copy_prefix=False)
    first = finished(scheduler, 1, list(range(100)))
    scheduler.submit(job(2, [*range(40), 7]))
    scheduler.submit(job(3, [*range(100), 7]))
    (second, count), (third, other) = admitted(scheduler)
    assert second.slot is not first.slot and count == 0
    assert third.slot is first.slot and other == 100


def test_jobs_that_begin_alike_prefill_it_once() -> None:
    scheduler = Scheduler(slots=4, chunk=64)
    system = list(range(200))
    for number in range(3):
        scheduler.submit(job(number, [*system, 1000 + number, 7]))
    (leader, _), (second, count), (third, _) = admitted(scheduler)
    assert count == 0 and second.prefix_owner is third.prefix_owner is leader and second.num_shared_tokens == 200
    assert taken(scheduler) == [(leader, 64)] and scheduler.ready_followers() == []
    leader.num_computed_tokens = 200
    found = scheduler.ready_followers()
    assert [(sequence, prefix.slot, prefix.count) for sequence, prefix in found] == [
        (second, leader.slot, 200),
        (third, leader.slot, 200),
    ]
    assert second.prefix_owner is None and scheduler.ready_followers() == []


def test_what_is_shared_is_copied_to_no_more_at_a_time_than_one_step_takes() -> None:
    scheduler = Scheduler(slots=6, chunk=64)
    system = list(range(200))
    for number in range(6):
        scheduler.submit(job(number, [*system, *[1000 + number] * 30]))
    leader, *others = [sequence for sequence, _ in admitted(scheduler)]
    leader.num_computed_tokens = 200
    assert [sequence for sequence, _ in scheduler.ready_followers()] == others[:3]
    assert [other.prefix_owner for other in others] == [None, None, None, leader, leader]
    assert [sequence for sequence, _ in scheduler.ready_followers()] == others[3:]


def test_nobody_waits_for_one_who_waits_where_another_is_as_good() -> None:
    scheduler = Scheduler(slots=4, chunk=64)
    system = list(range(200))
    scheduler.submit(job(1, [*system, 900, 901, 1]))
    scheduler.submit(job(2, [*system, 902, 903, 2]))
    scheduler.submit(job(3, [*system, 902, 904, 3]))  # one token more in common with the second
    (leader, _), (second, _), (third, _) = admitted(scheduler)
    assert second.prefix_owner is third.prefix_owner is leader and third.num_shared_tokens == 200
    scheduler.submit(job(4, [*system, 902, 904, *range(300, 400)]))
    scheduler.finish(third)
    [(fourth, _)] = admitted(scheduler)
    assert fourth.prefix_owner is leader


def test_who_waited_for_a_sequence_that_ends_goes_on_and_leads() -> None:
    scheduler = Scheduler(slots=4, chunk=64)
    system = list(range(200))
    for number in range(3):
        scheduler.submit(job(number, [*system, 1000 + number, 7]))
    (leader, _), (second, _), (third, _) = admitted(scheduler)
    leader.num_computed_tokens = 64
    follower = scheduler.finish(leader)
    assert follower is not None and follower[0] is second
    assert (follower[1].slot, follower[1].count) == (leader.slot, 64)
    assert second.prefix_owner is None and third.prefix_owner is second and third.num_shared_tokens == 200
    second.num_computed_tokens = 64
    assert [sequence for sequence, _ in taken(scheduler)] == [second]
    assert scheduler.finish(third) is None


def test_sequences_run_side_by_side() -> None:
    assert [count_runs(ids) for ids in (set(), {3}, {3, 4}, {1, 3, 4, 7})] == [0, 1, 1, 3]
    scheduler = Scheduler(slots=4, chunk=64, prefer_adjacent=True)
    talks = [finished(scheduler, number, list(range(100 * number, 100 * number + 50))) for number in range(1, 5)]
    assert {talk.slot.id for talk in talks} == {0, 1, 2, 3}
    scheduler.submit(job(5, list(talks[3].tokens)))
    going_on, prefix = admit(scheduler)
    assert going_on.slot is talks[3].slot and prefix.count == 50
    neighbour = scheduler.slots[2]
    kept = list(neighbour.tokens)
    scheduler.submit(job(6, [7] * 40))
    admission = scheduler.admit()
    assert admission is not None and admission.sequence.slot is neighbour, "not the one longest unused"
    assert admission.relocate_to is talks[0].slot and list(talks[0].slot.tokens) == kept, (
        "which takes in what that held"
    )


def test_a_conversation_moves_next_to_those_that_run() -> None:
    scheduler = Scheduler(slots=4, chunk=64, prefer_adjacent=True)
    talks = [finished(scheduler, number, list(range(100 * number, 100 * number + 50))) for number in range(1, 5)]
    scheduler.submit(job(5, [7] * 40))
    running, _ = admit(scheduler)
    assert running.slot is talks[0].slot
    scheduler.submit(job(6, [*talks[3].tokens, 1]))
    admission = scheduler.admit()
    assert admission is not None
    assert admission.sequence.slot is talks[1].slot and admission.prefix.slot is talks[3].slot
    assert admission.prefix.count == 50
    assert admission.relocate_to is None, "what it held was the oldest"


def test_the_chunk_follows_what_running_answers_can_bear() -> None:
    pace = PrefillBudget(64, slowdown=2.5)
    assert pace.tokens == 32
    pace.observe(4, 0, 0.020)
    for _ in range(20):
        pace.observe(4, pace.tokens, 0.020 + 0.002 * pace.tokens)
    assert 10 <= pace.tokens <= 15, "20 ms alone leave 30 ms for 15 tokens"
    for _ in range(20):
        pace.observe(4, pace.tokens, 0.020 + 0.0001 * pace.tokens)
    assert pace.tokens == 64
    pace.observe(0, 64, 5.0)
    assert pace.tokens == 64, "nobody was kept waiting"


def test_a_stall_is_not_the_pace() -> None:
    pace = PrefillBudget(64, slowdown=3.0)
    for seconds in (0.020, 0.200, 0.020):
        pace.observe(4, 0, seconds)
    for _ in range(20):
        pace.observe(4, pace.tokens, 0.090)
    assert pace.tokens < 32, "more than three times 20 ms"


def decoding(scheduler: Scheduler, number: int, length: int) -> Sequence:
    """A sequence of so many tokens that stands at its last."""
    scheduler.submit(job(number, list(range(1000 * number, 1000 * number + length))))
    sequence, _ = admit(scheduler)
    sequence.num_computed_tokens = length - 1
    return sequence


def test_images_get_steps_of_their_own_first_come_first_served() -> None:
    scheduler = Scheduler(slots=3, chunk=24)
    for number in range(3):
        scheduler.submit(job(number, [number] * 4 + [-1] * 30 + [7]))
    sequences = [sequence for sequence, _ in admitted(scheduler)]
    for sequence in sequences:
        patch = ImageChunk(30, 30, np.zeros((1, 30), np.int32), np.ones((1, 30), np.int32))
        sequence.images = (ImageSpan(4, 34, picture(1), 0, patch),)
        sequence.set_computed(0)
    assert sum(count for _, count in taken(scheduler)) == 12, "up to the images"
    for sequence in sequences:
        sequence.set_computed(4)
    assert scheduler.schedule() is None, "they are not encoded"
    for sequence in sequences[1:]:
        sequence.images[0].embeddings = np.zeros((30, 8), np.float32)
    assert scheduler.schedule() == ScheduledBatch(((sequences[1], 24),), image=True)
    sequences[1].set_computed(28)
    assert scheduler.schedule() == ScheduledBatch(((sequences[1], 6),), image=True)
    sequences[1].set_computed(34)
    scheduler.budget._chunk = 9.0
    assert scheduler.schedule() == ScheduledBatch(((sequences[2], 7),), image=True)
    sequences[0].set_computed(0)
    view = scheduler.schedule()
    assert view == ScheduledBatch(((sequences[2], 3),), image=True), "where others prefill, they share"
    scheduler.update(view, 0.1)
    assert scheduler.schedule() == ScheduledBatch(((sequences[0], 4), (sequences[1], 1))), "in turn with tokens"
    sequences[2].prefix_owner = sequences[0]
    tokens = scheduler.schedule()
    assert tokens == ScheduledBatch(((sequences[0], 4), (sequences[1], 1)))
    scheduler.update(tokens, 0.1)
    assert taken(scheduler) == [(sequences[0], 4), (sequences[1], 1)], "it waits for its leader"


def test_after_an_image_prompts_get_what_it_has_left_of_the_pace() -> None:
    scheduler = Scheduler(slots=2, chunk=64)
    first = decoding(scheduler, 0, 50)
    scheduler.submit(job(1, list(range(100, 150))))
    second, _ = admit(scheduler)
    for viewed, left in ((0, 20), (10, 6), (64, 1)):
        scheduler.budget._chunk = 20.0
        if viewed:
            scheduler.update(ScheduledBatch(((second, viewed),), image=True), 0.1, cut=False)
        assert taken(scheduler) == [(first, 1), (second, left)], "prompts always make progress"


def test_answers_and_prompts_take_steps_in_turn_where_they_are_kept_apart() -> None:
    scheduler = Scheduler(slots=4, chunk=64, separate_prefill=True)
    first, second = decoding(scheduler, 0, 50), decoding(scheduler, 1, 30)
    alone = scheduler.schedule()
    assert alone == ScheduledBatch(((first, 1), (second, 1)), may_speculate=True)
    scheduler.update(alone, 0.02)
    scheduler.submit(job(2, list(range(5000, 5200))))
    prompt, _ = admit(scheduler)
    chunk = scheduler.budget.tokens
    for _ in range(3):
        step = scheduler.schedule()
        assert step == ScheduledBatch(((prompt, chunk),), stalls_decode=True, may_speculate=True)
        scheduler.update(step, 0.03)
        prompt.num_computed_tokens += chunk
        scheduler.update(answers := scheduler.schedule(), 0.02)
        assert answers == ScheduledBatch(((first, 1), (second, 1)))
        assert 8 <= scheduler.budget.tokens <= 64
        chunk = scheduler.budget.tokens
    assert chunk != 32, "what prompts cost beside answers is learnt from both steps"
    scheduler.update(scheduler.schedule(), 0.1, done=False)
    assert taken(scheduler)[0][0] is prompt, "it is done again"
    first.tokens.extend([1, 2, 3, 4])
    first.num_computed_tokens = 50
    scheduler.update(scheduler.schedule(), 0.03)
    assert taken(scheduler) == [(first, 4), (second, 1)], "forced text is of the answer"
