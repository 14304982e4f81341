"""A new dialect is a `GenerationApi` and a line in `server.http.DIALECTS`.

Authentication, limits, streams, CORS, errors and the end of a generation whose client leaves come with it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from starlette.routing import Route

from server import http
from server.config import ServerConfig
from server.http import GenerationApi
from server.http.asgi import Asgi, ErrorResponse, Receive, Scope, Send
from server.runtime import GenerationOptions, LiveGeneration
from server.wire.records import Delta, GenerationRequest, Message, Requirements, TextPart, WireError
from tests.http.conftest import Site, site_of

PAGE = "https://shell.example"


class ToyError(ErrorResponse):
    @property
    def body(self) -> dict[str, Any]:
        return {"toy": self.message}


class ToyApi(GenerationApi):
    """A prompt in, its continuation out: as JSON, or as one event a delta."""

    prefixes = ("/toy/",)

    def routes(self) -> list[Route]:
        return [Route("/toy/say", Asgi(self.say), methods=["POST"])]

    async def say(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller, body = await self.read(scope, receive, self._parse)
        request = GenerationRequest("", (Message("user", (TextPart(body["prompt"]),)),))
        options = GenerationOptions(requirements=Requirements())
        writer = ToyWriter if body.get("stream") else None
        await self.serve(caller, "toy", request, options, receive, send, whole=_said, stream=writer)

    def _parse(self, body: bytes) -> dict[str, Any]:
        parsed = json.loads(body)
        if "prompt" not in parsed:
            raise WireError("invalid-request", "prompt is missing")
        return dict(parsed)

    def shape(self, error: ErrorResponse) -> ErrorResponse:
        return ToyError(error.status, error.message, error.headers)


class ToyWriter:
    def __init__(self, live: LiveGeneration) -> None:
        self._live = live

    def write(self, deltas: list[Delta]) -> bytes:
        return b"".join(b"data: %b\n\n" % json.dumps(each.text).encode() for each in deltas if each.text)

    def end(self) -> bytes:
        return b"data: null\n\n"


def _said(live: LiveGeneration) -> dict[str, Any]:
    parts = getattr(live.outcome, "content", ())
    return {"said": "".join(part.text for part in parts)}


@pytest_asyncio.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(http, "DIALECTS", (*http.DIALECTS, ToyApi))
    async with site_of(tmp_path, ServerConfig(allowed_origins=(PAGE,))) as made:
        yield made


async def test_it_answers_whole_and_in_a_stream(site: Site) -> None:
    for number, streamed in enumerate((False, True)):
        call = asyncio.create_task(site.client.post("/toy/say", json={"prompt": "hello", "stream": streamed}))
        run = await site.world.engine.run(number)
        run.say("a b")
        run.done()
        answer = await call
        assert answer.status_code == 200
        if streamed:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.text == 'data: "a b"\n\ndata: null\n\n'
        else:
            assert answer.json() == {"said": "a b"}


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_failure_has_its_status_and_the_dialects_form(site: Site, streamed: bool) -> None:
    call = asyncio.create_task(site.client.post("/toy/say", json={"prompt": "hello", "stream": streamed}))
    (await site.world.engine.run()).fail("quota-exceeded", reason="queue")
    answer = await call
    assert answer.status_code == 429 and [*answer.json()] == ["toy"]


async def test_what_is_refused_has_the_dialects_form(site: Site) -> None:
    post = site.client.post
    for answer, status in (
        (await post("/toy/say", json={}), 400),
        (await post("/toy/say", json={}, headers={"authorization": "Bearer wrong"}), 401),
        (await post("/toy/other", json={}), 404),
        (await site.client.get("/toy/say"), 405),
        (await post("/toy/say", content=b"{}", headers={"content-type": "text/plain"}), 415),
        (await post("/toy/say", json={"prompt": "x" * site.world.runtime.limits.body_bytes}), 413),
    ):
        assert answer.status_code == status and [*answer.json()] == ["toy"], status
    assert (await site.client.get("/toy/say")).headers["allow"] == "POST"
    assert set((await post("/other", json={})).json()) == {"error"}


async def test_a_page_of_a_configured_origin_may_call_it(site: Site) -> None:
    answer = await site.client.post("/toy/say", json={}, headers={"origin": PAGE})
    assert answer.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize("streamed", [b"false", b"true"])
async def test_a_client_that_leaves_ends_its_generation(site: Site, streamed: bytes) -> None:
    body = b'{"prompt": "hello", "stream": %b}' % streamed
    token = site.client.headers["authorization"].encode()
    head = (
        b"POST /toy/say HTTP/1.1\r\nhost: localhost\r\nauthorization: %b\r\ncontent-type: application/json\r\n" % token
    )
    _, writer = await site.raw(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
    run = await site.world.engine.run()
    writer.close()
    await run.closed.wait()
    assert run.cancelled and [*site.world.runtime.live()] == []
