"""A draft model follows what the sequences hold, and changes nothing but the number of steps."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.engine import EngineRequest, Finished, Sampling, Vocab, llama
from server.engine.protocol import AddRequest
from server.engine.scheduler.scheduler import Sequence
from server.engine.speculative import base as speculation
from server.engine.speculative.base import MAX_DRAFT_TOKENS, DraftController, DraftRequest, NgramDrafter
from server.engine.speculative.model import ModelDrafter
from server.engine.types import EngineConfig
from server.engine.worker import loader
from server.engine.worker.loader import best_plan
from tests.chat.standin import write_model
from tests.engine.bench import Bench
from tests.engine.planned import sized
from tests.engine.test_speculation import Jobs, every_kind, outputs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def another(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights around the same vocabulary: hardly ever of one mind with `random_model`."""
    path = tmp_path_factory.mktemp("another") / "another.gguf"
    write_model(path, sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf", [], size=600, seed=2, layers=1)
    return path


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft model alone is asked, whatever it costs, and says what it is not sure of."""
    monkeypatch.setattr(
        DraftController, "draft_length", lambda self, decoding: 0 if isinstance(self.drafter, NgramDrafter) else 8
    )
    monkeypatch.setattr(speculation, "MIN_PROBABILITY", 0.0)


@pytest.fixture(params=["itself", "another"])
def drafting(request: pytest.FixtureRequest, random_model: Path, another: Path) -> Path:
    return random_model if request.param == "itself" else another


@every_kind
@pytest.mark.parametrize("pool", [False, True])
def test_a_draft_model_changes_nothing_but_the_number_of_steps(
    random_model: Path, drafting: Path, eager: None, jobs: Jobs, pool: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pool:
        monkeypatch.setattr(loader, "best_plan", sized(400, 1200))
    plain, plainly = outputs(random_model, jobs, speculation=False)
    drafted, steps = outputs(random_model, jobs, draft_model_path=str(drafting))
    assert drafted == plain
    assert steps <= plainly
    greedy = jobs(0, array("i")).sampling == Sampling(temperature=0)
    if drafting == random_model and greedy:
        assert 2 * steps < plainly, "of three sequences each gets five tokens a step"


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_drafts_are_cut_off_where_a_window_moves_on(
    sdist: Path, tmp_path: Path, eager: None, seed: int, pool: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right ones and wrong ones, behind more tokens than the window's cells take, of two that run together."""
    vocabulary = sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf"
    paths = {number: tmp_path / f"{number}.gguf" for number in {1, seed}}
    for number, path in paths.items():
        write_model(path, vocabulary, [], size=600, architecture="gemma3", layers=6, seed=number)
    if pool:
        monkeypatch.setattr(loader, "best_plan", sized(1200, 2560))
    found, rejected = {}, []
    for draft in (None, str(paths[seed])):
        bench = Bench(paths[1], context_length=1200, slots=2, speculation=draft is not None, draft_model_path=draft)
        assert bench.worker.loaded.model.window == 512
        verify = bench.worker.output.verify_draft

        def noted(sequence: Sequence, drafted: array[int], logits: Any, verify: Any = verify) -> Any:
            before = sequence.num_computed_tokens
            end = verify(sequence, drafted, logits)
            rejected.append(len(drafted) - (sequence.num_computed_tokens - before))
            return end

        bench.worker.output.verify_draft = noted  # type: ignore[method-assign]
        for number in range(2):
            bench.submit(number, array("i", [(13 * n + 7 * number) % 577 for n in range(700)]), 250)
        bench.run()
        ends = [bench.ends[number] for number in range(2)]
        found[draft] = [
            (bench.outputs[number], replace(end, draft_tokens=0, accepted_tokens=0)) for number, end in enumerate(ends)
        ]
    plain, drafted = found.values()
    assert drafted == plain
    assert all(isinstance(end, Finished) for end in ends)
    told = [end.draft_tokens - end.accepted_tokens for end in ends if isinstance(end, Finished)]
    assert sum(told) == sum(rejected)
    assert len(rejected) >= 50 and (sum(rejected) > 500) == (seed == 2)


def test_its_cache_holds_what_it_says(random_model: Path, drafting: Path, eager: None) -> None:
    bench = Bench(random_model, context_length=400, draft_model_path=str(drafting))
    made = bench.worker.loaded.drafter
    assert made is not None
    for number in range(3):
        prompt = array("i", [300 + number, *[7, 8, 9] * (6 + 40 * number)])
        job = EngineRequest(number, prompt, Sampling(temperature=0), "scope", 0, max_tokens=60)
        bench.worker.channel.put(AddRequest(job))
    bench.worker.step()
    seen = 0
    while bench.worker.scheduler.running:
        bench.worker.step()
        for slot, held in enumerate(made._held):
            assert made._context.last_position(slot) == len(held.tokens) - 1
            seen = max(seen, len(held.tokens))
    assert seen > 200, "the longest was caught up with"
    bench.close()


class Alone:
    """A draft model without the one that it drafts for."""

    def __init__(self, path: Path, **spec: Any) -> None:
        self.plan = best_plan(EngineConfig(str(path), **{"context_length": 400, "slots": 3, "threads": 1, **spec}))
        self.drafter = ModelDrafter(str(path), Vocab.load(str(path)), self.plan, threads=1, repack=False)
        self.steps: list[int] = []
        decode = self.drafter._context.decode

        def noted(batch: llama.Batch, count: int) -> int:
            self.steps.append(count)
            return decode(batch, count)

        self.drafter._context.decode = noted  # type: ignore[method-assign]

    def propose(self, *asked: DraftRequest, most: int = 4) -> dict[int, list[int]]:
        self.steps.clear()
        return {job: list(draft) for job, draft in self.drafter.propose(asked, most).items()}


@pytest.fixture
def alone(random_model: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Alone]:
    monkeypatch.setattr(speculation, "MIN_PROBABILITY", 0.0)
    return lambda **spec: Alone(random_model, **spec)


def asked(slot: int, tokens: list[int], room: int = 50, scope: str = "scope", **fields: Any) -> DraftRequest:
    return DraftRequest(slot, slot, scope, array("i", tokens), room, **fields)


LONG = [(7 * n) % 500 for n in range(200)]


def test_a_long_prompt_is_caught_up_with_in_chunks(alone: Callable[..., Alone]) -> None:
    made = alone(prefill_chunk=64)
    assert made.propose(asked(0, LONG)) == {} and made.steps == [65]
    assert made.propose(asked(0, LONG), asked(1, [5, 6, 7]))[1], "the short one does not wait for the long one"
    assert made.steps[0] == 64 + 2
    assert made.propose(asked(0, LONG)) == {}
    draft = made.propose(asked(0, LONG))[0]
    assert len(draft) == 4 and made.steps == [200 - 65 - 63 - 65, 1, 1, 1]
    agreed = [*LONG, *draft[:2], 499]
    made.propose(asked(0, agreed))
    assert made.steps[0] == 1, "what was confirmed is not decoded again"


def test_drafts_keep_within_room_and_the_step(alone: Callable[..., Alone]) -> None:
    made = alone()
    assert len(made.propose(asked(0, [1, 2, 3], room=2), most=MAX_DRAFT_TOKENS)[0]) == 2
    found = made.propose(asked(0, [1, 2, 3]), asked(1, [4, 5, 6]), asked(2, [7, 8]), most=MAX_DRAFT_TOKENS)
    assert [len(draft) for draft in found.values()] == [MAX_DRAFT_TOKENS // 3] * 3
    assert made.propose(asked(0, [1, -1, -1, 2], images=True)) == {}


def test_what_is_not_likely_is_not_said(alone: Callable[..., Alone], monkeypatch: pytest.MonkeyPatch) -> None:
    made = alone()
    draft = made.propose(asked(0, LONG[:60]))[0]
    monkeypatch.setattr(made.drafter, "_ends", frozenset({draft[2]}))
    assert made.propose(asked(0, LONG[:60]))[0] == draft[:2], "nothing stands behind an end"
    monkeypatch.setattr(speculation, "MIN_PROBABILITY", 1.0)
    assert made.propose(asked(0, LONG[:60])) == {}


def test_a_beginning_is_copied_within_a_scope(alone: Callable[..., Alone]) -> None:
    made = alone(prefill_chunk=300)
    first = made.propose(asked(0, LONG))
    same = made.propose(asked(1, [*LONG[:150], 1, 2]))
    assert made.steps[0] == 2
    made.propose(asked(2, LONG, scope="other"))
    assert made.steps[0] == 200
    assert made.propose(asked(1, LONG))[1] == first[0] and made.steps[0] == 50
    assert same != first


def test_a_cache_that_is_too_small_is_left_alone(alone: Callable[..., Alone], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.engine.test_drafter.best_plan", sized(400, 512))
    made = alone(prefill_chunk=300)
    assert not made.plan.kv_per_slot
    assert made.propose(asked(0, LONG)) and made.propose(asked(1, LONG[::-1]))
    assert made.propose(asked(2, LONG[5:])) == {}, "full: the idle ones are forgotten"
    assert made.propose(asked(2, LONG[5:]))
    three = [asked(slot, [slot, *LONG]) for slot in range(3)]
    assert made.propose(*three[:2])
    assert made.propose(*three) == {} and made.steps
    assert made.propose(*three) == {} and not made.steps, "and not tried again with as many"
    assert made.propose(*three[:2])


def test_what_cannot_draft_is_refused(sdist: Path, random_model: Path, tmp_path: Path) -> None:
    vocabulary = sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf"
    other, mamba = tmp_path / "other.gguf", tmp_path / "mamba.gguf"
    write_model(other, vocabulary, [], size=900)
    write_model(mamba, vocabulary, [], size=600, architecture="mamba")
    for path, why in ((other, "another vocabulary"), (mamba, "cannot draft")):
        with pytest.raises(llama.LoadError, match=why):
            Bench(random_model, context_length=400, draft_model_path=str(path))
    bench = Bench(mamba, context_length=400, draft_model_path=str(random_model))
    assert bench.worker.loaded.drafter is None, "what was wrong could not be cut off again"
    assert any("draft" in note for note in bench.worker.loaded.info.notes)
    bench.submit(1, array("i", [1, 2, 3]), 4)
    bench.run()
    assert isinstance(bench.ends[1], Finished)


def test_a_vocabulary_may_be_padded(sdist: Path, random_model: Path, tmp_path: Path, eager: None) -> None:
    """Drafts of tokens that the larger model does not know end before them."""
    path = tmp_path / "padded.gguf"
    write_model(path, sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf", ["<|a|>", "<|b|>"], size=600)
    bench = Bench(random_model, context_length=400, draft_model_path=str(path))
    bench.submit(1, array("i", [1, 2, 3]), 40)
    bench.run()
    assert isinstance(bench.ends[1], Finished)
