"""The routes of the OpenAI API. What they do is the runtime's; here it is read and written."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from starlette.routing import Route

from server.http.api import GenerationApi
from server.http.asgi import Asgi, ErrorResponse, HttpError, Receive, Scope, Send, respond_json
from server.http.openai import chat, responses
from server.http.openai.errors import ApiError, failed, refused
from server.http.openai.request import read_json
from server.runtime import Caller, Endpoint, Runtime
from server.runtime.served_model import ServedModel
from server.state import TokenStore
from server.wire.records import WireError

Read = Callable[[Mapping[str, Any]], chat.ChatRequest | responses.ResponsesRequest]


class OpenAIApi(GenerationApi):
    """The OpenAI API, stateless: nothing of a request outlives its answer."""

    prefixes = ("/v1/",)

    def __init__(self, runtime: Runtime, tokens: TokenStore) -> None:
        super().__init__(runtime, tokens)
        self._started = int(time.time())

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", Asgi(self.models), methods=["GET"]),
            Route("/v1/models/{model:path}", Asgi(self.model), methods=["GET"]),
            Route("/v1/chat/completions", Asgi(self.chat), methods=["POST"]),
            Route("/v1/responses", Asgi(self.responses), methods=["POST"]),
        ]

    async def models(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.caller(scope)
        data = [self._model(each) for each in self._runtime.connections if each.enabled]
        await respond_json(send, {"object": "list", "data": data})

    async def model(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.caller(scope)
        await respond_json(send, self._model(self._connection(scope["path_params"]["model"])))

    async def chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._generate(chat.read, "chatcmpl-", scope, receive, send)

    async def responses(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._generate(responses.read, "resp_", scope, receive, send)

    async def _generate(self, read: Read, prefix: str, scope: Scope, receive: Receive, send: Send) -> None:
        depth = self._runtime.limits.json_depth
        caller, parsed = await self.read(scope, receive, lambda body: read(read_json(body, max_depth=depth)))
        options = parsed.options(self._connection(parsed.model).key)
        await self.serve(
            caller,
            prefix + secrets.token_hex(16),
            parsed.request,
            options,
            receive,
            send,
            whole=lambda live: parsed.writer(live).whole(),
            stream=parsed.writer if parsed.stream else None,
        )

    def failure(self, error: WireError) -> ErrorResponse:
        return failed(error, retry_after=self._runtime.retry_after)

    def shape(self, error: ErrorResponse) -> ErrorResponse:
        return refused(error) if isinstance(error, HttpError) else error

    def caller(self, scope: Scope) -> Caller:
        """These clients are no shells, so the token's name is all the identity there is."""
        caller = super().caller(scope)
        name = caller.endpoint.token
        return replace(caller, endpoint=Endpoint(token=name, identity=name))

    def _connection(self, model: str) -> ServedModel:
        """The connection of this key, else the first of this model. Raises ApiError(404)."""
        offered = [each for each in self._runtime.connections if each.enabled]
        for each in offered:
            if each.key == model:
                return each
        for each in offered:
            if each.config.model == model:
                return each
        raise ApiError(404, "no such model is offered", code="model_not_found", param="model")

    def _model(self, connection: ServedModel) -> dict[str, Any]:
        return {"id": connection.key, "object": "model", "created": self._started, "owned_by": "nap-llm"}
