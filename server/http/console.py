"""The owner's console: its files, and what it alone asks of the server beside the owner's API."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.routing import Route

from server.chat import HelperPool
from server.engine import device_report
from server.http.api import Api
from server.http.asgi import Asgi, HttpError, Receive, Scope, Send, respond
from server.http.owner import OwnerApi
from server.wire.records import WireError

DIRECTORY = Path(__file__).parent.parent / "console"

TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}

HEADERS = (
    (
        # Nothing but our own files runs or loads; images of a disclosure are data.
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Console(Api):
    """The console's files, and two routes of the owner's API for it alone. Without `helpers` no schema is compiled."""

    prefixes = ("/console/",)

    def __init__(self, owner: OwnerApi, helpers: HelperPool | None) -> None:
        self._owner = owner
        self._helpers = helpers
        self._files = {each.name: each.read_bytes() for each in DIRECTORY.iterdir() if each.suffix in TYPES}

    def routes(self) -> list[Route]:
        return [
            Route("/", Asgi(self.page), methods=["GET"]),
            Route("/console/{name}", Asgi(self.file), methods=["GET"]),
            self._owner.route("GET", "/owner/device", self.device),
            self._owner.route("POST", "/owner/grammar", self.grammar),
        ]

    async def page(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._send_file(send, "index.html")

    async def file(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._send_file(send, scope["path_params"]["name"])

    async def _send_file(self, send: Send, name: str) -> None:
        content = self._files.get(name)
        if content is None:
            raise HttpError(404, WireError("invalid-request", "the console has no such file"))
        await respond(send, 200, content, [(b"content-type", TYPES[Path(name).suffix]), *HEADERS])

    async def device(self, scope: Scope, body: Mapping[str, Any]) -> dict[str, Any]:
        """The machine: its memory, its GPUs and theirs, in bytes."""
        return asdict(await asyncio.to_thread(device_report))

    async def grammar(self, scope: Scope, body: Mapping[str, Any]) -> dict[str, Any]:
        """The GBNF of a tool's `schema`, and the keywords that are left to validation of the completed value."""
        if set(body) != {"schema"} or not isinstance(body["schema"], dict):
            raise HttpError(400, WireError("invalid-request", "the body must have one member, schema, an object"))
        if self._helpers is None:
            raise HttpError(501, WireError("unsupported", "this server compiles no schemas"))
        try:
            grammar = await self._helpers.grammar(body["schema"])
        except WireError as error:
            raise HttpError(400, error) from None
        return {"gbnf": grammar.gbnf, "checks": [{"path": path, "keyword": key} for path, key in grammar.checks]}
