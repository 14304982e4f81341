"""The life and death of worker processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from server.engine import Engine, EngineConfig, EngineError, Vocab, llama
from tests.engine.conftest import Model, collect
from tests.engine.test_generate import LETTERS, LONG

pytestmark = pytest.mark.slow


async def test_killing_the_worker_fails_its_jobs_and_the_next_works(smollm2: Path, vocab: Vocab) -> None:
    deaths = []
    engine = await Engine.start(
        EngineConfig(str(smollm2), context_length=2048), on_exit=lambda: deaths.append(time.monotonic())
    )
    try:
        model = Model(engine, vocab)
        generations = [engine.generate(model.job(LETTERS, max_tokens=None)) for _ in range(8)]
        for generation in generations:
            await anext(generation)
        first = engine.pid
        os.kill(first, signal.SIGKILL)
        outcomes = [await collect(generation) for generation in generations]
        assert [outcome.failed.code for outcome in outcomes] == ["provider-error"] * 8
        after = await model.run(model.job(LETTERS, max_tokens=2))  # waits for the new worker
        assert after.done.output_tokens == 2
        assert engine.alive and engine.pid != first and len(deaths) == 1
        assert engine.stats().restarts == 1
        assert not psutil.pid_exists(first)
    finally:
        await engine.close()


async def test_a_job_waits_for_the_restart_no_longer_than_its_deadline(smollm2: Path, vocab: Vocab) -> None:
    engine = await Engine.start(EngineConfig(str(smollm2), context_length=2048))
    try:
        model = Model(engine, vocab)
        engine._worker.ready = False  # and none comes
        outcome = await model.run(model.job(LETTERS, seconds=0.1))
        assert outcome.failed.code == "timeout"
        generation = engine.generate(model.job(LETTERS))
        engine.cancel(generation.request.id)
        assert (await collect(generation)).failed.code == "cancelled"
    finally:
        await engine.close()


async def test_a_restart_that_cannot_load_fails_what_waits_and_is_tried_again(
    smollm2: Path, vocab: Vocab, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.symlink_to(smollm2)
    engine = await Engine.start(EngineConfig(str(path), context_length=256, slots=1))
    try:
        model = Model(engine, vocab)
        path.unlink()
        os.kill(engine.pid, signal.SIGKILL)
        while engine.alive:
            await asyncio.sleep(0.01)
        assert (await model.run(model.job(LETTERS))).failed.code == "provider-error"
        path.symlink_to(smollm2)
        assert (await model.run(model.job(LETTERS, max_tokens=2))).done.output_tokens == 2
    finally:
        await engine.close()


async def test_close_leaves_no_process_and_settles_what_runs(smollm2: Path, vocab: Vocab) -> None:
    engine = await Engine.start(EngineConfig(str(smollm2), context_length=2048))
    model = Model(engine, vocab)
    generation = engine.generate(model.job(LONG))
    pid = engine.pid
    await engine.close()
    assert not psutil.pid_exists(pid)
    assert (await collect(generation)).failed.code == "provider-error"
    assert (await model.run(model.job(LETTERS))).failed.code == "provider-error"
    await engine.close()
    assert not engine.alive


async def test_a_worker_exits_when_its_parent_dies(smollm2: Path) -> None:
    code = (
        "import asyncio, sys\nfrom server.engine import Engine, EngineConfig\n"
        f"async def main():\n    engine = await Engine.start(EngineConfig({str(smollm2)!r}, context_length=512))\n"
        "    print(engine.pid, flush=True)\n    await asyncio.sleep(60)\nasyncio.run(main())"
    )
    root = Path(__file__).parents[2]
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=root)
    try:
        assert parent.stdout is not None
        line = await asyncio.to_thread(parent.stdout.readline)
        worker = psutil.Process(int(line))
        parent.kill()
        await asyncio.to_thread(worker.wait, 5)
    finally:
        parent.kill()
        parent.wait()


async def test_a_file_that_is_no_model_is_an_engine_error(tmp_path: Path) -> None:
    broken = tmp_path / "secret-name.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    for path in (broken, tmp_path / "missing.gguf"):
        with pytest.raises(EngineError) as caught:
            await Engine.start(EngineConfig(str(path)))
        assert "secret" not in caught.value.reason and "missing" not in caught.value.reason
    with pytest.raises(EngineError):
        Vocab.load(str(broken))


async def test_the_worker_imports_nothing_of_the_web() -> None:
    code = "import sys, server.engine.worker.main; print(*sys.modules)"
    root = Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE, cwd=root)
    out, _ = await process.communicate()
    loaded = out.decode().split()
    assert "server.engine.scheduler.scheduler" in loaded
    assert not {"fastapi", "starlette", "uvicorn", "jinja2", "llama_cpp.llama", "server.http"} & set(loaded)


def test_the_abort_flag_stops_a_decode_and_memory_is_as_before(smollm2: Path) -> None:
    model = llama.LlamaModel(str(smollm2), repack=False)
    context = llama.Context(model, cells=512, sequences=1, batch=256, threads=1)
    batch = llama.Batch(256)
    batch.token[:], batch.position[:] = 100, range(256)
    batch.output[-1] = 1
    assert context.decode(batch, 4) == llama.OK
    context.seq_rm(0)
    context.abort()
    assert context.decode(batch, 256) == llama.ABORTED
    assert context.last_position(0) == -1
    context.abort(False)
    assert context.decode(batch, 4) == llama.OK
    assert context.last_position(0) == 3
    context.close()
    model.close()
