"""Drafts from what came before: they are found, they pay or rest, and they never change an output."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.engine import Constraint, EngineRequest, Finished, Sampling, Segment, Vocab, llama
from server.engine.protocol import AddRequest
from server.engine.speculative import DraftController, NgramDrafter
from server.engine.speculative.ngram import ngram_draft
from server.engine.types import MAX_DRAFT_TOKENS, StopCriteria
from tests.engine.bench import Bench
from tests.engine.test_generate import LETTERS, NEXT


def tokens(*values: int) -> array[int]:
    return array("i", values)


@pytest.mark.parametrize(
    ("seen", "most", "draft"),
    [
        ((1, 2, 3, 4, 5, 6, 1, 2, 3), 2, (4, 5)),
        ((1, 2, 3, 4, 5, 6, 1, 2, 3), 9, (4, 5, 6, 1, 2, 3)),
        ((1, 2, 3, 9, 8, 7, 1, 2, 3, 4, 5, 6, 1, 2, 3), 3, (4, 5, 6)),  # as it went on last
        ((7, 7, 7, 7, 7, 7, 7, 7), 3, (7, 7, 7)),
        ((1, 2, 3, 4, 2, 3), 2, ()),  # two tokens are too little to go by
        ((1, 2, 3), 2, ()),
        ((1, 2), 2, ()),
        ((), 2, ()),
        ((1, 2, 3, 4, 1, 2, 3), 0, ()),
    ],
)
def test_an_output_goes_on_as_it_did_before(seen: tuple[int, ...], most: int, draft: tuple[int, ...]) -> None:
    assert tuple(ngram_draft(tokens(*seen), most)) == draft


def test_nothing_is_drafted_before_the_plain_pace_is_known() -> None:
    speculation = DraftController(NgramDrafter())
    assert speculation.draft_length(1) == 0
    speculation.observe(1, 0, 0, 0.01)
    assert speculation.draft_length(1) > 0 and speculation.draft_length(2) == 0


def test_drafts_grow_while_they_are_right_and_rest_once_they_do_not_pay() -> None:
    speculation = DraftController(NgramDrafter())
    speculation.observe(1, 0, 0, 0.01)
    for _ in range(20):
        drafted = speculation.draft_length(1)
        speculation.observe(1, drafted, drafted, 0.02)
    assert speculation.draft_length(1) == MAX_DRAFT_TOKENS
    while drafted := speculation.draft_length(1):
        speculation.observe(1, drafted, 0, 0.02)
    resting = 1
    while not speculation.draft_length(1):
        resting += 1
    speculation.observe(1, 2, 0, 0.02)
    again = 0
    while not speculation.draft_length(1):
        again += 1
    assert again == 2 * resting, "the less it brings the rarer it is tried"


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are made wherever some are found, whatever they cost."""
    monkeypatch.setattr(DraftController, "draft_length", lambda self, decoding: 8)


Jobs = Callable[[int, "array[int]"], EngineRequest]


def outputs(path: Path, jobs: Jobs, **spec: Any) -> tuple[list[tuple[bytes, Finished]], int]:
    """What three jobs together give, and the steps it took. What was decoded ahead is counted, not told."""
    bench = Bench(path, context_length=400, **spec)
    steps = 0
    decode = bench.worker.loaded.context.decode

    def counting(batch: llama.Batch, count: int) -> int:
        nonlocal steps
        steps += 1
        return decode(batch, count)

    bench.worker.loaded.context.decode = counting  # type: ignore[method-assign]
    for number in range(3):
        prompt = array("i", [300 + number, *[7, 8, 9, 10, 11, 12] * 4])
        bench.worker.channel.put(AddRequest(jobs(number, prompt)))
    bench.run()
    found = []
    for number in range(3):
        end = bench.ends[number]
        assert isinstance(end, Finished), end
        assert 0 <= end.accepted_tokens <= min(end.draft_tokens, end.output_tokens)
        assert steps + end.accepted_tokens >= end.output_tokens - end.jump_forward_tokens
        found.append((bench.outputs[number], replace(end, draft_tokens=0, accepted_tokens=0)))
    return found, steps


