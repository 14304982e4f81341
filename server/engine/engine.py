"""One model in a worker process: requests, their deadlines and streams, from the event loop."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from server.engine.counters import EngineCounters
from server.engine.pixels import pixel_frames, without_pixels
from server.engine.process import WORKER, WorkerProcess
from server.engine.protocol import AbortRequest, AddRequest, Check, Checked, Finish, Pixels, StepOutput
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


class TokenStream(AsyncIterator[Event]):
    """Events of one request: any `TextChunk`s, then exactly one `Finished` or `Failed`. `aclose` cancels it."""

    def __init__(self, request: EngineRequest, release: Callable[[TokenStream], None]) -> None:
        self.request = request
        self._release = release
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._bytes: list[bytes] = []
        self._tokens = 0
        self.begun = False
        """There has been output."""
        self._logprobs: list[Logprob] = []
        self._end: Finished | Failed | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._finished = False
        self.timer: asyncio.TimerHandle | None = None

    @property
    def settled(self) -> bool:
        return self._end is not None

    def push(self, piece: bytes, tokens: int) -> None:
        """Output from the worker. Pieces that wait for the consumer become one `TextChunk`."""
        if self._end is None:
            self.begun = True
            self._bytes.append(piece)
            self._tokens += tokens
            self._wake()

    def score(self, logprob: Logprob) -> None:
        """The log probability of a token whose output is pushed next."""
        self._logprobs.append(logprob)

    def settle(self, end: Finished | Failed) -> None:
        """End the stream; the first end wins. A failure drops output that has not been read yet."""
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
        """Cancel the request, where it has not ended."""
        self._finished = True
        self._release(self)


class Engine:
    """One model in a worker process. The engine outlives its worker: when it dies its requests fail, and another
    starts."""

    @classmethod
    async def start(
        cls, config: EngineConfig, *, on_exit: Callable[[], None] | None = None, worker: Sequence[str] = WORKER
    ) -> Engine:
        """Load the model. `on_exit` is called whenever a worker dies unasked. `worker`: the program of the workers, as
        `WORKER` is; it speaks the same protocol. Raises EngineError."""
        engine = cls(config, on_exit, worker)
        try:
            engine._begin(await engine._worker.load())
        except BaseException:
            await engine.close()
            raise
        engine._supervisor = asyncio.create_task(engine._supervise())
        return engine

    def __init__(
        self, config: EngineConfig, on_exit: Callable[[], None] | None, worker: Sequence[str] = WORKER
    ) -> None:
        self.info: ModelInfo
        self.counts = EngineCounters()
        self._config = config
        self._on_exit = on_exit
        self._worker = WorkerProcess(config, worker, self.counts, self._on_output)
        self._supervisor: asyncio.Task[None] | None = None
        self._live: dict[int, TokenStream] = {}
        self._waiting: list[EngineRequest] = []
        """Requests that came while no worker was ready."""
        self._checks: dict[Check, asyncio.Future[Failed | None]] = {}
        """Not answered yet."""
        self._numbers = itertools.count(1)
        self._outbox: deque[EngineRequest] = deque()
        """Requests whose pixels are to be sent before them."""
        self._sending: asyncio.Task[None] | None = None
        self._closing = False
        self._load = (0, 0)
        self._last_output = 0.0

    @property
    def alive(self) -> bool:
        """A worker has loaded the model and answers."""
        return self._worker.ready

    @property
    def pid(self) -> int:
        """The worker's process id, 0 where there is none."""
        return self._worker.pid

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
            *(self._load if self.alive else (0, 0)),
        )

    # --- requests

    def generate(self, request: EngineRequest) -> TokenStream:
        """Accept a request. One that cannot be accepted (queue full, prompt too long) ends as `Failed` at once."""
        if request.id in self._live:
            raise ValueError("a request of this id is running")
        stream = TokenStream(request, self._release)
        refusal = self._refusal(request)
        if refusal is not None:
            stream.settle(refusal)
            return stream
        self._live[request.id] = stream
        # The deadline is kept here: to the worker it is an abort like any other.
        left = max(0.0, request.deadline - time.monotonic())
        stream.timer = asyncio.get_running_loop().call_later(
            left, self._end, stream, Failed("timeout", "deadline reached")
        )
        if self.alive:
            self._submit(request)
        else:
            self._waiting.append(request)
        return stream

    def _refusal(self, request: EngineRequest) -> Failed | None:
        if self._closing:
            return Failed("provider-error", "the engine is closed", {"reason": "worker"})
        if len(self._live) >= self.info.slots + self._config.max_queued:
            return Failed("quota-exceeded", "too many generations wait for this model", {"reason": "queue"})
        if len(request.tokens) >= self.info.context_length:
            return Failed("quota-exceeded", "the prompt does not fit the context", {"reason": "context"})
        if not request.tokens or min(request.tokens) < 0 or max(request.tokens) >= self.info.vocabulary:
            return Failed("provider-error", "the prompt is not made of this model's tokens")
        if request.images:
            if not self.info.vision:
                return _blind()
            offsets = [offset for offset, _ in request.images]
            if offsets != sorted(offsets) or not 0 <= offsets[0] <= offsets[-1] < len(request.tokens):
                return Failed("provider-error", "an image stands outside of the prompt's text")
            if any(len(each.rgb) != 3 * each.width * each.height for _, each in request.images):
                return Failed("provider-error", "an image has not as many pixels as it says")
        if request.max_tokens is not None and request.max_tokens < 1:
            return Failed("provider-error", "no token may be generated")
        return None

    async def check(self, tokens: int, sizes: Iterable[tuple[int, int]]) -> Failed | None:
        """Why a prompt of so many tokens of text, and of images of these sizes (width and height in pixels), would be
        refused, however few others wait; None where it would not.

        How many tokens an image takes the loaded projector alone can say: each kind lays images out in its own way,
        and scales them down to the memory there is. Of the prompt it learns no more than these numbers.
        """
        if self._closing:
            return Failed("provider-error", "the engine is closed", {"reason": "worker"})
        if not self.info.vision:
            return _blind()
        check = Check(next(self._numbers), tokens, tuple(sizes))
        answer: asyncio.Future[Failed | None] = asyncio.get_running_loop().create_future()
        self._checks[check] = answer
        try:
            if self.alive:
                self._worker.send(check)
            return await answer
        finally:
            self._checks.pop(check, None)

    def finish(self, request_id: int) -> None:
        """Let a request end with the output that it has: its `Finished`, which tells what it took, comes within a step
        or two. One that is over or unknown is left alone."""
        if request_id in self._live and self.alive:
            self._worker.send(Finish(request_id))

    def cancel(self, request_id: int) -> None:
        """Settle a request as cancelled now; the worker drops it within a step."""
        if (stream := self._live.get(request_id)) is not None:
            self._end(stream, Failed("cancelled", "cancelled"))

    def _release(self, stream: TokenStream) -> None:
        if self._live.get(stream.request.id) is stream:
            self._end(stream, Failed("cancelled", "closed by the consumer"))

    def _end(self, stream: TokenStream, end: Finished | Failed, *, told: bool = False) -> None:
        """Settle a live stream. `told`: the worker knows already."""
        request_id = stream.request.id
        del self._live[request_id]
        if stream.timer is not None:
            stream.timer.cancel()
        stream.settle(end)
        if isinstance(end, Finished):
            counts = self.counts
            counts.finished += 1
            counts.prompt_tokens += end.prompt_tokens
            counts.cache_read_tokens += end.cache_read_tokens
            counts.cache_hits += end.cache_read_tokens > 0
            counts.jump_forward_tokens += end.jump_forward_tokens
            counts.draft_tokens += end.draft_tokens
            counts.accepted_tokens += end.accepted_tokens
        if not told and self.alive:
            self._worker.send(AbortRequest(request_id))
        elif not told:
            self._waiting = [request for request in self._waiting if request.id != request_id]

    def _submit(self, request: EngineRequest) -> None:
        """Text goes at once; pixels in pieces, with room for everything else between them."""
        if not request.images:
            self._worker.send(AddRequest(request))
            return
        self._outbox.append(request)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_images())

    async def _send_images(self) -> None:
        try:
            while self._outbox:
                request = self._outbox.popleft()
                for piece in pixel_frames(request):
                    if request.id not in self._live:
                        break
                    self._worker.send(piece)
                    await self._worker.writable()
                if self.alive:
                    live = request.id in self._live
                    self._worker.send(AddRequest(without_pixels(request)) if live else Pixels(b""))
        finally:
            self._sending = None

    # --- the worker

    def _on_output(self, frame: StepOutput | Checked) -> None:
        if isinstance(frame, Checked):
            for check, answer in self._checks.items():
                if check.id == frame.id and not answer.done():
                    answer.set_result(frame.refusal)
            return
        live = self._live
        counts = self.counts
        further = 0
        for request_id, token, logprob, top in frame.logprobs:
            if (stream := live.get(request_id)) is not None:
                stream.score(Logprob(token, logprob, top))
        for request_id, piece, tokens in frame.output:
            counts.output_tokens += tokens
            if (stream := live.get(request_id)) is not None:
                further += stream.begun
                stream.push(piece, tokens)
        if frame.output:
            # Sequences that decode do so in every step: the time since the last one is the gap of each of them.
            now = time.monotonic()
            if further:
                counts.gaps.observe(now - self._last_output, further)
            self._last_output = now
        for request_id, end in frame.ended:
            if (stream := live.get(request_id)) is not None:
                self._end(stream, end, told=True)
        self._load = (frame.active, frame.queued)

    def _begin(self, info: ModelInfo) -> None:
        """A worker has loaded the model: send what has waited for one."""
        self.info = info
        for check in self._checks:
            self._worker.send(check)
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._submit(request)

    async def _supervise(self) -> None:
        """Wait for the worker's death, fail its requests, start another; for ever."""
        while True:
            await self._worker.watch(lambda: bool(self._live or self._checks))
            self._fail_all("the model's worker process died")
            await self._worker.stop()
            if self._on_exit is not None:
                self._on_exit()
            while not self.alive:
                try:
                    self._begin(await self._worker.restart())
                except EngineError as error:
                    self._fail_all(error.reason)

    def _fail_all(self, reason: str) -> None:
        self._load = (0, 0)
        self._waiting.clear()
        lost = Failed("provider-error", reason, {"reason": "worker"})
        for stream in list(self._live.values()):
            self._end(stream, lost, told=True)
        for answer in self._checks.values():
            if not answer.done():
                answer.set_result(lost)

    async def close(self) -> None:
        """End every request and the worker. Idempotent."""
        self._closing = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
            self._supervisor = None
        self._fail_all("the engine was closed")
        await self._worker.stop()
        if self._sending is not None:
            await asyncio.wait((self._sending,))


def _blind() -> Failed:
    return Failed("unsupported", "the model takes no images", {"reason": "vision"})
