"""One generation: events, result, what has come so far, and ways to end it."""

from __future__ import annotations

import pytest

from server.client import PartialCall
from server.wire.records import Delta, Generation, GenerationRequest, Message, TextPart, ThinkingPart, WireError
from tests.client.scripted import Fragment, Reply, Server, call, calls, cut, held, says

REQUEST = GenerationRequest("h1", (Message("user", (TextPart("Hi."),)),))


async def test_the_result_after_some_events() -> None:
    async with Server(says("Hello.")).client() as client:
        stream = client.generate(REQUEST)
        assert isinstance(await anext(stream), Delta)
        generation = await stream.result()
        assert isinstance(generation, Generation) and generation.content == (TextPart("Hello."),)
        assert await stream.result() is generation


async def test_nothing_is_sent_before_an_event_is_asked_for() -> None:
    server = Server(says("Hello."))
    async with server.client() as client:
        stream = client.generate(REQUEST)
        await stream.aclose()
        with pytest.raises(ValueError, match="closed"):
            await stream.result()
    assert server.requests == []


async def test_what_has_come_and_a_cancel() -> None:
    fragments = (Fragment("thinking", "Hm"), Fragment("text", "So"), Fragment("toolCall", '{"a', "t"))
    server = Server(held(*fragments))
    async with server.client() as client:
        stream = client.generate(REQUEST, id="mine")
        for _ in range(6):
            await anext(stream)
        assert stream.partial == (ThinkingPart("Hm"), TextPart("So"))
        assert stream.partial_tool_calls == (PartialCall("t", '{"a'),)
        assert await stream.cancel() and server.cancels == ["mine"]
        with pytest.raises(WireError, match="cancelled"):
            await stream.result()


async def test_closing_gives_up() -> None:
    server = Server(held(Fragment("text", "So")))
    async with server.client() as client:
        stream = client.generate(REQUEST)
        await anext(stream)
        await stream.aclose()
        assert server.given_up.is_set() and server.cancels == []


async def test_a_call_without_a_byte_of_arguments_is_not_made_up() -> None:
    async with Server(cut(Fragment("toolCall", "", "t"))).client() as client:
        stream = client.generate(REQUEST)
        assert (await stream.result()).finish == "length"
        assert stream.partial_tool_calls == (PartialCall("t", ""),)


async def test_calls_of_a_result_are_partial_no_more() -> None:
    wanted = call("t", a=1)
    async with Server(calls(wanted)).client() as client:
        stream = client.generate(REQUEST)
        await anext(stream)
        assert stream.partial_tool_calls == (PartialCall("t", ""),)
        assert (await stream.result()).content == (wanted,)
        assert stream.partial_tool_calls == ()


async def test_an_error_of_the_wire_comes_through() -> None:
    async with Server(Reply(WireError("timeout", "too late"))).client() as client:
        with pytest.raises(WireError, match="too late"):
            await client.generate(REQUEST).result()
