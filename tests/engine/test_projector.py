"""Projectors at load, in a worker process: those that see, those that hear, and those that are broken."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from pathlib import Path

import pytest

from server.engine import (
    Engine,
    EngineConfig,
    EngineError,
    EngineRequest,
    RgbImage,
    Sampling,
    Segment,
    Vocab,
    llama,
)
from server.engine.memory.hparams import projector_bytes
from server.engine.vision.projector import ImageChunk, Projector, ProjectorError
from tests.chat.standin import WIDTH
from tests.engine.conftest import collect
from tests.fixtures.projectors import KINDS, Seer, picture, write_listener, write_projector


def spec(seer: Seer, projector: Path | None = None) -> EngineConfig:
    return EngineConfig(str(seer.model), context_length=512, slots=2, mmproj_path=str(projector or seer.projector))


def job(seer: Seer, number: int, *pictures: tuple[int, RgbImage], text: str = "look: well?") -> EngineRequest:
    tokens = Vocab.load(str(seer.model)).tokenize([Segment(text, control=True)])
    deadline = time.monotonic() + 60
    return EngineRequest(number, tokens, Sampling(temperature=0), "s", deadline, max_tokens=4, images=pictures)


async def test_a_model_with_a_projector_sees(seers: dict[str, Seer]) -> None:
    seer = seers["qwen2vl"]
    engine = await Engine.start(spec(seer))
    try:
        assert engine.info.vision
        outcome = await collect(engine.generate(job(seer, 1, (2, picture(1)))))
        assert outcome.done.output_tokens == 4
        assert outcome.done.prompt_tokens == len(job(seer, 1).tokens) + 14
        cut = RgbImage(4, 3, bytes(30), "digest")
        for misplaced in ((2, cut),), ((99, picture(1)),), ((-1, picture(1)),), ((3, picture(1)), (1, picture(2))):
            assert (await collect(engine.generate(job(seer, 2, *misplaced)))).failed.code == "provider-error"
    finally:
        await engine.close()


async def test_an_image_of_a_shape_that_the_model_does_not_take(seers: dict[str, Seer]) -> None:
    engine = await Engine.start(spec(seers["idefics3"]))
    try:
        sliver = job(seers["idefics3"], 1, (0, picture(1, 1, 5000)))
        failed = (await collect(engine.generate(sliver))).failed
        assert (failed.code, failed.reason) == ("provider-error", "an image cannot be encoded")
        assert (await collect(engine.generate(job(seers["idefics3"], 2, (0, picture(1)))))).done.output_tokens == 4
    finally:
        await engine.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (4000, 30)], ids=str)
def test_images_of_any_shape_are_laid_out_or_refused(seers: dict[str, Seer], kind: str, size: tuple[int, int]) -> None:
    model = llama.LlamaModel(str(seers[kind].model), repack=False, gpu_layers=0)
    projector = Projector.load(str(seers[kind].projector), model, threads=1, gpu=False)
    assert projector is not None
    parts = [part for part in projector.layout(*size) if isinstance(part, ImageChunk)]
    assert [part.positions(7).shape[1] for part in parts] == [part.tokens for part in parts]
    if kind == "idefics3" and max(size) > 100 * min(size):  # tiles are of the image's shape
        with pytest.raises(ProjectorError):
            projector.encode(picture(1, *size))
    else:
        found = projector.encode(picture(1, *size))
        assert [each.shape for each in found] == [(part.tokens, projector.width) for part in parts]
    projector.close()
    model.close()


async def test_large_images_are_scaled_to_the_context(seers: dict[str, Seer]) -> None:
    """Where the projector can: 4,900 patches of four would be 1,225 tokens."""
    seer = seers["qwen2vl"]
    engine = await Engine.start(spec(seer))
    try:
        assert engine.info.notes[-1].startswith("images take at most 3")
        done = (await collect(engine.generate(job(seer, 1, (0, picture(1, 980, 980)))))).done
        assert 300 < done.prompt_tokens - len(job(seer, 1).tokens) <= 384
    finally:
        await engine.close()
    model = llama.LlamaModel(str(seers["mlp"].model), repack=False, gpu_layers=0)
    fixed = Projector.load(str(seers["mlp"].projector), model, threads=1, gpu=False, room=8)
    assert fixed is not None and fixed.most == 16 and not fixed.scaled
    fixed.close()
    model.close()


async def test_a_worker_that_dies_of_an_image_costs_its_generations_alone(seers: dict[str, Seer]) -> None:
    """As llama.cpp would end it on a failed assertion."""
    seer = seers["mlp"]
    engine = await Engine.start(spec(seer))
    try:
        generation = engine.generate(job(seer, 1, (0, picture(1))))
        os.kill(engine.pid, signal.SIGABRT)
        assert (await collect(generation)).failed.code == "provider-error"
        assert (await collect(engine.generate(job(seer, 2, (0, picture(1)))))).done.output_tokens == 4
        assert engine.info.vision
    finally:
        await engine.close()


async def test_a_cancel_while_an_image_is_encoded_settles_at_once(seers: dict[str, Seer], tmp_path: Path) -> None:
    """The worker is stopped meanwhile: nothing on the wire waits for it."""
    seer = seers["mlp"]
    engine = await Engine.start(spec(seer))
    try:
        generation = engine.generate(job(seer, 1, (0, picture(1))))
        os.kill(engine.pid, signal.SIGSTOP)
        engine.cancel(1)
        outcome = await asyncio.wait_for(collect(generation), 5)
        assert outcome.failed.code == "cancelled"
        os.kill(engine.pid, signal.SIGCONT)
        assert (await collect(engine.generate(job(seer, 2, (0, picture(2)))))).done.output_tokens == 4
    finally:
        await engine.close()


async def test_a_projector_for_sound_alone_does_not_see(seers: dict[str, Seer], tmp_path: Path) -> None:
    seer = seers["mlp"]
    write_listener(tmp_path / "ears.gguf", 64)
    engine = await Engine.start(spec(seer, tmp_path / "ears.gguf"))
    try:
        assert not engine.info.vision
        assert (await collect(engine.generate(job(seer, 1, (0, picture(1)))))).failed.code == "unsupported"
        assert (await collect(engine.generate(job(seer, 2)))).done.output_tokens == 4
    finally:
        await engine.close()


@pytest.mark.slow
async def test_a_projector_that_cannot_be_used_is_an_engine_error(seers: dict[str, Seer], tmp_path: Path) -> None:
    seer = seers["mlp"]
    names = ["secret-missing", "secret-broken", "secret-cut", "secret-other", "secret-model", "secret-tiles"]
    missing, broken, cut, other, model, tiles = (tmp_path / f"{name}.gguf" for name in names)
    broken.write_bytes(b"GGUF" + bytes(100))
    cut.write_bytes(seer.projector.read_bytes()[:100_000])
    write_projector(other, "mlp", 128)
    write_projector(tiles, "idefics3", 64)
    model.symlink_to(seer.model)
    reasons = {}
    for path in (missing, broken, cut, other, model, tiles):
        with pytest.raises(EngineError) as caught:
            await Engine.start(spec(seer, path))
        reasons[path.stem] = caught.value.reason
        assert "secret" not in caught.value.reason and str(tmp_path) not in caught.value.reason
    assert "does not fit the model" in reasons["secret-other"]
    assert "needs tokens" in reasons["secret-tiles"]
    for name in ("secret-missing", "secret-broken", "secret-cut"):
        assert reasons[name].startswith("the projector cannot be used: ")


def test_a_picture_and_its_digest() -> None:
    one = RgbImage.of(2, 1, b"abcdef")
    assert one == RgbImage.of(2, 1, b"abcdef") and one.digest != RgbImage.of(1, 2, b"abcdef").digest
    assert "abcdef" not in repr(one)
    for size in ((2, 2), (0, 2), (-2, -1)):
        with pytest.raises(ValueError):
            RgbImage.of(*size, b"abcdef")


@pytest.mark.parametrize(("kind", "side"), [("mlp", 24), ("gemma3", 16), ("idefics3", 24)])
def test_the_plan_counts_what_an_encoder_takes(seers: dict[str, Seer], tmp_path: Path, kind: str, side: int) -> None:
    """As llama.cpp reports its compute buffer."""
    path = tmp_path / "mmproj.gguf"
    write_projector(path, kind, WIDTH, side=side, hidden=384)
    said: list[str] = []
    llama.log_to(lambda level, text: said.append(text))
    model = llama.LlamaModel(str(seers[kind].model), repack=False, gpu_layers=0)
    projector = Projector.load(str(path), model, threads=1, gpu=False)
    llama.log_to(None)
    assert projector is not None
    projector.close()
    model.close()
    [buffer] = re.findall(r"compute buffer size =\s*([\d.]+) MiB", "".join(said))
    assert float(buffer) <= (projector_bytes(str(path)) - path.stat().st_size) / 2**20 <= 1.5 * float(buffer)


def test_a_projector_for_sound_alone_takes_no_memory(tmp_path: Path) -> None:
    write_listener(tmp_path / "ears.gguf", 64)
    assert projector_bytes(str(tmp_path / "ears.gguf")) == 0
