"""Images in the batch loop, on tiny models of random weights: one of each kind of projector."""

from __future__ import annotations

import ctypes
import itertools
import random
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.engine import EngineRequest, Failed, Finished, RgbImage, Sampling, Segment, llama
from server.engine.protocol import AbortRequest, AddRequest
from server.engine.speculative import ngram
from server.engine.vision.projector import Projector, ProjectorError
from server.engine.worker import loader
from tests.chat.standin import WIDTH, write_model
from tests.engine.bench import Bench as TextBench
from tests.engine.planned import sized
from tests.fixtures.projectors import KINDS, TOKENS, Seer, picture, write_projector, write_seer

GREEDY = Sampling(temperature=0)
A, B = picture(1), picture(2)
Prompt = list[str | RgbImage]


class Bench(TextBench):
    """With images, whose encoding can be held back."""

    def __init__(self, seer: Seer, *, length: int = 512, slots: int = 6, **more: Any) -> None:
        self.seer = seer
        super().__init__(
            seer.model, context_length=length, slots=slots, gpu_layers=0, mmproj_path=str(seer.projector), **more
        )
        assert self.worker.vision is not None
        self.encoder = self.worker.vision.encoder
        self.vocab = self.worker.loaded.vocab
        self._ids = itertools.count(1)
        self.encoded: list[str] = []
        """Digests, in the order in which they began to be encoded."""
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Semaphore(0)
        encode = self.encoder._projector.encode

        def gated(picture: RgbImage) -> Any:
            self.encoded.append(picture.digest)
            self.begun.release()
            assert self.gate.wait(30)
            return encode(picture)

        self.encoder._projector.encode = gated  # type: ignore[method-assign]

    def submit(self, prompt: Prompt, *, max_tokens: int = 12, scope: str | None = None) -> int:
        number = next(self._ids)
        tokens: array[int] = array("i")
        pictures = []
        for part in prompt:
            if isinstance(part, RgbImage):
                pictures.append((len(tokens), part))
            else:
                tokens += self.vocab.tokenize([Segment(part, control=True)], begins=part is prompt[0])
        job = EngineRequest(
            number, tokens, GREEDY, scope or f"scope {number}", 0, max_tokens=max_tokens, images=tuple(pictures)
        )
        self.worker.channel.put(AddRequest(job))
        return number

    @property
    def running(self) -> bool:
        scheduler = self.worker.scheduler
        return bool(scheduler.running or scheduler.queue or not self.worker.channel.inbox.empty())

    def run(self) -> None:
        while self.running:
            self.worker.step()

    def ask(self, prompt: Prompt, **options: Any) -> tuple[str, Finished]:
        """One job alone."""
        number = self.submit(prompt, **options)
        self.run()
        return self.answer(number)

    def answer(self, number: int) -> tuple[str, Finished]:
        self.await_ends([number])
        end = self.ends[number]
        assert isinstance(end, Finished), end
        return self.outputs[number].decode(), end


@pytest.fixture(params=KINDS)
def seer(request: pytest.FixtureRequest, seers: dict[str, Seer]) -> Seer:
    return seers[request.param]


@pytest.fixture
def bench(seer: Seer) -> Iterator[Bench]:
    bench = Bench(seer)
    yield bench
    bench.close()


def reference(seer: Seer, prompt: Prompt, count: int) -> list[int]:
    """The greedy continuation as mtmd's own helper computes it, from text with markers."""
    model = llama.LlamaModel(str(seer.model), repack=False, gpu_layers=0)
    context = llama.Context(model, cells=1024, sequences=1, batch=256, threads=1, flash=False)
    projector = Projector.load(str(seer.projector), model, threads=1, gpu=False)
    assert projector is not None
    m, marker = projector._m, projector._m.mtmd_default_marker()
    text = b"".join(marker if isinstance(part, RgbImage) else part.encode() for part in prompt)
    bitmaps = [projector._bitmap(each.width, each.height, each.rgb) for each in prompt if isinstance(each, RgbImage)]
    chunks = m.mtmd_input_chunks_init()
    given = m.mtmd_input_text(text, len(text), True, True)
    found = (ctypes.c_void_p * len(bitmaps))(*bitmaps)
    assert m.mtmd_tokenize(projector._p, chunks, ctypes.byref(given), found, len(bitmaps)) == 0
    past = llama.C.llama_pos()
    assert m.mtmd_helper_eval_chunks(projector._p, context._p, chunks, 0, 0, 256, True, ctypes.byref(past)) == 0
    tokens: list[int] = []
    batch = llama.Batch(1)
    batch.output[0] = 1
    while True:
        tokens.append(int(context.logits(1)[0].argmax()))
        if len(tokens) == count:
            break
        batch.token[0], batch.position[0] = tokens[-1], past.value + len(tokens) - 1
        assert context.decode(batch, 1) == llama.OK
    m.mtmd_input_chunks_free(chunks)
    for bitmap in bitmaps:
        m.mtmd_bitmap_free(bitmap)
    projector.close()
    context.close()
    model.close()
    return tokens


