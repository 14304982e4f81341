"""A loop of tool calls over SmolLM2 by `/llm/complete`: what its turns were is what its prompts begin with."""

from __future__ import annotations

import base64
import json
import time
from array import array
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from server.app import create_app
from server.config import Config, ConnectionConfig, ServerConfig, Source
from server.engine import Done, Engine, Text, Vocab, llama
from server.engine.messages import Job
from server.state import TokenStore
from tests.http.conftest import listening

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOOK = {
    "name": "look",
    "description": "Looks something up.",
    "input_schema": {
        "type": "object",
        "properties": {"what": {"enum": ["tides", "moon"]}},
        "required": ["what"],
        "additionalProperties": False,
    },
}
RULES = "You look things up before you answer. " + " ".join(
    f"Rule {number}: a short answer is better than a long one, and never guess what a tool can tell."
    for number in range(30)
)
DECLARED = {"tool_calling": True, "structured_output": True}


def text(role: str, words: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": words}]}


def result_of(message: dict[str, Any], result: Any = "High at noon.") -> dict[str, Any]:
    calls = [part for part in message["content"] if part["type"] == "tool_call"]
    parts = [{"type": "tool_result", "call_id": call["id"], "result": result, "is_error": False} for call in calls]
    return {"role": "tool", "content": parts}


class House:
    """A server over SmolLM2 that samples greedily, and what its engine was asked."""

    def __init__(self, client: httpx.AsyncClient, runtime: Any, config: ConnectionConfig) -> None:
        self.client, self.runtime, self.config = client, runtime, config
        self.jobs: list[Job] = []

    async def complete(self, *messages: dict[str, Any], status: int = 200, **fields: Any) -> dict[str, Any]:
        body = {"messages": [*messages], "constraints": DECLARED, "diagnostics": True, **fields}
        response = await self.client.post("/llm/complete", json=body)
        assert response.status_code == status, response.text
        return response.json()  # type: ignore[no-any-return]

    def watch(self) -> None:
        engine = self.runtime.connections[0].loaded
        generate = engine.generate

        def watched(job: Job) -> Any:
            self.jobs.append(job)
            return generate(job)

        engine.generate = watched


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: Any, smollm2: Path) -> AsyncIterator[House]:
    connection = ConnectionConfig(
        "smollm2", "SmolLM2", "SmolLM2-135M-Instruct", Source(path=smollm2), context_length=4096, temperature=0
    )
    directory = tmp_path_factory.mktemp("state")
    tokens = TokenStore(directory)
    token = tokens.create("test", consent="always")
    app = create_app(Config(ServerConfig(), (connection,)), tokens=tokens)
    async with (
        listening(app) as port,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            headers={"authorization": f"Bearer {token}"},
            timeout=None,
            verify=False,
        ) as client,
    ):
        made = House(client, app.state.runtime, connection)
        await made.complete(text("user", "Hi"), options={"maxTokens": 1})
        made.watch()
        yield made


def tokens_of(message: dict[str, Any]) -> array[int]:
    return array("i", base64.b64decode(message["continuation"]["payload"])[32:])


