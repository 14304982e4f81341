"""A real server on a port of its own, over the runtime's doubles, in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest_asyncio
import uvicorn
from fastapi import FastAPI

from server.app import create_app
from server.chat import HelperPool
from server.config import Config, ModelConfig, ServerConfig
from server.runtime import Runtime
from server.state import TokenStore, owner_token
from tests.runtime.doubles import World


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ended = asyncio.Event()

    async def main_loop(self) -> None:
        await self.ended.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the test runner's."""
        yield


@contextlib.asynccontextmanager
async def listening(app: FastAPI) -> AsyncIterator[int]:
    """Serves the application; gives the port."""
    # asyncio switches Nagle's algorithm off only where the protocol is named.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    server = Server(uvicorn.Config(app, http="httptools", ws="none", log_config=None, access_log=False))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0)
        assert not task.done(), task.exception()
    try:
        yield listener.getsockname()[1]
    finally:
        # Nothing may keep the server from ending: what a test leaves open is a bug of the test or of ours.
        server.ended.set()
        await asyncio.wait_for(task, 10)


class Site:
    """A running server with its world, its tokens, and a client that presents one of them."""

    def __init__(self, world: World, tokens: TokenStore, port: int, client: httpx.AsyncClient) -> None:
        self.world, self.tokens, self.port, self.client = world, tokens, port, client
        self.routes: tuple[Any, ...] = ()
        headers = {"authorization": f"Bearer {owner_token(tokens.directory)}"}
        self.owner = httpx.AsyncClient(base_url=client.base_url, headers=headers, timeout=20, verify=False)

    async def call(self, envelope: dict[str, Any], **headers: str) -> dict[str, Any]:
        response = await self.client.post("/nap/llm", json=envelope, headers=names(headers))
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json"
        value = response.json()
        assert value["id"] == envelope["id"] and value["type"] == envelope["type"] + ".result"
        return value

    async def select(self, **headers: str) -> str:
        return (await self.call({"type": "llm.select", "id": "s"}, **headers))["model"]["handle"]

    async def generation(self, id: str = "g", text: str = "hello", *, headers: Any = None, **fields: Any) -> Any:
        """The envelope of a generation, under a fresh selection."""
        handle = await self.select(**(headers or {}))
        messages = [{"role": "user", "content": [{"type": "text", "text": text}]}]
        return {"type": "llm.generate", "id": id, "request": {"handle": handle, "messages": messages, **fields}}

    def stream(self, envelope: dict[str, Any], **headers: str) -> Any:
        return self.client.stream(
            "POST", "/nap/llm", json=envelope, headers={"accept": "text/event-stream", **names(headers)}
        )

    async def raw(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        await writer.drain()
        return reader, writer


def names(headers: dict[str, str]) -> dict[str, str]:
    return {key.replace("_", "-"): value for key, value in headers.items()}


async def events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Envelopes of an event stream, its framing checked."""
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                # Some clients end a line wherever Unicode does.
                assert len(line.decode().splitlines()) == 1
                yield json.loads(line.removeprefix(b"data: "))
            else:
                assert line == b"" or line.startswith(b":")
    assert rest == b""


@contextlib.asynccontextmanager
async def serving(directory: Path, connection: ModelConfig) -> AsyncIterator[tuple[httpx.AsyncClient, Runtime]]:
    """A server with a real engine, and a client that may generate."""
    tokens = TokenStore(directory)
    token = tokens.create("test", consent="always")
    app = create_app(Config(ServerConfig(), (connection,)), tokens=tokens)
    headers = {"authorization": f"Bearer {token}"}
    async with (
        listening(app) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=None, verify=False) as client,
    ):
        yield client, app.state.runtime


@contextlib.asynccontextmanager
async def site_of(
    directory: Path,
    server: ServerConfig | None = None,
    *,
    real_clock: bool = True,
    helpers: HelperPool | None = None,
    file: Path | None = None,
    **options: Any,
) -> AsyncIterator[Site]:
    world = World(file or directory / "model.gguf", server=server, real_clock=real_clock, **options)
    tokens = TokenStore(directory / "state")
    token = tokens.create("shell", consent="always")
    app = create_app(world.config, world.runtime, tokens=tokens, helpers=helpers)
    async with listening(app) as port:
        headers = {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20, verify=False
        ) as client:
            site = Site(world, tokens, port, client)
            site.routes = tuple(app.routes)
            yield site
            await site.owner.aclose()


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with site_of(tmp_path) as made:
        yield made
