"""A model's worker process: started, loaded, watched, killed where it hangs, started again where it has died."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, cast

import server
from server.engine.counters import EngineCounters
from server.engine.hugepages import huge_pages
from server.engine.protocol import (
    Checked,
    Crashed,
    Decoder,
    LoadFailed,
    LoadModel,
    OutOfMemory,
    Ping,
    Pong,
    Ready,
    StepOutput,
    encode,
)
from server.engine.types import EngineConfig, EngineError, ModelInfo
from server.engine.watchdog import CHECKS, Watchdog

_log = logging.getLogger(__name__)

WORKER = ("server.engine.worker.main",)
"""The module that is a worker's program, and its arguments before the last, the file descriptor of its socket."""

_BACK_OFF = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before the n-th restart in a row; the row ends when a worker has lived for `_STABLE` seconds."""
_STABLE = 60.0
_STARTING = 60.0
"""Seconds a new worker may be silent at least: it imports its modules before it can answer."""
_SMALLEST = 4
"""Of the plans for the machine's memory, the last to try where workers die for want of it."""
_GRACE = 2.0
"""Seconds a worker gets to exit by itself once its socket is closed."""


class _Connection(asyncio.Protocol):
    """Our end of one worker's socket: frames as they come, and the news of its death (`closed`)."""

    def __init__(self, on_frame: Callable[[object], None]) -> None:
        self._decoder = Decoder()
        self._on_frame = on_frame
        self.closed = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def writable(self) -> None:
        await asyncio.sleep(0)
        await self._writable.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, but speak like them.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            self._on_frame(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        if not self.closed.done():
            self.closed.set_result(None)


class WorkerProcess:
    """The worker of one engine, one process at a time. `on_output` gets the frames that answer requests."""

    repack: ClassVar[bool] = True
    """Let llama.cpp lay weights out anew. Off for all models once a worker has died of it."""

    def __init__(
        self,
        config: EngineConfig,
        program: Sequence[str],
        counters: EngineCounters,
        on_output: Callable[[StepOutput | Checked], None],
    ) -> None:
        self.ready = False
        """A model is loaded and requests may be sent."""
        self._config = config
        self._program = program
        self._counters = counters
        self._on_output = on_output
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: _Connection | None = None
        self._answer: asyncio.Future[Ready | LoadFailed] | None = None
        self._killed = False
        self._short: int | None = None
        """The plan with which memory ran out, by the word of the worker started last."""
        self._smaller = 0
        """Plans known to be too large."""
        self._failures = 0
        """Restarts in a row."""
        self._watchdog = Watchdog()
        self._heard = False

    @property
    def pid(self) -> int:
        """Process id, 0 where there is none."""
        return self._process.pid if self._process is not None else 0

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()

    def send(self, frame: object) -> None:
        assert self._connection is not None and self._connection.transport is not None
        self._connection.transport.write(encode(frame))

    async def writable(self) -> None:
        """Returns in a later turn of the loop, once most of what was sent has gone."""
        assert self._connection is not None
        await self._connection.writable()

    def _on_frame(self, frame: object) -> None:
        if isinstance(frame, StepOutput | Checked):
            self._on_output(frame)
        elif isinstance(frame, Pong):
            self._heard = True
            self._watchdog.answered(frame.steps, frame.cpu, time.monotonic())
        elif isinstance(frame, OutOfMemory):
            self._short = frame.plan
        elif isinstance(frame, Crashed):
            _log.error("the worker failed: %s", frame.trace)
        elif isinstance(frame, Ready | LoadFailed) and self._answer is not None and not self._answer.done():
            self._answer.set_result(frame)

    # --- start

    async def load(self) -> ModelInfo:
        """Start a process and load the model in it. Raises EngineError.

        A worker that dies while it loads is tried again without repacked weights: llama.cpp's AMX kernels, which
        work on them, crash when an older GCC (seen with 12.2) has compiled them. That holds for every model. One that
        dies for want of memory, by its own word or killed by the system, is tried again with less.
        """
        answer = await self._spawn()
        while answer is None and (self._killed or self._short is not None) and self._smaller < _SMALLEST:
            self._smaller = 1 + max(self._smaller, self._short or 0)
            _log.warning("the worker died while loading the model, for want of memory; trying with less")
            answer = await self._spawn()
        if answer is None and self._short is None and not self._killed and WorkerProcess.repack:
            _log.warning("the worker died while loading the model; trying again without repacked weights")
            answer = await self._spawn(repack=False)
            WorkerProcess.repack = not isinstance(answer, Ready)
        if answer is None:
            raise EngineError("the worker died while it loaded the model")
        if isinstance(answer, LoadFailed):
            _log.warning("llama.cpp refused the model: %s", answer.detail)
            raise EngineError(answer.reason)
        for note in answer.info.notes:
            _log.warning("for want of memory: %s", note)
        self.ready = True
        return answer.info

    async def restart(self) -> ModelInfo:
        """Load the model again, after a pause that grows while workers die young. Raises EngineError."""
        await asyncio.sleep(_BACK_OFF[min(self._failures, len(_BACK_OFF) - 1)])
        self._failures += 1
        self._counters.restarts += 1
        return await self.load()

    async def _spawn(self, *, repack: bool = True) -> Ready | LoadFailed | None:
        """Start a worker and wait for its answer; None where it dies before. Afterwards it runs or is gone."""
        self._short = None
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            self._process = _popen(theirs.fileno(), self._program)
        self._answer = loop.create_future()
        try:
            _, connection = await loop.create_unix_connection(lambda: _Connection(self._on_frame), sock=ours)
        except BaseException:
            ours.close()
            raise
        self._connection = connection
        self.send(LoadModel(self._config, repack and WorkerProcess.repack, self._smaller))
        await self._await_answer(connection, self._answer)
        answer = self._answer.result() if self._answer.done() else None
        if not isinstance(answer, Ready):
            await self.stop()
        return answer

    async def _await_answer(self, connection: _Connection, answer: asyncio.Future[Ready | LoadFailed]) -> None:
        """Returns when a new worker has answered or died. One that falls silent is killed, and answered for.

        How far it has come nobody knows: a model may lie on a slow disk. So it need only show that it lives.
        """
        timeout = self._config.hang_timeout
        period = max(timeout, _STARTING) / CHECKS if timeout else None
        silent = 0
        while not (
            await asyncio.wait((answer, connection.closed), timeout=period, return_when=asyncio.FIRST_COMPLETED)
        )[0]:
            silent = 0 if self._heard else silent + 1
            self._heard = False
            if silent > CHECKS:
                _log.error("the worker has fallen silent while it loaded the model: it is killed")
                self._counters.hangs += 1
                self.kill()
                answer.set_result(LoadFailed("the worker hung while it loaded the model", "no answer"))
                return
            self.send(Ping())

    # --- end

    async def watch(self, has_work: Callable[[], bool]) -> None:
        """Returns when the worker is gone; kills it where it has work and makes no progress."""
        assert self._connection is not None
        closed, born = self._connection.closed, time.monotonic()
        watchdog = self._watchdog = Watchdog()
        period = self._config.hang_timeout / CHECKS or None
        while not (await asyncio.wait((closed,), timeout=period))[0]:
            if not has_work():
                watchdog.rest()
            elif watchdog.check():
                _log.error("the worker has made no progress for too long: it is killed")
                self._counters.hangs += 1
                self.kill()
                break
            else:
                self.send(Ping())
        self.ready = False
        if time.monotonic() - born > _STABLE:
            self._failures = 0

    async def stop(self) -> None:
        """Close the socket, which tells the worker to exit, and see that it has."""
        self.ready = False
        if self._connection is not None and self._connection.transport is not None:
            self._connection.transport.abort()
        if self._process is not None:
            await asyncio.to_thread(_reap, self._process)
            self._killed = self._process.returncode == -signal.SIGKILL
            self._process = None


def _popen(fd: int, program: Sequence[str] = WORKER) -> subprocess.Popen[bytes]:
    """Start a worker on its end of the socket pair.

    A plain subprocess and not `multiprocessing`: that would run the parent's main module again in the child, keep a
    resource tracker alive, and take environment variables only through the parent's own. The worker gets a session
    of its own, so that Ctrl-C in a terminal reaches the server alone; its standard streams lead nowhere, since
    llama.cpp's last words in a crash may quote the output.
    """
    root = str(Path(server.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-m", *program, str(fd)],
        pass_fds=[fd],
        env={**huge_pages(os.environ), "PYTHONPATH": path, "GGML_NO_BACKTRACE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
