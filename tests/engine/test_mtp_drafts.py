"""Drafts of a model's own layer are those of one that sees the whole sequence at once, however the model got there."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from server.engine import EngineConfig, Finished, Sampling, Vocab, llama
from server.engine.memory import gguf
from server.engine.memory.hparams import HParams
from server.engine.memory.plan import MemoryPlan
from server.engine.speculative import base as speculation
from server.engine.speculative.base import MAX_DRAFT_TOKENS, DraftController, DraftRequest, NgramDrafter
from server.engine.speculative.mtp import MtpDrafter
from server.engine.worker import loader
from server.engine.worker.loader import best_plan
from tests.engine.bench import Bench
from tests.engine.mtp import write_model
from tests.engine.planned import sized
from tests.engine.test_exact import Runs, conversations
from tests.engine.test_mtp import Rows
from tests.engine.test_speculation import Jobs, every_kind, outputs

Draft = list[int]


class Played:
    """A model, what its sequences hold, and its layer; what a worker does is done by hand."""

    def __init__(self, path: Path, *, cells: int = 0, most: int = 4) -> None:
        spec = EngineConfig(str(path), context_length=256, slots=3, threads=1, prefill_chunk=24)
        self.plan: MemoryPlan = sized(256, cells)(spec) if cells else best_plan(spec)
        self.model = llama.LlamaModel(str(path), mtp=True)
        snapshots = most if self.model.recurrent else 0
        self.context = self._made(snapshots=snapshots)
        self.mtp = MtpDrafter(self.model, Vocab(self.model).eog, self.plan, threads=1)
        self.tokens: list[array[int]] = [array("i") for _ in range(3)]
        self.most = most

    def _made(self, **options: int) -> llama.Context:
        plan = self.plan
        return llama.Context(
            self.model, batch=plan.batch, threads=1, outputs=plan.batch, hidden=True, **plan.layout, **options
        )

    def close(self) -> None:
        self.mtp.close(), self.context.close(), self.model.close()

    def decode(self, rows: dict[int, tuple[int, list[int]]]) -> Rows:
        """Tokens from a position on, by slot: the model decodes them and the layer observes."""
        batch, at = llama.Batch(self.plan.batch), 0
        for slot, (place, tokens) in sorted(rows.items()):
            end = at + len(tokens)
            batch.token[at:end], batch.position[at:end] = tokens, range(place, place + len(tokens))
            batch.sequence[at:end], batch.output[at:end] = slot, 1
            at = end
        assert self.context.decode(batch, at) == llama.OK
        self.mtp.observe(batch, at, self.context.hidden(at))
        return self.context.logits(at).copy()

    def prefill(self, slot: int, tokens: list[int], place: int = 0) -> None:
        """And the next token."""
        for start in range(place, len(tokens), 24):
            logits = self.decode({slot: (start, tokens[start : start + 24])})
        self.tokens[slot] = array("i", [*tokens, int(logits[-1].argmax())])

    def asked(self, *slots: int) -> list[DraftRequest]:
        return [DraftRequest(slot, slot, "scope", self.tokens[slot], 100) for slot in slots]

    def propose(self, *slots: int) -> dict[int, Draft]:
        return {slot: list(draft) for slot, draft in self.mtp.propose(self.asked(*slots), self.most).items()}

    def step(self, *slots: int, draft: bool = True) -> int:
        """Decode each one's last token and its draft; how many of these were right."""
        drafts = self.propose(*slots) if draft else {}
        even = min((len(drafts.get(slot, ())) for slot in slots), default=0)  # for running states
        drafts = {slot: drafts[slot][:even] if even else [] for slot in slots}
        last = {slot: len(self.tokens[slot]) - 1 for slot in slots}
        logits = self.decode({slot: (last[slot], [self.tokens[slot][-1], *drafts[slot]]) for slot in slots})
        confirmed = 0
        for at, slot in enumerate(sorted(slots)):
            said = logits[at * (even + 1) : (at + 1) * (even + 1)].argmax(1).tolist()
            right = next((n for n, token in enumerate(drafts[slot]) if token != said[n]), even)
            self.tokens[slot].extend(said[: right + 1])
            assert self.context.seq_rm(slot, len(self.tokens[slot]) - 1)
            confirmed += right
        return confirmed

    def expected(self, slot: int, first: int = 0, unknown: tuple[int, ...] = ()) -> Draft:
        """A draft by a layer that gets all at once, from position `first` on and without some hidden states."""
        tokens, count = list(self.tokens[slot]), len(self.tokens[slot])
        with closing(self._made()) as context, closing(self._made(mtp=True)) as layer:  # type: ignore[arg-type]
            batch = llama.Batch(self.plan.batch, hidden=0)
            states = [np.zeros((1, self.model.hidden_width), np.float32)]
            for start in range(0, count - 1, 24):
                part = tokens[start : min(start + 24, count - 1)]
                batch.token[: len(part)], batch.position[: len(part)] = part, range(start, start + len(part))
                assert context.decode(batch, len(part)) == llama.OK
                states.append(context.hidden(len(part)).copy())
            before = np.concatenate(states)
            before[[first, *unknown]] = 0
            entered, draft = llama.Batch(24, hidden=self.model.hidden_width), []
            for start in range(first, count, 24):
                end = min(start + 24, count)
                entered.token[: end - start], entered.hidden[: end - start] = tokens[start:end], before[start:end]
                entered.position[: end - start], entered.output[:] = range(start, end), 0
                entered.output[end - start - 1] = 1
                assert layer.decode(entered, end - start) == llama.OK
            rows = end - start
            while True:
                draft.append(int(layer.logits(1)[0].argmax()))
                if len(draft) == self.most:
                    return draft
                entered.token[0], entered.position[0] = draft[-1], count + len(draft) - 1
                entered.hidden[0], entered.output[0] = layer.hidden(rows)[-1], 1
                assert layer.decode(entered, 1) == llama.OK
                rows = 1


