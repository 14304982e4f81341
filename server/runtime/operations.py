"""Selections and descriptions under way: what may make them wait, and what ends the wait.

They wait for a file that is fetched, for a helper that reads it, for the owner. Meanwhile their endpoint may be
destroyed, its token revoked or its account ended, the connection be disabled or its file replaced, the server be told
to end, and the deadline may come. Whatever comes first is the answer, at once, whatever they still wait for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from server.runtime.clock import Clock
from server.runtime.endpoint import Endpoint
from server.runtime.served_model import ServedModel
from server.wire.records import WireError

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Operation:
    """One that waits. `connection` is the one it is about, where that is settled already."""

    endpoint: Endpoint
    connection: ServedModel | None
    ended: asyncio.Future[WireError] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def end(self, error: WireError) -> None:
        if not self.ended.done():
            self.ended.set_result(error)


class Operations:
    """All that wait. `timeout` is what ends those that take too long."""

    def __init__(self, clock: Clock, timeout: Callable[[], WireError]) -> None:
        self._clock = clock
        self._timeout = timeout
        self._waiting: set[Operation] = set()

    def endpoints(self) -> Iterator[Endpoint]:
        """The endpoint of each."""
        return (each.endpoint for each in self._waiting)

    def end(self, which: Callable[[Operation], bool], error: WireError) -> None:
        for each in [*self._waiting]:
            if which(each):
                each.end(error)

    async def run(
        self,
        work: Coroutine[Any, Any, T],
        endpoint: Endpoint,
        connection: ServedModel | None = None,
        *,
        seconds: float,
    ) -> T:
        """Result of the work, within `seconds`. Raises what it raises, or the error that has ended the operation, even
        where that came when the work was done and nobody had looked yet."""
        operation = Operation(endpoint, connection)
        self._waiting.add(operation)
        task = asyncio.create_task(work)
        # What it meets is nobody's business any more where it is ended.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        timer = self._clock.call_later(seconds, lambda: operation.end(self._timeout()))
        try:
            await asyncio.wait((task, operation.ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            if not task.done():
                # It lets go of what it waits for: its question to the owner is withdrawn.
                task.cancel()
                await asyncio.wait((task,))
            self._waiting.discard(operation)
        if operation.ended.done():
            raise operation.ended.result()
        return task.result()