@pytest.mark.parametrize(
    "prompt", [["see: ", A, " what"], [A, "x"], ["a", A, B, "b"], ["a", A, " or ", B, "?", A, "."]], ids=len
)
def test_what_follows_images_is_what_llama_cpp_says(bench: Bench, seer: Seer, prompt: Prompt) -> None:
    number = bench.submit(prompt, max_tokens=10)
    bench.run()
    _, end = bench.answer(number)
    assert list(end.tokens) == reference(seer, prompt, 10)


def test_an_image_larger_than_a_step_is_decoded_whole_or_cut(sdist: Path, tmp_path: Path, seer: Seer) -> None:
    """144 tokens, where steps take 70. Images under M-RoPE are as large as they come."""
    large = write_seer(tmp_path, sdist, seer.kind, side=12)
    bench = Bench(large)
    prompt: Prompt = ["see: ", picture(1, 400, 300), " what"]
    sizes = []
    decode = bench.worker.loaded.context.decode_embeddings

    def noted(embeddings: Any, positions: Any, sequence: int, *, causal: bool) -> int:
        sizes.append(len(embeddings))
        return decode(embeddings, positions, sequence, causal=causal)

    bench.worker.loaded.context.decode_embeddings = noted  # type: ignore[method-assign]
    _, end = bench.ask(prompt, max_tokens=10)
    assert list(end.tokens) == reference(large, prompt, 10)
    cut = {"mlp": [64, 64, 16], "gemma3": [144], "qwen2vl": [64, 64, 26], "idefics3": 5 * [36]}
    assert sizes == cut[seer.kind]
    bench.close()


@pytest.mark.parametrize("kind", ["mlp", "qwen2vl"])
def test_how_an_image_is_cut_changes_nothing(seers: dict[str, Seer], kind: str) -> None:
    bench = Bench(seers[kind])
    prompt: Prompt = ["see: ", A, B, " what"]
    whole, _ = bench.ask(prompt)
    assert bench.worker.vision is not None
    bench.worker.vision.batch = 5
    assert bench.ask(prompt)[0] == whole
    bench.close()


