"""The handle on one model's worker process, used from the event loop."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import cast

import server
from server.engine.counters import EngineCounters
from server.engine.hugepages import huge_pages
from server.engine.pixels import pixel_frames, without_pixels
from server.engine.protocol import (
    AbortRequest,
    AddRequest,
    Check,
    Checked,
    Crashed,
    Decoder,
    Finish,
    LoadFailed,
    LoadModel,
    OutOfMemory,
    Ping,
    Pixels,
    Pong,
    Ready,
    StepOutput,
    encode,
)
from server.engine.types import (
    EngineConfig,
    EngineError,
    EngineRequest,
    EngineStats,
    Event,
    Failed,
    Finished,
    Logprob,
    ModelInfo,
    TextChunk,
)
from server.engine.watchdog import CHECKS, Watchdog

_log = logging.getLogger(__name__)

WORKER = ("server.engine.worker.main",)
"""The module that is a worker's program, and its arguments before the last, which is the file descriptor of its end."""

_BACK_OFF = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before the n-th restart in a row; the row ends when a worker has lived for `_STABLE` seconds."""
_STABLE = 60.0
_STARTING = 60.0
"""Seconds a new worker may be silent at least: it imports its modules before it can answer."""
_SMALLEST = 4
"""Of the plans for the machine's memory, the last to try where workers die for want of it."""
_GRACE = 2.0
"""Seconds a worker gets to exit by itself once its socket is closed."""


class TokenStream(AsyncIterator[Event]):
    """The events of one job: `Text`…, then exactly one `Done` or `Failed`. Closing it (`aclose`) cancels the job."""

    def __init__(self, job: EngineRequest, release: Callable[[TokenStream], None]) -> None:
        self.job = job
        self._release = release
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._bytes: list[bytes] = []
        self._tokens = 0
        self.begun = False
        """Whether there has been output."""
        self._logprobs: list[Logprob] = []
        self._end: Finished | Failed | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._finished = False
        self.timer: asyncio.TimerHandle | None = None

    @property
    def settled(self) -> bool:
        return self._end is not None

    def push(self, piece: bytes, tokens: int) -> None:
        """Output from the worker. Pieces that wait for the consumer become one `Text`."""
        if self._end is None:
            self.begun = True
            self._bytes.append(piece)
            self._tokens += tokens
            self._wake()

    def score(self, logprob: Logprob) -> None:
        """Of a token whose output is pushed next."""
        self._logprobs.append(logprob)

    def settle(self, end: Finished | Failed) -> None:
        """The first end wins. Output that a cancelled or failed job has not delivered yet is dropped."""
        if self._end is None:
            self._end = end
            if isinstance(end, Failed):
                self._bytes.clear()
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> Event:
        while not self._finished:
            if self._bytes or isinstance(self._end, Finished):
                text = self._decoder.decode(b"".join(self._bytes), final=self._end is not None)
                self._bytes.clear()
                if text:
                    event = TextChunk(text, self._tokens, tuple(self._logprobs))
                    self._tokens = 0
                    self._logprobs.clear()
                    return event
            if self._end is not None:
                self._finished = True
                return self._end
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self._release(self)
                raise
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Give the job up, where it has not ended."""
        self._finished = True
        self._release(self)


class _Connection(asyncio.Protocol):
    """One worker's end of the line: frames to its `Engine`, and the news of its death."""

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
        """Returns in a later turn of the loop, once what was sent has mostly gone."""
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


