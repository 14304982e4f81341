"""Server-sent events (WHATWG HTML, "Server-sent events"), one JSON value in one `data:` line each; their streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from server.http.asgi import Receive, Send
from server.runtime import LiveGeneration
from server.wire import quoted
from server.wire.records import Delta, WireError

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
)
COMMENT = b":\n\n"

HEARTBEAT = 10.0
"""Seconds without an event after which a comment is sent."""
STALLED = 60.0
"""Seconds a client may take for one write before it counts as gone."""


def event(envelope: bytes, name: str = "") -> bytes:
    """One event. JSON text holds no raw CR or LF, so it is one line. `name`: the event's type, where it has one."""
    head = b"event: %b\n" % name.encode() if name else b""
    return head + _plain_lines(b"data: %b\n\n" % envelope)


def _plain_lines(text: bytes) -> bytes:
    """Escapes what some clients' line readers take for a line's end: NEL, LS and PS. They occur in strings alone."""
    if b"\xc2\x85" in text:
        text = text.replace(b"\xc2\x85", b"\\u0085")
    if b"\xe2\x80" in text:
        text = text.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    return text


class DeltaWriter:
    """Deltas of one generation as events. What they have in common is written once."""

    def __init__(self, request_id: str) -> None:
        self._head = f'data: {{"type":"llm.delta","requestId":{quoted(request_id)},"sequence":'

    def write(self, deltas: Iterable[Delta]) -> bytes:
        head = self._head
        lines = []
        for each in deltas:
            line = (
                f'{head}{each.sequence},"event":"{each.event}","block":"{each.block}","blockIndex":{each.block_index}'
            )
            if each.text is not None:
                line += f',"text":{quoted(each.text)}'
            elif each.tool_call_id is not None:
                line += f',"toolCallId":{quoted(each.tool_call_id)},"name":{quoted(each.name or "")}'
            lines.append(line)
        lines.append("")
        return _plain_lines("}\n\n".join(lines).encode())


class EventStream:
    """Event stream of one generation: a writer, and an attendant for silence, slowness and departure.

    `write` makes events of deltas, `end` those of the outcome. With `refuse`, a generation that fails within
    `patience` seconds and before its first delta is answered by that instead of a stream.
    """

    def __init__(
        self,
        live: LiveGeneration,
        receive: Receive,
        send: Send,
        *,
        write: Callable[[list[Delta]], bytes],
        end: Callable[[], bytes],
        refuse: Callable[[WireError], Awaitable[None]] | None = None,
        patience: float = HEARTBEAT / 2,
    ) -> None:
        self._live = live
        self._receive = receive
        self._send = send
        self._write = write
        self._end = end
        self._refuse = refuse
        self._patience = patience
        self._wrote = time.monotonic()
        self._blocked_since: float | None = None
        self._cut_off = False

    async def run(self) -> None:
        writer = asyncio.current_task()
        assert writer is not None
        attendant = asyncio.create_task(self._attend(writer))
        try:
            if self._refuse is not None and (failure := await self._early_failure()) is not None:
                await self._refuse(failure)
                return
            await self._send({"type": "http.response.start", "status": 200, "headers": [*HEADERS]})
            await self._write_all()
        except asyncio.CancelledError:
            if not self._cut_off or writer.uncancel() > 0:
                raise
        finally:
            attendant.cancel()

    async def _early_failure(self) -> WireError | None:
        try:
            async with asyncio.timeout(self._patience):
                while self._live.outcome is None and not self._live.blocks.due:
                    await self._live.ready()
        except TimeoutError:
            return None
        return self._live.outcome if isinstance(self._live.outcome, WireError) else None

    async def _write_all(self) -> None:
        live = self._live
        while True:
            await live.ready()
            settled = live.outcome is not None
            events = self._write(live.take())
            if settled:
                events += self._end()
            events = events or COMMENT
            self._blocked_since = time.monotonic()
            await self._send({"type": "http.response.body", "body": events, "more_body": not settled})
            self._blocked_since, self._wrote = None, time.monotonic()
            if settled:
                return

    async def _attend(self, writer: asyncio.Task[Any]) -> None:
        """Waits for the client to leave, which shows although no byte is being sent; meanwhile keeps idle proxies."""
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT / 2):
                    message = await self._receive()
            except TimeoutError:
                now = time.monotonic()
                if self._blocked_since is not None and now - self._blocked_since > STALLED:
                    self._cut_off = True
                    self._live.abandon()
                    writer.cancel()
                    return
                if self._blocked_since is None and now - self._wrote > HEARTBEAT / 2:
                    # The writer alone writes; finding nothing to take, it sends the comment.
                    self._live.wake()
                continue
            if message["type"] == "http.disconnect":
                self._live.abandon()
                return
