"""A worker that hangs is killed; one that merely takes long is not."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from server.engine import Engine, EngineConfig, EngineError, Vocab, process
from server.engine import watchdog as module
from server.engine.process import WorkerProcess
from server.engine.protocol import Decoder, Ping, Pong, encode
from server.engine.watchdog import CHECKS, LONGEST, Watchdog
from server.engine.worker.main import answer_pings
from tests.engine.conftest import Model, collect
from tests.engine.test_generate import LETTERS, LONG

pytestmark = pytest.mark.slow


def checks_until_hung(dog: Watchdog, most: int = 1000) -> int | None:
    return next((number for number in range(1, most + 1) if dog.check()), None)


def test_silence_hangs_after_the_patience() -> None:
    assert checks_until_hung(Watchdog()) == CHECKS + 1


def test_steps_are_progress() -> None:
    dog = Watchdog()
    for step in range(100):
        dog.answered(step, 0.0, float(step))
        assert not dog.check()
    assert checks_until_hung(dog) == CHECKS


def test_one_long_step_that_computes_may_take_longer_but_not_for_ever() -> None:
    dog = Watchdog()
    dog.answered(7, 0.0, 0.0)
    for second in range(1, CHECKS * LONGEST + 1):
        assert not dog.check(), second
        dog.answered(7, second * 0.5, float(second))
    assert dog.check()


def test_answering_alone_is_no_progress() -> None:
    dog = Watchdog()
    dog.answered(7, 1.0, 0.0)
    for second in range(1, CHECKS + 1):
        assert not dog.check()
        dog.answered(7, 1.0 + 0.001 * second, float(second))
    assert dog.check()


def test_rest_starts_afresh() -> None:
    dog = Watchdog()
    for _ in range(CHECKS):
        dog.check()
    dog.rest()
    assert checks_until_hung(dog) == CHECKS + 1


async def test_a_stopped_worker_is_killed_and_another_goes_on(
    smollm2: Path, vocab: Vocab, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    engine = await Engine.start(EngineConfig(str(smollm2), context_length=2048, hang_timeout=0.8))
    try:
        model = Model(engine, vocab)
        generations = [engine.generate(model.job(LETTERS, max_tokens=None)) for _ in range(2)]
        for generation in generations:
            await anext(generation)
        stopped = engine.pid
        os.kill(stopped, signal.SIGSTOP)
        outcomes = [await collect(generation) for generation in generations]
        assert [outcome.failed.code for outcome in outcomes] == ["provider-error"] * 2
        after = await model.run(model.job(LETTERS, max_tokens=2))
        assert after.done.output_tokens == 2
        assert engine.pid != stopped and not psutil.pid_exists(stopped)
        assert (engine.counts.hangs, engine.counts.restarts) == (1, 1)
        assert "no progress" in caplog.text
    finally:
        await engine.close()


async def test_a_stopped_worker_without_work_is_left_alone(smollm2: Path, vocab: Vocab) -> None:
    engine = await Engine.start(EngineConfig(str(smollm2), context_length=512, hang_timeout=0.2))
    try:
        model = Model(engine, vocab)
        os.kill(engine.pid, signal.SIGSTOP)
        await asyncio.sleep(1.0)  # many times the patience
        os.kill(engine.pid, signal.SIGCONT)
        assert (await model.run(model.job(LETTERS, max_tokens=2))).done.output_tokens == 2
        assert engine.counts.hangs == 0
    finally:
        await engine.close()


async def test_a_worker_that_stops_while_it_loads_is_killed(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def stopped(fd: int, worker: Sequence[str]) -> subprocess.Popen[bytes]:
        started.append(start(fd, worker))
        started[-1].send_signal(signal.SIGSTOP)
        return started[-1]

    start = process._popen
    monkeypatch.setattr(process, "_popen", stopped)
    monkeypatch.setattr(process, "_STARTING", 0.2)
    monkeypatch.setattr(WorkerProcess, "repack", True)  # whatever died before in this process
    with pytest.raises(EngineError, match="hung while it loaded"):
        await Engine.start(EngineConfig(str(smollm2), context_length=512, hang_timeout=0.2))
    (worker,) = started
    assert worker.returncode == -signal.SIGKILL
    assert "fallen silent" in caplog.text
    assert WorkerProcess.repack, "it did not die of repacked weights"


def test_a_worker_answers_while_it_loads() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        with answer_pings(theirs, Decoder(), lambda frame: theirs.sendall(encode(frame))):
            for _ in range(3):
                ours.sendall(encode(Ping()))
                (pong,) = Decoder().feed(ours.recv(1000))
                assert isinstance(pong, Pong) and pong.steps == 0 and pong.cpu > 0
        ours.sendall(encode(Ping()))
        assert Decoder().feed(theirs.recv(1000)) == [Ping()], "left for whoever reads next"


async def test_a_long_prefill_in_one_step_is_no_hang(
    smollm2: Path, vocab: Vocab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST", 10**6)
    # One thread: a longer step, and a core for the answers on a machine that has two and other work.
    spec = EngineConfig(str(smollm2), context_length=2048, slots=1, prefill_chunk=1600, threads=1, hang_timeout=1.0)
    engine = await Engine.start(spec)
    try:
        model = Model(engine, vocab)
        job = model.job(LONG, max_tokens=1, seconds=200)
        assert len(job.tokens) > 1400, "seconds of work"
        outcome = await model.run(job)
        assert outcome.done.output_tokens == 1
        assert engine.counts.hangs == 0
    finally:
        await engine.close()