class Engine:
    """One model in a worker process. The engine outlives its worker: when it dies its jobs fail, and another starts."""

    _repack = True

    @classmethod
    async def start(
        cls, spec: EngineConfig, *, on_exit: Callable[[], None] | None = None, worker: Sequence[str] = WORKER
    ) -> Engine:
        """Load the model. `on_exit` is called whenever a worker dies unasked. `worker`: the program of the workers, as
        `WORKER` is; it speaks the same protocol. Raises EngineError."""
        engine = cls(spec, on_exit, worker)
        try:
            await engine._start_worker()
        except BaseException:
            await engine.close()
            raise
        engine._supervisor = asyncio.create_task(engine._supervise())
        return engine

    def __init__(self, spec: EngineConfig, on_exit: Callable[[], None] | None, worker: Sequence[str] = WORKER) -> None:
        self.info: ModelInfo
        self._spec = spec
        self._on_exit = on_exit
        self._worker = worker
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: _Connection | None = None
        self._answer: asyncio.Future[Ready | LoadFailed] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._live: dict[int, TokenStream] = {}
        self._waiting: list[EngineRequest] = []
        self._checks: dict[Check, asyncio.Future[Failed | None]] = {}
        """Not answered yet."""
        self._numbers = itertools.count(1)
        self._outbox: deque[EngineRequest] = deque()
        """Jobs whose pixels are to be sent before them."""
        self._sending: asyncio.Task[None] | None = None
        self._ready = False
        self._closing = False
        self._killed = False
        self._short: int | None = None
        """The plan with which memory ran out, as the worker said that was started last."""
        self._smaller = 0
        self._load = (0, 0)
        self._last_output = 0.0
        self._watchdog = Watchdog()
        self._heard = False
        self.counts = EngineCounters()

    @property
    def alive(self) -> bool:
        """Whether a worker is loaded and answers."""
        return self._ready

    @property
    def pid(self) -> int:
        """The worker's process id, 0 where there is none."""
        return self._process.pid if self._process is not None else 0

    def stats(self) -> EngineStats:
        active = self._load[0] if self._live else 0
        counts = self.counts
        return EngineStats(
            active,
            max(0, len(self._live) - active),
            counts.prompt_tokens,
            counts.cache_read_tokens,
            counts.output_tokens,
            counts.restarts,
            counts.jump_forward_tokens,
            *(self._load if self._ready else (0, 0)),
        )

    # --- jobs

    def generate(self, job: EngineRequest) -> TokenStream:
        """Accept a job. What cannot be accepted (queue full, prompt too long) ends as `Failed` at once."""
        if job.id in self._live:
            raise ValueError("a job of this id is running")
        generation = TokenStream(job, self._release)
        refusal = self._refusal(job)
        if refusal is not None:
            generation.settle(refusal)
            return generation
        self._live[job.id] = generation
        # The deadline is kept here: to the worker it is a cancel like any other.
        left = max(0.0, job.deadline - time.monotonic())
        loop = asyncio.get_running_loop()
        generation.timer = loop.call_later(left, self._end, generation, Failed("timeout", "deadline reached"))
        if self._ready:
            self._submit(job)
        else:
            self._waiting.append(job)
        return generation

    def _refusal(self, job: EngineRequest) -> Failed | None:
        if self._closing:
            return Failed("provider-error", "the engine is closed", {"reason": "worker"})
        if len(self._live) >= self.info.slots + self._spec.max_queued:
            return Failed("quota-exceeded", "too many generations wait for this model", {"reason": "queue"})
        if len(job.tokens) >= self.info.context_length:
            return Failed("quota-exceeded", "the prompt does not fit the context", {"reason": "context"})
        if not job.tokens or min(job.tokens) < 0 or max(job.tokens) >= self.info.vocabulary:
            return Failed("provider-error", "the prompt is not made of this model's tokens")
        if job.images:
            if not self.info.vision:
                return _blind()
            offsets = [offset for offset, _ in job.images]
            if offsets != sorted(offsets) or not 0 <= offsets[0] <= offsets[-1] < len(job.tokens):
                return Failed("provider-error", "an image stands outside of the prompt's text")
            if any(len(each.rgb) != 3 * each.width * each.height for _, each in job.images):
                return Failed("provider-error", "an image has not as many pixels as it says")
        if job.max_tokens is not None and job.max_tokens < 1:
            return Failed("provider-error", "no token may be generated")
        return None

    async def check(self, tokens: int, sizes: Iterable[tuple[int, int]]) -> Failed | None:
        """Why a prompt of so many tokens of text, and of images of these sizes (width and height in pixels), would be
        refused, however few others wait; None where it would not.

        How many tokens an image takes the loaded projector alone can say: each kind lays images out in its own way,
        and scales them down to what there is memory for. Of the prompt it learns no more than these numbers.
        """
        if self._closing:
            return Failed("provider-error", "the engine is closed", {"reason": "worker"})
        if not self.info.vision:
            return _blind()
        check = Check(next(self._numbers), tokens, tuple(sizes))
        answer: asyncio.Future[Failed | None] = asyncio.get_running_loop().create_future()
        self._checks[check] = answer
        try:
            if self._ready:
                self._send(check)
            return await answer
        finally:
            self._checks.pop(check, None)

    def finish(self, job_id: int) -> None:
        """Let a job that has output end with it: its `Done`, which tells what it took, comes within a step or two. One
        that is over or unknown is left alone."""
        if job_id in self._live and self._ready:
            self._send(Finish(job_id))

    def cancel(self, job_id: int) -> None:
        """Settle a job as cancelled now; the worker drops it within a step."""
        if (generation := self._live.get(job_id)) is not None:
            self._end(generation, Failed("cancelled", "cancelled"))

    def _release(self, generation: TokenStream) -> None:
        if self._live.get(generation.job.id) is generation:
            self._end(generation, Failed("cancelled", "closed by the consumer"))

    def _end(self, generation: TokenStream, end: Finished | Failed, *, told: bool = False) -> None:
        """Settle a live generation. `told`: the worker knows already."""
        del self._live[generation.job.id]
        if generation.timer is not None:
            generation.timer.cancel()
        generation.settle(end)
        if isinstance(end, Finished):
            counts = self.counts
            counts.finished += 1
            counts.prompt_tokens += end.prompt_tokens
            counts.cache_read_tokens += end.cache_read_tokens
            counts.cache_hits += end.cache_read_tokens > 0
            counts.jump_forward_tokens += end.jump_forward_tokens
            counts.draft_tokens += end.draft_tokens
            counts.accepted_tokens += end.accepted_tokens
        if not told and self._ready:
            self._send(AbortRequest(generation.job.id))
        elif not told:
            self._waiting = [job for job in self._waiting if job.id != generation.job.id]

    # --- the worker

    def _submit(self, job: EngineRequest) -> None:
        """Text goes at once; pixels in pieces, with room for everything else between them."""
        if not job.images:
            self._send(AddRequest(job))
            return
        self._outbox.append(job)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_pictures())

    async def _send_pictures(self) -> None:
        try:
            while self._outbox:
                job = self._outbox.popleft()
                for piece in pixel_frames(job):
                    if job.id not in self._live or self._connection is None:
                        break
                    self._send(piece)
                    await self._connection.writable()
                if self._ready:
                    self._send(AddRequest(without_pixels(job)) if job.id in self._live else Pixels(b""))
        finally:
            self._sending = None

    def _send(self, frame: object) -> None:
        assert self._connection is not None and self._connection.transport is not None
        self._connection.transport.write(encode(frame))

    def _on_frame(self, frame: object) -> None:
        if isinstance(frame, StepOutput):
            live = self._live
            counts = self.counts
            further = 0
            for job_id, token, logprob, top in frame.logprobs:
                if (generation := live.get(job_id)) is not None:
                    generation.score(Logprob(token, logprob, top))
            for job_id, piece, tokens in frame.output:
                counts.output_tokens += tokens
                if (generation := live.get(job_id)) is not None:
                    further += generation.begun
                    generation.push(piece, tokens)
            if frame.output:
                # Whoever decodes does so in every step: the time since the last one is the gap of each of them.
                now = time.monotonic()
                if further:
                    counts.gaps.observe(now - self._last_output, further)
                self._last_output = now
            for job_id, end in frame.ended:
                if (generation := live.get(job_id)) is not None:
                    self._end(generation, end, told=True)
            self._load = (frame.active, frame.queued)
        elif isinstance(frame, Pong):
            self._heard = True
            self._watchdog.answered(frame.steps, frame.cpu, time.monotonic())
        elif isinstance(frame, Checked):
            for check, answer in self._checks.items():
                if check.id == frame.id and not answer.done():
                    answer.set_result(frame.refusal)
        elif isinstance(frame, OutOfMemory):
            self._short = frame.plan
        elif isinstance(frame, Crashed):
            _log.error("the worker failed: %s", frame.trace)
        elif isinstance(frame, Ready | LoadFailed) and self._answer is not None and not self._answer.done():
            self._answer.set_result(frame)

    async def _start_worker(self) -> None:
        """Start a process and load the model in it. Raises EngineError.

        A worker that dies while it loads is tried again without repacked weights: llama.cpp's AMX kernels, which
        work on them, crash when an older GCC (seen with 12.2) has compiled them. That holds for every model. One that
        dies for want of memory, by its own word or killed by the system, is tried again with less.
        """
        answer = await self._spawn()
        while answer is None and (self._killed or self._short is not None) and self._smaller < _SMALLEST:
            if self._closing:
                break
            self._smaller = 1 + max(self._smaller, self._short or 0)
            _log.warning("the worker died while loading the model, for want of memory; trying with less")
            answer = await self._spawn()
        if answer is None and self._short is None and not self._killed and Engine._repack and not self._closing:
            _log.warning("the worker died while loading the model; trying again without repacked weights")
            answer = await self._spawn(repack=False)
            Engine._repack = not isinstance(answer, Ready)
        if answer is None:
            raise EngineError("the worker died while it loaded the model")
        if isinstance(answer, LoadFailed):
            _log.warning("llama.cpp refused the model: %s", answer.detail)
            raise EngineError(answer.reason)
        self.info = answer.info
        for note in self.info.notes:
            _log.warning("for want of memory: %s", note)
        self._ready = True
        for check in self._checks:
            self._send(check)
        waiting, self._waiting = self._waiting, []
        for job in waiting:
            self._submit(job)

    async def _spawn(self, *, repack: bool = True) -> Ready | LoadFailed | None:
        """Start a worker and wait for its first word; None where it dies before. Afterwards it runs or is gone."""
        self._short = None
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            self._process = _popen(theirs.fileno(), self._worker)
        self._answer = loop.create_future()
        try:
            _, connection = await loop.create_unix_connection(lambda: _Connection(self._on_frame), sock=ours)
        except BaseException:
            ours.close()
            raise
        self._connection = connection
        self._send(LoadModel(self._spec, repack and Engine._repack, self._smaller))
        await self._first_word(connection, self._answer)
        if self._answer.done():
            answer = self._answer.result()
            if isinstance(answer, Ready):
                return answer
            await self._stop_worker()
            return answer
        await self._stop_worker()
        return None

    async def _first_word(self, connection: _Connection, answer: asyncio.Future[Ready | LoadFailed]) -> None:
        """Returns when a new worker has said something or died. One that falls silent is killed: it is refused.

        How far it has come nobody knows: a model may lie on a slow disk. So it need only show that it lives.
        """
        period = max(self._spec.hang_timeout, _STARTING) / CHECKS if self._spec.hang_timeout else None
        silent = 0
        while not (
            await asyncio.wait((answer, connection.closed), timeout=period, return_when=asyncio.FIRST_COMPLETED)
        )[0]:
            silent = 0 if self._heard else silent + 1
            self._heard = False
            if silent > CHECKS:
                _log.error("the worker has fallen silent while it loaded the model: it is killed")
                self.counts.hangs += 1
                assert self._process is not None
                self._process.kill()
                answer.set_result(LoadFailed("the worker hung while it loaded the model", "no answer"))
                return
            self._send(Ping())

    async def _stop_worker(self) -> None:
        """Close the socket, which tells the worker to exit, and see that it has."""
        self._ready = False
        if self._connection is not None and self._connection.transport is not None:
            self._connection.transport.abort()
        if self._process is not None:
            await asyncio.to_thread(_reap, self._process)
            self._killed = self._process.returncode == -signal.SIGKILL
            self._process = None

    async def _supervise(self) -> None:
        """Wait for the worker's death, fail what it was doing, start another; for ever."""
        failures = 0
        while True:
            assert self._connection is not None
            born = time.monotonic()
            await self._watch(self._connection)
            self._fail_all("the model's worker process died")
            await self._stop_worker()
            if self._on_exit is not None:
                self._on_exit()
            if time.monotonic() - born > _STABLE:
                failures = 0
            while not self._ready:
                await asyncio.sleep(_BACK_OFF[min(failures, len(_BACK_OFF) - 1)])
                failures += 1
                self.counts.restarts += 1
                try:
                    await self._start_worker()
                except EngineError as error:
                    self._fail_all(error.reason)

    async def _watch(self, connection: _Connection) -> None:
        """Returns when the worker is gone; kills it where it has work and makes no progress."""
        watchdog = self._watchdog = Watchdog()
        period = self._spec.hang_timeout / CHECKS or None
        while not (await asyncio.wait((connection.closed,), timeout=period))[0]:
            if not (self._live or self._checks):
                watchdog.rest()
            elif watchdog.check():
                _log.error("the worker has made no progress for too long: it is killed")
                self.counts.hangs += 1
                assert self._process is not None
                self._process.kill()
                return
            else:
                self._send(Ping())

    def _fail_all(self, reason: str) -> None:
        self._ready = False
        self._load = (0, 0)
        self._waiting.clear()
        lost = Failed("provider-error", reason, {"reason": "worker"})
        for generation in list(self._live.values()):
            self._end(generation, lost, told=True)
        for answer in self._checks.values():
            if not answer.done():
                answer.set_result(lost)

    async def close(self) -> None:
        """End every generation and the worker. Idempotent."""
        self._closing = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
            self._supervisor = None
        self._fail_all("the engine was closed")
        await self._stop_worker()
        if self._sending is not None:
            await asyncio.wait((self._sending,))


def _blind() -> Failed:
    return Failed("unsupported", "the model takes no images", {"reason": "vision"})


def _popen(fd: int, worker: Sequence[str] = WORKER) -> subprocess.Popen[bytes]:
    """Start a worker on its end of the socket pair.

    A plain subprocess and not `multiprocessing`: that would run the parent's main module again in the child, keep a
    resource tracker alive, and take environment variables only through the parent's own. The worker gets a session
    of its own, so that Ctrl-C in a terminal reaches the server alone; its standard streams lead nowhere, since
    what llama.cpp prints when it crashes may quote the output.
    """
    root = str(Path(server.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-m", *worker, str(fd)],
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
