"""A generation's life: deltas, terminal result, failures (NAP-LLM, "Generation", "Delta", "Error Handling")."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.chat.events import BlockDelta, BlockEnd, BlockStart, Refusal
from server.config import ServerConfig
from server.engine import EngineError
from server.runtime import LiveGeneration
from server.wire.records import (
    Delta,
    Generation,
    ImagePart,
    Message,
    NamedTool,
    Requirements,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    Usage,
    WireError,
)
from tests.runtime.doubles import PlainParser, World, caller, request, tool

CALL = [BlockStart(0, "toolCall", name="weather"), BlockDelta(0, '{"city":'), BlockDelta(0, '"Oslo"}'), BlockEnd(0)]


async def begin(world: World, text: str = "hello", *, id: str = "g", who: Any = None, **fields: Any) -> LiveGeneration:
    who = who or caller()
    model = await world.runtime.select(who, Requirements())
    return world.runtime.generate(who, id, request(model.handle, text, **fields))


async def read(live: LiveGeneration) -> tuple[list[Delta], Generation | WireError]:
    deltas: list[Delta] = []
    while True:
        await live.ready()
        settled = live.outcome
        deltas += live.take()
        if settled is not None:
            return deltas, settled


async def outcome(live: LiveGeneration) -> Generation:
    result = await live.result()
    assert isinstance(result, Generation), result
    return result


async def error(live: LiveGeneration) -> WireError:
    result = await live.result()
    assert isinstance(result, WireError), result
    return result


def check_lifecycle(deltas: list[Delta], result: Generation) -> None:
    """Every rule of the specification's Delta on one completed generation."""
    assert [each.sequence for each in deltas] == list(range(len(deltas)))
    blocks: dict[int, dict[str, Any]] = {}
    for each in deltas:
        if each.event == "start":
            assert each.block_index not in blocks
            blocks[each.block_index] = {"kind": each.block, "text": "", "open": True, "call": each}
            assert (each.tool_call_id is not None) == (each.block == "toolCall")
        block = blocks[each.block_index]
        assert block["open"] and block["kind"] == each.block
        if each.event == "delta":
            assert each.text
            block["text"] += each.text
        elif each.event == "end":
            block["open"] = False
    assert sorted(blocks) == list(range(len(result.content)))
    for index, part in enumerate(result.content):
        block = blocks[index]
        assert not block["open"]
        if isinstance(part, ToolCallPart):
            assert block["call"].tool_call_id == part.tool_call_id and block["call"].name == part.name
        else:
            assert block["text"] == part.text


async def test_text_is_streamed_and_added_up(world: World) -> None:
    live = await begin(world)
    run = await world.engine.run()
    run.say("Hel")
    await live.ready()
    assert live.take() == [
        Delta("g", 0, "start", "text", 0),
        Delta("g", 1, "delta", "text", 0, "Hel"),
    ]
    run.say("lo")
    run.done()
    deltas, result = await read(live)
    assert isinstance(result, Generation)
    assert result == Generation((TextPart("Hello"),), "stop", Usage(5, 2, 0))
    assert [each.sequence for each in deltas] == [2, 3]


async def test_a_slow_reader_gets_fewer_larger_deltas(world: World) -> None:
    live = await begin(world)
    run = await world.engine.run()
    run.say(*"abcdefgh")
    run.done()
    await run.closed.wait()
    while live.outcome is None:
        await asyncio.sleep(0)
    deltas, result = await read(live)
    assert [each.text for each in deltas] == [None, "abcdefgh", None]
    assert isinstance(result, Generation)
    check_lifecycle(deltas, result)


async def test_a_consumer_of_the_result_alone_keeps_no_deltas(world: World) -> None:
    live = await begin(world)
    reading = asyncio.create_task(live.result())
    run = await world.engine.run()
    for text in "abc":
        run.say(text)
        while live.output_tokens < run.said:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not live.blocks.due
    run.say("d")
    run.done()
    assert (await reading) == Generation((TextPart("abcd"),), "stop", Usage(5, 4, 0))


