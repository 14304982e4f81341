"""The web process's side, without a worker."""

from __future__ import annotations

from array import array

import pytest

from server.engine import EngineRequest, Event, Failed, Finished, Sampling, TextChunk, TokenStream, device_report
from server.engine.protocol import AbortRequest, AddRequest, Decoder, StepOutput, encode

JOB = EngineRequest(1, array("i", [1, 2]), Sampling(), "scope", deadline=0)
DONE = Finished("stop", 2, 4, 0)


async def read(generation: TokenStream) -> list[Event]:
    return [event async for event in generation]


async def test_a_character_split_over_three_tokens_arrives_whole() -> None:
    generation = TokenStream(JOB, lambda _: None)
    events: list[Event] = []
    for byte in "€".encode():
        generation.push(bytes([byte]), 1)
        if byte == 0xAC:
            events.append(await anext(generation))
    assert events == [TextChunk("€", 3)]
    generation.push(b"!", 1)
    generation.settle(DONE)
    assert await read(generation) == [TextChunk("!", 1), DONE]


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([b"a\xff", b"b"], "a\ufffdb"),
        ([b"\xe2\x82", b"x"], "\ufffdx"),
        ([b"x\xf0\x9f"], "x\ufffd"),
        ([b"\xc3", b"\xa9", b"\xf0\x9f\x8c\x99"], "\u00e9\U0001f319"),
    ],
)
async def test_bytes_that_never_become_a_character_are_replaced(pieces: list[bytes], text: str) -> None:
    generation = TokenStream(JOB, lambda _: None)
    for piece in pieces:
        generation.push(piece, 1)
    generation.settle(DONE)
    *texts, end = await read(generation)
    assert "".join(event.text for event in texts if isinstance(event, TextChunk)) == text
    assert end == DONE


async def test_pieces_that_wait_become_one_text() -> None:
    generation = TokenStream(JOB, lambda _: None)
    for piece in (b"one ", b"two ", b"three"):
        generation.push(piece, 1)
    generation.settle(DONE)
    assert await read(generation) == [TextChunk("one two three", 3), DONE]


async def test_the_first_end_wins_and_a_failure_drops_what_waits() -> None:
    generation = TokenStream(JOB, lambda _: None)
    generation.push(b"late", 1)
    generation.settle(Failed("cancelled", "cancelled"))
    generation.settle(DONE)
    generation.push(b"later", 1)
    assert await read(generation) == [Failed("cancelled", "cancelled")]


def test_frames_survive_any_cut() -> None:
    output = [(1, b"\xe2", 1)]
    frames = [AddRequest(JOB), AbortRequest(1), StepOutput(output, [], 1, 0), StepOutput(output, [(1, DONE)], 0, 0)]
    frames.append(StepOutput(output, [], 1, 0, [(1, b"\xe2", -0.5, ((b"\xe2", -0.5), (b"a", -2.0)))]))
    data = b"".join(map(encode, frames))
    for size in (1, 3, 7, len(data)):
        decoder = Decoder()
        found = [frame for at in range(0, len(data), size) for frame in decoder.feed(data[at : at + size])]
        assert found == frames


def test_the_device_report_needs_no_gpu() -> None:
    report = device_report()
    assert "CPU" in report.backends
    assert report.cores >= 1 and report.memory > 1 << 30
    assert all(gpu.memory > 0 for gpu in report.gpus)
