"""The benchmarks' own arithmetic and client, against a scripted server: no model, no waiting."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import cancel
import images
import mixed
import overhead
import pytest
import report
import throughput
import uvloop
from drive import RUN, Nap, OpenAI, Outcome, Server, Workload, _Chunks, ask, percentile, server
from PIL import Image
from throughput import Load, Target, arrivals, measure, open_loop, started

from tests.readme import Block, runs


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
    assert all(system and system.startswith(f"Case {RUN}-") for system in (*systems("long"), *systems("shared")))
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


def options(**given: Any) -> argparse.Namespace:
    """What the command line gives by default, but for a fast run."""
    usual = {"workload": "chat", "start": [], "concurrency": [2], "rate": [], "rounds": 2, "requests": 3}
    return argparse.Namespace(**usual | {"ttft_target": None, "gap_target": None, "log": Path("/dev/null")} | given)


@asynccontextmanager
async def pair(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> AsyncIterator[dict[str, Server]]:
    async with scripted(NAP_EVENTS, ours) as nap, scripted(OPENAI_EVENTS, theirs) as openai:
        yield {"ours": server(f"nap:{nap}", "t", None), "theirs": server(f"openai:{openai}", "", None)}


async def test_two_targets_alternate_with_the_same_prompts_and_give_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    async with pair(ours, theirs) as targets:
        found = await measure(options(), targets)
    entry = found["concurrency"]["2"]
    # Two rounds: a warming pass of two, then three requests.
    prompts = [each["request"]["messages"][0]["content"][0]["text"] for each in ours if "request" in each]
    assert sorted(prompts) == sorted(each["messages"][0]["content"] for each in theirs)
    assert len(prompts) == 10
    assert entry["targets"]["ours"]["output_tokens"]["median"] == 128
    assert (entry["targets"]["ours"]["short"], entry["targets"]["theirs"]["short"]) == (0, 6)
    a, b = (entry["targets"][name]["tokens_per_second_rounds"] for name in ("ours", "theirs"))
    ratios = entry["ratios"]
    assert ratios["tokens_per_second"]["median"] == pytest.approx(
        sum(x / y for x, y in zip(a, b, strict=True)) / 2, rel=0.01
    )
    assert set(ratios) == {"tokens_per_second", "ttft", "request", "per_byte"}
    throughput.show(found)
    assert f"ours/theirs: tokens/s {ratios['tokens_per_second']['median']:.3f} (" in capsys.readouterr().out
    # Two bytes are written against one, so a byte of ours takes about half of what the whole request's ratio says.
    assert ratios["per_byte"]["median"] < ratios["request"]["median"]


async def test_bytes_of_content_and_of_tool_calls_are_counted_from_a_peers_deltas() -> None:
    events = [
        {"choices": [{"delta": {"role": "assistant", "content": None}}]},
        {"choices": [{"delta": {"content": '"é'}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}}]},
        OPENAI_EVENTS[-1],
    ]
    async with scripted(events, []) as url:
        outcome = await ask(OpenAI(url, ""), Workload("forced").request(1, 0))
    assert (outcome.error, len(outcome.events), outcome.output_bytes) == ("", 2, 5)


async def test_a_forced_tool_is_asked_of_a_peer_as_a_schema() -> None:
    asked: list[dict[str, Any]] = []
    async with scripted(OPENAI_EVENTS, asked) as url:
        await ask(OpenAI(url, ""), Workload("forced").request(1, 0))
    (body,) = asked
    assert body["response_format"]["type"] == "json_schema"
    assert body["response_format"]["json_schema"]["schema"] == Workload("forced").request(1, 0).tool["parameters"]


async def test_prefixes_shared_in_a_round_arrive_together_and_are_fresh_for_each_load() -> None:
    ours: list[dict[str, Any]] = []
    async with scripted(NAP_EVENTS, ours) as nap:
        asked = {"ours": server(f"nap:{nap}", "t", None)}
        found = await measure(options(workload="shared", concurrency=[1, 3], requests=None), asked)
    systems = Counter(each["request"]["messages"][0]["content"][0]["text"] for each in ours if "request" in each)
    # A warming prefix for each load, asked again in the second round; else one for each round and load.
    assert sorted(systems.values()) == [1, 1, 2, 3, 3, 6]
    assert [found["concurrency"][each]["targets"]["ours"]["requests"] for each in ("1", "3")] == [2, 6]


def test_poisson_arrivals_keep_their_rate_and_are_the_same_for_every_target() -> None:
    due = arrivals(1, 50.0, 4000)
    assert due == arrivals(1, 50.0, 4000) != arrivals(2, 50.0, 4000)
    gaps = [later - former for former, later in zip([0.0, *due], due, strict=False)]
    mean = sum(gaps) / len(gaps)
    assert min(gaps) > 0
    assert mean == pytest.approx(1 / 50, rel=0.05)
    # Of an exponential distribution the standard deviation is the mean.
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.1)


async def test_in_the_open_loop_requests_do_not_wait_for_each_other() -> None:
    holding = asyncio.Event()
    live = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal live
        await reader.readuntil(b"\r\n\r\n")
        live += 1
        if live == 5:
            holding.set()
        await holding.wait()
        writer.write(
            b"HTTP/1.1 200 OK\r\n\r\n" + b"".join(b"data: %s\n\n" % json.dumps(e).encode() for e in NAP_EVENTS)
        )
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        asked = Nap(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", "t")
        # Nobody is answered before the last has come: a closed loop would never end.
        outcomes = await open_loop(asked, Workload("chat"), 1, Load(rate=1000), 5)
    assert [each.error for each in outcomes] == [""] * 5


def outcome(events: list[float], error: str = "") -> Outcome:
    return Outcome(0.0, ended=events[-1] if events else 1.0, events=events, output_tokens=10, error=error)


@pytest.mark.parametrize(
    ("one", "met"),
    [
        (outcome([0.1, 0.15, 0.2]), True),
        (outcome([0.11, 0.15, 0.2]), False),
        (outcome([0.1, 0.15, 0.3]), False),
        (outcome([0.1]), True),
        (outcome([0.1, 0.15], "provider-error"), False),
        (outcome([]), False),
    ],
)
def test_a_request_is_good_where_it_kept_both_targets(one: Outcome, met: bool) -> None:
    assert Target(ttft=100, gap=60).met(one) is met


async def test_goodput_counts_what_the_target_leaves() -> None:
    async with scripted(NAP_EVENTS, []) as nap:
        asked = {"ours": server(f"nap:{nap}", "t", None)}
        easy = await measure(options(rate=[500.0], ttft_target=60_000.0), asked)
        hard = await measure(options(rate=[500.0], ttft_target=0.0001), asked)
    good, none = (each["rate"]["500"]["targets"]["ours"] for each in (easy, hard))
    assert good["goodput"]["share"] == 1
    assert good["goodput"]["tokens_per_second"] > 0
    assert none["goodput"] == {"share": 0, "requests_per_second": 0, "tokens_per_second": 0}


async def test_tables_are_written_between_their_markers_and_again(tmp_path: Path) -> None:
    async with pair([], []) as targets:
        found = await measure(options(ttft_target=60_000.0), targets)
    file = tmp_path / "README.md"
    file.write_text("before\n<!-- throughput:begin -->\nold\n<!-- throughput:end -->\nafter\n")
    for _ in range(2):
        report.insert(file, "throughput", report.table([found]))
    content = file.read_text()
    assert content.startswith("before\n<!-- throughput:begin -->\n")
    assert content.endswith("\n<!-- throughput:end -->\nafter\n")
    assert "old" not in content
    figures = found["concurrency"]["2"]["targets"]["theirs"]["tokens_per_second"]
    (row,) = [line for line in content.splitlines() if "| theirs |" in line]
    assert f"| {figures['median']:.1f} (" in row
    assert "100%, " in row
    assert "Good: TTFT ≤ 60000 ms (chat)." in content
    assert f"{found['concurrency']['2']['ratios']['request']['median']:.2f} (" in content


def test_what_mixed_and_cancel_found_is_written_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spread = {"median": 2.0, "min": 1.5, "max": 2.5}
    mixed = {
        "rounds": 3,
        "streams": 4,
        "targets": {
            "ours": {
                "prompt_tokens": {"median": 2005.0},
                "idle_inter_token_ms": {"p95": 20.04},
                "mixed_inter_token_ms": {"p95": 40.06},
                "inter_token_p95_ratio": spread,
                "idle_ttft_ms": {"median": 4000.4},
                "mixed_ttft_ms": {"median": 8000.6},
                "ttft_ratio": spread,
            }
        },
    }
    figures = {"p50": 1.0, "p95": 2.0, "p99": 3.0, "max": 4.5}
    given_up = {"cancelled": 19, "settled_ms": figures, "server_settled_ms": {"p50": 0.6, "max": 2.7}}
    images = {**mixed, "cancels": {"ours": given_up}}
    cancel = {
        "trials": 200,
        "prefill_ms": 4000.4,
        "cancel": {"settled_ms": figures, "server_settled_ms": figures, "next_ttft_ms": figures},
        "disconnect": {"settled_ms": figures, "next_ttft_ms": figures},
        "leaks": {"none": True},
    }
    tables = {"mixed": mixed, "images": images, "cancel": cancel}
    file = tmp_path / "README.md"
    file.write_text("".join(f"<!-- {name}:begin -->\n<!-- {name}:end -->\n" for name in tables))
    for name, found in tables.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    given = [f"--{name}={tmp_path / name}.json" for name in tables]
    monkeypatch.setattr("sys.argv", ["report.py", *given, f"--readme={file}"])
    assert report.main() == 0
    content = file.read_text()
    assert "| ours | 20.0 | 40.1 | 2.00 (1.50 to 2.50) | 4000 | 8001 | 2.00 (1.50 to 2.50) |" in content
    assert "a fresh prompt of 2,005 tokens" in content
    assert "ours: 19 images given up on their way were settled in 1.0 (maximum 4.5) ms" in content
    assert "by the server's clock 0.6 (maximum 2.7)." in content
    assert "| cancel: settled, the server's clock | 1.0 | 2.0 | 3.0 | 4.5 |" in content
    assert "| disconnect: next TTFT | 1.0 | 2.0 | 3.0 | 4.5 |" in content
    assert "Nothing stayed behind." in content


@pytest.mark.parametrize("content", ["", "<!-- throughput:end -->\n<!-- throughput:begin -->\n"])
def test_a_file_without_markers_is_left_as_it_was(content: str, tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text(content)
    with pytest.raises(report.ReportError):
        report.insert(file, "throughput", "table")
    assert file.read_text() == content


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["svg", "png"])
async def test_a_plot_shows_every_target(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    async with pair([], []) as targets:
        found = await measure(options(), targets)
    file = tmp_path / f"plot.{suffix}"
    report.plot(found, file)
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG") if suffix == "png" else b"<svg" in content
    if suffix == "svg":
        # Text becomes outlines; the words stand beside them as comments.
        assert all(b"<!-- %s -->" % word in content for word in (b"ours", b"theirs", b"requests at once", b"tokens/s"))


class FakeModel:
    """A server of the wire that takes time: so long for a long prompt or an image, so long for a token, longer beside a
    prefill.

    What a cancel or a closed connection leaves is told at `/owner/state`.
    """

    prefill, step, slow_step, tokens = 0.1, 0.002, 0.02, 40

    def __init__(self) -> None:
        self.live: dict[str, asyncio.Task[None]] = {}
        self.prefilling = 0
        self.leaked = 0
        self.given_up: list[str] = []
        """Whether each generation that was ended from outside was in `prefill` or in `decode`."""

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[Nap]:
        async with await asyncio.start_server(self.answer, "127.0.0.1", 0) as listening:
            asked = Nap(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", "t")
            await asked.prepare()
            yield asked

    def state(self) -> dict[str, Any]:
        active = len(self.live) + self.leaked
        loaded = {"state": "loaded", "active": active, "queued": 0, "slots": 2, "restarts": 0}
        return {"connections": [loaded, {"state": "unloaded"}], "generations": list(self.live)}

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        body = json.loads(await reader.readexactly(lengths[0])) if lengths else {}
        headers, content = b"", {"type": "llm.select.result", "model": {"handle": "h"}}
        if head.startswith(b"GET /owner/state "):
            content = self.state()
        elif body["type"] == "llm.cancel":
            task = self.live.pop(body["requestId"], None)
            content = {"type": "llm.cancel.result", "cancelled": task is not None and task.cancel()}
            headers = b"Server-Timing: parse;dur=0.1, settle;dur=1.5\r\n"
        elif body["type"] == "llm.generate":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            task = self.live[body["id"]] = asyncio.create_task(self.generate(body, writer))
            gone = asyncio.create_task(reader.read())
            await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
            task.cancel()
            await asyncio.wait([task])
            self.live.pop(body["id"], None)
            gone.cancel()
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\n" + headers + b"\r\n" + json.dumps(content).encode())
        writer.close()

    async def generate(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        request, at = body["request"], "prefill"
        result: dict[str, Any] = {"error": {"code": "cancelled", "message": ""}}
        try:
            content = request["messages"][0]["content"]
            if len(content[0]["text"]) > 1000 or content[-1]["type"] == "image":
                self.prefilling += 1
                try:
                    await asyncio.sleep(self.prefill)
                finally:
                    self.prefilling -= 1
            at = "decode"
            tokens = min(self.tokens, request["maxTokens"])
            for _ in range(tokens):
                writer.write(b"data: %s\n\n" % json.dumps(NAP_EVENTS[1]).encode())
                await asyncio.sleep(self.slow_step if self.prefilling else self.step)
            usage = {"inputTokens": 9, "outputTokens": tokens}
            result = {"result": {"content": [], "finish": "length", "usage": usage}}
        except asyncio.CancelledError:
            self.given_up.append(at)
        writer.write(b"data: %s\n\n" % json.dumps({"type": "llm.generate.result", **result}).encode())


def cancelling(**given: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"trials": 6, "after": None, "owner_token": "o", "start": None, "log": None} | given)


async def test_generations_are_given_up_where_they_should_be_and_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeModel()
    model.prefill, model.tokens = 0.5, 100
    soon = [cancel.Moment("long", False, 0.02), cancel.Moment("chat", True, 0.02)]
    monkeypatch.setattr(cancel, "moments", lambda whole, trials: soon * trials)
    async with model.listen() as asked:
        found = await cancel.measure(cancelling(trials=2), asked)
    assert not cancel.failed(found)
    # Both ways, two of each.
    assert model.given_up == ["prefill", "decode"] * 4
    assert [found[way]["in_prefill"] for way in ("disconnect", "cancel")] == [2, 2]
    assert found["cancel"]["cancelled"] == 4
    assert found["cancel"]["server_settled_ms"]["p99"] == 1.5
    assert "server_settled_ms" not in found["disconnect"]
    assert found["leaks"] == {
        "left": {"generations": 0, "active": 0, "queued": 0},
        "slots": 2,
        "active_with_all_slots": 2,
        "restarts": 0,
        "none": True,
    }


async def test_a_slot_that_stays_taken_is_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancel, "PATIENCE", 0)
    model = FakeModel()
    model.leaked = 1
    async with model.listen() as asked:
        found = await cancel.measure(cancelling(trials=1, after=0.0), asked)
    assert found["leaks"]["left"]["active"] == 1
    assert cancel.failed(found)


def test_random_moments_spread_over_prefill_and_decode_and_are_the_same_again() -> None:
    whole = {"long": outcome([9.0, 9.1]), "chat": outcome([1.0, 3.0])}
    drawn = cancel.moments(whole, 2000)
    assert drawn == cancel.moments(whole, 2000)
    for decoding, most in ((False, 9.0), (True, 2.0)):
        after = [each.after for each in drawn if each.decoding is decoding]
        assert len(after) == 1000
        assert 0 <= min(after) < most * 0.01 < most * 0.99 < max(after) <= most
        assert sum(after) / len(after) == pytest.approx(most / 2, rel=0.05)


async def test_a_prompt_beside_running_answers_is_told_from_an_idle_server() -> None:
    model = FakeModel()
    model.tokens = 2000
    async with model.listen() as asked:
        done = await mixed.run_round(asked, 1, answers=2, idle=0.1)
        await asyncio.gather(*model.live.values())
    assert model.given_up == ["decode"] * 2
    # Two answers: at least two gaps of 20 ms each until the prompt of 100 ms has its first token.
    assert len(done.mixed_gaps) >= 4
    assert percentile(done.mixed_gaps, 50) >= model.slow_step > percentile(done.idle_gaps, 50)
    assert done.alone.ttft >= model.prefill
    assert done.beside.ttft >= model.prefill


async def test_mixed_figures_are_made_of_paired_rounds() -> None:
    async with FakeModel().listen() as asked:
        found = await mixed.measure(
            argparse.Namespace(start=[], rounds=2, streams=1, idle=0.05, log=None), {"a": asked}
        )
    figures = found["targets"]["a"]
    assert figures["inter_token_p95_ratio"]["median"] > 1
    assert figures["idle_ttft_ms"]["min"] >= 100
    mixed.show(found)


async def test_answers_that_fail_are_no_measurement() -> None:
    failing = {"type": "llm.generate.result", "id": "b", "error": {"code": "provider-error", "message": "gone"}}
    async with scripted([failing], []) as url:
        with pytest.raises(RuntimeError, match="provider-error"):
            await mixed.run_round(Nap(url, "t"), 1, answers=1, idle=0.0)


async def test_an_image_disturbs_answers_and_is_given_up() -> None:
    model = FakeModel()
    async with model.listen() as asked:
        found = await images.measure(
            argparse.Namespace(start=[], rounds=1, streams=2, idle=0.05, log=None, cancels=5), {"a": asked}
        )
    figures, cancels = found["targets"]["a"], found["cancels"]["a"]
    assert figures["inter_token_p95_ratio"]["median"] > 1 and figures["idle_ttft_ms"]["min"] >= 100
    assert cancels["trials"] == 5 and cancels["cancelled"] >= 4 and cancels["error_after"] == ""
    assert cancels["server_settled_ms"]["max"] == 1.5
    images.mixed.show(found, "an image")


@pytest.mark.parametrize("kind", [Nap, OpenAI])
def test_the_images_of_the_benchmark_are_fresh_and_well_formed(kind: type[Server]) -> None:
    first, second = (images.body(kind("http://h", "t"), number) for number in (1, 2))
    messages = first["request"]["messages"] if kind is Nap else first["messages"]
    part = messages[-1]["content"][1]
    data = base64.b64decode(part["data"] if kind is Nap else part["image_url"]["url"].partition(",")[2])
    assert first != second and data == images.png(1)
    with Image.open(BytesIO(data)) as image:
        image.load()
        assert (image.format, image.mode, image.size) == ("PNG", "RGB", (images.SIDE, images.SIDE))


def test_a_mixed_prompt_is_a_fifth_longer_than_the_long_one_and_fresh() -> None:
    first, second, plain = mixed.prompt(1), mixed.prompt(2), Workload("long").request(1, 0)
    assert first.system and second.system and plain.system
    assert len(first.system) / len(plain.system) == pytest.approx(1.2, rel=0.01)
    assert first.system[:15] != second.system[:15]


def test_each_part_is_timed_without_those_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr(overhead.time, "perf_counter", lambda: next(ticks))
    clock = overhead.Clock()
    inner = clock.timed("inner", lambda: None)
    outer = clock.timed("outer", lambda: (inner(), inner()))
    outer()
    # Six looks at the clock, one tick apart: five ticks in all, each inner call between two of them.
    assert clock.spent == {"outer": 3, "inner": 2}


@pytest.mark.slow
def test_a_step_of_the_worker_is_taken_apart(smollm2: Path) -> None:
    choose, accept = overhead.TokenSampler.choose, overhead.GrammarState.accept
    found = overhead.measure(smollm2, [1, 2], steps=3)
    assert (overhead.TokenSampler.choose, overhead.GrammarState.accept) == (choose, accept)
    for count in (1, 2):
        free, forced = (found["answers"][name][str(count)] for name in ("chat", "forced"))
        assert (free["steps"], free["tokens_per_step"]) == (3, count)
        assert forced["tokens_per_step"] >= count
        assert sum(free["parts_us"].values()) == pytest.approx(free["step_us"], rel=0.01)
        assert free["parts_us"]["decode"] == max(free["parts_us"].values())
        assert all(took > 0 for part, took in free["parts_us"].items() if part != "grammar")
        assert free["parts_us"]["grammar"] == 0 < forced["parts_us"]["grammar"]
    overhead.show(found)


BENCHMARKS = Path(overhead.__file__).parent


@pytest.fixture
def gpu_machine(tmp_path: Path) -> Path:
    """A checkout whose set-up brings a Python that notes what it is asked to run, and writes what `--out` names."""
    for name in ("benchmarks", "scripts", "venv/bin", "tools"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(BENCHMARKS / "gpu.sh", tmp_path / "benchmarks")
    words = f'root={shlex.quote(str(tmp_path))}; venv=$root/venv; setup() {{ :; }}; say() {{ echo "$*" >&2; }}'
    (tmp_path / "scripts/setup").write_text(words + '; die() { say "$@"; exit 1; }\n')
    note = """#!PYTHON
