"""`POST /v1/chat/completions` as the official client sees it, over a scripted engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from server.chat import Capabilities
from server.engine.types import Finished, Logprob, StopCriteria, TextChunk
from server.wire.records import ImagePart, Message, NamedTool, TextPart, ThinkingPart, ToolCallPart, WireError
from tests.http.openai.conftest import HELLO, WEATHER, Api, api_of
from tests.runtime.doubles import ALL_MODES

PIXEL = "data:image/png;base64,iVBORw0KGgo="


async def complete(api: Api, *texts: str, finish: str = "stop", **fields: Any) -> Any:
    """One completion whose model says these texts."""
    asked = asyncio.create_task(api.client.chat.completions.create(model="first", **{"messages": HELLO, **fields}))
    await api.says(*texts, finish=finish)
    return await asked


async def stream(api: Api, *texts: str, finish: str = "stop", **fields: Any) -> list[Any]:
    asked = asyncio.create_task(
        api.client.chat.completions.create(model="first", stream=True, **{"messages": HELLO, **fields})
    )
    await api.says(*texts, finish=finish)
    return [chunk async for chunk in await asked]


async def test_a_completion(api: Api) -> None:
    completion = await complete(api, "Hi", " there")
    assert completion.id.startswith("chatcmpl-") and completion.object == "chat.completion"
    assert completion.model == "first" and completion.created > 1_700_000_000
    (choice,) = completion.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert (choice.message.role, choice.message.content) == ("assistant", "Hi there")
    assert choice.message.tool_calls is None and choice.message.refusal is None
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 2, 7)
    assert usage.prompt_tokens_details.cached_tokens == 0
    assert not [*api.world.runtime.live()]


async def test_a_stream(api: Api) -> None:
    chunks = await stream(api, "Hi", " there", stream_options={"include_usage": True})
    assert len({chunk.id for chunk in chunks}) == 1 and {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    *talk, last, usage = chunks
    assert talk[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content for chunk in talk) == "Hi there"
    assert [chunk.choices[0].finish_reason for chunk in talk] == [None] * len(talk)
    assert last.choices[0].finish_reason == "stop" and last.choices[0].delta.content is None
    assert all(chunk.usage is None for chunk in [*talk, last])
    assert usage.choices == [] and usage.usage.total_tokens == 7
    # Nobody who did not ask is told.
    assert all(chunk.usage is None for chunk in await stream(api, "Hi"))


async def test_text_comes_while_it_is_written(api: Api) -> None:
    asked = asyncio.create_task(api.client.chat.completions.create(model="first", messages=HELLO, stream=True))
    run = await api.run()
    run.say("one")
    chunks = aiter(await asked)
    assert (await anext(chunks)).choices[0].delta.content == ""
    assert (await anext(chunks)).choices[0].delta.content == "one"
    run.say("two")
    assert (await anext(chunks)).choices[0].delta.content == "two"
    run.done()
    assert (await anext(chunks)).choices[0].finish_reason == "stop"


async def test_tool_calls(api: Api) -> None:
    api.call("first call", 0)
    api.call("second call", 1, "Rome")
    completion = await complete(api, "first call", "second call", tools=[WEATHER])
    (choice,) = completion.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    one, two = choice.message.tool_calls
    assert one.id.startswith("call_") and one.id != two.id and one.type == "function"
    assert (one.function.name, one.function.arguments) == ("weather", '{"city":"Oslo"}')
    assert two.function.arguments == '{"city":"Rome"}'
    (conversation,) = api.world.chat.conversations
    assert conversation.tool_choice == "auto" and conversation.parallel and conversation.allowed_tools is None
    assert conversation.tools[0].description == "The weather of a city"
    assert conversation.tools[0].parameters == WEATHER["function"]["parameters"]


async def test_tool_calls_in_a_stream(api: Api) -> None:
    api.block("say", "text", 0, "Well.")
    api.call("first call", 1)
    api.call("second call", 2, "Rome")
    chunks = await stream(api, "say", "first call", "second call", tools=[WEATHER])
    deltas = [chunk.choices[0].delta for chunk in chunks]
    calls: dict[int, list[Any]] = {}
    for delta in deltas:
        for call in delta.tool_calls or []:
            calls.setdefault(call.index, []).append(call)
    assert [*calls] == [0, 1]
    for index, city in ((0, "Oslo"), (1, "Rome")):
        head, *rest = calls[index]
        assert head.id.startswith("call_") and head.type == "function" and head.function.name == "weather"
        assert all(each.id is None and each.function.name is None for each in rest)
        assert "".join(each.function.arguments for each in calls[index]) == f'{{"city":"{city}"}}'
    assert "".join(delta.content or "" for delta in deltas) == "Well."
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("choice", "expected", "allowed"),
    [
        ("auto", "auto", None),
        ("none", "none", None),
        ("required", "required", None),
        ({"type": "function", "function": {"name": "weather"}}, NamedTool("weather"), None),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "weather"}}],
                },
            },
            "required",
            frozenset({"weather"}),
        ),
    ],
)
async def test_tool_choice(api: Api, choice: Any, expected: Any, allowed: Any) -> None:
    api.call()
    other = {"type": "function", "function": {"name": "other"}}
    await complete(
        api,
        "text" if choice in ("none", "auto") else "call",
        tools=[WEATHER, other],
        tool_choice=choice,
        parallel_tool_calls=False,
    )
    (conversation,) = api.world.chat.conversations
    assert (conversation.tool_choice, conversation.allowed_tools, conversation.parallel) == (expected, allowed, False)
    # Without parameters a function takes none.
    assert conversation.tools[1].parameters["additionalProperties"] is False


async def test_an_earlier_turn_comes_back_as_it_was_given(api: Api) -> None:
    api.block("think", "thinking", 0, "hmm")
    api.call("call", 1)
    first = await complete(api, "think", "call", tools=[WEATHER])
    message = first.choices[0].message
    assert message.reasoning_content == "hmm"
    history = [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": [{"type": "text", "text": "very"}]},
        *HELLO,
        message.model_dump(),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"},
    ]
    second = await complete(api, "wet", messages=history, tools=[WEATHER])
    assert second.choices[0].message.content == "wet"
    call_id = message.tool_calls[0].id
    assert api.world.chat.conversations[1].messages == (
        Message("system", (TextPart("be brief"),)),
        Message("system", (TextPart("very"),)),
        Message("user", (TextPart("hello"),)),
        Message("assistant", (ThinkingPart("hmm"), ToolCallPart(call_id, "weather", {"city": "Oslo"}))),
        Message("toolResult", (TextPart("rain"),), tool_call_id=call_id, tool_name="weather"),
    )


async def test_thinking_is_its_own_field(api: Api) -> None:
    api.block("think", "thinking", 0, "hm", "m")
    api.block("say", "text", 1, "Yes.")
    completion = await complete(api, "think", "say")
    assert completion.choices[0].message.content == "Yes."
    assert completion.choices[0].message.reasoning_content == "hmm"
    deltas = [chunk.choices[0].delta for chunk in await stream(api, "think", "say")]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "hmm"
    assert "".join(delta.content or "" for delta in deltas) == "Yes."
    assert completion.usage.completion_tokens_details.reasoning_tokens >= 0


async def test_what_is_cut_short_says_so_and_calls_nothing(api: Api) -> None:
    completion = await complete(api, "half", finish="length", max_completion_tokens=7)
    assert (completion.choices[0].message.content, completion.choices[0].finish_reason) == ("half", "length")
    assert api.world.engine.runs[0].job.max_tokens == 7
    api.call()
    completion = await complete(api, "call", finish="length", tools=[WEATHER], max_tokens=3)
    assert completion.choices[0].message.tool_calls is None
    assert completion.choices[0].finish_reason == "length" and completion.choices[0].message.content == ""
    assert (await stream(api, "call", finish="length", tools=[WEATHER]))[-1].choices[0].finish_reason == "length"


async def test_json_answers(api: Api) -> None:
    await complete(api, "{}", response_format={"type": "json_object"})
    schema = {"type": "array", "items": {"type": "integer"}}
    wanted = {"type": "json_schema", "json_schema": {"name": "numbers", "strict": True, "schema": schema}}
    completion = await complete(api, "[1,", "2]", response_format=wanted)
    assert completion.choices[0].message.content == "[1,2]"
    await complete(api, "plain", response_format={"type": "text"})
    given = [(each.format, each.response_schema) for each in api.world.chat.conversations]
    assert given == [("json", None), ("text", schema), ("text", None)]


async def test_an_answer_that_violates_its_schema_is_an_error(api: Api) -> None:
    api.world.chat.checked_answer = True
    api.world.chat.invalid = WireError("provider-error", "the answer violates its schema: /0: uniqueItems")
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"uniqueItems": True}}}
    with pytest.raises(openai.InternalServerError, match="uniqueItems"):
        await complete(api, "[1, 1]", response_format=wanted)
    with pytest.raises(openai.APIError, match="uniqueItems"):
        await stream(api, "[1, 1]", response_format=wanted)


async def test_sampling_reaches_the_engine(api: Api) -> None:
    extra = {"top_k": 5, "min_p": 0.1, "repeat_penalty": 1.2}
    await complete(api, "x", temperature=0.5, top_p=0.9, seed=-7, stop=["a", "b"], extra_body=extra)
    job = api.world.engine.runs[0].job
    assert job.sampling.temperature == 0.5 and job.sampling.top_p == 0.9 and job.sampling.seed == -7
    assert (job.sampling.top_k, job.sampling.min_p, job.sampling.repeat_penalty) == (5, 0.1, 1.2)
    assert job.stop == StopCriteria(("a", "b"))
    await complete(api, "x", stop="end")
    job = api.world.engine.runs[1].job
    assert job.stop == StopCriteria(("end",)) and job.sampling.seed is None


async def test_a_stop_sequence_is_a_finish_of_its_own(api: Api) -> None:
    asked = asyncio.create_task(api.client.chat.completions.create(model="first", messages=HELLO, stop="x"))
    run = await api.run()
    run.say("cut")
    run.events.put_nowait(Finished("stop", 5, 2, 0, stopped=True))
    completion = await asked
    assert (completion.choices[0].message.content, completion.choices[0].finish_reason) == ("cut", "stop")
    assert completion.usage and completion.usage.completion_tokens == 2


TOP = ((b"Hi", -0.25), (b"\xf0\x9f", -2.0))


@pytest.mark.parametrize("top", [None, 2])
async def test_log_probabilities(api: Api, top: int | None) -> None:
    fields: dict[str, Any] = {"logprobs": True} if top is None else {"logprobs": True, "top_logprobs": top}
    for streamed in (False, True):
        asked = asyncio.create_task(
            api.client.chat.completions.create(model="first", messages=HELLO, stream=streamed, **fields)
        )
        run = await api.run()
        assert run.job.logprobs == (top or 0)
        run.events.put_nowait(TextChunk("Hi", 1, (Logprob(b"Hi", -0.25, TOP),)))
        run.events.put_nowait(TextChunk(" é", 2, (Logprob(b" \xc3", -0.5, ()), Logprob(b"\xa9", -0.0, ()))))
        run.done()
        answer: Any = await asked
        choices = [chunk.choices[0] async for chunk in answer] if streamed else answer.choices
        found = [each for choice in choices if choice.logprobs for each in choice.logprobs.content]
        assert [(each.token, each.logprob, each.bytes) for each in found] == [
            ("Hi", -0.25, [72, 105]),
            (" \ufffd", -0.5, [32, 0xC3]),
            ("\ufffd", 0.0, [0xA9]),
        ]
        assert [(each.token, each.bytes) for each in found[0].top_logprobs] == [
            ("Hi", [72, 105]),
            ("\ufffd", [0xF0, 0x9F]),
        ]


async def test_without_the_question_no_log_probabilities(api: Api) -> None:
    completion = await complete(api, "x", logprobs=False)
    assert completion.choices[0].logprobs is None and api.world.engine.runs[0].job.logprobs is None


async def test_images_are_carried_where_the_connection_takes_them(api: Api) -> None:
    part = {"type": "image_url", "image_url": {"url": PIXEL, "detail": "auto"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "what?"}, part]}]
    with pytest.raises(openai.BadRequestError, match="does not accept images"):
        await api.client.chat.completions.create(model="first", messages=messages)  # type: ignore[arg-type]
    api.world.runtime.connections[0].expire()
    api.world.chat.capabilities = Capabilities(images=True, json=True, tools=True, tool_choice_modes=ALL_MODES)
    await complete(api, "a pixel", messages=messages)
    assert api.world.chat.conversations[0].messages[0].content == (
        TextPart("what?"),
        ImagePart("image/png", "iVBORw0KGgo="),
    )


async def test_a_client_that_goes_away_cancels(api: Api) -> None:
    for streamed in (False, True):
        asked = asyncio.create_task(api.client.chat.completions.create(model="first", messages=HELLO, stream=streamed))
        run = await api.run()
        run.say("one")
        if streamed:
            answer: Any = await asked
            await anext(aiter(answer))
            await answer.close()
        else:
            asked.cancel()
        await asyncio.wait_for(run.closed.wait(), 10)
        assert run.cancelled
    assert not [*api.world.runtime.live()]


async def test_a_client_that_goes_away_before_its_stream_begins_cancels(api: Api) -> None:
    asked = asyncio.create_task(api.client.chat.completions.create(model="first", messages=HELLO, stream=True))
    run = await api.run()
    asked.cancel()
    await asyncio.wait_for(run.closed.wait(), 10)
    assert run.cancelled


async def test_models(api: Api) -> None:
    (model,) = (await api.client.models.list()).data
    assert (model.id, model.object, model.owned_by) == ("first", "model", "nap-llm")
    assert (await api.client.models.retrieve("first")).id == "first"
    # By the name of the model too, as `select` has it.
    assert (await api.client.models.retrieve("first-1")).id == "first"
    with pytest.raises(openai.NotFoundError):
        await api.client.models.retrieve("a/b")
    api.world.runtime.disable(api.world.runtime.connections[0])
    assert (await api.client.models.list()).data == []
    with pytest.raises(openai.NotFoundError) as raised:
        await api.client.chat.completions.create(model="first", messages=HELLO)
    assert raised.value.code == "model_not_found" and raised.value.param == "model"


async def test_the_model_answers_by_either_name(api: Api) -> None:
    asked = asyncio.create_task(api.client.chat.completions.create(model="first-1", messages=HELLO))
    await api.says("x")
    assert (await asked).model == "first-1"


async def test_the_sync_client(tmp_path: Path) -> None:
    async with api_of(tmp_path) as api:

        def ask() -> list[str]:
            client = openai.OpenAI(base_url=str(api.client.base_url), api_key=api.client.api_key, max_retries=0)
            with client:
                whole = client.chat.completions.create(model="first", messages=HELLO)
                pieces = client.chat.completions.create(model="first", messages=HELLO, stream=True)
                return [str(whole.choices[0].message.content)] + [
                    chunk.choices[0].delta.content or "" for chunk in pieces
                ]

        asked = asyncio.create_task(asyncio.to_thread(ask))
        await api.says("whole")
        await api.says("in ", "pieces")
        assert "".join(await asked) == "wholein pieces"