async def test_interleaved_calls_keep_order_and_coalesce_by_block(world: World) -> None:
    world.chat.script["x"] = [
        BlockStart(0, "text"),
        BlockDelta(0, "Two."),
        BlockEnd(0),
        BlockStart(1, "toolCall", name="weather"),
        BlockStart(2, "toolCall", name="time"),
        BlockDelta(1, '{"city":'),
        BlockDelta(2, "{"),
        BlockDelta(1, '"Oslo"}'),
        BlockEnd(1),
        BlockDelta(2, "}"),
        BlockEnd(2),
    ]
    live = await begin(world, tools=(tool("weather"), tool("time")))
    run = await world.engine.run()
    run.say("x")
    run.done()
    deltas, result = await read(live)
    assert isinstance(result, Generation)
    check_lifecycle(deltas, result)
    assert result.finish == "toolUse"
    assert [p.arguments for p in result.content if isinstance(p, ToolCallPart)] == [{"city": "Oslo"}, {}]
    assert len(deltas) == 9


async def test_call_ids_are_the_runtimes_own(world: World) -> None:
    world.chat.script["x"] = CALL
    ids = set()
    for id in ("a", "b"):
        live = await begin(world, id=id, tools=(tool(),))
        run = await world.engine.run(len(ids))
        run.say("x")
        run.done()
        part = (await outcome(live)).content[0]
        assert isinstance(part, ToolCallPart)
        ids.add(part.tool_call_id)
    assert len(ids) == 2 and all(re.fullmatch(r"call_[0-9a-f]{24}", id) for id in ids)


@pytest.mark.parametrize("finish", ["length", "refusal"])
async def test_a_partial_turn_keeps_text_and_thinking_but_no_call(world: World, finish: str) -> None:
    world.chat.script["x"] = [
        BlockStart(0, "thinking"),
        BlockDelta(0, "hm"),
        BlockEnd(0),
        BlockStart(1, "toolCall", name="weather"),
        BlockDelta(1, "{}"),
        BlockEnd(1),
        BlockStart(2, "text"),
        BlockDelta(2, "and"),
    ]
    world.chat.script["no"] = [Refusal()]
    live = await begin(world, tools=(tool(),), tool_choice="required")
    run = await world.engine.run()
    run.say("x")
    if finish == "refusal":
        run.say("no")
    else:
        run.done("length")
    result = await outcome(live)
    assert result.finish == finish
    assert result.content == (ThinkingPart("hm"), TextPart("and"))
    assert result.usage is not None and result.usage.output_tokens == run.said
    await run.closed.wait()


@pytest.mark.parametrize("ending", ["done", "fail", "late text"])
async def test_a_refusal_ends_the_job_and_tells_what_it_took(world: World, ending: str) -> None:
    """Where that is to be had: a refusal is one, even where its worker dies of it."""
    world.chat.script["no"] = [BlockStart(0, "text"), BlockDelta(0, "No."), Refusal()]
    live = await begin(world)
    run = await world.engine.run()
    if ending == "fail":
        run.say("no")
        run.fail()
    else:
        # What was under way when the refusal came is counted, and not part of it.
        run.say("no", *(["and more"] if ending == "late text" else []))
    result = await outcome(live)
    assert (result.finish, result.content) == ("refusal", (TextPart("No."),))
    assert run.finished and not run.cancelled
    assert (result.usage is None) == (ending == "fail")
    if result.usage is not None:
        assert (result.usage.input_tokens, result.usage.output_tokens) == (len("hello"), run.said)


async def test_an_immediate_end_is_one_empty_text(world: World) -> None:
    live = await begin(world)
    (await world.engine.run()).done()
    deltas, result = await read(live)
    assert isinstance(result, Generation)
    assert result.content == (TextPart(""),) and result.finish == "stop"
    check_lifecycle(deltas, result)


