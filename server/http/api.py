"""APIs: the base of all that answer over HTTP, and of those that generate (dialects)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Final, Protocol, TypeVar

from starlette.routing import Route

from server.http.asgi import (
    ErrorResponse,
    Headers,
    HttpError,
    NoRoute,
    Receive,
    Scope,
    Send,
    read_body,
    read_with,
    require_json,
    respond_json,
    watching,
)
from server.http.auth import authenticate
from server.http.stream import EventStream
from server.runtime import Caller, GenerationOptions, LiveGeneration, Runtime
from server.state import TokenStore
from server.wire.records import Delta, ErrorCode, GenerationRequest, WireError

T = TypeVar("T")

STATUS: Final[Mapping[ErrorCode, int]] = {
    "invalid-request": 400,
    "user-cancelled": 403,
    "cancelled": 409,
    "unsupported": 422,
    "quota-exceeded": 429,
    "provider-error": 502,
    "timeout": 504,
}
"""HTTP status of a generation's failure (complete-binding)."""


class Api:
    """One API: its routes, the paths it answers for, and what the server does for these paths."""

    prefixes: ClassVar[tuple[str, ...]] = ()
    """Beginnings of its paths."""
    cors: ClassVar[bool] = True
    """Pages of the configured origins may call it."""
    quiet: ClassVar[bool] = False
    """Polled every few seconds: the access log shows its successes at debug level alone."""

    def routes(self) -> list[Route]:
        return []

    def shape(self, error: ErrorResponse) -> ErrorResponse:
        """An error of one of its paths, in the form that its clients read."""
        return error


_NONE = Api()


def api_of(path: str, apis: Iterable[Api]) -> Api:
    """API that answers for a path; one without routes where there is none."""
    return next((api for api in apis if path.startswith(api.prefixes)), _NONE)


class StreamWriter(Protocol):
    """Event stream of one generation, as a dialect writes it."""

    def write(self, deltas: list[Delta]) -> bytes:
        """Events of further deltas."""
        ...

    def end(self) -> bytes:
        """The last events: those of the outcome, whatever it is."""
        ...


class GenerationApi(Api):
    """Dialect: an API that generates. A route calls `read`, makes the wire's request of it, and calls `serve`."""

    early_errors: ClassVar[bool] = True
    """A stream waits a moment before it begins, so that an early failure is answered with its own status."""

    def __init__(self, runtime: Runtime, tokens: TokenStore) -> None:
        self._runtime = runtime
        self._tokens = tokens

    def check_enabled(self) -> None:
        """Raises NoRoute where the owner has switched generation off."""
        if not self._runtime.config.server.enabled:
            raise NoRoute(404, WireError("unsupported", "the llm domain is not served here"))

    def caller(self, scope: Scope) -> Caller:
        """The authenticated caller. Raises HttpError."""
        self.check_enabled()
        return authenticate(scope, self._tokens)

    async def read(
        self, scope: Scope, receive: Receive, reader: Callable[[bytes], T], *, in_thread: bool = False
    ) -> tuple[Caller, T]:
        """The caller, and what `reader` makes of the JSON body. `in_thread`: the reader blocks.

        Raises ErrorResponse and ClientGone; a WireError of the reader as `failure` has it.
        """
        self.caller(scope)
        require_json(scope)
        body = await read_body(scope, receive, self._runtime.limits.body_bytes)
        try:
            value = await (asyncio.to_thread(reader, body) if in_thread else read_with(reader, body))
        except WireError as error:
            raise self.failure(error) from None
        # Anew: a body takes as long as its sender likes, and the token may have been revoked meanwhile.
        return self.caller(scope), value

    async def serve(
        self,
        caller: Caller,
        id: str,
        request: GenerationRequest,
        options: GenerationOptions,
        receive: Receive,
        send: Send,
        *,
        whole: Callable[[LiveGeneration], dict[str, Any]],
        stream: Callable[[LiveGeneration], StreamWriter] | None = None,
    ) -> None:
        """Generates and answers: with an event stream where `stream` makes its writer, else with the JSON that `whole`
        makes of a generation that has ended well. A client that leaves cancels the generation."""
        try:
            live = self._runtime.generate(caller, id, request, options)
        except WireError as error:
            await self.refuse(send, id, error, streamed=stream is not None)
            return
        try:
            if stream is not None:
                writer = stream(live)
                refuse = partial(self.refuse, send, id, streamed=False) if self.early_errors else None
                await EventStream(live, receive, send, write=writer.write, end=writer.end, refuse=refuse).run()
                return
            with watching(receive, live.abandon):
                outcome = await live.result()
            if isinstance(outcome, WireError):
                await self.refuse(send, id, outcome, streamed=False)
                return
            await respond_json(send, whole(live))
        finally:
            # Whatever ended this request early, a cancelled task included: nobody reads the answer now.
            live.abandon()

    async def refuse(self, send: Send, id: str, error: WireError, *, streamed: bool) -> None:
        """Answers a generation that failed before any of it was sent. `streamed`: its client expects events."""
        raise self.failure(error)

    def failure(self, error: WireError) -> ErrorResponse:
        """A generation's failure as a response."""
        if error.code == "selection-expired":
            # There is no selection here: the connection was taken away while it was in use.
            error = WireError("cancelled", "the connection has changed; ask again")
        return HttpError(STATUS[error.code], error, self.retry_headers(error))

    def retry_headers(self, error: WireError) -> Headers:
        """`Retry-After` (RFC 9110, 10.2.3), for callers that the server's end has turned away."""
        if error.extra.get("reason") == "shutdown":
            return ((b"retry-after", b"%d" % self._runtime.retry_after),)
        return ()
