"""The routes of the OpenAI API. What they do is the runtime's; here it is read and written."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from starlette.routing import Route

from server.http.asgi import (
    App,
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
from server.http.openai import chat, responses
from server.http.openai.errors import ApiError, failed, refused
from server.http.openai.request import read_json
from server.http.streaming import EventStream
from server.runtime import Caller, Endpoint, Runtime
from server.runtime.served_model import ServedModel
from server.state import TokenStore
from server.wire.records import WireError

Read = Callable[[Mapping[str, Any]], chat.ChatRequest | responses.ResponsesRequest]


class OpenAIApi:
    """The routes of one runtime, stateless: nothing of a request outlives its answer."""

    def __init__(self, runtime: Runtime, tokens: TokenStore) -> None:
        self._runtime = runtime
        self._tokens = tokens
        self._started = int(time.time())

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self._answering(self.models), methods=["GET"]),
            Route("/v1/models/{model:path}", self._answering(self.model), methods=["GET"]),
            Route("/v1/chat/completions", self._answering(self.chat), methods=["POST"]),
            Route("/v1/responses", self._answering(self.responses), methods=["POST"]),
        ]

    async def models(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._caller(scope)
        data = [self._model(each) for each in self._runtime.connections if each.enabled]
        await respond_json(send, {"object": "list", "data": data})

    async def model(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._caller(scope)
        await respond_json(send, self._model(self._connection(scope["path_params"]["model"])))

    async def chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._generate(chat.read, "chatcmpl-", scope, receive, send)

    async def responses(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._generate(responses.read, "resp_", scope, receive, send)

    def _answering(self, route: App) -> Asgi:
        """A route whose failures are answered in the API's shape."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await route(scope, receive, send)
            except ApiError as error:
                await error.respond(send)
            except HttpError as given:
                await refused(given).respond(send)
            except ClientGone:
                pass

        return Asgi(answer)

    async def _generate(self, read: Read, prefix: str, scope: Scope, receive: Receive, send: Send) -> None:
        self._caller(scope)
        require_json(scope)
        limits = self._runtime.limits
        body = await read_body(scope, receive, limits.body_bytes)

        def asking(body: bytes) -> chat.ChatRequest | responses.ResponsesRequest:
            return read(read_json(body, max_depth=limits.json_depth))

        asked = await read_with(asking, body)
        caller = self._caller(scope)  # anew: the token may have been revoked meanwhile
        connection = self._connection(asked.model)
        try:
            live = self._runtime.generate(
                caller, prefix + secrets.token_hex(16), asked.request, asked.options(connection.key)
            )
        except WireError as error:
            raise self._failed(error) from None
        writer = asked.writer(live)
        try:
            if asked.stream:

                async def refuse(error: WireError) -> None:
                    await self._failed(error).respond(send)

                await EventStream(live, receive, send, write=writer.write, end=writer.end, refuse=refuse).run()
                return
            with watching(receive, live.abandon):
                outcome = await live.result()
            if isinstance(outcome, WireError):
                raise self._failed(outcome)
            await respond_json(send, writer.whole())
        finally:
            # Whatever ended this request early, a cancelled task included: nobody reads the answer now.
            live.abandon()

    def _failed(self, error: WireError) -> ApiError:
        return failed(error, retry_after=self._runtime.retry_after)

    def _caller(self, scope: Scope) -> Caller:
        """Who calls: these clients are no shells, so the token's name is all the identity there is."""
        if not self._runtime.config.server.enabled:
            raise ApiError(404, "the llm domain is not served here", code="unknown_url")
        caller = authenticate(scope, self._tokens)
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