def test_no_image_is_drafted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an answer goes on as the text did before an image, the draft ends there."""
    prompt: Prompt = ["x = y: ", A, " and x = y: "]
    plain, _ = bench.ask(prompt, max_tokens=30)
    monkeypatch.setattr(bench.worker.speculator.controllers[0], "draft_length", lambda decoding: 8)
    monkeypatch.setattr(ngram, "ngram_draft", lambda tokens, most: array("i", [tokens[0], -1, -1][:most]))
    drafted = []
    verify = bench.worker.output.verify_draft
    monkeypatch.setattr(
        bench.worker.output, "verify_draft", lambda *given: drafted.append(list(given[1])) or verify(*given)
    )
    assert bench.ask(prompt, max_tokens=30)[0] == plain
    assert drafted and {len(draft) for draft in drafted} == {1}


def test_answers_depend_on_the_image_and_on_nothing_else(bench: Bench) -> None:
    one, two = (bench.ask(["look: ", each, " well?"])[0] for each in (A, B))
    assert one != two
    assert bench.ask(["look: ", picture(1), " well?"])[0] == one
    assert bench.ask(["look: ", A, B, "?"])[0] != bench.ask(["look: ", B, A, "?"])[0]


def test_input_tokens_count_those_of_images(bench: Bench, seer: Seer) -> None:
    text = len(bench.vocab.tokenize([Segment("look: ", True)])) + len(bench.vocab.tokenize([Segment(" well?", True)]))
    _, end = bench.ask(["look: ", A, " well?"])
    assert end.prompt_tokens == text + TOKENS[seer.kind]
    assert end.cache_read_tokens == 0


def test_the_same_image_again_is_read_from_the_cache(bench: Bench, seer: Seer) -> None:
    """Of what two prompts share, images are reused whole or not at all."""
    first, end = bench.ask(["Look at the picture: ", A, " well?"], scope="one")
    again, hit = bench.ask(["Look at the picture: ", A, " well?"], scope="one")
    assert again == first and hit.prompt_tokens == end.prompt_tokens
    assert hit.cache_read_tokens == end.prompt_tokens - 1
    fresh, _ = bench.ask(["Look at the picture: ", A, "Where?"], scope="alone")
    other, hit = bench.ask(["Look at the picture: ", A, "Where?"], scope="one")
    assert other == fresh
    assert hit.cache_read_tokens == end.prompt_tokens - len(bench.vocab.tokenize([Segment(" well?", True)]))
    _, hit = bench.ask(["Look at the picture: ", B, " well?"], scope="one")
    text = len(bench.vocab.tokenize([Segment("Look at the picture: ", True)]))
    if not bench.worker.loaded.model.window:  # what a copy of a window holds cannot be cut
        assert hit.cache_read_tokens == text + {"mlp": 0, "idefics3": 12}.get(seer.kind, 1)


def test_an_image_is_encoded_once_in_a_scope_and_never_found_from_another(bench: Bench) -> None:
    bench.ask([A, " first"], scope="one")
    bench.ask(["another beginning ", A, " second"], scope="one")
    assert bench.encoded == [A.digest]
    bench.ask([A, " first"], scope="two")
    assert bench.encoded == [A.digest] * 2
    bench.ask([A, " first"], scope="one")
    assert bench.encoded == [A.digest] * 2


def test_a_beginning_with_an_image_is_copied_to_who_begins_alike(bench: Bench) -> None:
    """Two that arrive together: one prefills, and waits for the image; the other gets a copy of the cells."""
    alone = [bench.ask(["Both of us look at this: ", A, B, end])[0] for end in (" one", "Two")]
    numbers = [bench.submit(["Both of us look at this: ", A, B, end], scope="s") for end in (" one", "Two")]
    bench.run()
    answers = [bench.answer(number) for number in numbers]
    assert [text for text, _ in answers] == alone
    assert bench.encoded.count(A.digest) == 3
    if not bench.worker.loaded.model.window:
        assert answers[1][1].cache_read_tokens > 30


def test_running_texts_go_on_while_an_image_is_encoded(bench: Bench) -> None:
    prompts: list[Prompt] = [[text] for text in ("Once upon", "In the year", "def main", "10 9 8 7")]
    alone = [bench.ask(prompt, max_tokens=40)[0] for prompt in prompts]
    seen = bench.ask(["look: ", A, " well?"])[0]
    numbers = [bench.submit(prompt, max_tokens=40) for prompt in prompts]
    bench.gate.clear()
    image = bench.submit(["look: ", A, " well?"])
    for _ in range(20):
        bench.worker.step()
    assert bench.encoder.busy
    running = {sequence.request.id: sequence.num_output_tokens for sequence in bench.worker.scheduler.running}
    assert running.pop(image) == 0 and all(output > 10 for output in running.values())
    bench.gate.set()
    bench.run()
    assert [bench.answer(number)[0] for number in numbers] == alone
    assert bench.answer(image)[0] == seen


def test_image_steps_alternate_with_token_steps(bench: Bench) -> None:
    """Long images, cut where the projector allows that, beside a running text."""
    bench.ask([A, "?"], scope="s")
    steps = []
    context = bench.worker.loaded.context
    decode, view = context.decode, context.decode_embeddings

    def noted_decode(batch: llama.Batch, count: int) -> int:
        steps.append("tokens")
        return decode(batch, count)

    def noted_view(embeddings: Any, positions: Any, sequence: int, *, causal: bool) -> int:
        steps.append("image")
        assert causal or len(embeddings) == 16
        return view(embeddings, positions, sequence, causal=causal)

    text = bench.submit(["Once upon"], max_tokens=150)
    bench.worker.step()
    context.decode, context.decode_embeddings = noted_decode, noted_view  # type: ignore[method-assign]
    bench.worker.scheduler.budget._chunk = 8.0
    bench.worker.scheduler.budget.observe = lambda *noted: paces.append(noted)  # type: ignore[method-assign]
    paces: list[tuple[int, int, float]] = []
    numbers = [bench.submit(["x", A, A, "?"], scope="s") for _ in range(2)]
    bench.run()
    assert all(bench.answer(number)[1].output_tokens for number in (text, *numbers))
    assert ("image", "image") not in itertools.pairwise(steps)
    assert bench.worker.vision is not None
    causal = bench.worker.vision.projector.causal
    most = max(tokens for _, tokens, _ in paces)
    assert most <= 8 if causal else most < 16, "what cannot be cut says nothing of how to cut"
    assert steps.count("image") >= (4 if causal else 2)


def test_images_in_two_requests_at_once(bench: Bench) -> None:
    prompts: list[Prompt] = [["one: ", A, " see?"], ["two: ", B, A, " see?"], [B, "see?"]]
    alone = [bench.ask(prompt)[0] for prompt in prompts]
    numbers = [bench.submit(prompt) for prompt in prompts]
    bench.run()
    assert [bench.answer(number)[0] for number in numbers] == alone


def state(bench: Bench) -> tuple[Any, ...]:
    """What could leak."""
    worker, sight = bench.worker, bench.worker.vision
    assert sight is not None
    return (
        len(worker.scheduler.running),
        len(worker.scheduler.queue),
        len(worker.output.samplers),
        bench.encoder.waiting,
        bench.encoder.busy,
        bench.encoder.bytes,
        len(sight.images),
        sum(slot.sequence is not None for slot in worker.scheduler.slots),
    )


def test_what_is_cancelled_while_it_is_encoded_leaves_nothing(seers: dict[str, Seer]) -> None:
    bench = Bench(seers["qwen2vl"], slots=2)
    clean = state(bench)
    for number in range(200):
        bench.gate.clear()
        job = bench.submit(["look: ", picture(number), " well?"])
        queued = bench.submit([picture(1000 + number), " never begun"])
        bench.worker.step()
        assert bench.begun.acquire(timeout=10)
        bench.worker.channel.put(AbortRequest(job))
        bench.worker.channel.put(AbortRequest(queued))
        bench.worker.step()
        assert bench.encoder.waiting == 0 and bench.encoder.busy
        bench.gate.set()
        while bench.encoder.busy:
            bench.worker.step()
    assert state(bench) == clean
    assert len(bench.encoded) == 200, "what had not begun never does"
    assert not bench.ends and not bench.outputs
    for slot in bench.worker.scheduler.slots:
        assert bench.worker.loaded.context.last_position(slot.id) + 1 == len(slot.tokens) - slot.mrope_offset < 40
    assert bench.ask(["look: ", A, " well?"])[1].output_tokens == 12
    bench.close()


@pytest.mark.parametrize("kind", ["mlp", "gemma3", "qwen2vl"])
def test_a_cancel_in_an_image_step_aborts_it(seers: dict[str, Seer], kind: str) -> None:
    bench = Bench(seers[kind])
    prompt: Prompt = ["Look at the picture: ", picture(1, 120, 120), " well?"]
    fresh, _ = bench.ask(prompt)
    results = []
    decode = bench.worker.loaded.context.decode_embeddings

    def cancelled_meanwhile(*arguments: Any, **options: Any) -> int:
        if not results:
            bench.worker.channel.put(AbortRequest(number))
        results.append(decode(*arguments, **options))
        return results[-1]

    bench.worker.loaded.context.decode_embeddings = cancelled_meanwhile  # type: ignore[method-assign]
    number = bench.submit(prompt, scope="s")
    bench.run()
    assert results == [llama.ABORTED] and number not in bench.ends
    assert bench.ask(prompt, scope="s")[0] == fresh
    for slot in bench.worker.scheduler.slots:
        assert bench.worker.loaded.context.last_position(slot.id) + 1 == len(slot.tokens) - slot.mrope_offset
    bench.close()


@pytest.mark.parametrize("kind", ["mlp", "qwen2vl"])
def test_a_cancel_within_an_image_takes_it_out_of_the_cache(seers: dict[str, Seer], kind: str) -> None:
    bench = Bench(seers[kind], slots=1)
    prompt: Prompt = ["Look at the picture: ", A, " well?"]
    fresh, whole = bench.ask(prompt, scope="s")
    bench.ask(["other"], scope="t")
    assert bench.worker.vision is not None
    bench.worker.vision.batch = 5
    number = bench.submit(prompt, scope="s")
    running = bench.worker.scheduler.running
    while not running or running[0].num_computed_tokens <= running[0].next_image_start:
        bench.worker.step()
    bench.worker.channel.put(AbortRequest(number))
    bench.worker._take_in()
    [slot] = bench.worker.scheduler.slots
    assert not running and min(slot.tokens) >= 0
    held = len(slot.tokens)
    assert bench.worker.loaded.context.last_position(0) + 1 == held < whole.prompt_tokens - 12
    again, end = bench.ask(prompt, scope="s")
    assert again == fresh and end.cache_read_tokens == held
    bench.close()


def test_a_full_cache_lets_an_image_step_aside_and_come_back(seer: Seer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "best_plan", sized(200, 256))
    bench = Bench(seer, slots=3, speculation=False)
    prompts: list[Prompt] = [["a", A, B, "1"], ["b", B, A, "2"], ["c", picture(3), "3"]]
    alone = [bench.ask(prompt, max_tokens=80)[0] for prompt in prompts]
    parked = []
    park = bench.worker.scheduler.preempt
    bench.worker.scheduler.preempt = lambda: parked.append(park()) or parked[-1]  # type: ignore[method-assign]
    for image in (A, B, picture(3)):  # kept from here on, so that none of the three is done before another begins
        bench.ask(["z", image, "0"], max_tokens=1, scope="s")
    numbers = [bench.submit(prompt, max_tokens=80, scope="s") for prompt in prompts]
    bench.run()
    assert [bench.answer(number)[0] for number in numbers] == alone
    assert parked
    bench.close()


def test_too_long_with_its_images_is_refused_as_text_is(bench: Bench) -> None:
    number = bench.submit([*[picture(each) for each in range(60)], "x"])
    bench.run()
    bench.await_ends([number])
    end = bench.ends[number]
    assert isinstance(end, Failed) and end.code == "quota-exceeded" and end.extra == {"reason": "context"}
    assert not bench.encoded


def test_an_image_that_no_step_takes_is_refused_by_its_number(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where an image has to be decoded whole."""
    sight = bench.worker.vision
    assert sight is not None
    monkeypatch.setattr(sight, "batch", 3)
    number = bench.submit(["x", A, "x"], max_tokens=2)
    bench.run()
    bench.await_ends([number])
    end = bench.ends[number]
    if sight.projector.causal:
        assert isinstance(end, Finished)
    else:
        assert isinstance(end, Failed) and end.code == "unsupported"
        assert end.extra == {"reason": "image", "image": "0"} and not bench.encoded