Play = Callable[..., Played]


@pytest.fixture(params=["glm4moe", "qwen35"])
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def play(sdist: Path, tmp_path: Path, architecture: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Played models say what they are not sure of."""
    monkeypatch.setattr(speculation, "MIN_PROBABILITY", 0.0)
    made: list[Played] = []

    def written(depth: float = 1.0, **options: int) -> Played:
        path = tmp_path / f"{depth}.gguf"
        base = sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf"
        made.append(Played(write_model(path, base, architecture=architecture, depth=depth), **options))
        return made[-1]

    yield written
    for each in made:
        each.close()


def text(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 256, count)]


@pytest.mark.parametrize("cells", [0, 700], ids=["split", "pool"])
@pytest.mark.parametrize("depth", [0.0, 0.2, 0.5])
def test_drafts_follow_the_model(play: Play, depth: float, cells: int) -> None:
    played, plain = play(depth, cells=cells), play(depth, cells=cells)
    for slot, length in enumerate((5, 40, 31)):
        played.prefill(slot, text(slot, length))
        plain.prefill(slot, text(slot, length))
    confirmed = drafted = 0
    for step in range(8):
        slots = [(0, 1, 2), (0, 1), (2,), (0, 2)][step % 4]
        if plain.model.recurrent and cells == 0 and slots == (0, 2):
            slots = (1, 2)  # neighbours
        for slot in slots:
            assert played.propose(*slots)[slot] == played.expected(slot)
        confirmed += played.step(*slots, draft=step % 3 != 2)
        drafted += 4 * len(slots) if step % 3 != 2 else 0
    assert confirmed == drafted if depth == 0 else 0 < confirmed < drafted if depth == 0.2 else confirmed < drafted
    for slot in range(3):
        while len(plain.tokens[slot]) < len(played.tokens[slot]):
            plain.step(slot, draft=False)
        assert plain.tokens[slot][: len(played.tokens[slot])] == played.tokens[slot]


def test_what_is_noted_is_decoded_when_it_fills_a_step(play: Play) -> None:
    played = play()
    counts: list[int] = []
    decode = played.mtp._context.decode

    def noted(batch: llama.Batch, count: int) -> int:
        counts.append(count)
        return decode(batch, count)

    played.mtp._context.decode = noted  # type: ignore[method-assign]
    played.prefill(0, text(0, 100))
    size = played.plan.batch
    assert counts == [size] * (100 // size) and played.mtp._context.last_position(0) == len(counts) * size - 1
    assert played.propose(0)[0] == played.expected(0)
    assert counts[100 // size :] == [100 % size + 1, 1, 1, 1]
    assert played.propose(0)[0] == played.expected(0), "what was not confirmed is not kept"
    played.step(0, draft=False)
    counts.clear()
    played.propose(0)
    assert counts == [2, 1, 1, 1], "one decode for each drafted token"


@pytest.mark.parametrize("architecture", ["glm4moe"])
def test_a_cut_sequence_goes_on(play: Play) -> None:
    played, tokens = play(), text(0, 60)
    played.prefill(0, tokens)
    played.propose(0)
    assert played.context.seq_rm(0, 30)
    played.prefill(0, [*tokens[:30], *text(9, 10)], 30)
    # Before the first token behind the cut, the hidden state is known no more.
    assert played.propose(0)[0] == played.expected(0, unknown=(30,))


def test_a_slot_of_another(play: Play) -> None:
    played = play()
    played.prefill(0, text(0, 60))
    played.propose(0)
    played.context.seq_rm(0), played.mtp.forget(0)
    played.prefill(0, text(1, 12))
    assert played.propose(0)[0] == played.expected(0)


def test_what_came_from_elsewhere_is_done_without(play: Play) -> None:
    played = play()
    tokens = text(0, 60)
    played.prefill(0, tokens)
    written = played.context.save_state(0)
    assert played.context.load_state(1, written, 60)
    played.tokens[1] = array("i", tokens)
    assert played.propose(1) == {}
    played.prefill(1, [*tokens, *text(1, 3)], 60)
    assert played.propose(1)[1] == played.expected(1, first=60)
    assert played.propose(0)[0] == played.expected(0)


@pytest.mark.parametrize("cells", [0, 700], ids=["split", "pool"])
@pytest.mark.parametrize(
    ("architecture", "count"), [("glm4moe", 60), ("glm4moe", 58), ("glm4moe", 40), ("qwen35", 60)]
)  # a running state is copied whole
def test_a_beginning_is_copied(play: Play, cells: int, count: int) -> None:
    played, tokens = play(cells=cells), text(0, 60)
    played.prefill(0, tokens)
    played.prefill(2, text(2, 9))
    assert played.context.seq_cp(0, 2, count)
    played.mtp.copy(0, 2, count)
    played.prefill(2, [*tokens[:count], *text(1, 3)], count)
    unknown = (count,) if count == 40 else ()
    assert played.propose(2)[2] == played.expected(2, unknown=unknown)
    assert played.propose(0)[0] == played.expected(0)


def test_a_full_cache_begins_anew(play: Play) -> None:
    played = play(cells=256)
    for slot in range(3):
        played.prefill(slot, text(slot, 50))
    played.mtp._context.decode = lambda batch, count: llama.NO_SLOT  # type: ignore[method-assign]
    assert played.propose(0, 1, 2) == {}
    del played.mtp._context.decode
    assert played.propose(0, 1, 2) == {}
    first = len(played.tokens[0]) - 1
    played.step(0)
    played.step(0, draft=False)
    assert played.propose(0)[0] == played.expected(0, first=first)


def test_drafts_keep_within_room_and_the_step(play: Play) -> None:
    played = play(most=MAX_DRAFT_TOKENS)
    for slot in range(3):
        played.prefill(slot, text(slot, 20))
    one, *_ = played.asked(0)
    assert len(played.mtp.propose([DraftRequest(0, 0, "scope", one.tokens, 2)], MAX_DRAFT_TOKENS)[0]) == 2
    assert played.mtp.propose([DraftRequest(0, 0, "scope", one.tokens, 2, images=True)], MAX_DRAFT_TOKENS) == {}
    assert [len(draft) for draft in played.propose(0, 1, 2).values()] == [MAX_DRAFT_TOKENS // 3] * 3
    assert played.mtp.propose(played.asked(0), 0) == {}


def test_what_is_not_likely_is_not_said(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    played = play()
    played.prefill(0, text(0, 20))
    draft = played.propose(0)[0]
    monkeypatch.setattr(played.mtp, "_eog", frozenset({draft[2]}))
    assert played.propose(0)[0] == draft[: draft.index(draft[2])]
    monkeypatch.setattr(speculation, "MIN_PROBABILITY", 1.0)
    assert played.propose(0) == {}


@pytest.mark.parametrize(
    ("fields", "usable"),
    [({}, True), ({"heads": 2}, False), ({"without": True}, False)],
    ids=["one", "two", "said but not there"],
)
def test_only_a_layer_that_llama_cpp_can_run_is_used(
    sdist: Path, tmp_path: Path, architecture: str, fields: dict[str, bool | int], usable: bool, random_model: Path
) -> None:
    path, base = tmp_path / "model.gguf", sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf"
    write_model(path, base, architecture=architecture, **fields)  # type: ignore[arg-type]
    shape = HParams.of(gguf.read(path))
    assert shape.has_mtp is usable and shape.nextn_layers == (0 if "without" in fields else fields.get("heads", 1))
    assert not HParams.of(gguf.read(random_model)).has_mtp


# --- in a worker


@pytest.fixture(params=["mtp", "lookup"])
def eager(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One source alone is asked, whatever it costs, and says what it is not sure of."""
    kinds = {"mtp": MtpDrafter, "lookup": NgramDrafter}
    monkeypatch.setattr(
        DraftController,
        "draft_length",
        lambda self, decoding: 4 if isinstance(self.drafter, kinds[request.param]) else 0,
    )
    monkeypatch.setattr(speculation, "MIN_PROBABILITY", 0.0)
    return str(request.param)


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("pool", [False, True], ids=["split", "pool"])
@pytest.mark.parametrize("depth", [0.0, 0.2])
def test_drafts_change_nothing_but_the_number_of_steps(
    sdist: Path,
    tmp_path: Path,
    architecture: str,
    eager: str,
    jobs: Jobs,
    pool: bool,
    depth: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if pool:
        monkeypatch.setattr(loader, "best_plan", sized(400, 1200))
    base = sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf"
    path = write_model(tmp_path / "model.gguf", base, architecture=architecture, depth=depth)
    plain, plainly = outputs(path, jobs, speculation=False)
    drafted, steps = outputs(path, jobs)
    assert drafted == plain
    assert steps <= plainly
    if eager == "mtp" and depth == 0 and jobs(0, array("i")).sampling == Sampling(temperature=0):
        assert 2 * steps < plainly


def test_what_cannot_be_taken_back_is_decoded_again(
    sdist: Path, tmp_path: Path, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        DraftController, "draft_length", lambda self, decoding: 4 if isinstance(self.drafter, MtpDrafter) else 0
    )
    monkeypatch.setattr(speculation, "MIN_PROBABILITY", 0.0)
    base = sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf"
    path = write_model(tmp_path / "model.gguf", base, architecture=architecture, depth=0.2)
    found = []
    for refusing in (False, True):
        bench = Bench(path, context_length=400)
        remove = bench.worker.loaded.context.seq_rm
        if refusing:
            bench.worker.loaded.context.seq_rm = lambda slot, start=-1, end=-1: (  # type: ignore[method-assign]
                start < 0 and remove(slot)  # noqa: B023
            )
        bench.submit(1, array("i", text(1, 30)), 24)
        bench.run()
        found.append(bench.outputs[1])
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0.0, 0.2])
def test_cache_and_company_change_no_output(
    sdist: Path, tmp_path: Path, architecture: str, eager: str, depth: float
) -> None:
    """Conversations that begin alike, arrive together, and go on, each drafted for."""
    base = sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf"
    path = write_model(tmp_path / "model.gguf", base, architecture=architecture, depth=depth)
    runs = Runs(path)
    forgotten: list[int] = []
    if (layer := runs.bench.worker.loaded.mtp_drafter) is not None:
        forget = layer.forget
        layer.forget = lambda slot: forgotten.append(slot) or forget(slot)  # type: ignore[method-assign, func-returns-value]
    prompts = conversations()
    alone = [runs.together([prompt], [f"alone {number}"])[0][0] for number, prompt in enumerate(prompts)]
    shared, cached = runs.together(prompts, ["shared"] * 8)
    again, _ = runs.together(prompts, ["shared"] * 8)
    assert shared == again == alone
    longer = [array("i", [*prompt, 17, 18, 19]) for prompt in prompts]
    grown, _ = runs.together(longer, ["shared"] * 8)
    fresh, _ = runs.together(longer, [f"fresh {number}" for number in range(8)])
    assert grown == fresh
    ends = [end for end in runs.bench.ends.values() if isinstance(end, Finished)]
    assert sum(end.accepted_tokens for end in ends) > 0 or eager == "lookup"
    if architecture == "glm4moe":
        assert sum(cached) >= 7 * 60 and forgotten
    runs.bench.close()
