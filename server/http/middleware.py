"""Middleware of every request: its id, Host and Origin checks, CORS, header limits, and the access log around it.

A page in the owner's browser must not reach this server by a name that resolves to loopback (DNS rebinding), nor by a
cross-site request. CORS and the private-network preflight answer the configured origins alone.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Iterable
from urllib.parse import quote

from server.config import LOOPBACK_HOSTS
from server.http.api import Api, api_of
from server.http.asgi import (
    App,
    ClientGone,
    ErrorResponse,
    HttpError,
    Message,
    Receive,
    Scope,
    Send,
    header,
    respond,
    respond_error,
)
from server.logs import FIELDS, request_id
from server.runtime.faults import log_fault
from server.wire.records import WireError

access = logging.getLogger("nap_llm.access")
log = logging.getLogger(__name__)

MAX_HEADER_BYTES = 32 * 1024

_ALLOWED = (
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (
        b"access-control-allow-headers",
        b"Authorization, Content-Type, Napplet-Identity, Napplet-Endpoint, Napplet-Account, Napplet-Consent, "
        b"X-Request-Id, "
        # What OpenAI's JavaScript client says of itself; a browser sends nothing where one of them is not allowed.
        + b", ".join(
            b"X-Stainless-" + name
            for name in (
                *(b"Arch", b"Lang", b"OS", b"Package-Version", b"Runtime", b"Runtime-Version"),
                *(b"Retry-Count", b"Timeout", b"Helper-Method"),
            )
        ),
    ),
    (b"access-control-max-age", b"600"),
)
_EXPOSED = (b"access-control-expose-headers", b"X-Request-Id, Retry-After, Server-Timing")


class RequestMiddleware:
    """ASGI middleware around all APIs."""

    def __init__(
        self, app: App, *, apis: Iterable[Api], hosts: Iterable[str] = (), origins: Iterable[str] = ()
    ) -> None:
        self._app = app
        self._apis = (*apis,)
        self._hosts = frozenset(each.lower() for each in (*LOOPBACK_HOSTS, *hosts))
        self._origins = frozenset(each.lower().encode() for each in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        status = 0
        api = api_of(scope["path"], self._apis)
        id = _request_id(scope)
        request_id.set(id)
        extra: list[tuple[bytes, bytes]] = [(b"x-request-id", id.encode())]

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        try:
            origin = self._check(scope, api)
            if origin is not None:
                extra += [(b"access-control-allow-origin", origin), (b"vary", b"Origin"), _EXPOSED]
                if scope["method"] == "OPTIONS" and header(scope, b"access-control-request-method") is not None:
                    await respond(sending, 204, headers=[*_ALLOWED, *_private_network(scope)])
                    return
            await self._serve(api, scope, receive, sending)
        except ErrorResponse as error:
            await respond_error(sending, error)
        except Exception as error:
            log_fault(log, "a request failed", error)
            if status == 0:
                failure = WireError("provider-error", "the server failed")
                await respond_error(sending, HttpError(500, failure))
        finally:
            # A path that no route knows may be anything, a misplaced secret included.
            path = quote(scope["path"]) if "endpoint" in scope else "-"
            milliseconds = round((time.monotonic() - began) * 1000, 1)
            fields = {"method": scope["method"], "path": path, "status": status, "milliseconds": milliseconds}
            level = logging.DEBUG if api.quiet and status == 200 else logging.INFO
            access.log(level, "%s %s %d %.1f ms", *fields.values(), extra={FIELDS: fields})

    async def _serve(self, api: Api, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except ErrorResponse as error:
            raise api.shape(error) from None
        except ClientGone:
            pass

    def _check(self, scope: Scope, api: Api) -> bytes | None:
        """The origin to answer by CORS, if any. Raises HttpError: 403 for a foreign Host or Origin, 431 for headers."""
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            raise HttpError(431, WireError("invalid-request", "the headers are too large"))
        host = header(scope, b"host")
        if host is None or _host_name(host) not in self._hosts:
            raise HttpError(403, WireError("invalid-request", "this server does not answer under that host name"))
        origin = header(scope, b"origin")
        if origin is None or origin.lower() == scope["scheme"].encode() + b"://" + host.lower():
            return None
        if origin.lower() not in self._origins or not api.cors:
            raise HttpError(403, WireError("invalid-request", "this origin is not allowed"))
        return origin


def _request_id(scope: Scope) -> str:
    """The caller's own id of this request, where it gives one that is fit for a log; else a new one."""
    given = [value for key, value in scope["headers"] if key == b"x-request-id"]
    if len(given) == 1 and re.fullmatch(rb"[A-Za-z0-9._-]{1,64}", given[0]):
        return str(given[0], "ascii")
    return secrets.token_hex(8)


def _host_name(host: bytes) -> str:
    """Host without port, brackets and the root's dot (RFC 9110, 7.2)."""
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        address, closing, _ = text[1:].partition("]")
        return address if closing else ""
    return text.partition(":")[0].removesuffix(".")


def _private_network(scope: Scope) -> list[tuple[bytes, bytes]]:
    if header(scope, b"access-control-request-private-network") == b"true":
        return [(b"access-control-allow-private-network", b"true")]
    return []
