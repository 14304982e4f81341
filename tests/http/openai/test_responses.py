"""`POST /v1/responses` as the official client sees it, over a scripted engine."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from server.engine.types import Logprob, TextChunk
from server.http.openai.responses import read
from server.wire.records import ImagePart, Message, NamedTool, TextPart, ThinkingPart, ToolCallPart
from tests.http.openai.conftest import WEATHER, Api

TOOL: Any = {"type": "function", **WEATHER["function"]}


async def respond(api: Api, *texts: str, finish: str = "stop", **fields: Any) -> Any:
    asked = asyncio.create_task(api.client.responses.create(model="first", **{"input": "hello", **fields}))
    await api.says(*texts, finish=finish)
    return await asked


async def stream(api: Api, *texts: str, finish: str = "stop", **fields: Any) -> list[Any]:
    asked = asyncio.create_task(api.client.responses.create(model="first", stream=True, **{"input": "hello", **fields}))
    await api.says(*texts, finish=finish)
    events = [event async for event in await asked]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


async def test_a_response(api: Api) -> None:
    response = await respond(api, "Hi", " there", instructions="be brief", metadata={"a": "b"}, temperature=0.5)
    assert response.id.startswith("resp_") and response.object == "response" and response.status == "completed"
    assert response.output_text == "Hi there" and response.error is None
    (message,) = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert response.usage.total_tokens == response.usage.input_tokens + 2
    assert (response.instructions, response.metadata, response.temperature) == ("be brief", {"a": "b"}, 0.5)
    assert api.world.chat.conversations[0].messages == (
        Message("system", (TextPart("be brief"),)),
        Message("user", (TextPart("hello"),)),
    )
    assert not [*api.world.runtime.live()]


async def test_the_events_of_text(api: Api) -> None:
    events = await stream(api, "Hi", " there", store=False)
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert "".join(event.delta for event in deltas) == "Hi there" == events[-4].text
    final = events[-1].response
    assert final.output_text == "Hi there" and final.usage.output_tokens == 2 and final.status == "completed"
    assert events[0].response.status == "in_progress" and events[0].response.id == final.id
    # The item of the stream is the item of its end.
    assert {event.item_id for event in deltas} == {events[2].item.id, events[-2].item.id, final.output[0].id}


async def test_the_events_of_thinking_and_calls(api: Api) -> None:
    api.block("think", "thinking", 0, "h", "m")
    api.block("say", "text", 1, "Well.")
    api.call("one", 2)
    api.call("two", 3, "Rome")
    events = await stream(api, "think", "say", "one", "two", tools=[TOOL])
    by_kind: dict[str, list[Any]] = {}
    for event in events:
        by_kind.setdefault(event.type, []).append(event)
    assert "".join(event.delta for event in by_kind["response.reasoning_text.delta"]) == "hm"
    assert by_kind["response.reasoning_text.done"][0].text == "hm"
    done = by_kind["response.function_call_arguments.done"]
    assert [(event.output_index, event.arguments) for event in done] == [(2, '{"city":"Oslo"}'), (3, '{"city":"Rome"}')]
    assert [event.item.type for event in by_kind["response.output_item.done"]] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    streamed = [event.item for event in by_kind["response.output_item.done"]]
    assert [item.model_dump() for item in events[-1].response.output] == [item.model_dump() for item in streamed]
    assert streamed[2].name == "weather" and streamed[2].call_id.startswith("call_")


async def test_a_turn_comes_back_as_it_was_given(api: Api) -> None:
    api.block("think", "thinking", 0, "hm")
    api.block("say", "text", 1, "Let me see.")
    api.call("call", 2)
    first = await respond(api, "think", "say", "call", tools=[TOOL])
    call = first.output[2]
    history = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        *[item.model_dump(exclude_none=True) for item in first.output],
        {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
    ]
    second = await respond(api, "Wet.", input=history, tools=[TOOL])
    assert second.output_text == "Wet."
    assert api.world.chat.conversations[1].messages == (
        Message("system", (TextPart("be brief"),)),
        Message("user", (TextPart("hello"),)),
        Message(
            "assistant",
            (
                ThinkingPart("hm"),
                TextPart("Let me see."),
                ToolCallPart(call.call_id, "weather", {"city": "Oslo"}),
            ),
        ),
        Message("toolResult", (TextPart("rain"),), tool_call_id=call.call_id, tool_name="weather"),
    )


@pytest.mark.parametrize(
    ("choice", "expected", "allowed"),
    [
        ("required", "required", None),
        ({"type": "function", "name": "weather"}, NamedTool("weather"), None),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
            "auto",
            frozenset({"weather"}),
        ),
    ],
)
async def test_tool_choice(api: Api, choice: Any, expected: Any, allowed: Any) -> None:
    api.call()
    tools = [TOOL, {"type": "function", "name": "other", "parameters": None, "strict": None}]
    response = await respond(api, "call", tools=tools, tool_choice=choice, parallel_tool_calls=False)
    (conversation,) = api.world.chat.conversations
    assert (conversation.tool_choice, conversation.allowed_tools, conversation.parallel) == (expected, allowed, False)
    assert response.output[0].arguments == '{"city":"Oslo"}' and response.parallel_tool_calls is False


async def test_the_form_of_the_answer(api: Api) -> None:
    schema = {"type": "object", "properties": {}}
    wanted = {"format": {"type": "json_schema", "name": "thing", "schema": schema, "strict": True}}
    response = await respond(api, "{}", text=wanted)
    assert response.output_text == "{}" and response.text.format.name == "thing"
    await respond(api, "{}", text={"format": {"type": "json_object"}})
    given = [(each.format, each.response_schema) for each in api.world.chat.conversations]
    assert given == [("text", schema), ("json", None)]


async def test_what_is_cut_short_is_incomplete(api: Api) -> None:
    response = await respond(api, "half", finish="length", max_output_tokens=1)
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete" and response.output_text == "half"
    events = await stream(api, "half", finish="length")
    assert events[-1].type == "response.incomplete" and events[-1].response.output_text == "half"
    api.call("call", 1)
    events = await stream(api, "half", "call", finish="length", tools=[TOOL])
    # A call of a turn that was cut short is none.
    assert [item.type for item in events[-1].response.output] == ["message"]


async def test_log_probabilities(api: Api) -> None:
    include: Any = ["message.output_text.logprobs"]
    for streamed in (False, True):
        asked = asyncio.create_task(
            api.client.responses.create(model="first", input="hello", include=include, top_logprobs=1, stream=streamed)
        )
        run = await api.run()
        assert run.job.logprobs == 1
        run.events.put_nowait(TextChunk("Hi", 1, (Logprob(b"Hi", -0.25, ((b"Hi", -0.25),)),)))
        run.done()
        answer: Any = await asked
        if streamed:
            events = [event async for event in answer]
            (delta,) = [event for event in events if event.type == "response.output_text.delta"]
            assert [each.token for each in delta.logprobs] == ["Hi"]
            answer = events[-1].response
        (found,) = answer.output[0].content[0].logprobs
        assert (found.token, found.logprob, found.bytes) == ("Hi", -0.25, [72, 105])
        assert found.top_logprobs[0].token == "Hi"


async def test_images(api: Api) -> None:
    image = {"type": "input_image", "image_url": "data:image/jpeg;base64,/9j/", "detail": "auto"}
    asked: Any = [{"role": "user", "content": [image]}]
    with pytest.raises(openai.BadRequestError, match="does not accept images"):
        await api.client.responses.create(model="first", input=asked)
    (message,) = read({"model": "first", "input": asked}).messages
    assert message.content == (ImagePart("image/jpeg", "/9j/"),)


async def test_a_failure_in_the_stream_is_told_as_one(api: Api) -> None:
    asked = asyncio.create_task(api.client.responses.create(model="first", input="hello", stream=True))
    run = await api.run()
    run.say("one")
    events = aiter(await asked)
    while (await anext(events)).type != "response.output_text.delta":
        pass
    run.fail()
    last = await anext(events)
    assert last.type == "response.failed" and last.response.status == "failed"
    assert last.response.error.code == "server_error"


async def test_a_client_that_goes_away_cancels(api: Api) -> None:
    asked = asyncio.create_task(api.client.responses.create(model="first", input="hello", stream=True))
    run = await api.run()
    run.say("one")
    answer = await asked
    await anext(aiter(answer))
    await answer.close()
    await asyncio.wait_for(run.closed.wait(), 10)
    assert run.cancelled


async def test_the_clients_own_helper_reads_the_stream(api: Api) -> None:
    api.call()

    async def ask() -> Any:
        async with api.client.responses.stream(model="first", input="hello", tools=[TOOL]) as events:
            async for _ in events:
                pass
            return await events.get_final_response()

    asked = asyncio.create_task(ask())
    await api.says("call")
    (call,) = (await asked).output
    assert call.parsed_arguments is None or call.parsed_arguments == {"city": "Oslo"}
    assert call.arguments == '{"city":"Oslo"}'
