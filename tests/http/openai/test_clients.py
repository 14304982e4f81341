"""Other people's clients of the OpenAI API: each does a round trip of a tool, over a scripted engine."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from server.wire.records import Message, NamedTool, TextPart, ToolCallPart
from tests.http.openai.conftest import Api

QUESTION = "How is the weather in Oslo?"


def told(api: Api) -> tuple[Message, Message]:
    """The last two messages of the second generation: the call, and what the tool gave."""
    *_, call, given = api.world.chat.conversations[-1].messages
    return call, given


def check_round_trip(api: Api) -> None:
    call, given = told(api)
    (part,) = [part for part in call.content if isinstance(part, ToolCallPart)]
    assert (part.name, part.arguments) == ("weather", {"city": "Oslo"})
    assert given.tool_call_id == part.tool_call_id and given.tool_name == "weather"
    assert given.content == (TextPart("rain in Oslo"),)
    (offered,) = api.world.chat.conversations[0].tools
    assert offered.name == "weather" and offered.parameters["properties"]["city"]["type"] == "string"


# --- pydantic-ai


class City(BaseModel):
    name: str
    people: int


@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
@pytest.mark.parametrize("streamed", [False, True])
async def test_pydantic_ai(api: Api, kind: Any, streamed: bool) -> None:
    agent = Agent(kind("first", provider=OpenAIProvider(openai_client=api.client)), instructions="Be brief.")

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"rain in {city}"

    async def ask() -> str:
        if not streamed:
            return str((await agent.run(QUESTION)).output)
        async with agent.run_stream(QUESTION) as run:
            return "".join([piece async for piece in run.stream_text(delta=True)])

    api.call()
    task = asyncio.create_task(ask())
    await api.says("call")
    await api.says("Take an ", "umbrella.")
    assert await task == "Take an umbrella."
    check_round_trip(api)


async def test_pydantic_ai_with_a_type(api: Api) -> None:
    agent = Agent(
        OpenAIChatModel("first", provider=OpenAIProvider(openai_client=api.client)), output_type=NativeOutput(City)
    )
    task = asyncio.create_task(agent.run("Oslo?"))
    await api.says('{"name": "Oslo", "people": 700000}')
    assert (await task).output == City(name="Oslo", people=700000)
    schema = api.world.chat.conversations[0].response_schema
    assert isinstance(schema, dict) and set(schema["properties"]) == {"name", "people"}


# --- LangChain


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def langchain(api: Api, **fields: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model="first", base_url=str(api.client.base_url), api_key=api.client.api_key, max_retries=0, **fields
    )


@pytest.mark.parametrize("responses", [False, True])
async def test_langchain(api: Api, responses: bool) -> None:
    model = langchain(api, use_responses_api=responses)
    api.call()
    messages: list[Any] = [HumanMessage(QUESTION)]
    task = asyncio.create_task(model.bind_tools([weather], tool_choice="weather").ainvoke(messages))
    await api.says("call")
    answer = await task
    assert api.world.chat.conversations[0].tool_choice == NamedTool("weather")
    (call,) = answer.tool_calls
    messages += [answer, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])]
    task = asyncio.create_task(model.bind_tools([weather]).ainvoke(messages))
    await api.says("Take an umbrella.")
    assert (await task).text == "Take an umbrella."
    check_round_trip(api)


async def test_langchain_streams_and_structures(api: Api) -> None:
    async def stream() -> list[Any]:
        return [chunk async for chunk in langchain(api, stream_usage=True).astream(QUESTION, stop=["END"])]

    task = asyncio.create_task(stream())
    await api.says("Take an ", "umbrella.")
    chunks = await task
    assert "".join(chunk.text for chunk in chunks) == "Take an umbrella."
    assert any(chunk.usage_metadata for chunk in chunks)
    assert api.world.chat.conversations[0].stop == ("END",)
    structured = asyncio.create_task(langchain(api).with_structured_output(City).ainvoke("Oslo?"))
    await api.says('{"name": "Oslo", "people": 700000}')
    assert await structured == City(name="Oslo", people=700000)


# --- the `llm` command line


async def llm(api: Api, directory: Path, *arguments: str) -> asyncio.subprocess.Process:
    """`llm` with an endpoint configured as its documentation says."""
    (directory / "extra-openai-models.yaml").write_text(
        f"""
- model_id: local
  model_name: first
  api_base: "{api.client.base_url}"
  api_key_name: local
  supports_tools: true
  supports_schema: true
"""
    )
    environment = {**os.environ, "LLM_USER_PATH": str(directory)}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "llm", "-m", "local", "--key", api.client.api_key, *arguments),
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def printed(process: asyncio.subprocess.Process) -> str:
    out, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, errors.decode()
    return out.decode()


FUNCTION = '''
def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"
'''


@pytest.mark.slow
async def test_the_llm_command_line(api: Api, tmp_path: Path) -> None:
    directory = tmp_path / "llm"
    directory.mkdir()
    api.call()
    process = await llm(api, directory, "--functions", FUNCTION, "-s", "Be brief.", QUESTION)
    await api.says("call")
    await api.says("Take an umbrella.")
    assert "Take an umbrella." in await printed(process)
    check_round_trip(api)
    process = await llm(api, directory, "--schema", "name, people int", "-o", "temperature", "0.5", "Oslo?")
    await api.says('{"name": "Oslo", "people": 700000}')
    assert '"people": 700000' in await printed(process)
    assert isinstance(api.world.chat.conversations[-1].response_schema, dict)
    assert api.world.engine.runs[-1].job.sampling.temperature == 0.5


async def test_the_official_client_runs_its_tools_in_a_loop(api: Api) -> None:
    """As its documentation shows it, in a few lines."""
    function: Any = openai.pydantic_function_tool(City, name="weather")
    api.block("call", "toolCall", 0, '{"name": "Oslo", "people": 1}', name="weather")
    completing = asyncio.create_task(
        api.client.chat.completions.parse(
            model="first", messages=[{"role": "user", "content": QUESTION}], tools=[function]
        )
    )
    await api.says("call")
    message = (await completing).choices[0].message
    assert message.tool_calls and message.tool_calls[0].function.parsed_arguments == City(name="Oslo", people=1)