import json, os, pathlib, sys
arguments = sys.argv[1:]
if arguments[0] == "-c":
    exec(arguments[1])
    sys.exit()
with open("calls", "a") as file:
    print(json.dumps([os.path.basename(arguments[0]), *arguments[1:]]), file=file)
if "--out" in arguments:
    pathlib.Path(arguments[arguments.index("--out") + 1]).write_text("{}")
sys.exit("mixed.py" in arguments[0])
"""
    python, client = tmp_path / "venv/bin/python", tmp_path / "venv/bin/nap-llm"
    python.write_text(note.replace("PYTHON", sys.executable))
    client.write_text('#!/bin/sh\necho secret\nfor last; do :; done\necho owners >"$last/owner-token"\n')
    # Where this machine has a GPU, it does not answer here.
    driver = tmp_path / "tools/nvidia-smi"
    driver.write_text("#!/bin/sh\nexit 9\n")
    for each in (python, client, driver):
        each.chmod(0o755)
    (tmp_path / "model file.gguf").touch()
    return tmp_path


def run_gpu(machine: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [machine / "benchmarks/gpu.sh", *arguments],
        cwd=machine,
        env={"PATH": f"{machine / 'tools'}:/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_one_command_measures_everything_beside_a_peer(
    gpu_machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_gpu(gpu_machine, "model file.gguf", "/bin/true", ALLOW_CPU="1", ROUNDS="2", RATES="0.5 2")
    calls = [json.loads(line) for line in (gpu_machine / "calls").read_text().splitlines()]
    assert [call[0] for call in calls] == ["throughput.py"] * 7 + ["mixed.py", "cancel.py", "overhead.py", "report.py"]
    chat, opened, cancelled, taken_apart = calls[0], calls[6], calls[8], calls[9]
    _, ours, _, theirs = (chat[at + 1] for at, word in enumerate(chat) if word in ("--target", "--start"))
    model = str(gpu_machine / "model file.gguf")
    assert ["-m", model] == shlex.split(theirs.partition("=")[2])[1:3]
    assert shlex.split(ours.partition("=")[2])[0] == str(gpu_machine / "scripts/serve")
    assert opened[opened.index("--rate") + 1 :][:2] == ["0.5", "2"]
    assert cancelled[cancelled.index("--owner-token") + 1] == "owners"
    assert model in taken_apart
    # What fails does not keep the rest from running, and is named at the end.
    assert done.returncode == 1
    assert done.stderr.endswith("failed: mixed\n")

    def run(measurement: Coroutine[Any, Any, Any]) -> None:
        measurement.close()
        raise RuntimeError("understood")

    monkeypatch.setattr(uvloop, "run", run)
    scripts = {"throughput.py": throughput.main, "mixed.py": mixed.main, "cancel.py": cancel.main}
    for call in calls[:9]:
        monkeypatch.setattr(sys, "argv", call)
        assert scripts[call[0]]() == 1
        assert capsys.readouterr().err.endswith(": understood\n")


@runs("Measuring", 1, file="docs/benchmarks.md")
def test_the_documented_command_for_gpus(examples: tuple[Block, ...], gpu_machine: Path) -> None:
    """What it runs, on a machine that is allowed to have none."""
    (example,) = examples
    directory, command = gpu_machine / "benchmarks", example.text.splitlines()[-1].partition("#")[0].strip()
    _, model, peer = command.split()
    (directory / peer).parent.mkdir(parents=True)
    (directory / peer).symlink_to("/bin/true")
    (directory / model).touch()
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=directory,
        env={"PATH": f"{gpu_machine / 'tools'}:/usr/bin:/bin", "ALLOW_CPU": "1"},
        capture_output=True,
        text=True,
    )
    calls = [json.loads(line) for line in (directory / "calls").read_text().splitlines()]
    assert [*dict.fromkeys(call[0] for call in calls)] == [
        "throughput.py",
        "mixed.py",
        "cancel.py",
        "overhead.py",
        "report.py",
    ]
    assert all(any(peer in word and model in word for word in call) for call in calls[:8]), "beside the peer"
    assert done.stderr.endswith("failed: mixed\n"), "as the stand-in has it"


@pytest.mark.parametrize("arguments", [(), ("missing.gguf",), ("model file.gguf", "missing-server"), ("1", "2", "3")])
def test_what_is_missing_is_said_before_anything_runs(arguments: tuple[str, ...], gpu_machine: Path) -> None:
    done = run_gpu(gpu_machine, *arguments)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert not (gpu_machine / "calls").exists()


async def test_a_server_that_answers_already_is_not_taken_for_the_one_to_start(tmp_path: Path) -> None:
    async with scripted(NAP_EVENTS, []) as url:
        with pytest.raises(RuntimeError, match="already"):
            async with started(Nap(url, "t"), "true", tmp_path / "log"):
                pass
