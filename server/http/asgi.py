"""Plain ASGI: types, short responses and bounded reading, without a framework's cost per message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from server.wire import encode
from server.wire.records import WireError
from server.wire.results import write_error

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

T = TypeVar("T")

LARGE_BODY = 32 * 1024
"""Bytes from which a body is read in a thread."""

NO_STORE = (b"cache-control", b"no-store")


@dataclass(frozen=True, slots=True)
class Asgi:
    """Makes a coroutine function an ASGI application in the eyes of starlette's Route."""

    app: App

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class ErrorResponse(Exception):
    """Answer to a request that fails: a status, a JSON body, headers. No message holds content."""

    def __init__(self, status: int, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = tuple(headers)

    @property
    def body(self) -> dict[str, Any]:
        raise NotImplementedError


class HttpError(ErrorResponse):
    """Bare HTTP status with an error record of the wire."""

    def __init__(self, status: int, error: WireError, headers: Headers = ()) -> None:
        super().__init__(status, error.message, headers)
        self.error = error

    @property
    def body(self) -> dict[str, Any]:
        return {"error": write_error(self.error)}


class NoRoute(HttpError):
    """Unknown path or method, or a path that the configuration does not serve."""


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


async def respond(send: Send, status: int, body: bytes = b"", headers: Headers = ()) -> None:
    start = [NO_STORE, *headers]
    if status != 204:
        start.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


async def respond_json(send: Send, value: dict[str, Any], status: int = 200, headers: Headers = ()) -> None:
    await respond(send, status, encode(value), [(b"content-type", b"application/json"), *headers])


async def respond_error(send: Send, error: ErrorResponse) -> None:
    await respond_json(send, error.body, error.status, error.headers)


def header(scope: Scope, name: bytes) -> bytes | None:
    """The only header of that (lower-case) name. Raises HttpError(400) where there are several."""
    found = [value for key, value in scope["headers"] if key == name]
    if len(found) > 1:
        raise HttpError(400, WireError("invalid-request", f"the header {name.decode()} stands twice"))
    return found[0] if found else None


def require_json(scope: Scope) -> None:
    """Raises HttpError(415) where the body is declared as something else than JSON."""
    content_type = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
    if content_type != b"application/json":
        raise HttpError(415, WireError("invalid-request", "the content type must be application/json"))


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises HttpError(413) as soon as it is known to be larger than `limit` bytes, and ClientGone."""
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return bytes(body)


async def read_with(reader: Callable[[bytes], T], body: bytes) -> T:
    """Result of reading a body: of a large one in a thread, so that the event loop keeps its rhythm."""
    return reader(body) if len(body) < LARGE_BODY else await asyncio.to_thread(reader, body)


@contextmanager
def watching(receive: Receive, leave: Callable[[], object]) -> Iterator[None]:
    """Calls `leave` once the client has closed its connection."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        leave()

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()


def _too_large(limit: int) -> HttpError:
    return HttpError(413, WireError("quota-exceeded", f"the body is larger than {limit} bytes", reason="size"))