LIST = Constraint(r'root ::= "[" item ("," " " item){30} "]"' + "\n" + r'item ::= "\"same text\"" | "\"other text\""')


every_kind = pytest.mark.parametrize(
    "jobs",
    [
        pytest.param(lambda n, p: EngineRequest(n, p, Sampling(temperature=0), f"{n}", 0, max_tokens=200), id="greedy"),
        pytest.param(
            lambda n, p: EngineRequest(n, p, Sampling(temperature=0.3, seed=n), f"{n}", 0, max_tokens=200), id="sampled"
        ),
        pytest.param(
            lambda n, p: EngineRequest(n, p, Sampling(temperature=0, repeat_penalty=1.1), f"{n}", 0, max_tokens=200),
            id="penalties",
        ),
        pytest.param(
            lambda n, p: EngineRequest(n, p, Sampling(temperature=0.8, seed=n), f"{n}", 0, constraint=LIST),
            id="constrained",
        ),
        pytest.param(
            lambda n, p: EngineRequest(
                n, p, Sampling(temperature=0), f"{n}", 0, max_tokens=150, stop=StopCriteria(strings=("ab", "the"))
            ),
            id="stopped",
        ),
    ],
)


@every_kind
def test_drafts_change_nothing_but_the_number_of_steps(random_model: Path, eager: None, jobs: Jobs) -> None:
    plain, plainly = outputs(random_model, jobs, speculation=False)
    drafted, steps = outputs(random_model, jobs, speculation=True)
    assert drafted == plain
    assert steps <= plainly


@pytest.mark.slow
def test_a_loop_takes_few_steps(smollm2: Path, eager: None, vocab: Vocab) -> None:
    letters = vocab.tokenize([Segment(LETTERS, control=True)])

    def jobs(number: int, prompt: array[int]) -> EngineRequest:
        return EngineRequest(number, letters, Sampling(temperature=0), f"{number}", 0, max_tokens=80)

    found, steps = outputs(smollm2, jobs, speculation=True)
    assert {output.decode() for output, _ in found} == {NEXT * 20}
    assert steps < 30


def test_what_a_slot_holds_after_drafts_is_what_its_tokens_say(random_model: Path, eager: None) -> None:
    bench = Bench(random_model, context_length=400)
    job = EngineRequest(1, array("i", [300, *[7, 8, 9] * 6]), Sampling(temperature=0), "scope", 0, max_tokens=120)
    bench.worker.channel.put(AddRequest(job))
    while not bench.worker.scheduler.slots[0].last_used:
        bench.worker.step()
        for slot in bench.worker.scheduler.slots:
            held = slot.sequence.num_computed_tokens if slot.sequence is not None else len(slot.tokens)
            assert bench.worker.loaded.context.last_position(slot.id) == held - 1
    bench.close()


def test_a_full_cache_is_tried_without_drafts(random_model: Path, eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(random_model, context_length=400)
    refused = []
    decode = bench.worker.loaded.context.decode

    def full(batch: llama.Batch, count: int) -> int:
        if batch.output[:count].sum() > 2:  # more than a token of each
            refused.append(count)
            return llama.NO_SLOT
        return decode(batch, count)

    bench.worker.loaded.context.decode = full  # type: ignore[method-assign]
    monkeypatch.setattr(bench.worker, "_free_cells", lambda: pytest.fail("there is room without drafts"))
    for number in range(2):
        prompt = array("i", [300 + number, *[7, 8, 9] * 10])
        bench.worker.channel.put(
            AddRequest(EngineRequest(number, prompt, Sampling(temperature=0), f"{number}", 0, max_tokens=40))
        )
    bench.run()
    assert all(isinstance(end, Finished) and end.output_tokens == 40 for end in bench.ends.values())
    assert refused
