"""Loops of tool calls on models that need their reasoning back in them (NAP-LLM, LLM-C17), by their own templates, from
HTTP to the engine's process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.app import create_app
from server.chat import HelperPool, make_parser
from server.config import Config, ModelConfig, ModelSource, ServerConfig
from server.engine import Vocab
from server.engine.types import Segment
from server.runtime import Runtime
from server.state import TokenStore
from tests.http.conftest import listening, site_of

pytestmark = pytest.mark.asyncio

SCHEMA = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}


def text(role: str, words: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": words}]}


def round_of(number: int) -> list[dict[str, Any]]:
    id = f"c{number}"
    thought = {"type": "thinking", "text": "I must look."}
    call = {"type": "toolCall", "toolCallId": id, "name": "look", "arguments": {"what": "tides"}}
    result = {"role": "toolResult", "toolCallId": id, "toolName": "look", "content": text("user", "High.")["content"]}
    return [{"role": "assistant", "content": [thought, call]}, result]


ASK, ANSWER, MORE = text("user", "When is high tide?"), text("assistant", "At noon."), text("user", "And low tide?")
LOOPS = {
    "one round": ([ASK, *round_of(1)], 1),
    "two rounds": ([ASK, *round_of(1), *round_of(2)], 1),
    "behind an answer": ([ASK, *round_of(1), ANSWER, MORE, *round_of(2)], 5),
}
OVER = {
    "no call": [ASK, ANSWER, MORE],
    "answered": [ASK, *round_of(1), ANSWER, MORE],
    "the user has spoken": [ASK, *round_of(1), MORE],
}


class House:
    """Our whole server over SmolLM2 with another family's template, and two shells. On what one of them wants to
    generate the owner decides."""

    def __init__(self, runtime: Runtime, always: httpx.AsyncClient, asking: httpx.AsyncClient) -> None:
        self.runtime, self.always, self.asking = runtime, always, asking

    @property
    def generated(self) -> bool:
        """Whether anything has come to an engine."""
        (connection,) = self.runtime.connections
        return connection.lease.loading or connection.loaded is not None

    async def nap(self, client: httpx.AsyncClient, messages: list[Any], **fields: Any) -> dict[str, Any]:
        async def call(**envelope: Any) -> Any:
            return (await client.post("/nap/llm", json=envelope)).json()

        handle = (await call(type="llm.select", id="s"))["model"]["handle"]
        tools = [{"name": "look", "parameters": SCHEMA}]
        request = {"handle": handle, "messages": messages, "tools": tools, "maxTokens": 1, **fields}
        return await call(type="llm.generate", id="g", request=request)  # type: ignore[no-any-return]

    async def chat(self) -> httpx.Response:
        """A loop as OpenAI's clients send it."""
        function = {"name": "look", "arguments": '{"what": "tides"}'}
        messages = [
            {"role": "user", "content": "When is high tide?"},
            {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "c1", "content": "High."},
        ]
        tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
        body = {"model": "one", "messages": messages, "tools": tools, "max_tokens": 1}
        return await self.always.post("/v1/chat/completions", json=body)


@asynccontextmanager
async def house_of(tmp_path: Path, sdist: Path, smollm2: Path, name: str, **settings: Any) -> AsyncIterator[House]:
    template = (sdist / f"vendor/llama.cpp/models/templates/{name}.jinja").read_text()
    connection = ModelConfig(
        "one", "One", "one", ModelSource(path=smollm2), template=template, context_length=2048, slots=2, **settings
    )
    tokens = TokenStore(tmp_path)
    given = tokens.create("always", consent="always"), tokens.create("asking", consent="ask")
    app = create_app(Config(ServerConfig(), (connection,)), tokens=tokens)
    async with listening(app) as port:

        def client(token: str) -> httpx.AsyncClient:
            headers = {"authorization": f"Bearer {token}"}
            return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60)

        async with client(given[0]) as always, client(given[1]) as asking:
            yield House(app.state.runtime, always, asking)


@pytest.mark.parametrize("name", ["openai-gpt-oss-120b", "Kimi-K2-Thinking", "MiniMax-M2", "Kimi-K3"])
async def test_such_a_loop_is_refused_before_anybody_is_asked(
    tmp_path: Path, sdist: Path, smollm2: Path, name: str
) -> None:
    async with house_of(tmp_path, sdist, smollm2, name) as house:
        for messages, index in LOOPS.values():
            # Were the owner asked about it, this would wait for him.
            for client in (house.always, house.asking):
                told = await house.nap(client, messages)
                assert told["error"]["code"] == "unsupported", told
                message = told["error"]["message"]
                assert message.startswith(f"messages[{index}]: ") and "reasoning" in message
                assert 'reasoning_continuation = "dropped"' in message and "/llm/complete" in message
                assert ("switch thinking off" in message) is (name == "Kimi-K3")
                assert "look." not in message and "tides" not in message
        assert not house.generated