async def test_thinking_is_counted_as_reasoning(world: World) -> None:
    world.chat.script["a"] = [BlockStart(0, "thinking"), BlockDelta(0, "a")]
    world.chat.script["b"] = [BlockDelta(0, "b"), BlockEnd(0), BlockStart(1, "text"), BlockDelta(1, "so")]
    world.chat.script["c"] = [BlockDelta(1, "c"), BlockEnd(1)]
    live = await begin(world)
    run = await world.engine.run()
    run.say("a", "b", "c")
    run.done()
    assert (await outcome(live)).usage == Usage(5, 3, 0, None, 2)


async def test_a_lone_surrogate_becomes_a_replacement_character(world: World) -> None:
    live = await begin(world)
    run = await world.engine.run()
    run.say("a\ud800b", "\U0001f600")
    run.done()
    assert (await outcome(live)).content == (TextPart("a\ufffdb\U0001f600"),)


BROKEN = {
    "start twice": [BlockStart(0, "text"), BlockStart(0, "text")],
    "delta before start": [BlockDelta(0, "x")],
    "delta after end": [BlockStart(0, "text"), BlockEnd(0), BlockDelta(0, "x")],
    "end twice": [BlockStart(0, "text"), BlockEnd(0), BlockEnd(0)],
    "open at the end": [BlockStart(0, "text"), BlockDelta(0, "x")],
    "gap in the indices": [BlockStart(1, "text"), BlockEnd(1)],
    "call without a name": [BlockStart(0, "toolCall"), BlockEnd(0)],
    "unknown tool": [BlockStart(0, "toolCall", name="other"), BlockDelta(0, "{}"), BlockEnd(0)],
    "arguments no object": [BlockStart(0, "toolCall", name="weather"), BlockDelta(0, "[]"), BlockEnd(0)],
    "arguments no JSON": [BlockStart(0, "toolCall", name="weather"), BlockDelta(0, "{canary"), BlockEnd(0)],
    "arguments with NaN": [BlockStart(0, "toolCall", name="weather"), BlockDelta(0, '{"a":NaN}'), BlockEnd(0)],
    "arguments with two equal keys": [
        BlockStart(0, "toolCall", name="weather"),
        BlockDelta(0, '{"a":1,"a":2}'),
        BlockEnd(0),
    ],
}


@pytest.mark.parametrize("case", BROKEN)
async def test_output_against_the_rules_is_a_provider_error(world: World, case: str) -> None:
    world.chat.script["x"] = BROKEN[case]  # type: ignore[assignment]
    live = await begin(world, tools=(tool(),))
    run = await world.engine.run()
    run.say("x")
    run.done()
    failure = await error(live)
    assert failure.code == "provider-error"
    assert "canary" not in failure.message


EARLY = {
    "an open end": (["x"], {"x": BROKEN["start twice"]}),
    "arguments no object": (["x"], {"x": BROKEN["arguments no object"]}),
    "arguments no JSON": (["x"], {"x": BROKEN["arguments no JSON"]}),
    "a refusal": (["fine", "no"], {"no": [Refusal()]}),
    "the parser's word": (["fine", "broken"], {}),
}


@pytest.mark.parametrize("case", EARLY)
async def test_an_outcome_that_is_certain_stops_the_engine_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """The engine would go on; nobody tells it that the output is complete."""
    said, script = EARLY[case]
    world.chat.script |= script  # type: ignore[arg-type]
    feed = PlainParser.feed

    def fed(parser: PlainParser, text: str) -> Any:
        parser.broken = text == "broken"
        return feed(parser, text)

    monkeypatch.setattr(PlainParser, "feed", fed)
    live = await begin(world, tools=(tool(),))
    run = await world.engine.run()
    run.say(*said)
    result = await live.result()
    if case == "a refusal":
        assert isinstance(result, Generation) and result.finish == "refusal"
    else:
        assert isinstance(result, WireError) and result.code == "provider-error"
    await run.closed.wait()


