"""The official client, against a server over the runtime's doubles."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest_asyncio

from server.chat.events import BlockDelta, BlockEnd, BlockEvent, BlockKind, BlockStart
from tests.http.conftest import Site, site_of
from tests.runtime.doubles import Run

HELLO: Any = [{"role": "user", "content": "hello"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": True,
    },
}


class Api:
    """A site, the client that speaks to it, and short ways to make its engine speak."""

    def __init__(self, site: Site, client: openai.AsyncOpenAI) -> None:
        self.site, self.client = site, client
        self.world = site.world
        self._runs = 0

    async def run(self) -> Run:
        """The next generation's job."""
        self._runs += 1
        return await self.world.engine.run(self._runs - 1)

    async def says(self, *texts: str, finish: str = "stop") -> Run:
        run = await self.run()
        run.say(*texts)
        run.done(finish)
        return run

    def block(self, word: str, kind: BlockKind, index: int, *pieces: str, name: str | None = None) -> None:
        """Lets the model's word `word` be a whole block."""
        events: list[BlockEvent] = [BlockStart(index, kind, name=name)]
        events += [BlockDelta(index, piece) for piece in pieces]
        self.world.chat.script[word] = [*events, BlockEnd(index)]

    def call(self, word: str = "call", index: int = 0, city: str = "Oslo", name: str = "weather") -> None:
        self.block(word, "toolCall", index, '{"city":', f'"{city}"}}', name=name)


@contextlib.asynccontextmanager
async def api_of(directory: Path, **options: Any) -> AsyncIterator[Api]:
    async with site_of(directory, **options) as site:
        token = site.client.headers["authorization"].removeprefix("Bearer ")
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{site.port}/v1", api_key=token, max_retries=0, timeout=20
        ) as client:
            yield Api(site, client)


@pytest_asyncio.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with api_of(tmp_path) as made:
        yield made