def test_an_image_of_a_shape_that_the_projector_does_not_take(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    sight = bench.worker.vision
    assert sight is not None
    layout = sight.projector.layout

    def narrow(width: int, height: int) -> Any:
        if width > 40:
            raise ProjectorError("too wide")
        return layout(width, height)

    monkeypatch.setattr(sight.projector, "layout", narrow)
    number = bench.submit(["x", A, "x", picture(2, 41), "x"])
    bench.run()
    bench.await_ends([number])
    end = bench.ends[number]
    assert isinstance(end, Failed) and end.code == "unsupported" and end.extra == {"reason": "image", "image": "1"}


def test_an_image_that_cannot_be_encoded_fails_those_that_wait_for_it_alone(bench: Bench) -> None:
    encode = bench.encoder._projector.encode

    def failing(picture: RgbImage) -> Any:
        if picture.digest == B.digest:
            raise ProjectorError("no")
        return encode(picture)

    bench.encoder._projector.encode = failing  # type: ignore[method-assign]
    good, bad, text = bench.submit([A, "?"]), bench.submit(["look ", B, "?"]), bench.submit(["Once"])
    bench.run()
    assert bench.answer(good)[1].output_tokens == bench.answer(text)[1].output_tokens == 12
    failed = bench.ends[bad]
    assert isinstance(failed, Failed) and failed.code == "provider-error" and failed.extra == {"reason": "encode"}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "side", "count"), [("mlp", 12, 144), ("gemma3", 16, 256 + 2)])
