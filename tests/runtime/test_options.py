"""What projections beside NAP-LLM may ask of one generation."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.chat.events import BlockDelta, BlockEnd, BlockStart
from server.config import ModelConfig, ModelSource, ServerConfig
from server.engine.sampling.params import Sampling
from server.engine.types import Finished, Logprob, TextChunk
from server.runtime import GenerationOptions, LiveGeneration
from server.runtime.logprobs import AnswerLogprobs
from server.wire.records import Generation, Requirements, TextPart, WireError
from tests.runtime.doubles import World, caller, request, tool


def two(tmp_path: Path, **fields: Any) -> World:
    source = ModelSource(path=tmp_path / "model.gguf")
    connections = tuple(
        ModelConfig(key=key, name=key, model=f"{key}-1", source=source, sampling=Sampling(top_k=7, seed=3))
        for key in ("first", "second")
    )
    return World(tmp_path / "model.gguf", connections=connections, **fields)


def begin(world: World, options: GenerationOptions, *, who: Any = None, **fields: Any) -> LiveGeneration:
    return world.runtime.generate(who or caller(), "g", request("", **fields), options)


async def test_a_connection_by_its_key_takes_the_place_of_a_handle(tmp_path: Path) -> None:
    world = two(tmp_path)
    live = begin(world, GenerationOptions(connection="second"))
    run = await world.engine.run()
    assert live.connection == "second"
    run.say("hi")
    run.done()
    result = await live.result()
    assert isinstance(result, Generation) and result.content == (TextPart("hi"),)
    # The endpoint has selected it, as the owner sees, and its handle works on the wire of NAP-LLM too.
    assert world.runtime.handles.endpoints() == {caller().endpoint: 1}
    await world.runtime.close()


async def test_a_connection_that_is_unknown_or_disabled_is_unsupported(tmp_path: Path) -> None:
    world = two(tmp_path)
    world.runtime.disable(world.runtime.connections[0])
    for key in ("first", "third"):
        result = await begin(world, GenerationOptions(connection=key)).result()
        assert isinstance(result, WireError) and result.code == "unsupported"
    await world.runtime.close()


async def test_sampling_takes_the_place_of_the_connections_own(tmp_path: Path) -> None:
    world = two(tmp_path)
    begin(world, GenerationOptions(connection="first", sampling={"top_p": 0.5, "seed": 9}), temperature=0.25)
    assert (await world.engine.run()).job.sampling == Sampling(temperature=0.25, top_k=7, top_p=0.5, seed=9)
    await world.runtime.close()


async def test_an_owner_who_chooses_is_asked_once_for_a_connection(tmp_path: Path) -> None:
    world = two(tmp_path, server=ServerConfig(deadline=60))
    who = caller(select="ask")
    live = begin(world, GenerationOptions(connection="second"), who=who)
    while not world.runtime.decisions.waiting():
        await world.runtime.changes.since(world.runtime.changes.version)
    (decision,) = world.runtime.decisions.waiting()
    assert decision.kind == "selection" and decision.choices == ("second",)
    assert world.runtime.decisions.settle_selection(decision.id, "second")
    (await world.engine.run()).done()
    assert isinstance(await live.result(), Generation)
    begin(world, GenerationOptions(connection="second"), who=who)
    await world.engine.run(1)
    await world.runtime.close()


async def test_an_owner_who_declines_or_takes_too_long_ends_it(tmp_path: Path) -> None:
    world = two(tmp_path, server=ServerConfig(deadline=60))
    who = caller(select="ask")
    for end in ("declined", "deadline"):
        live = begin(world, GenerationOptions(connection="first"), who=who)
        while not world.runtime.decisions.waiting():
            await world.runtime.changes.since(world.runtime.changes.version)
        (decision,) = world.runtime.decisions.waiting()
        if end == "declined":
            world.runtime.decisions.settle_selection(decision.id, None)
        else:
            world.clock.advance(61)
        result = await live.result()
        assert isinstance(result, WireError) and result.code == ("user-cancelled" if end == "declined" else "timeout")
        assert live.task is not None
        await asyncio.wait([live.task])
        assert not world.runtime.decisions.waiting() and not world.engine.runs
    await world.runtime.close()


async def test_a_file_that_changes_while_the_owner_consents_ends_the_selection(tmp_path: Path) -> None:
    world = two(tmp_path)
    live = begin(world, GenerationOptions(connection="first"), who=caller(consent="ask"))
    while not world.runtime.decisions.waiting():
        await world.runtime.changes.since(world.runtime.changes.version)
    (decision,) = world.runtime.decisions.waiting()
    world.file.write_bytes(b"another model")
    world.runtime.decisions.settle_consent(decision.id, True)
    result = await live.result()
    assert isinstance(result, WireError) and result.code == "selection-expired"
    assert await world.runtime.select(caller(), Requirements())
    await world.runtime.close()


async def test_what_is_asked_of_the_conversation_reaches_it(tmp_path: Path) -> None:
    world = two(tmp_path)
    options = GenerationOptions(
        connection="first",
        response_schema=True,
        allowed_tools=frozenset({"weather"}),
        parallel=False,
        stop=("x",),
        logprobs=2,
    )
    begin(world, options, tools=(tool(), tool("other")))
    job = (await world.engine.run()).job
    (conversation,) = world.chat.conversations
    assert (conversation.response_schema, conversation.allowed_tools, conversation.parallel) == (
        True,
        frozenset({"weather"}),
        False,
    )
    assert job.stop is not None and job.stop.strings == ("x",) and job.logprobs == 2
    await world.runtime.close()


async def test_a_stop_sequence_completes_the_turn(tmp_path: Path) -> None:
    world = two(tmp_path)
    live = begin(world, GenerationOptions(connection="first", stop=("x",)))
    run = await world.engine.run()
    run.say("cut")
    run.events.put_nowait(Finished("stop", 3, 2, 0, stopped=True))
    result = await live.result()
    assert isinstance(result, Generation)
    assert (result.content, result.finish) == ((TextPart("cut"),), "stop")
    assert result.usage is not None and result.usage.output_tokens == 2
    await world.runtime.close()


@pytest.mark.parametrize(
    ("said", "violates", "code"),
    [("[1]", False, None), ("[1]", True, "provider-error"), ("no", False, "provider-error")],
)
async def test_an_answer_with_a_schema_is_checked(tmp_path: Path, said: str, violates: bool, code: str | None) -> None:
    world = two(tmp_path)
    world.chat.checked_answer = True
    world.chat.invalid = WireError("provider-error", "the answer violates its schema") if violates else None
    live = begin(world, GenerationOptions(connection="first", response_schema={"type": "array"}))
    run = await world.engine.run()
    run.say(said)
    run.done()
    result = await live.result()
    assert (result.code if isinstance(result, WireError) else None) == code
    assert world.chat.answers == ([[1]] if said == "[1]" else [])
    assert set(world.chat.scopes) <= {caller().endpoint.scope}
    await world.runtime.close()


async def test_a_schema_needs_a_connection_that_answers_in_json(tmp_path: Path) -> None:
    world = two(tmp_path)
    world.chat.capabilities = replace(world.chat.capabilities, json=False)
    result = await begin(world, GenerationOptions(connection="first", response_schema=True)).result()
    assert isinstance(result, WireError) and result.code == "unsupported"
    await world.runtime.close()


async def test_two_calls_where_one_may_be_are_an_error(tmp_path: Path) -> None:
    world = two(tmp_path)
    for index in (0, 1):
        world.chat.script[f"call {index}"] = [
            BlockStart(index, "toolCall", name="weather"),
            BlockDelta(index, "{}"),
            BlockEnd(index),
        ]
    live = begin(world, GenerationOptions(connection="first", parallel=False), tools=(tool(),))
    run = await world.engine.run()
    run.say("call 0", "call 1")
    run.done()
    result = await live.result()
    assert isinstance(result, WireError) and result.code == "provider-error"
    await world.runtime.close()


# --- log probabilities


def tokens(*pieces: str | bytes) -> list[Logprob]:
    return [Logprob(each if isinstance(each, bytes) else each.encode(), -0.5, ()) for each in pieces]


def pieces(found: list[Logprob]) -> list[bytes]:
    return [each.piece for each in found]


def test_log_probabilities_follow_the_answers_text() -> None:
    which = AnswerLogprobs()
    assert which.of(tokens("<think>", "\n", "a"), [BlockStart(0, "thinking"), BlockDelta(0, "a")]) == []
    assert which.of(tokens("b", "</think>"), [BlockDelta(0, "b"), BlockEnd(0)]) == []
    # White space waits with the parser until it is certain whose it is.
    assert which.of(tokens("\n\n"), []) == []
    assert pieces(which.of(tokens("Hi"), [BlockStart(1, "text"), BlockDelta(1, "Hi")])) == [b"Hi"]
    assert which.of(tokens("\n"), []) == []
    assert pieces(which.of(tokens("a", " b"), [BlockDelta(1, "\na b")])) == [b"\n", b"a", b" b"]
    # A character of several tokens, and one token of which the answer has a part.
    assert pieces(which.of(tokens(b"\xc3", b"\xa9", "!<"), [BlockDelta(1, "é!")])) == [b"\xc3", b"\xa9", b"!<"]
    assert which.of(tokens("tool_call>", "{}"), [BlockEnd(1), BlockStart(2, "toolCall"), BlockDelta(2, "{}")]) == []


def test_text_in_another_notation_has_all_tokens_up_to_it() -> None:
    which = AnswerLogprobs()
    assert pieces(which.of(tokens('"', "a", "\\n"), [BlockStart(0, "text"), BlockDelta(0, "a\n")])) == [
        b'"',
        b"a",
        b"\\n",
    ]
    assert pieces(which.of(tokens("b"), [BlockDelta(0, "b")])) == [b"b"]


async def test_log_probabilities_stand_beside_the_generation(tmp_path: Path) -> None:
    world = two(tmp_path)
    live = begin(world, GenerationOptions(connection="first", logprobs=0))
    run = await world.engine.run()
    run.events.put_nowait(TextChunk("hi", 1, tuple(tokens("hi"))))
    run.done()
    await live.result()
    assert pieces(live.logprobs) == [b"hi"]
    await world.runtime.close()