async def test_a_call_too_many_ends_the_turn_and_says_how_many_there_may_be(world: World) -> None:
    for number in range(9):
        world.chat.script[str(number)] = [
            BlockStart(number, "toolCall", name="weather"),
            BlockDelta(number, "{}"),
            BlockEnd(number),
        ]
    live = await begin(world, tools=(tool(),))
    run = await world.engine.run()
    run.say(*map(str, range(8)))
    run.done()
    result = await outcome(live)
    assert result.finish == "toolUse" and len(result.content) == 8
    live = await begin(world, tools=(tool(),))
    run = await world.engine.run(1)
    run.say(*map(str, range(9)))
    failure = await error(live)
    assert (failure.code, failure.extra) == ("provider-error", {"reason": "calls"})
    assert "more than 8 calls in one turn" in failure.message
    await run.closed.wait()


@pytest.mark.parametrize("choice", ["required", NamedTool("weather")])
async def test_a_forced_tool_that_is_ignored_is_a_provider_error(world: World, choice: Any) -> None:
    live = await begin(world, tools=(tool(), tool("time")), tool_choice=choice)
    run = await world.engine.run()
    run.say("No.")
    run.done()
    assert (await error(live)).code == "provider-error"


@pytest.mark.parametrize("text", ["[1]", "{", "word"])
async def test_json_that_is_no_object_is_a_provider_error(world: World, text: str) -> None:
    live = await begin(world, format="json")
    run = await world.engine.run()
    run.say(text)
    run.done()
    assert (await error(live)).code == "provider-error"


async def test_a_call_is_validated_where_checks_remain(world: World) -> None:
    world.chat.script["x"] = CALL  # type: ignore[assignment]
    world.chat.checked = frozenset({"weather"})
    world.chat.invalid = WireError("provider-error", "tool weather: /city violates pattern")
    live = await begin(world, tools=(tool(),))
    run = await world.engine.run()
    run.say("x")
    run.done()
    assert (await error(live)).message == "tool weather: /city violates pattern"
    world.chat.checked = frozenset()
    live = await begin(world, tools=(tool(),))
    run = await world.engine.run(1)
    run.say("x")
    run.done()
    assert (await outcome(live)).finish == "toolUse"


async def test_the_job_is_what_was_asked_for(world: World) -> None:
    live = await begin(world, temperature=0.25, max_tokens=7)
    job = (await world.engine.run()).job
    assert (job.max_tokens, job.sampling.temperature, job.deadline) == (7, 0.25, 1060.0)
    assert job.sampling == replace(world.config.connections[0].sampling, temperature=0.25)
    assert "shell" not in job.cache_salt
    live.abandon()
    other = await begin(world, who=caller(endpoint="other"))
    assert (await world.engine.run(1)).job.cache_salt != job.cache_salt
    other.abandon()


async def test_unsupported_is_said_before_anything_is_prepared(world: World) -> None:
    picture = Message("user", (ImagePart("image/png", "AAAA"),))
    world.chat.capabilities = replace(
        world.chat.capabilities, json=False, tool_choice_modes=("auto", "none", "required")
    )
    for fields in (
        {"temperature": 2.5},
        {"temperature": -0.1},
        {"format": "json"},
        {"messages": (picture,)},
        {"tools": (tool(),), "tool_choice": NamedTool("weather")},
    ):
        assert (await error(await begin(world, **fields))).code == "unsupported"
    assert world.chat.conversations == [] and world.engine.runs == [] and world.starts == []


async def test_tools_where_none_are_supported(world: World) -> None:
    world.chat.capabilities = replace(world.chat.capabilities, tools=False, tool_choice_modes=())
    assert (await error(await begin(world, tools=(tool(),)))).code == "unsupported"


async def test_a_malformed_tool_is_invalid_whatever_is_supported(world: World) -> None:
    world.chat.capabilities = replace(world.chat.capabilities, tools=False, tool_choice_modes=())
    world.chat.malformed = WireError("invalid-request", "tool weather: /properties/a: type: must be a type name")
    assert await error(await begin(world, tools=(tool(),))) is world.chat.malformed


