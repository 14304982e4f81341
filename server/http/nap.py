"""NAP-LLM over HTTP and SSE: `/nap/llm` (http-binding)."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from starlette.routing import Route

from server.http import stream
from server.http.api import GenerationApi
from server.http.asgi import Asgi, Headers, HttpError, Receive, Scope, Send, respond, respond_json, watching
from server.runtime import Caller, GenerationOptions, LiveGeneration
from server.runtime.faults import log_fault
from server.wire import (
    BadEnvelope,
    Cancel,
    Describe,
    Envelope,
    Generate,
    Select,
    cancel_result,
    describe_result,
    encode,
    error_result,
    generate_result,
    read_envelope,
    select_result,
)
from server.wire.records import Generation, WireError

RESULT = "llm.generate.result"
DESCRIBED = "llm.describe.result"
SELECTED = "llm.select.result"

log = logging.getLogger(__name__)


class NapApi(GenerationApi):
    """NAP-LLM's envelopes. Failures of generations are results like others: nothing waits for their status."""

    prefixes = ("/nap/llm",)
    early_errors = False

    def routes(self) -> list[Route]:
        return [
            Route("/nap/llm", Asgi(self.present), methods=["GET"]),
            Route("/nap/llm", Asgi(self.operate), methods=["POST"]),
            Route("/nap/llm/endpoint", Asgi(self.end_endpoint), methods=["DELETE"]),
            Route("/nap/llm/account", Asgi(self.end_account), methods=["DELETE"]),
        ]

    async def present(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.check_enabled()
        await respond_json(send, {"domain": "llm"})

    async def end_endpoint(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._runtime.end_endpoint(self.caller(scope).endpoint)
        await respond(send, 204)

    async def end_account(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self.caller(scope).endpoint
        self._runtime.end_account(endpoint.token, endpoint.account)
        await respond(send, 204)

    async def operate(self, scope: Scope, receive: Receive, send: Send) -> None:
        streamed = _accepts_events(scope)
        try:
            caller, envelope = await self.read(scope, receive, self._read)
        except BadEnvelope as bad:
            if bad.result_type is None or bad.id is None:
                raise HttpError(400, bad.error) from None
            result = error_result(bad.result_type, bad.id, bad.error)
            await _terminal(send, result, streamed and bad.result_type == RESULT)
            return
        if not isinstance(envelope, Generate):
            await self._answer(caller, envelope, receive, send)
            return
        await self.serve(
            caller,
            envelope.id,
            envelope.request,
            GenerationOptions(),
            receive,
            send,
            whole=_result,
            stream=EnvelopeWriter if streamed else None,
        )

    def _read(self, body: bytes) -> Envelope:
        return read_envelope(body, max_depth=self._runtime.limits.json_depth)

    async def _answer(self, caller: Caller, envelope: Select | Describe | Cancel, receive: Receive, send: Send) -> None:
        """Select, describe and cancel: one result as JSON."""
        task = asyncio.current_task()
        assert task is not None
        gone = False

        def leave() -> None:
            nonlocal gone
            gone = True
            task.cancel()

        with watching(receive, leave):
            try:
                result, headers = await self._result(caller, envelope)
            except asyncio.CancelledError:
                # Only the client's own departure ends quietly.
                if gone and task.uncancel() == 0:
                    return
                raise
        await respond_json(send, result, headers=headers)

    async def _result(self, caller: Caller, envelope: Select | Describe | Cancel) -> tuple[dict[str, Any], Headers]:
        if isinstance(envelope, Cancel):
            began = time.perf_counter()
            cancelled = self._runtime.cancel(caller.endpoint, envelope.request_id)
            milliseconds = (time.perf_counter() - began) * 1000
            timing = b"settle;dur=%.3f" % milliseconds
            return cancel_result(envelope.id, cancelled), [(b"server-timing", timing)]
        try:
            if isinstance(envelope, Describe):
                return describe_result(envelope.id, await self._runtime.describe(caller, envelope.handle)), []
            return select_result(envelope.id, await self._runtime.select(caller, envelope.requirements)), []
        except WireError as error:
            failure = error
        except Exception as error:
            log_fault(log, "an operation failed", error)
            failure = WireError("provider-error", "the operation failed inside the server")
        kind = DESCRIBED if isinstance(envelope, Describe) else SELECTED
        return error_result(kind, envelope.id, failure), self.retry_headers(failure)

    async def refuse(self, send: Send, id: str, error: WireError, *, streamed: bool) -> None:
        await _terminal(send, error_result(RESULT, id, error), streamed, self.retry_headers(error))


class EnvelopeWriter(stream.DeltaWriter):
    """Event stream of one generation: its deltas and its result."""

    def __init__(self, live: LiveGeneration) -> None:
        super().__init__(live.id)
        self._live = live

    def end(self) -> bytes:
        return stream.event(encode(_result(self._live)))


def _result(live: LiveGeneration) -> dict[str, Any]:
    if isinstance(live.outcome, Generation):
        return generate_result(live.id, live.outcome)
    assert live.outcome is not None
    return error_result(RESULT, live.id, live.outcome)


async def _terminal(send: Send, result: dict[str, Any], streamed: bool, headers: Headers = ()) -> None:
    """A result without a generation: one event, or JSON."""
    if streamed:
        await send({"type": "http.response.start", "status": 200, "headers": [*stream.HEADERS, *headers]})
        await send({"type": "http.response.body", "body": stream.event(encode(result))})
    else:
        await respond_json(send, result, headers=headers)


def _accepts_events(scope: Scope) -> bool:
    accept = b",".join(value for key, value in scope["headers"] if key == b"accept")
    return any(each.partition(b";")[0].strip().lower() == b"text/event-stream" for each in accept.split(b","))
