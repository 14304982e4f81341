"""The owner's API, `/owner/*` (http-binding, "The owner"): for the owner's token, from the owner's addresses alone."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import resource
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, TypeVar, cast, get_args

from starlette.routing import Route

from server.http import stream
from server.http.api import Api
from server.http.asgi import (
    Asgi,
    HttpError,
    Receive,
    Scope,
    Send,
    read_body,
    respond,
    respond_json,
    watching,
)
from server.http.auth import bearer, unauthorized
from server.runtime import Endpoint, Runtime
from server.runtime.decisions import ConsentDecision, Decision
from server.runtime.generation import LiveGeneration
from server.runtime.served_model import ServedModel
from server.state import Consent, Select, StateError, TokenStore
from server.wire import encode, strict_json
from server.wire.records import WireError
from server.wire.results import write_part

PACE = 0.25
"""Seconds between two events at least, however much changes."""
LIVELY = 1.0
"""Seconds between two events while tokens are being generated."""
HEARTBEAT = 10.0

MAX_BODY = 64 * 1024

T = TypeVar("T")

Answer = Callable[[Scope, Mapping[str, Any]], Awaitable[dict[str, Any] | None]]
"""Takes the request's path parameters and body; gives what to answer, None for 204. Raises HttpError."""


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
        if not self._is_owners_address(scope):
            raise HttpError(403, WireError("invalid-request", "the owner's API does not answer to that address"))
        token = bearer(scope)
        if token is None or not hmac.compare_digest(token.encode(), self._secret):
            raise unauthorized()

    def _is_owners_address(self, scope: Scope) -> bool:
        try:
            address = ipaddress.ip_address(scope["client"][0])
        except (TypeError, ValueError):
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        networks = self._runtime.config.server.owner_from
        return address.is_loopback or any(address in each for each in networks)

    # --- looking

    async def state(self, scope: Scope, body: Mapping[str, Any]) -> dict[str, Any]:
        _take(body)
        return self._state()

    async def events(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The state now and after every change, each event a whole state."""
        self.authenticate(scope)
        await send({"type": "http.response.start", "status": 200, "headers": [*stream.HEADERS]})
        task = asyncio.current_task()
        assert task is not None
        with watching(receive, task.cancel):
            try:
                await self._stream(send)
            except asyncio.CancelledError:
                # The client has gone, or the server is ending; either way the stream is over.
                task.uncancel()
                await send({"type": "http.response.body", "body": b""})

    async def _stream(self, send: Send) -> None:
        last = b""
        wrote = 0.0
        closing = self._runtime.closing
        while not closing.is_set():
            version = self._runtime.changes.version
            state = encode(self._state())
            now = time.monotonic()
            if state != last or now - wrote > HEARTBEAT:
                await send(
                    {
                        "type": "http.response.body",
                        "body": stream.event(state) if state != last else stream.COMMENT,
                        "more_body": True,
                    }
                )
                last, wrote = state, now
            with suppress(TimeoutError):
                async with asyncio.timeout(PACE):
                    await closing.wait()
            lively = next(self._runtime.live(), None) is not None
            with suppress(TimeoutError):
                async with asyncio.timeout(LIVELY if lively else HEARTBEAT):
                    await self._runtime.changes.since(version)
        await send({"type": "http.response.body", "body": b""})

    def _state(self) -> dict[str, Any]:
        runtime = self._runtime
        handles = runtime.handles.endpoints()
        return {
            "connections": [self._connection(each) for each in runtime.connections],
            "endpoints": [
                {**_endpoint(each), "handles": handles.get(each, 0)}
                for each in sorted(runtime.endpoints(), key=lambda e: (e.token, e.identity, e.endpoint, e.account))
            ],
            "generations": [_generation(each) for each in runtime.live()],
            "decisions": [self._decision(each) for each in runtime.decisions.waiting()],
            "tokens": [
                {"name": each.name, "consent": each.consent, "select": each.select, "created": each.created}
                for each in self._tokens.list()
            ],
        }

    def _connection(self, connection: ServedModel) -> dict[str, Any]:
        engine = connection.loaded
        value: dict[str, Any] = {
            "key": connection.key,
            "name": connection.config.name,
            "model": connection.config.model,
            "route": self._runtime.route_of(connection),
            "enabled": connection.enabled,
            "state": "loaded" if engine is not None else "loading" if connection.loading else "unloaded",
        }
        if engine is not None:
            stats = engine.stats()
            value |= {
                "alive": engine.alive,
                "memory": resident(engine.pid),
                "contextLength": engine.info.context_length,
                "slots": engine.info.slots,
                "active": stats.active,
                "queued": stats.queued,
                "workerActive": stats.worker_active,
                "workerQueued": stats.worker_queued,
                "outputTokens": stats.output_tokens,
                "forcedTokens": stats.jump_forward_tokens,
                "restarts": stats.restarts,
                "notes": list(engine.info.notes),
            }
        return value

    def _decision(self, decision: Decision) -> dict[str, Any]:
        value: dict[str, Any] = {
            "id": decision.id,
            "kind": decision.kind,
            "endpoint": _endpoint(decision.endpoint),
            "created": decision.created,
            "expires": decision.expires,
        }
        if isinstance(decision, ConsentDecision):
            value["disclosure"] = asdict(decision.disclosure)
        else:
            value["requirements"] = {k: v for k, v in asdict(decision.requirements).items() if v}
            chosen = [self._runtime.connection(key) for key in decision.choices]
            value["choices"] = [
                {"key": each.key, "name": each.config.name, "model": each.config.model} for each in chosen if each
            ]
        return value

    # --- deciding

    async def disclosed(self, scope: Scope, body: Mapping[str, Any]) -> dict[str, Any]:
        """The content of a pending generation, for the owner's eyes before the decision."""
        _take(body)
        id = scope["path_params"]["id"]
        for each in self._runtime.decisions.waiting():
            if each.id == id and isinstance(each, ConsentDecision):
                request = each.request
                content = {
                    "messages": [
                        {"role": message.role, "content": [write_part(part) for part in message.content]}
                        for message in request.messages
                    ],
                    "tools": [
                        {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
                        for tool in request.tools
                    ],
                    "format": request.format,
                    "continued": [{"message": index, "tokens": size} for index, size in each.continued.items()],
                }
                return content if each.schema is None else {**content, "schema": each.schema}
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


def _endpoint(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "id": endpoint.scope,
        "token": endpoint.token,
        "identity": endpoint.identity,
        "endpoint": endpoint.endpoint,
        "account": endpoint.account,
    }


def _generation(live: LiveGeneration) -> dict[str, Any]:
    seconds = time.time() - live.first_token if live.first_token is not None else 0.0
    return {
        "number": live.number,
        "endpoint": _endpoint(live.endpoint),
        "connection": live.connection,
        "stage": live.stage,
        "created": live.created,
        "outputTokens": live.output_tokens,
        "tokensPerSecond": round(live.output_tokens / seconds, 1) if seconds > 0 else None,
    }


def resident(pid: int) -> int | None:
    """Bytes of RAM of a worker, where the system tells (proc_pid_statm(5))."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * resource.getpagesize()


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