@pytest.mark.parametrize("cache_scope", ["endpoint", "shared"])
async def test_schemas_are_kept_where_prompts_are(tmp_path: Path, cache_scope: str) -> None:
    world = World(tmp_path / "model.gguf", server=ServerConfig(deadline=60, cache_scope=cache_scope))
    world.chat.script = {"x": CALL}
    world.chat.checked = frozenset({"weather"})
    jobs = []
    for number, name in enumerate(("one", "other")):
        live = await begin(world, who=caller(endpoint=name), tools=(tool(),))
        run = await world.engine.run(number)
        run.say("x")
        run.done()
        assert (await outcome(live)).finish == "toolUse"
        jobs.append(run.job.cache_salt)
    assert [each.scope for each in world.chat.conversations] == world.chat.scopes == jobs
    assert len(set(jobs)) == (1 if cache_scope == "shared" else 2)
    await world.runtime.close()


async def test_what_chat_refuses_is_the_outcome(world: World) -> None:
    world.chat.refusal = WireError("unsupported", "tool weather: /properties: not")
    assert (await error(await begin(world))) is world.chat.refusal
    assert world.starts == []


async def test_a_prompt_that_does_not_fit(world: World) -> None:
    world.engine = type(world.engine)(context_length=5)
    failure = await error(await begin(world, "12345"))
    assert (failure.code, failure.extra) == ("quota-exceeded", {"reason": "context"})
    assert world.engine.runs == []


async def test_engine_failures_never_show_what_the_engine_said(world: World) -> None:
    for number, (code, extra, expected) in enumerate(
        [
            ("provider-error", {"reason": "canary"}, {"reason": "engine"}),
            ("quota-exceeded", {"reason": "context"}, {"reason": "context"}),
            ("quota-exceeded", {"reason": "queue"}, {"reason": "queue"}),
            ("quota-exceeded", {"reason": "canary"}, {}),
            ("unsupported", {"reason": "vision"}, {}),
            ("timeout", {}, {}),
        ]
    ):
        live = await begin(world)
        (await world.engine.run(number)).fail(code, "canary", **extra)
        failure = await error(live)
        assert (failure.code, failure.extra) == (code, expected)
        assert "canary" not in failure.message


async def test_each_kind_of_the_engine_s_failures_has_words_of_its_own(world: World) -> None:
    told = []
    for number, reason in enumerate(("constraint", "decode", "encode", "memory", "worker", "")):
        live = await begin(world)
        (await world.engine.run(number)).fail("provider-error", "canary", reason=reason)
        failure = await error(live)
        assert (failure.code, failure.extra) == ("provider-error", {"reason": "engine"})
        assert "engine failed" in failure.message
        told.append(failure.message)
    assert len(set(told)) == len(told)


async def test_a_model_that_does_not_load(world: World) -> None:
    world.start_failure = EngineError("not enough memory")
    failure = await error(await begin(world))
    assert failure.code == "provider-error" and "not enough memory" in failure.message
    world.start_failure = None
    live = await begin(world)
    (await world.engine.run()).done()
    assert (await outcome(live)).finish == "stop"


async def test_a_program_error_is_a_provider_error_and_logs_no_content(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.start_failure = RuntimeError("canary")
    failure = await error(await begin(world))
    assert failure.code == "provider-error"
    assert "RuntimeError" in caplog.text and "canary" not in caplog.text + failure.message


async def test_one_load_serves_all_and_outlives_one_that_gives_up(world: World) -> None:
    world.start_gate.clear()
    first, second = await begin(world, id="a"), await begin(world, id="b")
    await world.starting.wait()
    assert first.abandon()
    world.start_gate.set()
    (await world.engine.run()).done()
    assert (await outcome(second)).finish == "stop"
    assert len(world.starts) == 1


async def test_the_owner_caps_output_tokens(tmp_path: Any) -> None:
    from server.config import Limits

    world = World(tmp_path / "m", limits=Limits(max_tokens=10))
    for number, (asked, given) in enumerate([(None, 10), (5, 5), (50, 10)]):
        live = await begin(world, max_tokens=asked)
        assert (await world.engine.run(number)).job.max_tokens == given
        live.abandon()
    await world.runtime.close()
