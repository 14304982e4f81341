"""One generation between its request and its only terminal result (NAP-LLM, "Cancellation and deadlines").

Completion, cancel, deadline, disconnect, revocation and the engine's failure all meet in `LiveGeneration.settle`:
the first to arrive is the outcome, whatever comes later finds it settled and changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import Literal

from server.chat import MOST_CALLS
from server.chat.events import BlockEvent
from server.engine.types import Logprob
from server.runtime.blocks import BlockAssembler
from server.runtime.clock import Timer
from server.runtime.endpoint import Caller, Endpoint
from server.runtime.options import GenerationOptions
from server.wire.complete import Continuation
from server.wire.records import Delta, Generation, GenerationRequest, WireError

Stage = Literal["preparing", "consent", "loading", "submitted", "decoding", "checking", "settled"]
"""Where a generation stands: its prompt is being rendered, its consent asked, its model loaded; it is with the engine,
which queues and prefills it; it decodes; its finished output is being validated; it has its outcome."""

Outcome = Generation | WireError

Cause = Literal["caller", "disconnect", "owner", "revoked", "unloaded", "disabled"]
"""Why a generation was cancelled: the caller's `llm.cancel`, its closed request, the owner's stop; the end of its
endpoint, account or token; its model unloaded or disabled."""


class LiveGeneration:
    """A generation as the runtime drives it and its one consumer reads it.

    The consumer waits for `ready`, takes what is due, and is done once `outcome` is set and everything taken. Or it
    waits for `result` alone. A consumer that goes away calls `abandon`.
    """

    def __init__(
        self, caller: Caller, id: str, request: GenerationRequest, number: int, options: GenerationOptions | None = None
    ) -> None:
        self.caller = caller
        self.id = id
        self.request = request
        self.options = options or GenerationOptions()
        self.number = number
        """The runtime's own name for it: the id of its engine request, and the number that the owner sees."""
        self.entered: dict[Stage, float] = {}
        """When it came to each stage, in seconds of `time.monotonic()`."""
        self.stage = "preparing"
        self.outcome: Outcome | None = None
        self.cause: Cause | None = None
        """Where it was cancelled from outside: why."""
        self.connection: str | None = None
        """Key of the connection it uses, once that is known."""
        self.output_tokens = 0
        self.tokens: array[int] = array("i")
        """The model's output, once it is whole."""
        self.continuation: Continuation | None = None
        """Of its completed turn, where the options ask for one."""
        self.replayed = 0
        """How many earlier turns stand in its prompt as their tokens."""
        self.logprobs: list[Logprob] = []
        """Of the tokens of the answer's text so far, where the options ask for them."""
        self.created = time.time()
        self.arrived = time.monotonic()
        self.context = copy_context()
        """Of the request that brought it: to this its own log lines belong, whoever ends it."""
        self.decided_in = 0.0
        """Seconds that the owner took to decide about it."""
        self.first_token: float | None = None
        """When the engine's first text came, in seconds since the epoch."""
        self.task: asyncio.Task[None] | None = None
        self.timer: Timer | None = None
        self.on_settled: list[Callable[[], None]] = []
        self._blocks = BlockAssembler(id, MOST_CALLS if self.options.parallel else 1)
        self._reader: asyncio.Future[None] | None = None

    @property
    def endpoint(self) -> Endpoint:
        return self.caller.endpoint

    @property
    def stage(self) -> Stage:
        return self._stage

    @stage.setter
    def stage(self, stage: Stage) -> None:
        self._stage = stage
        self.entered.setdefault(stage, time.monotonic())

    @property
    def blocks(self) -> BlockAssembler:
        return self._blocks

    def settle(self, outcome: Outcome, cause: Cause | None = None) -> bool:
        """The one way to end. Whether this call was the one that did; returns at once in any case."""
        if self.outcome is not None:
            return False
        self.outcome = outcome
        self.cause = cause
        self.stage = "settled"
        if isinstance(outcome, WireError):
            # What the client has not seen yet would stay incomplete for ever.
            self._blocks.discard()
        if self.timer is not None:
            self.timer.cancel()
        for callback in self.on_settled:
            callback()
        self.wake()
        return True

    def abandon(self) -> bool:
        """The consumer is gone: nobody wants the answer any more."""
        return self.settle(WireError("cancelled", "the client closed its request"), "disconnect")

    def push(self, events: Iterable[BlockEvent]) -> None:
        """Takes what the parser found. Raises `provider-error` where it breaks the blocks' lifecycle."""
        self._blocks.push(events)
        if self._blocks.due:
            self.wake()

    async def ready(self) -> None:
        """Returns when there is something to take, when the outcome is set, or when `wake` is called."""
        if self.outcome is None and not self._blocks.due:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader

    def take(self) -> list[Delta]:
        """The deltas that are due. After an outcome, the last ones; none after an error."""
        return self._blocks.take()

    async def result(self) -> Outcome:
        """The terminal result alone, for a consumer that wants no deltas."""
        while self.outcome is None:
            self._blocks.discard()
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self.outcome

    def wake(self) -> None:
        """Lets the consumer look up although nothing may have happened."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
