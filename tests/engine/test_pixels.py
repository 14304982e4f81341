"""Pictures on their way to the worker: in pieces, whole in the end, and gone where their job is."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from array import array
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from server.engine import Engine, EngineConfig, EngineRequest, Failed, Finished, RgbImage, Sampling, TextChunk
from server.engine.pixels import PIECE, PixelReceiver, pixel_frames, without_pixels
from server.engine.protocol import AddRequest, Decoder, Pixels, encode
from tests.fixtures.projectors import TOKENS, Seer, picture

pytestmark = pytest.mark.slow

SMALL = picture(1, 40, 30)
LARGE = picture(2, 1200, 900)
HUGE = RgbImage.of(6000, 4000, bytes(3 * 6000 * 4000))
_ids = itertools.count(1)


def job(*pictures: RgbImage, words: tuple[int, ...] = (5, 6, 7)) -> EngineRequest:
    placed = tuple((1, each) for each in pictures)
    tokens = array("i", words)
    return EngineRequest(
        next(_ids), tokens, Sampling(temperature=0), "s", time.monotonic() + 60, max_tokens=8, images=placed
    )


def test_a_job_arrives_as_it_was_sent() -> None:
    sent = job(LARGE, SMALL)
    frames = [*pixel_frames(sent), AddRequest(without_pixels(sent))]
    data = b"".join(map(encode, frames))
    assert len(frames) == -(-len(LARGE.rgb) // PIECE) + 2
    assert len(encode(frames[-1])) < 4096
    arriving, decoder, found = PixelReceiver(), Decoder(), []
    for start in range(0, len(data), 65_536):
        for frame in decoder.feed(data[start : start + 65_536]):
            if isinstance(frame, Pixels):
                arriving.take(frame)
            else:
                found.append(arriving.fill(frame.request))
    assert found == [sent]
    # And nothing of it stays.
    small = job(SMALL)
    for frame in pixel_frames(small):
        arriving.take(frame)
    assert arriving.fill(without_pixels(small)) == small


def test_pixels_of_a_job_that_never_comes_are_forgotten() -> None:
    arriving, wanted = PixelReceiver(), job(SMALL)
    arriving.take(next(pixel_frames(job(LARGE))))
    arriving.take(Pixels(b""))
    for frame in pixel_frames(wanted):
        arriving.take(frame)
    assert arriving.fill(without_pixels(wanted)) == wanted


@pytest_asyncio.fixture
async def engine(seers: dict[str, Seer]) -> AsyncIterator[Engine]:
    seer = seers["mlp"]
    engine = await Engine.start(
        EngineConfig(str(seer.model), 256, slots=2, threads=1, gpu_layers=0, mmproj_path=str(seer.projector))
    )
    yield engine
    await engine.close()


async def answer(engine: Engine, asked: EngineRequest) -> tuple[str, Finished | Failed]:
    text = ""
    async for event in engine.generate(asked):
        if isinstance(event, TextChunk):
            text += event.text
        else:
            return text, event
    raise AssertionError("no end")


async def test_a_cancel_while_pixels_are_sent_leaves_no_trace(engine: Engine) -> None:
    small, end = await answer(engine, job(SMALL))
    assert isinstance(end, Finished)
    other, _ = await answer(engine, job(LARGE))
    assert other != small
    for turns in (0, 1, 5, 20):
        given_up = job(HUGE)
        generation = engine.generate(given_up)
        for _ in range(turns):
            await asyncio.sleep(0)
        engine.cancel(given_up.id)
        assert [event async for event in generation] == [Failed("cancelled", "cancelled")]
        # Submitted while the rest of it may still be on its way.
        (shown, _), (_, end) = await asyncio.gather(answer(engine, job(SMALL)), answer(engine, job()))
        assert shown == small and isinstance(end, Finished)
        assert (await answer(engine, job(SMALL)))[0] == small
        assert (await answer(engine, job(LARGE)))[0] == other


async def test_text_passes_a_huge_picture_on_its_way(engine: Engine) -> None:
    """72 MB go out in some hundred pieces; a job of text that comes later is sent between them."""
    sent: list[str] = []
    send = engine._worker.send

    def noted(frame: object) -> None:
        name = type(frame).__name__
        if isinstance(frame, AddRequest):
            name = "picture" if frame.request.images else "text"
        sent.append(name)
        send(frame)

    engine._worker.send = noted  # type: ignore[method-assign]
    shown = asyncio.create_task(answer(engine, job(HUGE)))
    while "Pixels" not in sent:
        await asyncio.sleep(0)
    _, end = await answer(engine, job())
    assert isinstance(end, Finished)
    assert isinstance((await shown)[1], Finished)
    assert sent.index("text") < sent.index("picture")
    assert sent.count("Pixels") == -(-len(HUGE.rgb) // PIECE)


async def test_a_worker_that_dies_meanwhile_takes_the_job_and_no_other(engine: Engine) -> None:
    small, _ = await answer(engine, job(SMALL))
    lost = asyncio.create_task(answer(engine, job(HUGE)))
    await asyncio.sleep(0)
    engine._worker.kill()
    assert isinstance((await lost)[1], Failed)
    again, end = await answer(engine, job(SMALL))
    assert again == small and isinstance(end, Finished)


async def test_what_images_take_is_known_before_they_are_sent(engine: Engine) -> None:
    """Of sixteen tokens each: as many as fit beside the text, and one more."""
    length = engine.info.context_length
    most = (length - 4) // TOKENS["mlp"]
    sent: list[str] = []
    send = engine._worker.send

    def noted(frame: object) -> None:
        sent.append(type(frame).__name__)
        send(frame)

    engine._worker.send = noted  # type: ignore[method-assign]
    assert await engine.check(3, [(40, 30)] * most) is None
    refused = await engine.check(3, [(40, 30)] * (most + 1))
    assert refused is not None and (refused.code, refused.extra) == ("quota-exceeded", {"reason": "context"})
    assert sent == ["Check", "Check"] and engine.stats().active == engine.stats().queued == 0
    # What is said holds: so many are taken when they come.
    _, end = await answer(engine, replace(job(*[SMALL] * most), max_tokens=1))
    assert isinstance(end, Finished) and end.prompt_tokens < length


async def test_a_check_outlives_no_worker_and_waits_for_the_next(engine: Engine) -> None:
    os.kill(engine.pid, signal.SIGSTOP)  # so that it does not answer
    unanswered = asyncio.create_task(engine.check(1, [(40, 30)]))
    await asyncio.sleep(0)
    os.kill(engine.pid, signal.SIGKILL)
    failed = await unanswered
    assert failed is not None and (failed.code, failed.extra) == ("provider-error", {"reason": "worker"})
    assert not engine.alive
    assert await engine.check(1, [(40, 30)]) is None
