"""The benchmarks' own arithmetic and client, against a scripted server: no model, no waiting."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from drive import Nap, Workload, _Chunks, ask, percentile, server
from throughput import measure


def chunked(data: bytes, size: int) -> bytes:
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""])


@pytest.mark.parametrize("size", [1, 3, 10_000])
@pytest.mark.parametrize("arriving", [1, 2, 5, 10_000])
def test_chunked_framing_comes_off_however_it_arrives(size: int, arriving: int) -> None:
    data = b"data: one\n\ndata: \r\ntwo\n\n"
    wire = chunked(data, size)
    chunks = _Chunks()
    assert b"".join(chunks.take(wire[at : at + arriving]) for at in range(0, len(wire), arriving)) == data


@pytest.mark.parametrize(("percent", "value"), [(0, 1.0), (50, 2.5), (100, 4.0)])
def test_percentiles_interpolate(percent: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == value


def test_fresh_prompts_differ_by_request_or_by_round_and_others_never() -> None:
    def systems(name: str) -> list[str | None]:
        workload = Workload(name)
        return [workload.request(round, index).system for round, index in ((1, 0), (1, 1), (2, 0))]

    assert systems("chat") == [None] * 3
    assert len(set(systems("long"))) == 3
    first, second, third = systems("shared")
    assert first == second != third


@pytest.mark.parametrize("text", ["http://127.0.0.1:1", "nap:", "grpc:http://127.0.0.1:1"])
def test_a_target_needs_a_kind_and_an_address(text: str) -> None:
    with pytest.raises(ValueError):
        server(text, "", None)


@asynccontextmanager
async def scripted(events: list[dict[str, Any]], asked: list[dict[str, Any]]) -> AsyncIterator[str]:
    """Answers a select, and any streaming request with the same events."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()
            return
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        body = json.loads(await reader.readexactly(length))
        asked.append(body)
        if body.get("type") == "llm.select":
            content = json.dumps({"type": "llm.select.result", "id": body["id"], "model": {"handle": "h"}}).encode()
        else:
            content = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(content, 37))
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


NAP_EVENTS = [
    {"type": "llm.delta", "requestId": "b", "sequence": 0, "event": "start", "block": "text", "blockIndex": 0},
    {
        "type": "llm.delta",
        "requestId": "b",
        "sequence": 1,
        "event": "delta",
        "block": "text",
        "blockIndex": 0,
        "text": "é",
    },
    {
        "type": "llm.generate.result",
        "id": "b",
        "result": {
            "content": [{"type": "text", "text": "é"}],
            "finish": "length",
            "usage": {"inputTokens": 5, "outputTokens": 128, "cacheReadTokens": 2},
        },
    },
]
OPENAI_EVENTS = [
    {"choices": [{"delta": {"role": "assistant", "content": None}}]},
    {"choices": [{"delta": {"content": "e"}}]},
    {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 64}},
]


async def test_a_stream_is_timed_and_its_usage_read() -> None:
    async with scripted(NAP_EVENTS, []) as url:
        asked = Nap(url, "t")
        await asked.prepare()
        outcome = await ask(asked, Workload("chat").request(1, 0))
    assert outcome.error == ""
    assert len(outcome.events) == 1, "the start of a block is no output yet"
    assert (outcome.prompt_tokens, outcome.cached_tokens, outcome.output_tokens, outcome.output_bytes) == (5, 2, 128, 2)
    assert outcome.began < outcome.events[0] <= outcome.ended


async def test_a_failed_generation_is_an_error_of_its_request() -> None:
    failed = {"type": "llm.generate.result", "id": "b", "error": {"code": "provider-error", "message": "gone"}}
    async with scripted([failed], []) as url:
        outcome = await ask(Nap(url, "t"), Workload("chat").request(1, 0))
    assert outcome.error == "provider-error: gone"
    assert outcome.events == []


async def test_two_targets_alternate_with_the_same_prompts_and_give_a_ratio() -> None:
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    async with scripted(NAP_EVENTS, ours) as nap, scripted(OPENAI_EVENTS, theirs) as openai:
        options = argparse.Namespace(
            workload="chat", start=[], concurrency=[2], rounds=2, requests=3, log=Path("/dev/null")
        )
        targets = {"ours": server(f"nap:{nap}", "t", None), "theirs": server(f"openai:{openai}", "", None)}
        report = await measure(options, targets)
    entry = report["concurrency"]["2"]
    # Two rounds: a warming pass of two, then three requests.
    prompts = [each["request"]["messages"][0]["content"][0]["text"] for each in ours if "request" in each]
    assert sorted(prompts) == sorted(each["messages"][0]["content"] for each in theirs)
    assert len(prompts) == 10
    assert entry["targets"]["ours"]["output_tokens"]["median"] == 128
    assert (entry["targets"]["ours"]["short"], entry["targets"]["theirs"]["short"]) == (0, 6)
    a, b = (entry["targets"][name]["tokens_per_second_rounds"] for name in ("ours", "theirs"))
    assert entry["ratio"]["median"] == pytest.approx(sum(x / y for x, y in zip(a, b, strict=True)) / 2, rel=0.01)
