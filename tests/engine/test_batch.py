"""The batch loop, turned by hand: what a full cache, an aborted step and memories that cannot be cut do to it."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from server.engine import EngineRequest, Finished, Sampling, Segment, Vocab, llama
from server.engine.protocol import AbortRequest, AddRequest, Finish
from server.engine.scheduler.scheduler import PrefixMatch, Sequence, Slot
from server.engine.worker import loader
from server.engine.worker.slot_memory import SlotMemory
from tests.engine.bench import Bench
from tests.engine.planned import sized
from tests.engine.test_generate import LETTERS, NEXT


@pytest.fixture
def bench(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """With a KV cache of 256 cells for three sequences of up to 200 tokens."""
    monkeypatch.setattr(loader, "best_plan", sized(200, 256))
    yield Bench(smollm2)


@pytest.fixture
def letters(vocab: Vocab) -> array[int]:
    return vocab.tokenize([Segment(LETTERS, control=True)])


@pytest.mark.slow
def test_a_full_cache_lets_the_newest_step_aside(bench: Bench, letters: array[int]) -> None:
    parked = []
    park = bench.worker.scheduler.preempt
    bench.worker.scheduler.preempt = lambda: parked.append(park()) or parked[-1]  # type: ignore[method-assign]
    for number in range(3):
        bench.submit(number, letters, 60)
    bench.run()
    assert [bench.outputs[number].decode() for number in range(3)] == [NEXT * 15] * 3
    assert {end.output_tokens for end in bench.ends.values() if isinstance(end, Finished)} == {60}
    assert parked  # three sequences of 113 tokens do not fit 256 cells


def test_a_job_that_is_told_to_end_says_what_it_took(bench: Bench, letters: array[int]) -> None:
    """One of two goes on; a job that is not there, or still in the queue, is left alone."""
    for number in (1, 2):
        bench.submit(number, letters, 40)
    while (
        any(sequence.num_output_tokens < 4 for sequence in bench.worker.scheduler.running)
        or not bench.worker.output.samplers
    ):
        bench.worker.step()
    bench.submit(3, letters, 8)
    for number in (1, 3, 99):
        bench.worker.channel.put(Finish(number))
    bench.run()
    ended, on, queued = (bench.ends[number] for number in (1, 2, 3))
    assert isinstance(ended, Finished) and isinstance(on, Finished) and isinstance(queued, Finished)
    assert 4 <= ended.output_tokens == len(ended.tokens) < 40 and ended.prompt_tokens == len(letters)
    assert (NEXT * 10).startswith(bench.outputs[1].decode())
    assert (on.output_tokens, bench.outputs[2].decode()) == (40, NEXT * 10)
    assert queued.output_tokens == 8


@pytest.mark.slow
def test_idle_slots_are_forgotten_before_anyone_steps_aside(bench: Bench, letters: array[int]) -> None:
    bench.submit(1, letters, 40)
    bench.worker.step()
    while bench.worker.scheduler.running:
        bench.worker.step()
    [idle] = [slot for slot in bench.worker.scheduler.slots if slot.tokens]
    bench.submit(2, letters, 40)
    bench.submit(3, letters, 40)
    bench.run()
    assert bench.outputs[2].decode() == bench.outputs[3].decode() == NEXT * 10
    assert [end.output_tokens for end in bench.ends.values() if isinstance(end, Finished)] == [40, 40, 40]
    assert not idle.tokens  # three times 93 tokens do not fit 256 cells


@pytest.mark.slow
def test_with_cells_of_their_own_answers_and_prompts_take_steps_in_turn(smollm2: Path, letters: array[int]) -> None:
    bench = Bench(smollm2, context_length=200, speculation=False)
    worker, steps, notes = bench.worker, [], []
    assert worker.scheduler._separate_prefill
    decode, note = worker.loaded.context.decode, worker.scheduler.budget.observe

    def noted(batch: llama.Batch, count: int) -> int:
        steps.append(dict(Counter(batch.sequence[:count].tolist())))
        return decode(batch, count)

    worker.loaded.context.decode = noted  # type: ignore[method-assign]
    worker.scheduler.budget.observe = lambda *noted: notes.append(noted) or note(*noted)  # type: ignore[method-assign]
    for number in (1, 2):
        bench.submit(number, letters, 40)
    while len(worker.output.samplers) < 2 or any(
        sequence.num_output_tokens < 4 for sequence in worker.scheduler.running
    ):
        worker.step()
    first, second = (sequence.slot.id for sequence in worker.scheduler.running)
    answers = {first: 1, second: 1}
    steps.clear(), notes.clear()
    worker.scheduler.budget._chunk = 16.0
    bench.submit(3, letters, 2)
    bench.run()
    prompts = [place for place, step in enumerate(steps) if max(step.values()) > 1]
    assert len(prompts) >= 3 and all(len(steps[place]) == 1 for place in prompts)
    assert all(steps[place + 1] == answers for place in prompts[:-1])
    paced = [prefilled for decoding, prefilled, _ in notes if decoding and prefilled]
    assert [sum(steps[place].values()) for place in prompts][: len(paced)] == paced, "both steps count, for the pace"
    assert [bench.outputs[number].decode() for number in (1, 2)] == [NEXT * 10] * 2


def test_an_aborted_step_is_done_again_for_the_survivors(bench: Bench, letters: array[int]) -> None:
    bench.submit(1, letters, 24)
    while 1 not in bench.worker.output.samplers or bench.worker.scheduler.running[0].num_output_tokens < 4:
        bench.worker.step()
    results = []
    decode = bench.worker.loaded.context.decode

    def cancelled_meanwhile(batch: llama.Batch, count: int) -> int:
        if count > 1 and not results:
            bench.worker.channel.put(AbortRequest(2))
        results.append(decode(batch, count))
        return results[-1]

    bench.worker.loaded.context.decode = cancelled_meanwhile  # type: ignore[method-assign]
    bench.submit(2, letters[:40], 1)
    bench.run()
    assert results[0] == llama.ABORTED and set(results[1:]) == {llama.OK}
    assert bench.outputs[1].decode() == NEXT * 6
    assert 2 not in bench.ends and 2 not in bench.outputs


def test_a_small_share_of_a_step_is_no_reason_to_abort(bench: Bench, letters: array[int]) -> None:
    for number in (1, 2, 3):
        bench.submit(number, letters, 4)
    results = []
    decode = bench.worker.loaded.context.decode

    def cancelled_meanwhile(batch: llama.Batch, count: int) -> int:
        if not results:
            bench.worker.channel.put(AbortRequest(3))
        results.append(decode(batch, count))
        return results[-1]

    bench.worker.loaded.context.decode = cancelled_meanwhile  # type: ignore[method-assign]
    bench.run()
    assert set(results) == {llama.OK}
    assert set(bench.ends) == {1, 2}


@pytest.mark.slow
@pytest.mark.parametrize("cells", [600, 256], ids=["split", "pool"])
def test_jobs_that_begin_alike_prefill_it_once(
    smollm2: Path, letters: array[int], monkeypatch: pytest.MonkeyPatch, cells: int
) -> None:
    monkeypatch.setattr(loader, "best_plan", sized(200, cells))
    bench = Bench(smollm2)
    prompt = letters[:-3]
    for number in range(3):
        job = EngineRequest(number, array("i", prompt), Sampling(temperature=0), "scope", deadline=0, max_tokens=12)
        bench.worker.channel.put(AddRequest(job))
    counts = []
    decode = bench.worker.loaded.context.decode

    def counting(batch: llama.Batch, count: int) -> int:
        counts.append(count)
        return decode(batch, count)

    bench.worker.loaded.context.decode = counting  # type: ignore[method-assign]
    bench.run()
    assert len({bench.outputs[number] for number in range(3)}) == 1
    ends = [bench.ends[number] for number in range(3)]
    assert [end.cache_read_tokens for end in ends if isinstance(end, Finished)] == [0, len(prompt) - 1, len(prompt) - 1]
    assert sum(counts) == len(prompt) + 2 + 3 * 11


class Memory:
    """The memory of a slot, as `Context` shows it."""

    def __init__(self, first: int = 0, cuttable: bool = True) -> None:
        self.first, self.cuttable = first, cuttable
        self.cuts: list[int] = []

    def first_position(self, sequence: int) -> int:
        return self.first

    def seq_rm(self, sequence: int, start: int = -1) -> bool:
        self.cuts.append(start)
        return self.cuttable or start == -1


@pytest.mark.parametrize(
    ("held", "prompt", "common", "recurrent", "window", "memory", "kept", "cuts"),
    [
        (10, 20, 8, False, 0, Memory(), 8, [8]),
        (10, 20, 10, False, 0, Memory(), 10, []),
        (10, 10, 10, False, 0, Memory(), 9, [9]),  # the last token's logits are needed
        (10, 20, 0, False, 0, Memory(), 0, [-1]),
        (10, 20, 8, False, 0, Memory(cuttable=False), 0, [8, -1]),
        (10, 20, 10, True, 0, Memory(), 10, []),
        (10, 20, 9, True, 0, Memory(), 0, [-1]),  # a running state cannot be cut
        (10, 10, 10, True, 0, Memory(), 0, [-1]),
        (900, 950, 890, False, 512, Memory(first=378), 890, [890]),
        (900, 950, 890, False, 512, Memory(first=379), 0, [-1]),  # the window has lost a token it needs
        (900, 950, 400, False, 512, Memory(first=1), 0, [-1]),
        (900, 950, 400, False, 512, Memory(first=0), 400, [400]),
    ],
)
def test_a_prefix_is_kept_only_where_that_is_right(
    held: int, prompt: int, common: int, recurrent: bool, window: int, memory: Memory, kept: int, cuts: list[int]
) -> None:
    loaded: Any = SimpleNamespace(
        plan=SimpleNamespace(kv_per_slot=False, slots=1),
        model=SimpleNamespace(recurrent=recurrent, window=window),
        context=memory,
        mtp_drafter=None,
    )
    tokens = array("i", range(prompt))
    job = EngineRequest(1, tokens, Sampling(), "scope", deadline=0)
    sequence = Sequence(job, Slot(0, tokens=array("i", range(held))), 1, tokens)
    SlotMemory(loaded).restore_prefix(sequence, PrefixMatch(sequence.slot, common, common == held))
    assert sequence.num_computed_tokens == sequence.num_cached_tokens == kept
    assert memory.cuts == cuts
