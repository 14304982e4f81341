"""One engine on SmolLM2 for all tests that do not kill it, and short ways to ask it."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from server.engine import (
    Constraint,
    Engine,
    EngineConfig,
    EngineRequest,
    Failed,
    Finished,
    Sampling,
    Segment,
    TextChunk,
    TokenStream,
    Vocab,
)
from tests.chat.standin import write_model

GREEDY = Sampling(temperature=0)
_ids = itertools.count(1)


@dataclass
class Outcome:
    """All events of one generation."""

    texts: list[TextChunk] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    end: Finished | Failed | None = None

    @property
    def text(self) -> str:
        return "".join(text.text for text in self.texts)

    @property
    def done(self) -> Finished:
        assert isinstance(self.end, Finished), self.end
        return self.end

    @property
    def failed(self) -> Failed:
        assert isinstance(self.end, Failed), self.end
        return self.end


@dataclass
class Model:
    """An engine and its vocabulary."""

    engine: Engine
    vocab: Vocab

    def job(
        self,
        prompt: str,
        *,
        max_tokens: int | None = 8,
        sampling: Sampling = GREEDY,
        scope: str | None = None,
        seconds: float = 60,
        constraint: Constraint | None = None,
        banned: tuple[int, ...] = (),
        **fields: Any,
    ) -> EngineRequest:
        """A job of its own scope unless told otherwise, so that tests do not see each other's cache."""
        number = next(_ids)
        return EngineRequest(
            id=number,
            tokens=self.vocab.tokenize([Segment(prompt, control=True)]),
            sampling=sampling,
            cache_salt=scope or f"test {number}",
            deadline=time.monotonic() + seconds,
            max_tokens=max_tokens,
            constraint=constraint,
            suppress_tokens=banned,
            **fields,
        )

    async def run(self, job: EngineRequest) -> Outcome:
        return await collect(self.engine.generate(job))


async def collect(events: TokenStream) -> Outcome:
    """Read a generation to its end."""
    outcome = Outcome()
    async for event in events:
        if isinstance(event, TextChunk):
            outcome.texts.append(event)
            outcome.times.append(time.monotonic())
        else:
            assert outcome.end is None
            outcome.end = event
    return outcome


@pytest.fixture(scope="session")
def vocab(smollm2: Path) -> Vocab:
    return Vocab.load(str(smollm2))


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def model(smollm2: Path, vocab: Vocab) -> AsyncIterator[Model]:
    engine = await Engine.start(EngineConfig(str(smollm2), context_length=2048, slots=8, max_queued=4))
    yield Model(engine, vocab)
    await engine.close()


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def small(smollm2: Path, vocab: Vocab) -> AsyncIterator[Model]:
    """With a context of 128 tokens."""
    engine = await Engine.start(EngineConfig(str(smollm2), context_length=128, slots=2))
    yield Model(engine, vocab)
    await engine.close()


@pytest.fixture(scope="package")
def random_model(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """F32 weights, so that a token's logits do not depend on what is decoded beside it."""
    path = tmp_path_factory.mktemp("random") / "random.gguf"
    write_model(path, sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf", [], size=600)
    return path