async def test_what_is_over_goes_on_and_so_does_a_model_that_does_not_think(
    tmp_path: Path, sdist: Path, smollm2: Path
) -> None:
    async with house_of(tmp_path / "a", sdist, smollm2, "openai-gpt-oss-120b") as house:
        for messages in OVER.values():
            told = await house.nap(house.always, messages)
            assert told["result"]["usage"]["outputTokens"] == 1, told
    async with house_of(tmp_path / "b", sdist, smollm2, "Kimi-K3", thinking=False) as house:
        told = await house.nap(house.always, LOOPS["one round"][0])
        assert told["result"]["usage"]["outputTokens"] == 1, told


async def test_an_owner_may_let_it_be_dropped_or_require_it_of_all(tmp_path: Path, sdist: Path, smollm2: Path) -> None:
    loop = LOOPS["two rounds"][0]
    dropped = {"reasoning_continuation": "dropped"}
    async with house_of(tmp_path / "a", sdist, smollm2, "openai-gpt-oss-120b", **dropped) as house:
        assert (await house.nap(house.always, loop))["result"]["finish"] == "length"
    required = {"reasoning_continuation": "required"}
    async with house_of(tmp_path / "b", sdist, smollm2, "Qwen-Qwen2.5-7B-Instruct", **required) as house:
        assert (await house.nap(house.always, loop))["error"]["code"] == "unsupported"
        assert (await house.chat()).status_code == 400
        assert not house.generated


async def test_openai_clients_go_on_without(tmp_path: Path, sdist: Path, smollm2: Path) -> None:
    """They repeat their history and cannot mend it."""
    async with house_of(tmp_path, sdist, smollm2, "openai-gpt-oss-120b") as house:
        response = await house.chat()
        assert response.status_code == 200, response.text
        assert response.json()["choices"][0]["finish_reason"] == "length"


CALLED = (
    "<think>The moon pulls.</think><|tool_calls_section_begin|><|tool_call_begin|>functions.look:0"
    '<|tool_call_argument_begin|>{"what": "tides"}<|tool_call_end|><|tool_calls_section_end|>'
)


async def test_complete_carries_it_in_continuations(tmp_path: Path, sdist: Path, smollm2: Path) -> None:
    """Kimi's template and format over an engine that says what its models say. Without the continuation there is no
    way; with another route's a new context begins, as that contract has it."""
    template = (sdist / "vendor/llama.cpp/models/templates/Kimi-K2-Thinking.jinja").read_text()
    connection = ModelConfig("one", "One", "one", ModelSource(path=smollm2), template=template)
    vocab, helpers = Vocab.load(str(smollm2)), HelperPool(size=1)
    said = vocab.tokenize([Segment(CALLED, control=False)], begins=False, follows=True)
    async with site_of(
        tmp_path, connections=(connection,), chat=helpers, helpers=helpers, make_parser=make_parser, file=smollm2
    ) as site:
        runs = site.world.engine.runs

        async def complete(*messages: Any) -> httpx.Response:
            number = len(runs)
            tools = [{"name": "look", "description": "Looks.", "input_schema": SCHEMA}]
            body = {"messages": [*messages], "tools": tools, "constraints": {"tool_calling": True}}
            call = asyncio.create_task(site.client.post("/llm/complete", json=body))
            run = asyncio.create_task(site.world.engine.run(number))
            await asyncio.wait((call, run), return_when=asyncio.FIRST_COMPLETED)
            if run.done():
                run.result().say(CALLED)
                run.result().done(tokens=said)
            run.cancel()
            return await call

        def prompt() -> str:
            return b"".join(map(vocab.piece, runs[-1].job.tokens)).decode()

        message = (await complete(ASK)).json()["message"]
        (call,) = message["content"]
        results = [{"type": "tool_result", "call_id": call["id"], "result": "High.", "is_error": False}]
        result = {"role": "tool", "content": results}
        assert (await complete(ASK, message, result)).status_code == 200
        assert "<think>The moon pulls.</think>" in prompt()

        bare = {key: value for key, value in message.items() if key != "continuation"}
        count = len(runs)
        refused = await complete(ASK, bare, result)
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "unsupported")
        assert refused.json()["error"]["message"].startswith("messages[1]: ") and len(runs) == count

        elsewhere = {**message, "continuation": {**message["continuation"], "compatibility_key": "0" * 32}}
        assert (await complete(ASK, elsewhere, result)).status_code == 200
        assert "The moon pulls." not in prompt() and "High." in prompt()


async def test_a_message_of_complete_is_named_as_it_stands_in_its_request(
    tmp_path: Path, sdist: Path, smollm2: Path
) -> None:
    """A message of several results is one for each on the wire below."""
    async with house_of(tmp_path, sdist, smollm2, "google-gemma-2-2b-it") as house:
        calls = [{"type": "tool_call", "id": id, "name": "look", "arguments": {}} for id in ("a", "b")]
        results = [{"type": "tool_result", "call_id": id, "result": "High.", "is_error": False} for id in ("a", "b")]
        messages = [
            ASK,
            {"role": "assistant", "content": calls},
            {"role": "tool", "content": results},
            ANSWER,
            text("system", "Be brief."),
            MORE,
        ]
        response = await house.always.post("/llm/complete", json={"messages": messages})
        assert response.status_code == 422 and response.json()["error"]["message"].startswith("messages[4]: ")
        assert not house.generated
