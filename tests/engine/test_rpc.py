"""A model spread over other machines: two RPC servers on this one, built from the installed llama.cpp's sources."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from server.cli.rpc import LIBRARY, SERVER, build
from server.engine import Engine, EngineConfig, EngineError, Failed, TextChunk, Vocab
from tests.chat.standin import write_model
from tests.engine.conftest import Model

pytestmark = pytest.mark.slow

PROMPT = "The capital of France is Paris. The capital of Italy is Rome. The capital of Germany is"


@pytest.fixture(scope="module")
def built(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("rpc") / "built"
    build(sdist / "vendor" / "llama.cpp", directory)
    return directory


class Lent:
    """One RPC server."""

    def __init__(self, built: Path, port: int = 0) -> None:
        with socket.create_server(("127.0.0.1", port)) as free:
            self.port = free.getsockname()[1]
        self.name = f"127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [built / SERVER, "--host", "127.0.0.1", "--port", str(self.port), "-t", "1"],
            env={**os.environ, "GGML_BACKEND_PATH": str(built / LIBRARY)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self.process.poll() is None and time.monotonic() < until

    @property
    def memory(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def lent(built: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Lent, Lent]]:
    monkeypatch.setenv("GGML_BACKEND_PATH", str(built / LIBRARY))
    servers = Lent(built), Lent(built)
    yield servers
    for each in servers:
        each.end()


def spread(path: Path, *servers: Lent) -> EngineConfig:
    return EngineConfig(
        str(path), context_length=256, slots=1, speculation=False, rpc=tuple(each.name for each in servers)
    )


async def test_a_model_is_spread_over_two_servers(smollm2: Path, vocab: Vocab, lent: tuple[Lent, Lent]) -> None:
    before = [each.memory for each in lent]
    engine = await Engine.start(spread(smollm2, *lent))
    try:
        model = Model(engine, vocab)
        outcome = await model.run(model.job(PROMPT, max_tokens=2))
        assert outcome.text.strip().startswith("Berlin")
        grown = [each.memory - was for each, was in zip(lent, before, strict=True)]
        assert min(grown) > 20 * 2**20, "each holds a part of the weights"
    finally:
        await engine.close()


async def test_what_is_generated_is_what_it_is_on_one_machine(
    tmp_path: Path, sdist: Path, lent: tuple[Lent, Lent]
) -> None:
    """Of weights in F32: of others the machines' own numerics can tell."""
    path = tmp_path / "model.gguf"
    write_model(path, sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf", [], size=600, layers=6)
    outputs = []
    for spec in (spread(path), spread(path, *lent)):
        engine = await Engine.start(replace(spec, slots=4))
        model = Model(engine, Vocab.load(str(path)))
        runs = (model.run(model.job(f"number {at} and more " * (at + 1), max_tokens=30)) for at in range(4))
        outputs.append([outcome.text for outcome in await asyncio.gather(*runs)])
        await engine.close()
    assert outputs[0] == outputs[1] and len(set(outputs[0])) == 4


async def test_a_server_that_is_lost_ends_generations_and_comes_back(
    smollm2: Path, vocab: Vocab, lent: tuple[Lent, Lent], built: Path
) -> None:
    engine = await Engine.start(spread(smollm2, *lent))
    again = None
    try:
        model = Model(engine, vocab)
        events = engine.generate(model.job("Once upon a time", max_tokens=200))
        assert isinstance(await anext(events), TextChunk)
        lent[1].end()
        end = [event async for event in events][-1]
        assert isinstance(end, Failed) and end.code == "provider-error"
        again = Lent(built, lent[1].port)
        async with asyncio.timeout(120):
            while not engine.alive:
                await asyncio.sleep(0.05)
        assert (await model.run(model.job(PROMPT, max_tokens=2))).text.strip().startswith("Berlin")
    finally:
        await engine.close()
        if again is not None:
            again.end()


async def test_a_server_that_does_not_answer_is_said(smollm2: Path, lent: tuple[Lent, Lent]) -> None:
    lent[1].end()
    with pytest.raises(EngineError, match="does not answer"):
        await Engine.start(spread(smollm2, *lent))


async def test_a_build_without_the_backend_is_said(
    smollm2: Path, lent: tuple[Lent, Lent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GGML_BACKEND_PATH")
    with pytest.raises(EngineError, match="no RPC backend"):
        await Engine.start(spread(smollm2, *lent))
