"""Prompts, definitions, results, output, tokens and handles stand in no log, no error and no file."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from server.chat.events import BlockDelta, BlockEnd, BlockStart
from server.state import TokenStore, owner_token
from tests.http.conftest import Site, site_of

CANARY = "canary-5e1c7"


class Boom(Exception):
    """A program error whose text holds what it must not."""

    def __init__(self) -> None:
        super().__init__(CANARY)


def boom(*_: Any, **__: Any) -> Any:
    raise Boom


async def aboom(*_: Any, **__: Any) -> Any:
    raise Boom


PLACES = ("inspect", "prepare", "start", "fetch", "generate", "feed", "validate")


@pytest.mark.parametrize("place", PLACES)
async def test_program_errors_show_no_content(tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str) -> None:
    caplog.set_level(logging.DEBUG)
    async with site_of(tmp_path) as site:
        world = site.world
        world.chat.script["call"] = [
            BlockStart(0, "toolCall", name="weather"),
            BlockDelta(0, json.dumps({"city": CANARY})),
            BlockEnd(0),
        ]
        world.chat.checked = frozenset({"weather"})
        select = {"type": "llm.select", "id": "s"}
        if place == "inspect":
            world.chat.inspect = aboom  # type: ignore[method-assign]
            answer = await site.call(select)
        elif place == "fetch":
            world.runtime.connections[0]._fetch_file = boom
            answer = await site.call(select)
        else:
            envelope = await site.generation(text=CANARY, tools=[{"name": "weather", "description": CANARY}])
            if place in ("prepare", "validate"):
                setattr(world.chat, place, aboom)
            elif place == "start":
                world.start_failure = Boom()
            elif place == "generate":
                world.engine.generate = boom  # type: ignore[method-assign]
            elif place == "feed":
                world.runtime.services.make_parser = lambda spec: type("Parser", (), {"feed": boom, "finish": boom})()  # type: ignore[assignment, return-value]
            call = asyncio.create_task(site.call(envelope))
            if place in ("feed", "validate"):
                run = await world.engine.run()
                run.say("call")
                run.done()
            answer = await call
        assert answer["error"]["code"] == "provider-error"
        assert CANARY not in json.dumps(answer)
    assert "Boom" in caplog.text or place == "fetch"
    assert CANARY not in ours(caplog)


@pytest.mark.parametrize("place", PLACES)
async def test_nor_do_those_behind_llm_complete(tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str) -> None:
    caplog.set_level(logging.DEBUG)
    async with site_of(tmp_path) as site:
        world = site.world
        world.chat.checked = frozenset({"look"})
        world.chat.script["call"] = [
            BlockStart(0, "toolCall", name="look"),
            BlockDelta(0, json.dumps({"city": CANARY})),
            BlockEnd(0),
        ]
        if place in ("inspect", "prepare", "validate"):
            setattr(world.chat, place, aboom)
        elif place == "fetch":
            world.runtime.connections[0]._fetch_file = boom
        elif place == "start":
            world.start_failure = Boom()
        elif place == "generate":
            world.engine.generate = boom  # type: ignore[method-assign]
        else:
            parser = type("Parser", (), {"feed": boom, "finish": boom})
            world.runtime.services.make_parser = lambda spec: parser()  # type: ignore[assignment, return-value]
        messages = [{"role": "user", "content": [{"type": "text", "text": CANARY}]}]
        tools = [{"name": "look", "description": CANARY, "input_schema": {"type": "object"}}]
        call = asyncio.create_task(site.client.post("/llm/complete", json={"messages": messages, "tools": tools}))
        if place in ("feed", "validate"):
            run = await world.engine.run()
            run.say("call")
            run.done()
        response = await call
        assert (response.status_code, response.json()["error"]["code"]) == (502, "provider-error")
        assert CANARY not in response.text
    assert "Boom" in caplog.text or place == "fetch"
    assert CANARY not in ours(caplog)


def ours(caplog: pytest.LogCaptureFixture) -> str:
    """What the server's side logged; the test's own client is on the other side."""
    records = [each for each in caplog.records if not each.name.startswith(("httpx", "httpcore"))]
    return "\n".join(f"{each.getMessage()} {each.exc_text or ''} {each.exc_info or ''}" for each in records)


async def test_the_decision_about_content_does_not_log_it(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bearer = f"Bearer {site.tokens.create('asking')}"
    envelope = await site.generation(text=CANARY, headers={"authorization": bearer})
    call = asyncio.create_task(site.call(envelope, authorization=bearer))
    while not (waiting := site.world.runtime.decisions.waiting()):
        await asyncio.sleep(0.001)
    assert CANARY not in repr(waiting)
    path = f"/owner/consents/{waiting[0].id}"
    assert CANARY in (await site.owner.get(path)).text
    await site.owner.post(path, json={"decision": "deny", CANARY: CANARY})
    await site.owner.post(path, json={"decision": "deny"})
    await call
    assert CANARY not in ours(caplog) and bearer.removeprefix("Bearer ") not in ours(caplog)
    assert envelope["request"]["handle"] not in ours(caplog)


class Process:
    """A server as a person starts it, everything it writes kept."""

    def __init__(self, directory: Path, model: Path) -> None:
        (directory / "models.toml").write_text(
            f'[models.m]\nmodel = "m"\nsource.path = "{model}"\ncontext_length = 512\nthreads = 1\n'
        )
        self.directory = directory
        self.state = directory / "state"
        self.log = directory / "log"
        command = [
            sys.executable,
            "-m",
            "server.cli.main",
            "serve",
            "--port",
            "0",
            "--models",
            "models.toml",
            "--state",
            "state",
        ]
        with self.log.open("wb") as log:
            environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(directory)}
            self.process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log, env=environment)

    async def url(self) -> str:
        while not (found := re.search(r"Console: (http://\S+?)/#", self.log.read_text())):
            assert self.process.poll() is None, self.log.read_text()
            await asyncio.sleep(0.02)
        return found.group(1)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


@pytest.fixture
def process(tmp_path: Path, smollm2: Path) -> Iterator[Process]:
    made = Process(tmp_path, smollm2)
    yield made
    if made.process.poll() is None:
        made.end()


@pytest.mark.slow
async def test_a_whole_process_writes_nothing_confidential(process: Process) -> None:
    url = await process.url()
    token = TokenStore(process.state).create("shell", consent="always")
    handles = []
    async with httpx.AsyncClient(
        base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=60, trust_env=False
    ) as client:

        async def post(envelope: dict[str, Any], **headers: str) -> dict[str, Any]:
            response = await client.post("/nap/llm", json=envelope, headers=headers)
            return response.json()  # type: ignore[no-any-return]

        async def generate(**fields: Any) -> dict[str, Any]:
            handle = (await post({"type": "llm.select", "id": CANARY}))["model"]["handle"]
            handles.append(handle)
            messages = [{"role": "user", "content": [{"type": "text", "text": CANARY}]}]
            request = {"handle": handle, "messages": messages, "maxTokens": 8, **fields}
            return await post({"type": "llm.generate", "id": CANARY, "request": request})

        def tool(schema: Any) -> list[dict[str, Any]]:
            parameters = {"type": "object", "properties": {CANARY: schema}}
            return [{"name": CANARY, "description": CANARY, "parameters": parameters}]

        def said(*content: dict[str, Any], role: str = "user") -> list[dict[str, Any]]:
            return [{"role": role, "content": [*content]}]

        assert "result" in await generate()
        assert "result" in await generate(tools=tool({"type": "string"}))
        # Failures of every room, each carrying a canary.
        failures = [
            await generate(tools=tool({"type": CANARY})),
            await generate(tools=tool({"pattern": f"({CANARY}"})),
            await generate(messages=said({"type": "text", "text": CANARY * 400})),
            await generate(messages=said(role=CANARY)),
            await generate(messages=said({"type": "image", "mimeType": "image/png", "data": CANARY})),
            await generate(temperature=3),
            await post({"type": "llm.describe", "id": "d", "handle": CANARY}),
            await post({"type": "llm.select", "id": "s", "requirements": {"model": CANARY}}),
        ]
        for failure in failures:
            assert CANARY not in failure["error"]["message"].replace(f"tool {CANARY}", "").replace(f"/{CANARY}", "")
        payload = await completions(client)
        await openai_requests(client)
        await post({CANARY: CANARY})
        await client.get(f"/{CANARY}?{CANARY}={CANARY}")
        await client.post(f"/nap/llm?{CANARY}", content=CANARY.encode(), headers={"content-type": "application/json"})
        await post({"type": "llm.select", "id": "s"}, authorization=f"Bearer {CANARY}")
        await post({"type": "llm.select", "id": "s"}, origin=f"https://{CANARY}.example")
        await post({"type": "llm.select", "id": "s"}, host=f"{CANARY}.example")
        long = asyncio.create_task(generate(maxTokens=400))
        owner = {"authorization": f"Bearer {owner_token(process.state)}"}
        while "decoding" not in (await client.get("/owner/state", headers=owner)).text:
            assert not long.done()
            await asyncio.sleep(0.01)
        for child in psutil.Process(process.process.pid).children(recursive=True):
            child.kill()
        assert (await long)["error"]["code"] == "provider-error"
        await post({"type": "llm.select", "id": "s"}, **{"X-Request-Id": f"{CANARY} {CANARY}"})
        for path in ("/metrics", "/readyz", "/owner/state"):
            shown = await client.get(path, headers=owner)
            assert shown.status_code == 200
            assert not [secret for secret in (CANARY, token, *handles) if secret in shown.text], path
    process.end()
    written = {path: path.read_bytes() for path in process.directory.rglob("*") if path.is_file()}
    assert len(written) >= 4 and b"POST /nap/llm 200" in written[process.log]
    for path, content in written.items():
        for secret in (CANARY, token, payload[:32], *handles):
            assert secret.encode() not in content, path


async def completions(client: httpx.AsyncClient) -> str:
    """What can be said to `/llm/complete`, each with a canary. Returns the payload of a continuation."""
    words = {"role": "user", "content": [{"type": "text", "text": CANARY}]}
    schema = {"type": "object", "properties": {CANARY: {"const": CANARY}}, "required": [CANARY]}
    closed = {"type": "json_schema", "schema": {**schema, "additionalProperties": False}}
    declared = {"structured_output": True, "input": ["image"]}

    async def complete(*messages: Any, **members: Any) -> httpx.Response:
        return await client.post("/llm/complete", json={"messages": [*messages], **members})

    response = await complete(words, responseFormat=closed, constraints={"structured_output": True}, diagnostics=True)
    first = response.json()["message"]
    payload: str = first["continuation"]["payload"]
    assert CANARY in first["content"][0]["text"] and CANARY not in json.dumps(response.json()["diagnostics"])
    again = await complete(words, first, words, options={"maxTokens": 4}, diagnostics=True)
    assert again.json()["diagnostics"]["cache"]["continuations_replayed"] == 1
    changed = {**first, "continuation": {**first["continuation"], "payload": payload[:-8] + "AAAAAAAA"}}
    image = {"type": "image", "image": {"url": f"https://{CANARY}.example"}}
    for refused in (
        await complete(words, changed, words),
        await complete(words, {**first, "content": [{"type": "text", "text": CANARY}]}, words),
        await complete(words, provider=CANARY),
        await complete(words, useCase=CANARY),
        await complete({"role": CANARY, "content": []}),
        await complete({"role": "user", "content": [image]}, constraints=declared),
        await complete(words, tools=[{"name": "a", "description": CANARY, "input_schema": {"pattern": CANARY}}]),
        await complete({"role": "user", "content": [{"type": "text", "text": CANARY * 400}]}),
    ):
        assert refused.status_code >= 400
        assert CANARY not in refused.text and payload[:32] not in refused.text
    return payload


async def openai_requests(client: httpx.AsyncClient) -> None:
    """What can be said to the OpenAI API, each with a canary."""
    model = (await client.get("/v1/models")).json()["data"][0]["id"]
    words = [{"role": "user", "content": CANARY}]
    function = {"type": "function", "function": {"name": CANARY, "description": CANARY}}

    async def chat(messages: Any, **members: Any) -> httpx.Response:
        asked = {"model": model, "messages": messages, "max_tokens": 4, **members}
        return await client.post("/v1/chat/completions", json=asked)

    async def respond(given: Any, **members: Any) -> httpx.Response:
        asked = {"model": model, "input": given, "max_output_tokens": 4, **members}
        return await client.post("/v1/responses", json=asked)

    for answered in (
        await chat(words, stop=CANARY, user=CANARY, metadata={CANARY: CANARY}, logprobs=True),
        await chat(words, tools=[function], stream=True),
        await respond(words, instructions=CANARY),
    ):
        assert answered.status_code == 200
    image = {"type": "image_url", "image_url": {"url": f"https://{CANARY}.example"}}
    schema = {"name": CANARY, "schema": {"pattern": f"({CANARY}"}}
    for refused in (
        await chat([{"role": CANARY, "content": CANARY}]),
        await chat([{"role": "user", "content": [image]}]),
        await chat([{"role": "tool", "tool_call_id": CANARY, "content": CANARY}]),
        await chat(words, model=CANARY),
        await chat(words, prediction=CANARY),
        await chat(words, tools=[function], tool_choice=CANARY),
        await chat(words, response_format={"type": "json_schema", "json_schema": schema}),
        await chat([{"role": "user", "content": CANARY * 400}]),
        await chat([{"role": "user", "content": CANARY * 400}], stream=True),
        await respond([{"type": CANARY}]),
        await respond([{"type": "function_call", "call_id": CANARY, "name": CANARY, "arguments": CANARY}]),
        await respond(words, previous_response_id=CANARY),
    ):
        assert refused.status_code >= 400 and set(refused.json()["error"]) == {"message", "type", "param", "code"}
        assert CANARY not in refused.text
