"""Images over HTTP, to the ends of the house: real helpers, and tiny vision models of each kind of projector."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio

from server.app import create_app
from server.config import CapabilityLimits, Config, Limits, ModelConfig, ModelSource, ServerConfig
from server.state import TokenStore, owner_token
from tests.chat.standin import WIDTH
from tests.chat.test_images import HOSTILE
from tests.fixtures.projectors import KINDS, Seer, write_listener, write_seer
from tests.http.conftest import events, listening
from tests.pictures import JPEG, PNG, png

HERMES = "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use"
FLAT = 48 << 20
"""Bytes that the memory of all processes together may differ by over a whole hostile corpus."""


def image(data: bytes, mime_type: str = PNG) -> dict[str, Any]:
    return {"type": "image", "mimeType": mime_type, "data": base64.b64encode(data).decode()}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [*content]}


RED, BLUE = image(png(40, 30)), image(png(40, 30, seed=50))
LOOK = {"name": "look", "parameters": {"type": "object", "properties": {}}}
CALLED = {"role": "assistant", "content": [{"type": "toolCall", "toolCallId": "c", "name": "look", "arguments": {}}]}


class House:
    def __init__(self, client: httpx.AsyncClient, owner: httpx.AsyncClient, asking: str, runtime: Any) -> None:
        self.client, self.owner, self.asking, self.runtime = client, owner, asking, runtime

    async def call(self, type: str, **fields: Any) -> dict[str, Any]:
        response = await self.client.post("/nap/llm", json={"type": type, "id": "x", **fields})
        assert response.status_code == 200, response.text
        value: dict[str, Any] = response.json()
        return value

    async def select(self, kind: str) -> dict[str, Any]:
        selected = await self.call("llm.select", requirements={"model": kind})
        model: dict[str, Any] = selected["model"]
        return model

    async def request(self, kind: str, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
        handle = (await self.select(kind))["handle"]
        return {"handle": handle, "messages": messages, "temperature": 0, "maxTokens": 12, **fields}

    async def ask(self, kind: str, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """What a generation ends with, streamed."""
        request = await self.request(kind, *messages, **fields)
        headers = {"accept": "text/event-stream"}
        envelope = {"type": "llm.generate", "id": f"g{id(request)}", "request": request}
        async with self.client.stream("POST", "/nap/llm", json=envelope, headers=headers) as response:
            *deltas, result = [each async for each in events(response)]
        if "error" in result:
            return dict(result["error"])
        said = "".join(each.get("text", "") for each in deltas if each["block"] == "text")
        assert said == "".join(part["text"] for part in result["result"]["content"])
        return dict(result["result"])

    def workers(self) -> list[int]:
        return [each.loaded.pid for each in self.runtime.connections if each.loaded is not None]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory, seers: dict[str, Seer], sdist: Path) -> AsyncIterator[House]:
    directory = tmp_path_factory.mktemp("house")
    template = (sdist / f"vendor/llama.cpp/models/templates/{HERMES}.jinja").read_text()
    hermes = write_seer(directory, sdist, "mlp", template=template)
    deaf = directory / "listener.gguf"
    write_listener(deaf, WIDTH)

    def connection(key: str, seer: Seer, projector: Path | None = None, **more: Any) -> ModelConfig:
        mmproj = ModelSource(path=projector or seer.projector)
        return ModelConfig(
            key, key, key, ModelSource(path=seer.model), mmproj, context_length=1024, slots=2, threads=1, **more
        )

    connections = [connection(kind, seers[kind]) for kind in KINDS]
    connections += [
        connection("hermes", hermes),
        connection("listener", seers["mlp"], deaf),
        connection("kept", seers["mlp"], capabilities=CapabilityLimits(images=False)),
    ]
    tokens = TokenStore(directory / "state")
    token, asking = tokens.create("test", consent="always"), tokens.create("asking")
    limits = Limits(requests_per_minute=0, images=4, image_bytes=1 << 20)
    app = create_app(Config(ServerConfig(limits=limits), tuple(connections)), tokens=tokens)
    async with listening(app) as port:
        base = f"http://127.0.0.1:{port}"

        def client(token: str) -> httpx.AsyncClient:
            headers = {"authorization": f"Bearer {token}"}
            return httpx.AsyncClient(base_url=base, headers=headers, timeout=None, verify=False)

        async with client(token) as shell, client(owner_token(tokens.directory)) as owner:
            yield House(shell, owner, asking, app.state.runtime)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_an_image_is_answered_counted_and_cached(house: House, kind: str) -> None:
    assert (await house.select(kind))["images"]
    plain = await house.ask(kind, user(text("What is this? "), text(" And why?")))
    asked = user(text("What is this? "), RED, text(" And why?"))
    first = await house.ask(kind, asked)
    assert first["content"][0]["text"]
    seen = first["usage"]["inputTokens"] - plain["usage"]["inputTokens"]
    assert seen >= 8
    again = await house.ask(kind, asked)
    assert again["usage"]["inputTokens"] == first["usage"]["inputTokens"]
    assert again["usage"]["cacheReadTokens"] > seen
    assert again["content"] == first["content"]
    other = await house.ask(kind, user(text("What is this? "), BLUE, text(" And why?")))
    assert other["usage"]["inputTokens"] == first["usage"]["inputTokens"]
    assert other["usage"]["cacheReadTokens"] < seen
    assert other["content"] != first["content"]


async def test_order_counts(house: House) -> None:
    words = (text("one "), text("two "))
    orders = [(RED, words[0], words[1]), (words[0], RED, words[1]), (words[0], words[1], RED), (RED, BLUE), (BLUE, RED)]
    answers = [(await house.ask("mlp", user(*each)))["content"][0]["text"] for each in orders]
    assert len(set(answers)) == len(orders)


async def test_a_tool_result_may_be_an_image(house: House) -> None:
    def history(*content: dict[str, Any]) -> list[dict[str, Any]]:
        result = {"role": "toolResult", "toolCallId": "c", "toolName": "look", "content": [*content]}
        return [user(text("Look.")), CALLED, result]

    async def ask(*content: dict[str, Any]) -> dict[str, Any]:
        return await house.ask("hermes", *history(*content), tools=[LOOK], toolChoice="none")

    blind, seen, again, other = [await ask(text("The hall: "), *more) for more in ((), (RED,), (RED,), (BLUE,))]
    assert seen["usage"]["inputTokens"] == blind["usage"]["inputTokens"] + 16
    assert again["usage"]["cacheReadTokens"] >= other["usage"]["cacheReadTokens"] + 16
    assert again["content"] == seen["content"]
    # ChatML without tools has no place for a result but JSON in a user's turn.
    refused = await house.ask("mlp", *history(text("The hall: "), RED), tools=[LOOK], toolChoice="none")
    assert refused["code"] == "unsupported" and "a tool result" in refused["message"]


@pytest.mark.parametrize("kind", [*KINDS, "hermes"])
async def test_other_places_are_unsupported(house: House, kind: str) -> None:
    for messages, place in (
        ([{"role": "system", "content": [text("x"), RED]}, user(text("x"))], "a system message"),
        ([user(text("x")), {"role": "assistant", "content": [RED]}, user(text("x"))], "an assistant message"),
    ):
        error = await house.ask(kind, *messages)
        assert error["code"] == "unsupported" and place in error["message"]


async def test_who_sees(house: House) -> None:
    assert (await house.call("llm.select", requirements={"images": True}))["model"]["model"] == KINDS[0]
    for kind in ("listener", "kept"):
        model = await house.select(kind)
        assert model["images"] is False
        assert (await house.call("llm.describe", handle=model["handle"]))["model"] == model
        requirements = {"images": True, "model": kind}
        assert (await house.call("llm.select", requirements=requirements))["error"]["code"] == "unsupported"
        assert (await house.ask(kind, user(RED)))["message"] == "this connection does not accept images"
    assert (await house.ask("kept", user(text("hello"))))["content"]


async def test_hostile_images_leave_everything_as_it_was(house: House) -> None:
    await house.ask("mlp", user(text("see "), RED))
    workers, sizes = house.workers(), []
    counts = house.runtime.connection("mlp").loaded.stats()
    for _ in range(3):
        for name, (make, mime_type, code) in HOSTILE.items():
            data = make()
            if len(data) > 1 << 20:
                code = "quota-exceeded"
            if code == "decoded":
                continue
            error = await house.ask("mlp", user(image(data, mime_type), text("see")))
            assert error["code"] == code, name
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        sizes.append(sum(each.memory_info().rss for each in processes))
    assert house.workers() == workers
    assert house.runtime.connection("mlp").loaded.stats() == counts
    assert sizes[-1] - sizes[0] < FLAT, sizes
    assert (await house.ask("mlp", user(text("see "), RED)))["content"]


async def test_limits_are_policy(house: House) -> None:
    error = await house.ask("mlp", user(*[RED] * 5))
    assert (error["code"], error["reason"]) == ("quota-exceeded", "images")
    error = await house.ask("mlp", user(image(bytes(1 << 20) + b"x")))
    assert (error["code"], error["reason"]) == ("quota-exceeded", "images")
    error = await house.ask("mlp", user(*[RED] * 4, text("x" * 3000)))
    assert (error["code"], error["reason"]) == ("quota-exceeded", "context")


async def test_consent_names_the_images(house: House) -> None:
    headers = {"authorization": f"Bearer {house.asking}"}
    select = await house.client.post("/nap/llm", json={"type": "llm.select", "id": "s"}, headers=headers)
    request = {"handle": select.json()["model"]["handle"], "messages": [user(RED, text("x"), BLUE)]}
    envelope = {"type": "llm.generate", "id": "g", "request": request}
    asked = asyncio.create_task(house.client.post("/nap/llm", json=envelope, headers=headers))
    while not (waiting := (await house.owner.get("/owner/state")).json()["decisions"]):
        await asyncio.sleep(0.01)
    size = sum(len(base64.b64decode(each["data"])) for each in (RED, BLUE))
    assert waiting[0]["disclosure"]["images"] == {"count": 2, "bytes": size}
    content = (await house.owner.get(f"/owner/consents/{waiting[0]['id']}")).json()
    assert content["messages"][0]["content"] == [RED, text("x"), BLUE]
    await house.owner.post(f"/owner/consents/{waiting[0]['id']}", json={"decision": "deny"})
    assert (await asked).json()["error"]["code"] == "user-cancelled"


@pytest.mark.parametrize("kind", KINDS)
async def test_images_too_long_are_refused_before_consent(house: House, kind: str) -> None:
    """As long texts are, although what an image takes only the loaded model knows."""
    few, more = [await house.ask(kind, user(text("x " * count), RED)) for count in (1, 101)]
    each = (more["usage"]["inputTokens"] - few["usage"]["inputTokens"]) // 100
    # With one image it fits.
    words = text("x " * ((1000 - few["usage"]["inputTokens"]) // each))
    connection = house.runtime.connection(kind)
    connection.unload()
    headers = {"authorization": f"Bearer {house.asking}"}

    async def asks(type: str, **fields: Any) -> Any:
        body = {"type": type, "id": "s", **fields}
        return (await house.client.post("/nap/llm", json=body, headers=headers)).json()

    model = (await asks("llm.select", requirements={"model": kind}))["model"]
    request = {"handle": model["handle"], "messages": [user(*[RED, BLUE] * 2, words)]}
    error = (await asks("llm.generate", request=request))["error"]
    assert (error["code"], error["reason"]) == ("quota-exceeded", "context")
    assert connection.loaded is not None and connection.loaded.counts.prompt_tokens == 0
    request["messages"] = [user(RED, words)]
    asked = asyncio.create_task(asks("llm.generate", request=request))
    while not (waiting := house.runtime.decisions.waiting()):
        await house.runtime.changes.since(house.runtime.changes.version)
    house.runtime.decisions.settle_consent(waiting[0].id, False)
    assert (await asked)["error"]["code"] == "user-cancelled"


async def test_no_image_in_logs_or_errors(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    broken = image(b"\xff\xd8\xff" + b"secret" * 40, JPEG)
    error = await house.ask("mlp", user(text("canary words"), broken))
    assert error["code"] == "invalid-request"
    told = json.dumps(error) + caplog.text
    assert broken["data"][:24] not in told and "secret" not in told and "canary" not in told


async def test_the_openai_api_takes_a_tiny_image(house: House) -> None:
    """The smallest of round trips: sixteen bytes of pixels."""
    tiny = image(png(2, 2))
    assert (await house.ask("mlp", user(text("see"), tiny)))["content"]
    url = f"data:image/png;base64,{tiny['data']}"
    content = [text("see"), {"type": "image_url", "image_url": {"url": url}}]
    body = {"model": "mlp", "messages": [{"role": "user", "content": content}], "max_tokens": 12, "temperature": 0}
    response = await house.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    direct = await house.ask("mlp", user(text("see"), tiny))
    assert answer["choices"][0]["message"]["content"] == direct["content"][0]["text"]
    assert answer["usage"]["prompt_tokens"] == direct["usage"]["inputTokens"]
    broken = [text("see"), {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    response = await house.client.post(
        "/v1/chat/completions", json=body | {"messages": [{"role": "user", "content": broken}]}
    )
    assert response.status_code == 400, response.text


async def test_llm_complete_takes_an_image_and_goes_on_with_it(house: House) -> None:
    """Its first connection is `mlp`. The next turn finds image and answer in the cache, as the tokens they were."""
    tiny = image(png(2, 2))
    shown = {"type": "image", "image": {"base64": tiny["data"], "mimeType": "image/png"}}
    asked = {"role": "user", "content": [text("see"), shown]}
    declared = {"constraints": {"input": ["image"], "structured_output": True}, "diagnostics": True}
    # A schema is what lets a model of random weights come to an end.
    declared["responseFormat"] = {"type": "json_schema", "schema": {"enum": ["a hall"]}}

    async def complete(*messages: dict[str, Any], **fields: Any) -> httpx.Response:
        return await house.client.post("/llm/complete", json={"messages": messages, **fields})

    first = await complete(asked, **declared)
    assert first.status_code == 200, first.text
    answer = first.json()
    assert answer["message"]["content"] == [text('"a hall"')]
    direct = await house.ask("mlp", user(text("see"), tiny))
    assert answer["usage"]["input_tokens"] == direct["usage"]["inputTokens"]
    second = await complete(asked, answer["message"], {"role": "user", "content": [text("again")]}, **declared)
    assert second.status_code == 200, second.text
    assert second.json()["diagnostics"]["cache"]["continuations_replayed"] == 1
    assert second.json()["usage"]["cached_input_tokens"] >= answer["usage"]["input_tokens"]
    undeclared = await complete(asked)
    assert undeclared.json()["error"]["code"] == "invalid-request"
    broken = {"type": "image", "image": {"base64": "AAAA", "mimeType": "image/png"}}
    refused = await complete({"role": "user", "content": [broken]}, **declared)
    assert refused.json()["error"]["code"] == "invalid-request"
    elsewhere = {"role": "assistant", "content": [shown]}
    assert (await complete(asked, elsewhere, asked, **declared)).json()["error"]["code"] == "unsupported"
