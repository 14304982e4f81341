"""`POST /llm/complete`: the mhome LLM contract, one request and one response (complete-binding)."""

from __future__ import annotations

import itertools
import secrets
from typing import Any

from starlette.routing import Route

from server import config
from server.http.api import GenerationApi
from server.http.artifacts import Artifacts
from server.http.asgi import Asgi, Receive, Scope, Send, respond_json
from server.runtime import GenerationOptions, LiveGeneration, Runtime
from server.state import TokenStore
from server.wire.complete import CompleteRequest, read_complete, write_completion
from server.wire.message_schema import MESSAGE_SCHEMA
from server.wire.records import Generation, Requirements, WireError

DEFAULT_MODE = "default"
"""The mode of a request that names none."""


class CompleteApi(GenerationApi):
    """The mhome LLM contract, without streams."""

    prefixes = ("/llm/",)

    def __init__(self, runtime: Runtime, tokens: TokenStore) -> None:
        super().__init__(runtime, tokens)
        directory = runtime.config.server.artifacts
        self._artifacts = Artifacts(directory, runtime.limits.artifact_bytes) if directory is not None else None

    def routes(self) -> list[Route]:
        return [
            Route("/llm/complete", Asgi(self.complete), methods=["POST"]),
            Route("/llm/message.v1.schema.json", Asgi(self.schema), methods=["GET"]),
        ]

    async def schema(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The contract of a message. It is no secret: no token is needed."""
        self.check_enabled()
        await respond_json(send, MESSAGE_SCHEMA)

    async def complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Artifacts may lie on a slow disk.
        caller, request = await self.read(scope, receive, self._read, in_thread=self._artifacts is not None)
        try:
            options = self._options(request)
        except WireError as error:
            raise self.failure(error) from None

        def whole(live: LiveGeneration) -> dict[str, Any]:
            return self._response(request, live)

        id = secrets.token_hex(16)
        await self.serve(caller, id, request.generation, options, receive, send, whole=whole)

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

    def _response(self, request: CompleteRequest, live: LiveGeneration) -> dict[str, Any]:
        generation = live.outcome
        assert isinstance(generation, Generation)
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
