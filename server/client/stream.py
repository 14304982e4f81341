"""Stream of one generation: an iterator of events with a result at its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

from server.client.blocks import DeltaReader, PartialCall
from server.wire.records import Delta, Generation, Part


class Stream(AsyncIterator[Delta | Generation]):
    """Deltas as they arrive, then the authoritative Generation. Closing it before that abandons the generation.

    `id` is the request's id on the wire, under which the generation can be cancelled from elsewhere.
    """

    def __init__(
        self, id: str, events: AsyncGenerator[Delta | Generation, None], cancel: Callable[[str], Awaitable[bool]]
    ) -> None:
        self.id = id
        self._events = events
        self._cancel = cancel
        self._blocks = DeltaReader()
        self._generation: Generation | None = None

    async def __anext__(self) -> Delta | Generation:
        event = await anext(self._events)
        if isinstance(event, Delta):
            self._blocks.add(event)
        else:
            self._generation = event
        return event

    async def result(self) -> Generation:
        """Reads what is left. Raises what the stream raises; ValueError where it was closed before its end."""
        async for _ in self:
            pass
        if self._generation is None:
            raise ValueError("the stream was closed before its result")
        return self._generation

    async def cancel(self) -> bool:
        """Cancels the generation; the stream then raises WireError `cancelled`. False: it had ended before."""
        return await self._cancel(self.id)

    async def aclose(self) -> None:
        """Closes the stream, which cancels a generation that still runs."""
        await self._events.aclose()

    @property
    def partial(self) -> tuple[Part, ...]:
        """Text and thinking that have arrived so far, as a cancelled reply leaves them."""
        return self._blocks.parts()

    @property
    def partial_tool_calls(self) -> tuple[PartialCall, ...]:
        """Calls that have begun to arrive: for looking at, never for running. After a `toolUse` result there are none,
        for then its content holds the calls themselves."""
        ended = self._generation is not None and self._generation.finish == "toolUse"
        return () if ended else self._blocks.calls()
