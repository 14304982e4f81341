"""A loop of tool calls over SmolLM2 by `/llm/complete`: what its turns were is what its prompts begin with."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from server.chat import HelperPool, make_parser
from server.config import ModelConfig, ModelSource
from server.engine import Finished, TextChunk, Vocab, llama
from server.engine.process import WorkerProcess
from server.engine.types import EngineRequest, Event, Segment
from tests.chat.standin import write_model
from tests.http.conftest import serving, site_of

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

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

    def __init__(self, client: httpx.AsyncClient, runtime: Any) -> None:
        self.client, self.runtime = client, runtime
        self.jobs: list[EngineRequest] = []
        self.ends: list[Finished] = []

    async def complete(self, *messages: dict[str, Any], status: int = 200, **fields: Any) -> dict[str, Any]:
        body = {"messages": [*messages], "constraints": DECLARED, "diagnostics": True, **fields}
        response = await self.client.post("/llm/complete", json=body)
        assert response.status_code == status, response.text
        return response.json()  # type: ignore[no-any-return]

    def watch(self) -> None:
        engine = self.runtime.connections[0].loaded
        generate = engine.generate

        async def watched(job: EngineRequest) -> AsyncIterator[Event]:
            self.jobs.append(job)
            async with aclosing(generate(job)) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        self.ends.append(event)
                    yield event

        engine.generate = watched


@asynccontextmanager
async def house_of(directory: Path, model: Path, **settings: Any) -> AsyncIterator[House]:
    connection = ModelConfig(
        "one", "One", "one", ModelSource(path=model), context_length=4096, slots=4, temperature=0, **settings
    )
    async with serving(directory, connection) as (client, runtime):
        house = House(client, runtime)
        await house.complete(text("user", "Hi"), options={"maxTokens": 1})
        house.watch()
        yield house


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> AsyncIterator[House]:
    async with house_of(tmp_path_factory.mktemp("state"), smollm2) as made:
        yield made


def tokens_of(message: dict[str, Any]) -> array[int]:
    return array("i", base64.b64decode(message["continuation"]["payload"])[32:])


async def loop(house: House, rules: str, **fields: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A first round with a call, and its conversation with the result."""
    asked = [text("system", rules), text("user", "When is high tide today? Look it up.")]
    first = await house.complete(*asked, tools=[LOOK], options={"maxTokens": 200}, **fields)
    assert first["finishReason"] == "tool_calls"
    return [*asked, first["message"], result_of(first["message"])], first


