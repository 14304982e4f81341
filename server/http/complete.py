"""`POST /llm/complete`: the mhome LLM contract, one request and one response (complete-binding)."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Mapping
from typing import Any, Final

from starlette.routing import Route

from server import config
from server.http.artifacts import Artifacts
from server.http.asgi import (
    Asgi,
    ClientGone,
    HttpError,
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
from server.http.ending import retry_headers
from server.runtime import GenerationOptions, LiveGeneration, Runtime
from server.state import TokenStore
from server.wire.complete import CompleteRequest, read_complete, write_completion
from server.wire.message_schema import MESSAGE_SCHEMA
from server.wire.records import ErrorCode, Generation, Requirements, WireError

STATUS: Final[Mapping[ErrorCode, int]] = {
    "invalid-request": 400,
    "user-cancelled": 403,
    "cancelled": 409,
    "unsupported": 422,
    "quota-exceeded": 429,
    "provider-error": 502,
    "timeout": 504,
}
DEFAULT_MODE = "default"
"""The mode of a request that names none."""


class CompleteApi:
    """The routes of one runtime."""

    def __init__(self, runtime: Runtime, tokens: TokenStore) -> None:
        self._runtime = runtime
        self._tokens = tokens
        directory = runtime.config.server.artifacts
        self._artifacts = Artifacts(directory, runtime.limits.artifact_bytes) if directory is not None else None

    def routes(self) -> list[Route]:
        return [
            Route("/llm/complete", Asgi(self.complete), methods=["POST"]),
            Route("/llm/message.v1.schema.json", Asgi(self.schema), methods=["GET"]),
        ]

    async def schema(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The contract of a message. It is no secret: no token is needed."""
        self._check_enabled()
        await respond_json(send, MESSAGE_SCHEMA)

    async def complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check_enabled()
        authenticate(scope, self._tokens)
        require_json(scope)
        live: LiveGeneration | None = None
        try:
            body = await read_body(scope, receive, self._runtime.limits.body_bytes)
            # Files may lie on a slow disk.
            request = await (asyncio.to_thread if self._artifacts is not None else read_with)(self._read, body)
            caller = authenticate(scope, self._tokens)  # anew: it may have been revoked meanwhile
            live = self._runtime.generate(caller, secrets.token_hex(16), request.generation, self._options(request))
            with watching(receive, live.abandon):
                outcome = await live.result()
            if isinstance(outcome, WireError):
                raise outcome
        except ClientGone:
            return
        except WireError as error:
            raise self._refused(error) from None
        finally:
            if live is not None:
                # Whatever ended this request early, a cancelled task included: nobody reads the answer now.
                live.abandon()
        await respond_json(send, self._response(request, live, outcome))

    def _refused(self, error: WireError) -> HttpError:
        if error.code == "selection-expired":
            # There is no selection here: the connection was taken away while it was in use.
            error = WireError("cancelled", "the connection has changed; ask again")
        return HttpError(STATUS[error.code], error, (*retry_headers(self._runtime, error),))

    def _check_enabled(self) -> None:
        if not self._runtime.config.server.enabled:
            raise HttpError(404, WireError("unsupported", "the llm domain is not served here"))

    def _read(self, body: bytes) -> CompleteRequest:
        artifact = self._artifacts.reader() if self._artifacts is not None else None
        return read_complete(body, max_depth=self._runtime.limits.json_depth, artifact=artifact)

    def _options(self, request: CompleteRequest) -> GenerationOptions:
        """Raises `unsupported` where no connection is meant to serve this, or none takes such input."""
        declared = request.constraints
        # Of files there are only artifacts, and of these only texts get past their reading: any model takes those.
        taken = {"image", "file"} if self._artifacts is not None else {"image"}
        if others := sorted(declared.input - taken):
            raise WireError("unsupported", f"constraints.input: no connection here accepts {others[0]} input")
        return GenerationOptions(
            connection=self._connection(request),
            requirements=Requirements(
                images="image" in declared.input, json=declared.structured_output, tools=declared.tool_calling
            ),
            response_schema=request.schema,
            continuations=request.continuations,
            names=request.names,
        )

    def _connection(self, request: CompleteRequest) -> str | None:
        if request.use_case is None and request.mode is None:
            return None
        found = self._runtime.config.routes.get(config.Route(request.use_case, request.mode))
        if found is None:
            raise WireError("unsupported", "no route is configured for this useCase and mode")
        return found

    def _response(self, request: CompleteRequest, live: LiveGeneration, generation: Generation) -> dict[str, Any]:
        connection = self._runtime.connection(live.connection or "")
        assert connection is not None
        route = {
            "provider": self._runtime.route_of(connection),
            "model": connection.config.model,
            "mode": request.mode or DEFAULT_MODE,
        }
        response = write_completion(generation, route=route, continuation=live.continuation)
        if request.diagnostics:
            response["diagnostics"] = _diagnostics(request, live, generation)
        return response


def _diagnostics(request: CompleteRequest, live: LiveGeneration, generation: Generation) -> dict[str, Any]:
    """Where the time went, in milliseconds, and what was found in the cache. Never content."""
    stages = sorted(live.entered.items(), key=lambda stage: stage[1])
    timings = {stage: round(1000 * (then - at), 3) for (stage, at), (_, then) in itertools.pairwise(stages)}
    usage = generation.usage
    return {
        "timings": {**timings, "total": round(1000 * (stages[-1][1] - stages[0][1]), 3)},
        "cache": {
            "prompt_tokens": usage.input_tokens if usage else 0,
            "cached_tokens": (usage.cache_read_tokens or 0) if usage else 0,
            "continuations_given": len(request.continuations),
            "continuations_replayed": live.replayed,
        },
    }