def test_real_models_see_with_projectors_of_random_weights(
    kind: str, side: int, count: int, smollm2: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """SmolLM2, and Gemma 3 with an image of 256 tokens, which is the size of its own: whole in one step."""
    model, width = (smollm2, 576) if kind == "mlp" else (request.getfixturevalue("gemma"), 640)
    write_projector(tmp_path / "mmproj.gguf", kind, width, side=side)
    bench = Bench(Seer(kind, model, tmp_path / "mmproj.gguf"), length=1024, slots=2)
    prompt: Prompt = ["What is in ", A, " here?"]
    answer, end = bench.ask(prompt, max_tokens=4, scope="s")
    words = len(bench.vocab.tokenize([Segment("What is in ", True)])) + len(
        bench.vocab.tokenize([Segment(" here?", True)], begins=False)
    )
    assert end.prompt_tokens == words + count
    again, hit = bench.ask(prompt, max_tokens=4, scope="s")
    assert again == answer and hit.cache_read_tokens == end.prompt_tokens - 1
    bench.close()


def check_company(seer: Seer, seed: str) -> tuple[int, int]:
    """Prompts that begin alike, in few slots, some given up at any moment: each answer is what it is by itself.

    How many answers there were, and how many of them found something in the cache.
    """
    draw = random.Random(seed)
    pieces: list[str | RgbImage] = ["Look at these pictures: ", " and ", "then ", A, B, picture(3, 60, 20)]
    prompts: list[Prompt] = []
    for _ in range(12):
        begin = draw.choice(prompts) if prompts and draw.random() < 0.6 else ["Look at these pictures: "]
        prompts.append([*begin[: draw.randint(1, 4)], *draw.choices(pieces, k=draw.randint(1, 3)), draw.choice("?!.")])
    plain = Bench(seer, length=400, slots=1, speculation=False)
    alone = [plain.ask(prompt, max_tokens=16)[0] for prompt in prompts]
    plain.close()
    bench = Bench(seer, length=400, slots=4)
    asked: dict[int, int] = {}
    for _ in range(60):
        for _ in range(draw.choice((0, 0, 1, 2, 3))):
            which = draw.randrange(len(prompts))
            asked[bench.submit(prompts[which], max_tokens=16, scope=draw.choice(("s", "s", "t")))] = which
        for _ in range(draw.randint(1, 6)):
            if bench.running:
                bench.worker.step()
        if asked and draw.random() < 0.2:
            number = draw.choice([*asked])
            bench.worker.channel.put(AbortRequest(number))
            if number not in bench.ends:
                del asked[number]
    bench.run()
    while bench.encoder.busy:
        bench.worker.step()
    answers = {number: bench.answer(number) for number in asked}
    assert {number: text for number, (text, _) in answers.items()} == {number: alone[asked[number]] for number in asked}
    for slot in bench.worker.scheduler.slots:
        assert bench.worker.loaded.context.last_position(slot.id) + 1 == len(slot.tokens) - slot.mrope_offset
    assert state(bench)[:5] == (0, 0, 0, 0, False)
    bench.close()
    return len(answers), sum(end.cache_read_tokens > 0 for _, end in answers.values())


@pytest.mark.slow
@pytest.mark.parametrize("cells", [None, 700], ids=["split", "pool"])
def test_neither_cache_nor_company_nor_cancels_change_an_answer(
    seer: Seer, cells: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cells is not None:
        monkeypatch.setattr(loader, "best_plan", sized(400, cells))
    answers, cached = check_company(seer, f"{seer.kind} {cells}")
    assert cached > answers // 4


def test_images_before_a_running_state(sdist: Path, tmp_path: Path) -> None:
    """A memory that cannot be cut: what is left of a conversation serves only what goes on just there."""
    seer = Seer("mlp", tmp_path / "model.gguf", tmp_path / "mmproj.gguf")
    vocabulary = sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf"
    write_model(seer.model, vocabulary, [], size=400, architecture="mamba", plain=True)
    write_projector(seer.projector, "mlp", WIDTH)
    prompt: Prompt = ["see: ", A, " or ", B, " what"]
    bench = Bench(seer)
    number = bench.submit(prompt, max_tokens=10, scope="s")
    bench.run()
    answer, end = bench.answer(number)
    assert list(end.tokens) == reference(seer, prompt, 10)
    assert bench.worker.vision is not None
    bench.worker.vision.batch = 5
    cut = bench.submit(["Look: ", A, "?"], scope="t")
    while (
        not (running := bench.worker.scheduler.running) or running[0].num_computed_tokens <= running[0].next_image_start
    ):
        bench.worker.step()
    bench.worker.channel.put(AbortRequest(cut))
    bench.run()
    assert bench.ask(prompt, max_tokens=10, scope="s")[0] == answer
    longer: Prompt = [*prompt, answer, A, " more"]
    fresh, _ = bench.ask(longer, max_tokens=10)
    bench.close()
    bench = Bench(seer, slots=1)
    bench.ask(prompt, max_tokens=10, scope="s")
    assert bench.ask(longer, max_tokens=10, scope="s")[0] == fresh
    bench.close()
    check_company(seer, "mamba")