async def loop(house: House, rules: str, **fields: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A first round with a call, and its conversation with the result."""
    asked = [text("system", rules), text("user", "When is high tide today? Look it up.")]
    first = await house.complete(*asked, tools=[LOOK], options={"maxTokens": 200}, **fields)
    assert first["finishReason"] == "tool_calls"
    return [*asked, first["message"], result_of(first["message"])], first


async def alone(house: House, job: Job) -> Done:
    """The same job without anything cached: one context that holds the whole conversation."""
    scope = f"alone {time.monotonic_ns()}"
    engine = house.runtime.connections[0].loaded
    async for event in engine.generate(replace(job, id=10**9, scope=scope, deadline=time.monotonic() + 300)):
        if isinstance(event, Done):
            assert event.cache_read_tokens == 0
            return event
        assert isinstance(event, Text), event
    raise AssertionError


async def test_a_loop_of_calls_goes_on_in_the_very_context_of_its_first_turn(house: House, smollm2: Path) -> None:
    house.jobs.clear()
    conversation, first = await loop(house, RULES)
    second = await house.complete(*conversation, tools=[LOOK], options={"maxTokens": 200})
    assert second["diagnostics"]["cache"]["continuations_replayed"] == 1
    usage = second["usage"]
    assert usage["cached_input_tokens"] >= 0.95 * usage["input_tokens"], usage
    before, job = house.jobs
    held = before.tokens + tokens_of(first["message"])
    assert job.tokens[: len(held)] == held
    vocab = Vocab.load(str(smollm2))
    behind = b"".join(map(vocab.piece, job.tokens[len(held) :])).decode()
    assert behind == (
        '<|im_end|>\n<|im_start|>user\n{"tool_results": [{"name": "look", "content": "High at noon."}]}<|im_end|>\n'
        "<|im_start|>assistant\n"
    )
    third = [*conversation, second["message"]]
    third.append(result_of(second["message"]) if second["finishReason"] == "tool_calls" else text("user", "Thanks."))
    last = await house.complete(*third, tools=[LOOK], options={"maxTokens": 200})
    assert last["diagnostics"]["cache"]["continuations_replayed"] == 2
    held = job.tokens + tokens_of(second["message"])
    assert house.jobs[2].tokens[: len(held)] == held
    # What one context that was never left says to the same.
    for answer, asked in ((second, job), (last, house.jobs[2])):
        assert (await alone(house, asked)).tokens == tokens_of(answer["message"])


async def test_without_their_continuation_the_turns_tokens_are_the_templates(house: House) -> None:
    house.jobs.clear()
    conversation, first = await loop(house, "Other rules. " + RULES)
    del conversation[2]["continuation"]
    second = await house.complete(*conversation, tools=[LOOK], options={"maxTokens": 1})
    assert second["diagnostics"]["cache"] == {
        "prompt_tokens": second["usage"]["input_tokens"],
        "cached_tokens": second["usage"]["cached_input_tokens"],
        "continuations_given": 0,
        "continuations_replayed": 0,
    }
    assert second["finishReason"] == "length" and "continuation" not in second["message"]


async def test_a_conversation_in_words_is_one_uninterrupted_context(house: House, smollm2: Path) -> None:
    """Against llama.cpp itself: the first prompt and every token of its answer, then what stands behind, in one go."""
    house.jobs.clear()
    asked = [text("user", "Say hello in one short sentence.")]
    first = await house.complete(*asked, options={"maxTokens": 60})
    assert first["finishReason"] == "stop"
    second = await house.complete(*asked, first["message"], text("user", "Say it again."), options={"maxTokens": 12})
    before, job = house.jobs
    said, again = tokens_of(first["message"]), b"".join
    rest = job.tokens[len(before.tokens) + len(said) :]

    vocab_ = Vocab.load(str(smollm2))
    model = llama.Model(str(smollm2), repack=Engine._repack)
    context = llama.Context(model, cells=512, sequences=1, batch=256, threads=1)
    batch = llama.Batch(256)
    past = 0

    def decode(tokens: array[int]) -> int:
        """The likeliest token behind these."""
        nonlocal past
        count = len(tokens)
        batch.token[:count], batch.position[:count] = tokens, range(past, past + count)
        batch.sequence[:count], batch.output[:count] = 0, 0
        batch.output[count - 1] = 1
        assert context.decode(batch, count) == llama.OK
        past += count
        return int(context.logits(1)[0].argmax())

    next_token = decode(before.tokens)
    for token in said:
        assert next_token == token, (vocab_.piece(next_token), vocab_.piece(token), before.sampling, vocab_.piece(token), b"".join(map(vocab_.piece, before.tokens)), before.pictures, before.scope)
        next_token = decode(array("i", [token]))
    found = [decode(rest)]
    while len(found) < 12 and not model.is_eog(found[-1]):
        found.append(decode(array("i", [found[-1]])))
    vocab = Vocab.load(str(smollm2))
    words = again(vocab.piece(token) for token in found if not model.is_eog(token)).decode()
    assert second["message"]["content"] == [{"type": "text", "text": words}]
    context.close()
    model.close()


async def test_a_continuation_survives_a_json_store(house: House) -> None:
    conversation, _ = await loop(house, "Stored. " + RULES[:200])
    stored = json.loads(json.dumps(conversation, sort_keys=True, indent=3, ensure_ascii=True))
    answer = await house.complete(*stored, tools=[LOOK], options={"maxTokens": 1})
    assert answer["diagnostics"]["cache"]["continuations_replayed"] == 1


async def test_another_key_starts_from_the_visible_message(house: House) -> None:
    conversation, _ = await loop(house, "Elsewhere. " + RULES[:200])
    for change in (
        {"compatibility_key": "0" * 32},
        {"format": "other.v2"},
        {"format": "other.v2", "payload": {"a": 1}},
    ):
        message = {**conversation[2], "continuation": {**conversation[2]["continuation"], **change}}
        changed = [*conversation[:2], message, conversation[3]]
        answer = await house.complete(*changed, tools=[LOOK], options={"maxTokens": 1})
        assert answer["diagnostics"]["cache"]["continuations_given"] == 1
        assert answer["diagnostics"]["cache"]["continuations_replayed"] == 0


async def test_a_changed_one_is_refused(house: House) -> None:
    conversation, _ = await loop(house, "Changed. " + RULES[:200])
    payload = conversation[2]["continuation"]["payload"]
    swapped = bytearray(base64.b64decode(payload))
    swapped[-4] ^= 1
    for other in (base64.b64encode(swapped).decode(), payload[:-8], payload + "AAAA", "", "!", None, 7, [payload]):
        message = {**conversation[2], "continuation": {**conversation[2]["continuation"], "payload": other}}
        answer = await house.complete(*conversation[:2], message, conversation[3], tools=[LOOK], status=400)
        assert answer["error"]["code"] == "invalid-request" and payload[:12] not in json.dumps(answer)
    call = conversation[2]["content"][0]
    for content in ([{**call, "arguments": {"what": "moon"}}], [{"type": "text", "text": "Hm."}, call]):
        moved = {**conversation[2], "content": content}
        answer = await house.complete(*conversation[:2], moved, conversation[3], tools=[LOOK], status=400)
        assert answer["error"]["code"] == "invalid-request"
