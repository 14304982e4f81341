"""Registry of live generations and waiting operations: admission of new ones, and the ends that come from outside."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from server.config import Limits
from server.logs import FIELDS
from server.runtime.changes import ChangeFeed
from server.runtime.checks import check_images
from server.runtime.clock import Clock
from server.runtime.endpoint import Caller, Endpoint
from server.runtime.failures import revoked, shutdown, timed_out
from server.runtime.generation import Cause, LiveGeneration
from server.runtime.handles import Handles
from server.runtime.limits import Rates, check_places
from server.runtime.metrics import GenerationCounters
from server.runtime.operations import Operations
from server.runtime.options import GenerationOptions
from server.runtime.served_model import ServedModel, selection_changed
from server.wire.records import Generation, GenerationRequest, WireError

log = logging.getLogger(__name__)

Run = Callable[[LiveGeneration, float], Coroutine[Any, Any, None]]
"""Coroutine function that drives a generation to its outcome; its deadline is in seconds of the clock."""


class GenerationRegistry:
    """Generations by endpoint and id, from admission to settlement; `server.runtime.runtime` has the table of ends."""

    def __init__(
        self, limits: Limits, *, clock: Clock, changes: ChangeFeed, handles: Handles, metrics: GenerationCounters
    ) -> None:
        self.rates = Rates(limits)
        self.operations = Operations(clock, timed_out)
        self.closing = asyncio.Event()
        """Set once everything ends."""
        self._limits = limits
        self._clock = clock
        self._changes = changes
        self._handles = handles
        self._metrics = metrics
        self._live: dict[Endpoint, dict[str, LiveGeneration]] = {}
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._drained_by: float | None = None

    # --- admission

    def check_open(self) -> None:
        """Raises `provider-error` (reason: shutdown) where the server is about to end."""
        if self.draining:
            raise shutdown()

    def admit_operation(self, caller: Caller) -> None:
        """Counts a selection or description. Raises `quota-exceeded` over a limit."""
        self.rates.admit(caller.endpoint, self._clock.now())
        check_places(self.operations.endpoints(), caller.endpoint, self._limits, "selections")

    def start(
        self,
        caller: Caller,
        id: str,
        request: GenerationRequest,
        options: GenerationOptions,
        *,
        seconds: float,
        run: Run,
    ) -> LiveGeneration:
        """Admits a generation, starts its deadline, `seconds` from now, and its `run`. Raises as `Runtime.generate`."""
        try:
            self.check_open()
            if id in self._live.get(caller.endpoint, {}):
                raise WireError("invalid-request", "a generation with this id is active")
            self.rates.admit(caller.endpoint, self._clock.now())
            check_places((live.endpoint for live in self.live()), caller.endpoint, self._limits, "generations")
            check_images(request, self._limits)
        except WireError as error:
            self._metrics.refused(error)
            raise
        live = LiveGeneration(caller, id, request, next(self._numbers), options)
        self._live.setdefault(caller.endpoint, {})[id] = live
        deadline = self._clock.now() + seconds
        live.timer = self._clock.call_later(seconds, lambda: live.settle(timed_out()))
        live.on_settled.append(lambda: self._unregister(live))
        live.task = asyncio.create_task(run(live, deadline))
        self._changes.notify()
        self._tasks.add(live.task)
        live.task.add_done_callback(self._tasks.discard)
        return live

    def _unregister(self, live: LiveGeneration) -> None:
        self._metrics.ended(live)
        live.context.run(_log_end, live)
        self._changes.notify()
        own = self._live[live.endpoint]
        del own[live.id]
        if not own:
            del self._live[live.endpoint]
        if live.task is not None and live.task is not asyncio.current_task():
            live.task.cancel()

    def live(self) -> Iterator[LiveGeneration]:
        """Generations that have no outcome yet."""
        for own in self._live.values():
            yield from own.values()

    def endpoints(self) -> set[Endpoint]:
        """Endpoints with handles, work or an open question."""
        return {*self._handles.endpoints(), *self._live, *self.operations.endpoints()}

    # --- ends that come from outside

    def cancel(self, endpoint: Endpoint, request_id: str) -> bool:
        """The caller's own cancel. True where an active generation of this endpoint was found."""
        live = self._live.get(endpoint, {}).get(request_id)
        return live is not None and live.settle(WireError("cancelled", "the generation was cancelled"), "caller")

    def stop(self, number: int) -> bool:
        """The owner's cancel. True where a generation of this number was active."""
        outcome = WireError("cancelled", "the owner stopped this generation")
        return self._settle(lambda live: live.number == number, outcome, "owner")

    def revoke(self, ends: Callable[[Endpoint], bool]) -> None:
        """Cancels all work and ends all handles of the endpoints for which `ends` holds."""
        self._handles.end(ends)
        self._settle(lambda live: ends(live.endpoint), revoked(), "revoked")
        self.operations.end(lambda operation: ends(operation.endpoint), revoked())
        self._changes.notify()

    def end_endpoint(self, endpoint: Endpoint) -> None:
        """Revokes one endpoint."""
        self.revoke(lambda each: each == endpoint)

    def end_account(self, token: str, account: str) -> None:
        """Revokes the endpoints of one account of a token."""
        self.revoke(lambda each: each.token == token and each.account == account)

    def end_token(self, token: str) -> None:
        """Revokes the endpoints of a token."""
        self.revoke(lambda each: each.token == token)

    def end_selections(self, connection: ServedModel) -> None:
        """Ends the work on a connection that is no longer the one that was selected."""
        self.settle_on(connection, selection_changed())
        self.operations.end(lambda operation: operation.connection is connection, selection_changed())

    def settle_on(self, connection: ServedModel, outcome: WireError, cause: Cause | None = None) -> None:
        """Settles the generations of a connection."""
        self._settle(lambda live: live.connection == connection.key, outcome, cause)

    def _settle(self, which: Callable[[LiveGeneration], bool], outcome: WireError, cause: Cause | None = None) -> bool:
        settled = [live.settle(outcome, cause) for live in [*self.live()] if which(live)]
        return any(settled)

    # --- the end

    @property
    def draining(self) -> bool:
        """True once no more work is taken, because the server is about to end."""
        return self._drained_by is not None or self.closing.is_set()

    @property
    def retry_after(self) -> int:
        """Seconds after which a caller that was refused while the server ends may find its successor, at the latest."""
        left = (self._drained_by or 0.0) - time.monotonic()
        return max(1, math.ceil(left))

    async def drain(self, seconds: float) -> bool:
        """Takes no more work and waits for what was accepted, `seconds` at most. True where all of it has ended;
        `close` settles the rest."""
        self._drained_by = time.monotonic() + seconds
        self._changes.notify()
        try:
            async with asyncio.timeout(seconds):
                while self._live:
                    await self._changes.since(self._changes.version)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Ends everything and waits for the tasks."""
        self.closing.set()
        self._changes.notify()
        self._settle(lambda _: True, shutdown())
        self.operations.end(lambda _: True, shutdown())
        if self._tasks:
            await asyncio.wait(self._tasks)


def _log_end(live: LiveGeneration) -> None:
    outcome = live.outcome
    assert outcome is not None
    ending = outcome.finish if isinstance(outcome, Generation) else outcome.code
    fields = {
        "generation": live.number,
        "connection": live.connection,
        "ending": ending if live.cause is None else f"{ending} ({live.cause})",
        "output_tokens": live.output_tokens,
        "seconds": round(time.monotonic() - live.arrived, 3),
    }
    log.info("generation %d on %s: %s, %d tokens in %.3f s", *fields.values(), extra={FIELDS: fields})