async def alone(house: House, job: EngineRequest) -> Finished:
    """The same job without anything cached: one context that holds the whole conversation."""
    scope = f"alone {time.monotonic_ns()}"
    engine = house.runtime.connections[0].loaded
    async for event in engine.generate(replace(job, id=10**9, cache_salt=scope, deadline=time.monotonic() + 300)):
        if isinstance(event, Finished):
            assert event.cache_read_tokens == 0
            return event
        assert isinstance(event, TextChunk), event
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
    conversation, _ = await loop(house, "Other rules. " + RULES)
    del conversation[2]["continuation"]
    second = await house.complete(*conversation, tools=[LOOK], options={"maxTokens": 1})
    assert second["diagnostics"]["cache"] == {
        "prompt_tokens": second["usage"]["input_tokens"],
        "cached_tokens": second["usage"]["cached_input_tokens"],
        "continuations_given": 0,
        "continuations_replayed": 0,
    }
    assert second["finishReason"] == "length" and "continuation" not in second["message"]


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def exact(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """F32 weights: what a token's logits are does not depend on how its context came about."""
    path = tmp_path_factory.mktemp("exact") / "exact.gguf"
    base = sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf"
    write_model(path, base, ["<|im_start|>", "<|im_end|>"], size=600, template=CHATML, plain=True)
    return path


class Context:
    """llama.cpp's own, that is never left: one sequence, fed what it is told."""

    def __init__(self, path: Path) -> None:
        self.model = llama.LlamaModel(str(path), repack=WorkerProcess.repack)
        self.context = llama.Context(self.model, cells=1024, sequences=1, batch=512, threads=1)
        self.batch = llama.Batch(512)
        self.past = 0

    def decode(self, tokens: array[int]) -> int:
        """The likeliest token behind these."""
        count, batch = len(tokens), self.batch
        batch.token[:count], batch.position[:count] = tokens, range(self.past, self.past + count)
        batch.sequence[:count], batch.output[:count] = 0, 0
        batch.output[count - 1] = 1
        assert self.context.decode(batch, count) == llama.OK
        self.past += count
        return int(self.context.logits(1)[0].argmax())

    def close(self) -> None:
        self.context.close()
        self.model.close()


async def test_a_conversation_is_one_uninterrupted_context(exact: Path, tmp_path: Path) -> None:
    """Against llama.cpp itself: the first prompt, the answer token by token, what stands behind, and on from there."""
    colours = {"enum": ["red", "green", "blue"]}
    schema = {"type": "object", "properties": {"a": colours}, "required": ["a"], "additionalProperties": False}
    wanted = {"type": "json_schema", "schema": schema}
    async with house_of(tmp_path, exact) as house:
        asked = [text("user", "What is it?")]
        first = await house.complete(*asked, responseFormat=wanted)
        assert first["finishReason"] == "stop" and json.loads(first["message"]["content"][0]["text"])
        turns = [*asked, first["message"], text("user", "And then?")]
        second = await house.complete(*turns, options={"maxTokens": 24})
    before, job = house.jobs[-2:]
    said = tokens_of(first["message"])
    assert job.tokens[: len(before.tokens) + len(said)] == before.tokens + said
    context = Context(exact)
    context.decode(before.tokens)
    for token in said:
        context.decode(array("i", [token]))
    found = [context.decode(job.tokens[len(before.tokens) + len(said) :])]
    while len(found) < 24:
        found.append(context.decode(array("i", found[-1:])))
    context.close()
    assert house.ends[-1].tokens == array("i", found)
    assert second["usage"]["cached_input_tokens"] > len(before.tokens)


async def test_a_model_that_needs_its_reasoning_goes_on_with_it_alone(house: House) -> None:
    conversation, _ = await loop(house, "Needed. " + RULES[:200])
    connection = house.runtime.connections[0]
    was, connection.settings = connection.settings, replace(connection.settings, reasoning_continuation="required")
    try:
        answer = await house.complete(*conversation, tools=[LOOK], options={"maxTokens": 1})
        assert answer["diagnostics"]["cache"]["continuations_replayed"] == 1
        for lost in (
            {key: value for key, value in conversation[2].items() if key != "continuation"},
            {**conversation[2], "continuation": {**conversation[2]["continuation"], "compatibility_key": "other"}},
        ):
            changed = [*conversation[:2], lost, conversation[3]]
            refused = await house.complete(*changed, tools=[LOOK], status=422)
            assert refused["error"]["code"] == "unsupported" and "reasoning" in refused["error"]["message"]
    finally:
        connection.settings = was


THOUGHT = "<think>\nThe moon pulls the water.\n</think>\n\n"
CALLED = '<tool_call>\n{"name": "look", "arguments": {"what": "tides"}}\n</tool_call>'


async def test_models_keep_their_reasoning_between_calls(sdist: Path, smollm2: Path, tmp_path: Path) -> None:
    """Qwen3's template and format, and an engine that says what such a model says."""
    template = (sdist / "vendor/llama.cpp/models/templates/Qwen-Qwen3-0.6B.jinja").read_text()
    connection = ModelConfig(
        "one", "One", "one", ModelSource(path=smollm2), template=template, reasoning_continuation="required"
    )
    vocab, helpers = Vocab.load(str(smollm2)), HelperPool(size=1)
    said = vocab.tokenize([Segment(THOUGHT + CALLED, control=False)], begins=False, follows=True)
    async with site_of(
        tmp_path, connections=(connection,), chat=helpers, helpers=helpers, make_parser=make_parser, file=smollm2
    ) as site:

        async def complete(*messages: Any) -> Any:
            number = len(site.world.engine.runs)
            body = {"messages": [*messages], "tools": [LOOK], "constraints": {"tool_calling": True}}
            call = asyncio.create_task(site.client.post("/llm/complete", json=body))
            run = await site.world.engine.run(number)
            run.say(THOUGHT, CALLED)
            run.done(tokens=said)
            return (await call).json()["message"], run.job.tokens

        conversation = [text("user", "When is high tide?")]
        held = array("i")
        for _ in range(3):
            message, prompt = await complete(*conversation)
            (part,) = [each for each in message["content"] if each.get("text") != ""]
            assert part == {"type": "tool_call", "id": part["id"], "name": "look", "arguments": {"what": "tides"}}
            assert prompt[: len(held)] == held
            held = prompt + said
            conversation += [message, result_of(message)]
        behind = b"".join(map(vocab.piece, prompt)).decode()
        assert behind.count(THOUGHT + CALLED + "<|im_end|>\n<|im_start|>user\n<tool_response>\nHigh at noon.") == 2
        assert behind.endswith("</tool_response><|im_end|>\n<|im_start|>assistant\n")


async def test_thinking_travels_in_the_continuation(sdist: Path, smollm2: Path, tmp_path: Path) -> None:
    """With a template that opens the thinking, all that SmolLM2 says is thinking."""
    template = (sdist / "vendor/llama.cpp/models/templates/Qwen-QwQ-32B.jinja").read_text()
    async with house_of(tmp_path, smollm2, template=template) as house:
        asked = [text("user", "Say hello in one short sentence.")]
        first = await house.complete(*asked, options={"maxTokens": 200})
        assert first["finishReason"] == "stop" and not any(part["text"] for part in first["message"]["content"])
        assert first["usage"]["reasoning_output_tokens"] == len(tokens_of(first["message"]))
        again = await house.complete(*asked, first["message"], text("user", "Go on."), options={"maxTokens": 1})
        assert again["diagnostics"]["cache"]["continuations_replayed"] == 1
        before, job = house.jobs[-2:]
        thought = tokens_of(first["message"])
        assert len(thought) > 3 and job.tokens[: len(before.tokens) + len(thought)] == before.tokens + thought


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
