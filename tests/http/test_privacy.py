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
                world.runtime._make_parser = lambda spec: type("Parser", (), {"feed": boom, "finish": boom})()  # type: ignore[assignment, return-value]
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
            "server.cli",
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
    process.end()
    written = {path: path.read_bytes() for path in process.directory.rglob("*") if path.is_file()}
    assert len(written) >= 4 and b"POST /nap/llm 200" in written[process.log]
    for path, content in written.items():
        for secret in (CANARY, token, *handles):
            assert secret.encode() not in content, path
