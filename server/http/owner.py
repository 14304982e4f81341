"""The owner's API, `/owner/*` (http-binding, "The owner"): for the owner's token, from the owner's addresses alone."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, cast, get_args

from starlette.routing import Route

from server.http import stream
from server.http.api import Api
from server.http.asgi import Asgi, HttpError, Receive, Scope, Send, read_body, respond, respond_json, watching
from server.http.auth import bearer, is_from, unauthorized
from server.http.owner_state import OwnerState, write_content
from server.runtime import Runtime
from server.runtime.decisions import ConsentDecision
from server.runtime.served_model import ServedModel
from server.state import Consent, Select, StateError, TokenStore
from server.wire import strict_json
from server.wire.records import WireError

MAX_BODY = 64 * 1024

T = TypeVar("T")

Answer = Callable[[Scope, Mapping[str, Any]], Awaitable[dict[str, Any] | None]]
"""Takes the request's path parameters and body; gives the JSON to answer, None for 204. Raises HttpError."""


class OwnerApi(Api):
    """The owner's API: what is there, open decisions, tokens, endpoints and models.

    The owner's page is served from this origin: no other ever has a reason to speak to it.
    """

    prefixes = ("/owner",)
    cors = False

    def __init__(self, runtime: Runtime, tokens: TokenStore, owner_token: str) -> None:
        self._runtime = runtime
        self._tokens = tokens
        self._secret = owner_token.encode()
        self._state = OwnerState(runtime, tokens)

    def routes(self) -> list[Route]:
        return [
            self.route("GET", "/owner/state", self.state),
            Route("/owner/events", Asgi(self.events), methods=["GET"]),
            self.route("GET", "/owner/consents/{id}", self.disclosed),
            self.route("POST", "/owner/consents/{id}", self.consent),
            self.route("POST", "/owner/selections/{id}", self.selection),
            self.route("POST", "/owner/generations/{number:int}/stop", self.stop),
            self.route("POST", "/owner/tokens", self.create_token),
            self.route("DELETE", "/owner/tokens/{name}", self.revoke_token),
            self.route("POST", "/owner/endpoints/{id}/revoke", self.revoke_endpoint),
            self.route("POST", "/owner/account", self.end_account),
            self.route("POST", "/owner/models/{key}/load", self.load),
            self.route("POST", "/owner/models/{key}/unload", self.unload),
            self.route("POST", "/owner/models/{key}/disable", self.disable),
            self.route("POST", "/owner/models/{key}/enable", self.enable),
        ]

    def route(self, method: str, path: str, answer: Answer) -> Route:
        """A route that answers the owner alone, with JSON."""

        async def respond_to(scope: Scope, receive: Receive, send: Send) -> None:
            self.authenticate(scope)
            body = _members(await read_body(scope, receive, MAX_BODY))
            result = await answer(scope, body)
            if result is None:
                await respond(send, 204)
            else:
                await respond_json(send, result)

        return Route(path, Asgi(respond_to), methods=[method])

    def authenticate(self, scope: Scope) -> None:
        """Raises HttpError: 403 from elsewhere, 401 without the owner's token."""
        if not is_from(scope, self._runtime.config.server.owner_from):
            raise HttpError(403, WireError("invalid-request", "the owner's API does not answer to that address"))
        token = bearer(scope)
        if token is None or not hmac.compare_digest(token.encode(), self._secret):
            raise unauthorized()

    # --- looking

    async def state(self, scope: Scope, body: Mapping[str, Any]) -> dict[str, Any]:
        _take(body)
        return self._state.snapshot()

    async def events(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The state now and after every change, each event a whole state."""
        self.authenticate(scope)
        await send({"type": "http.response.start", "status": 200, "headers": [*stream.HEADERS]})
        task = asyncio.current_task()
        assert task is not None
        with watching(receive, task.cancel):
            try:
                await self._state.stream(send)
            except asyncio.CancelledError:
                # The client has gone, or the server is ending; either way the stream is over.
                task.uncancel()
                await send({"type": "http.response.body", "body": b""})

    # --- deciding

    async def disclosed(self, scope: Scope, body: Mapping[str, Any]) -> dict[str, Any]:
        """The content of a pending generation, for the owner's eyes before the decision."""
        _take(body)
        id = scope["path_params"]["id"]
        for each in self._runtime.decisions.waiting():
            if each.id == id and isinstance(each, ConsentDecision):
                return write_content(each)
        raise _unknown("pending consent")

    async def consent(self, scope: Scope, body: Mapping[str, Any]) -> None:
        (decision,) = _take(body, "decision")
        if decision not in ("allow", "deny"):
            raise _bad("decision must be allow or deny")
        if not self._runtime.decisions.settle_consent(scope["path_params"]["id"], decision == "allow"):
            raise _unknown("pending consent")

    async def selection(self, scope: Scope, body: Mapping[str, Any]) -> None:
        key: str | None = None
        if "decision" in body:
            if _take(body, "decision") != ("deny",):
                raise _bad("decision must be deny; to allow, name the connection")
        else:
            (key,) = _take(body, "connection")
            if self._runtime.connection(key) is None:
                raise _unknown("connection")
        if not self._runtime.decisions.settle_selection(scope["path_params"]["id"], key):
            raise _unknown("pending selection with that choice")

    # --- revoking

    async def stop(self, scope: Scope, body: Mapping[str, Any]) -> None:
        _take(body)
        if not self._runtime.stop(scope["path_params"]["number"]):
            raise _unknown("active generation")

    async def create_token(self, scope: Scope, body: Mapping[str, Any]) -> dict[str, Any]:
        """The token is in this answer and nowhere else."""
        given = {"consent": "ask", "select": "default", **body}
        name, consent, select = _take(given, "name", "consent", "select")
        if consent not in get_args(Consent) or select not in get_args(Select):
            raise _bad("consent is one of ask, shell, always and select one of default, ask")
        policy = cast(Consent, consent), cast(Select, select)
        made = await self._change_tokens(lambda store: store.create(name, consent=policy[0], select=policy[1]))
        return {"token": made}

    async def revoke_token(self, scope: Scope, body: Mapping[str, Any]) -> None:
        _take(body)
        await self._change_tokens(lambda store: store.revoke(scope["path_params"]["name"]))

    async def _change_tokens(self, change: Callable[[TokenStore], T]) -> T:
        """Writes and locks in a thread, over a store of its own; ours then reads the file in the event loop."""
        try:
            result = await asyncio.to_thread(lambda: change(TokenStore(self._tokens.directory)))
        except StateError as error:
            raise _bad(str(error)) from None
        self._tokens.refresh()
        self._runtime.changes.notify()
        return result

    async def revoke_endpoint(self, scope: Scope, body: Mapping[str, Any]) -> None:
        _take(body)
        id = scope["path_params"]["id"]
        found = next((each for each in self._runtime.endpoints() if each.scope == id), None)
        if found is None:
            raise _unknown("endpoint")
        self._runtime.end_endpoint(found)

    async def end_account(self, scope: Scope, body: Mapping[str, Any]) -> None:
        token, account = _take(body, "token", "account")
        self._runtime.end_account(token, account)

    # --- models

    async def load(self, scope: Scope, body: Mapping[str, Any]) -> None:
        connection = self._named(scope, body)
        if not connection.enabled:
            raise HttpError(409, WireError("unsupported", "the connection is disabled"))
        try:
            await connection.load()
        except WireError as error:
            raise HttpError(502, error) from None

    async def unload(self, scope: Scope, body: Mapping[str, Any]) -> None:
        self._runtime.unload(self._named(scope, body))

    async def disable(self, scope: Scope, body: Mapping[str, Any]) -> None:
        self._runtime.disable(self._named(scope, body))

    async def enable(self, scope: Scope, body: Mapping[str, Any]) -> None:
        self._runtime.enable(self._named(scope, body))

    def _named(self, scope: Scope, body: Mapping[str, Any]) -> ServedModel:
        _take(body)
        connection = self._runtime.connection(scope["path_params"]["key"])
        if connection is None:
            raise _unknown("connection")
        return connection


def _members(body: bytes) -> Mapping[str, Any]:
    """A body's members; an empty body has none."""
    if not body:
        return {}
    try:
        parsed = strict_json.parse(body)
    except strict_json.NotJson as error:
        raise _bad(str(error)) from None
    if parsed.violation or not isinstance(parsed.value, dict):
        raise _bad(parsed.violation or "the body must be one JSON object")
    return parsed.value


def _take(body: Mapping[str, Any], *names: str) -> tuple[str, ...]:
    """The text members of these names; there may be no others."""
    for name in names:
        if not isinstance(body.get(name), str):
            raise _bad(f"{name} must be text")
    if len(body) != len(names):
        raise _bad("the body has an unknown member")
    return tuple(body[name] for name in names)


def _bad(message: str) -> HttpError:
    return HttpError(400, WireError("invalid-request", message))


def _unknown(what: str) -> HttpError:
    return HttpError(404, WireError("invalid-request", f"there is no such {what}"))
