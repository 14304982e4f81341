"""The official client, async and sync, against the whole house over SmolLM2."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pytest
import pytest_asyncio
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

from server.app import create_app
from server.config import Config, ModelConfig, ModelSource, ServerConfig
from server.runtime import Runtime
from server.state import TokenStore
from tests.http.conftest import listening

MODEL = "smollm2"
PARAMETERS = {
    "type": "object",
    "properties": {
        "restaurant": {"type": "string", "maxLength": 8},
        "guests": {"type": "integer", "enum": [1, 2, 3, 4]},
    },
    "required": ["restaurant", "guests"],
    "additionalProperties": False,
}
BOOK: Any = {
    "type": "function",
    "function": {"name": "book_table", "description": "Book a table.", "parameters": PARAMETERS, "strict": True},
}
# Whether it is strict or not, it is obeyed.
LOOSE: Any = {"type": "function", "function": {**BOOK["function"], "name": "cancel_table", "strict": False}}
ASK: Any = [{"role": "user", "content": "A table for two, please."}]


class House:
    def __init__(self, client: openai.AsyncOpenAI, runtime: Runtime) -> None:
        self.client, self.runtime = client, runtime

    async def chat(self, words: str = "What is the capital of France?", **fields: Any) -> Any:
        settings = {"temperature": 0, "max_completion_tokens": 24, **fields}
        settings.setdefault("messages", [{"role": "user", "content": words}])
        return await self.client.chat.completions.create(model=MODEL, **settings)

    async def call(self, **fields: Any) -> Any:
        """The only call of a turn about tables."""
        settings = {"messages": ASK, "tools": [BOOK, LOOSE], "parallel_tool_calls": False, "temperature": 0.7, **fields}
        choice = (await self.chat(max_completion_tokens=200, **settings)).choices[0]
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
        return call


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> AsyncIterator[House]:
    connection = ModelConfig(
        MODEL, "SmolLM2", "SmolLM2-135M-Instruct", ModelSource(path=smollm2), context_length=2048, threads=1
    )
    tokens = TokenStore(tmp_path_factory.mktemp("state"))
    token = tokens.create("test", consent="always")
    app = create_app(Config(ServerConfig(), (connection,)), tokens=tokens)
    async with (
        listening(app) as port,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=token, max_retries=0) as client,
    ):
        yield House(client, app.state.runtime)


pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


async def test_models(house: House) -> None:
    assert [model.id for model in (await house.client.models.list()).data] == [MODEL]


async def test_text(house: House) -> None:
    completion = await house.chat()
    assert completion.choices[0].message.content.strip()
    assert 0 < completion.usage.completion_tokens <= 24 and completion.usage.prompt_tokens > 10


async def test_text_in_a_stream(house: House) -> None:
    chunks = [chunk async for chunk in await house.chat(stream=True, stream_options={"include_usage": True})]
    said = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len(said) > 5 and chunks[-1].usage.completion_tokens <= 24
    assert chunks[-2].choices[0].finish_reason in ("stop", "length")


async def test_a_seed_repeats(house: House) -> None:
    one, two, other = [
        (await house.chat(temperature=1, seed=seed, max_completion_tokens=12)).choices[0].message.content
        for seed in (7, 7, 8)
    ]
    assert one == two != other


async def test_a_second_turn_reads_the_first_from_cache(house: House) -> None:
    history: list[Any] = [{"role": "user", "content": "Tell me about rivers. " * 8}]
    first = await house.chat(messages=history)
    history += [first.choices[0].message.model_dump(), {"role": "user", "content": "And lakes?"}]
    second = await house.chat(messages=history, max_completion_tokens=4)
    assert second.usage.prompt_tokens_details.cached_tokens > 0.8 * first.usage.prompt_tokens


@pytest.mark.parametrize("stop", [" ", "e", ["zzz", "a"]])
async def test_a_stop_sequence(house: House, stop: Any) -> None:
    choice = (await house.chat("Tell me about the sea.", stop=stop, max_completion_tokens=60)).choices[0]
    assert choice.finish_reason == "stop"
    assert not any(each in choice.message.content for each in stop)
    chunks = [chunk async for chunk in await house.chat("Tell me about the sea.", stop=stop, stream=True)]
    assert not any(each in (chunk.choices[0].delta.content or "") for chunk in chunks for each in stop)
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_log_probabilities(house: House) -> None:
    choice = (await house.chat(logprobs=True, top_logprobs=2)).choices[0]
    tokens = choice.logprobs.content
    assert b"".join(bytes(each.bytes) for each in tokens).decode().strip() == choice.message.content.strip()
    for each in tokens:
        assert each.logprob <= 0 and len(each.top_logprobs) == 2
        assert each.token == each.top_logprobs[0].token  # greedy


async def test_log_probabilities_under_a_grammar(house: House) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {**schema, "additionalProperties": False}}}
    choice = (await house.chat(response_format=wanted, logprobs=True, top_logprobs=1)).choices[0]
    tokens = choice.logprobs.content
    assert b"".join(bytes(each.bytes) for each in tokens).decode() == choice.message.content
    # Most of it stands there whatever the model thinks; which city is its own choice, by its own probabilities.
    certain = [each for each in tokens if each.logprob == 0]
    assert len(certain) > len(tokens) / 2 and len(certain) < len(tokens)
    tools = {"tools": [BOOK], "tool_choice": "auto", "max_completion_tokens": 60}
    choice = (await house.chat("Say hello.", logprobs=True, **tools)).choices[0]
    # Whether it calls or answers, in whatever notation: text has its tokens, calls have none.
    assert bool(choice.message.content) == bool(choice.logprobs.content)


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"book_table", "cancel_table"}),
        ({"type": "function", "function": {"name": "cancel_table"}}, {"cancel_table"}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "cancel_table"}}],
                },
            },
            {"cancel_table"},
        ),
    ],
)
async def test_forced_calls_follow_their_schema(house: House, choice: Any, names: set[str]) -> None:
    assert (await house.call(tool_choice=choice)).function.name in names


async def test_a_call_in_a_stream(house: House) -> None:
    chunks = await house.chat(
        messages=ASK,
        tools=[BOOK],
        tool_choice="required",
        parallel_tool_calls=False,
        stream=True,
        max_completion_tokens=200,
    )
    arguments, finish = "", None
    async for chunk in chunks:
        for call in chunk.choices[0].delta.tool_calls or []:
            assert call.index == 0
            arguments += call.function.arguments
        finish = chunk.choices[0].finish_reason
    assert finish == "tool_calls"
    jsonschema.validate(json.loads(arguments), PARAMETERS)


@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_the_model_may_answer_itself(house: House, choice: str) -> None:
    choice_made = (await house.chat(messages=ASK, tools=[BOOK], tool_choice=choice, max_completion_tokens=120)).choices[
        0
    ]
    for call in choice_made.message.tool_calls or []:
        assert choice == "auto"
        jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
    assert choice_made.message.tool_calls or isinstance(choice_made.message.content, str)


async def test_a_tool_round_trip(house: House) -> None:
    call = await house.call(tool_choice="required")
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "booked"},
    ]
    answer = await house.chat(messages=messages, tools=[BOOK, LOOSE], tool_choice="none")
    assert isinstance(answer.choices[0].message.content, str) and answer.choices[0].message.tool_calls is None


class Person(BaseModel):
    name: str
    age: int


async def test_an_answer_with_a_schema(house: House) -> None:
    # The client's own helper makes the schema of a class, and reads the answer into it.
    completion = await house.client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Ann is 32 years old. Who is she?"}],
        response_format=Person,
        temperature=0,
        max_completion_tokens=120,
    )
    assert isinstance(completion.choices[0].message.parsed, Person)


async def test_an_answer_that_is_no_object(house: House) -> None:
    schema = {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 2, "maxItems": 3}
    wanted = {"type": "json_schema", "json_schema": {"name": "colours", "schema": schema}}
    chunks = [chunk async for chunk in await house.chat("Colours?", response_format=wanted, stream=True)]
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    jsonschema.validate(json.loads(said), schema)
    completion = await house.chat("An object.", response_format={"type": "json_object"}, max_completion_tokens=200)
    if completion.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(completion.choices[0].message.content), dict)


async def test_responses(house: House) -> None:
    asked: dict[str, Any] = {"model": MODEL, "input": "What is the capital of France?", "store": False}
    response = await house.client.responses.create(temperature=0, max_output_tokens=16, **asked)
    assert response.output_text.strip() and response.usage and response.usage.output_tokens <= 16
    tool = {"type": "function", **BOOK["function"]}
    settings: dict[str, Any] = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    events = [event async for event in await house.client.responses.create(stream=True, **asked, **settings)]
    final = events[-1].response
    assert events[-1].type == "response.completed"
    (call,) = final.output
    jsonschema.validate(json.loads(call.arguments), PARAMETERS)
    history: list[Any] = [
        {"role": "user", "content": "A table, please."},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "booked"},
    ]
    answer = await house.client.responses.create(
        model=MODEL, input=history, tools=settings["tools"], tool_choice="none", max_output_tokens=12
    )
    assert answer.output[0].type == "message"
    parsed = await house.client.responses.parse(
        model=MODEL, input="Ann is 32 years old. Who is she?", text_format=Person, max_output_tokens=120, temperature=0
    )
    assert isinstance(parsed.output_parsed, Person)


async def test_a_client_that_goes_away_frees_the_engine(house: House) -> None:
    engine = house.runtime.connections[0].loaded
    assert engine is not None
    answer = await house.chat("Tell me a very long story.", stream=True, max_completion_tokens=1500, temperature=1)
    async for chunk in answer:
        if chunk.choices[0].delta.content:
            break
    assert engine.stats().active == 1
    version = house.runtime.changes.version
    await answer.close()
    async with asyncio.timeout(20):
        while [*house.runtime.live()]:
            await house.runtime.changes.since(version)
            version = house.runtime.changes.version
        # The worker says so at its next step.
        while engine.stats().active:
            await house.chat(max_completion_tokens=1)


async def test_a_prompt_that_does_not_fit(house: House) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await house.chat("word " * 3000)
    assert raised.value.code == "context_length_exceeded"


async def test_a_schema_that_cannot_be_kept(house: House) -> None:
    broken = {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}
    tool = {"type": "function", "function": {"name": "broken", "parameters": broken}}
    with pytest.raises(openai.BadRequestError, match="tool broken"):
        await house.chat(tools=[tool])
    for choice in ("none", {"type": "function", "function": {"name": "book_table"}}):
        with pytest.raises(openai.BadRequestError, match="tool broken"):
            await house.chat(tools=[BOOK, tool], tool_choice=choice)
    wanted = {"type": "json_schema", "json_schema": {"name": "broken", "schema": broken}}
    with pytest.raises(openai.BadRequestError, match="answer's schema"):
        await house.chat(response_format=wanted)


async def test_the_sync_client(house: House) -> None:
    def ask() -> tuple[str, str, Any]:
        with openai.OpenAI(base_url=str(house.client.base_url), api_key=house.client.api_key) as client:
            asked: dict[str, Any] = {"model": MODEL, "messages": ASK, "max_tokens": 12, "temperature": 0}
            whole = client.chat.completions.create(**asked).choices[0].message.content or ""
            pieces = [
                chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(stream=True, **asked)
            ]
            return whole, "".join(pieces), client.responses.create(model=MODEL, input="Hi", max_output_tokens=8)

    whole, pieces, response = await asyncio.to_thread(ask)
    assert whole.strip() and pieces.strip() and response.output_text


@tool
def book_table(restaurant: Literal["Roma", "Oslo"], guests: Literal[1, 2, 3]) -> str:
    """Book a table."""
    return f"booked {restaurant} for {guests}"


async def test_langchain_does_a_round_trip(house: House) -> None:
    settings: dict[str, Any] = {"base_url": str(house.client.base_url), "api_key": house.client.api_key}
    model = ChatOpenAI(model=MODEL, max_completion_tokens=60, temperature=0, **settings)
    messages: list[Any] = [HumanMessage("A table for two, please.")]
    answer = await model.bind_tools([book_table], tool_choice="book_table").ainvoke(messages)
    (call,) = answer.tool_calls
    messages += [answer, ToolMessage(book_table.invoke(call["args"]), tool_call_id=call["id"])]
    assert (await model.ainvoke(messages)).text


async def test_pydantic_ai_does_a_round_trip(house: House) -> None:
    called: list[str] = []
    agent = Agent(
        OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=house.client)),
        output_type=ToolOutput(Person, name="answer"),
        model_settings={"temperature": 0, "max_tokens": 200, "parallel_tool_calls": False},
    )

    async def once(_: RunContext[None], given: ToolDefinition) -> ToolDefinition | None:
        return None if called else given

    @agent.tool_plain(prepare=once)
    def look_up(name: Literal["Ann"]) -> str:
        """How old a person is."""
        called.append(name)
        return f"{name} is 32 years old."

    # Every answer is a call, of the tool or of the answer itself: the grammar leaves nothing else.
    result = await agent.run("How old is Ann?")
    assert isinstance(result.output, Person) and set(called) <= {"Ann"}
