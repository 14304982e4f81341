"""`GET /healthz` and `GET /readyz`: what a supervisor or a load balancer asks, and anyone may."""

from __future__ import annotations

import logging

from starlette.routing import Route

from server.chat import HelperPool
from server.http.api import Api
from server.http.asgi import Asgi, Receive, Scope, Send, respond_json
from server.runtime import Runtime
from server.state import StateError, TokenStore
from server.wire.records import WireError

log = logging.getLogger(__name__)

RETRY_AFTER = b"5"
"""Seconds until it pays to ask again what is broken now."""


class Health(Api):
    """Liveness and readiness. Models are not asked about: they are loaded on demand, and come back by themselves."""

    prefixes = ("/healthz", "/readyz")
    quiet = True

    def __init__(self, runtime: Runtime, tokens: TokenStore, helpers: HelperPool | None) -> None:
        self._runtime = runtime
        self._tokens = tokens
        self._helpers = helpers
        self._said: list[str] = []

    def routes(self) -> list[Route]:
        return [
            Route("/healthz", Asgi(self.live), methods=["GET"]),
            Route("/readyz", Asgi(self.ready), methods=["GET"]),
        ]

    async def live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Liveness of the event loop: no answer is the only other answer. Restarting helps where it is missing."""
        await respond_json(send, {"status": "ok"})

    async def ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Readiness to take and serve generations: 200, or 503 with what is in the way."""
        obstacles = await self._obstacles()
        if obstacles != self._said:
            log.warning("not ready: %s", ", ".join(obstacles)) if obstacles else log.info("ready again")
            self._said = obstacles
        if not obstacles:
            await respond_json(send, {"status": "ready"})
            return
        after = b"%d" % self._runtime.retry_after if "draining" in obstacles else RETRY_AFTER
        await respond_json(send, {"status": "not ready", "reasons": obstacles}, 503, [(b"retry-after", after)])

    async def _obstacles(self) -> list[str]:
        if self._runtime.draining:
            return ["draining"]
        found = []
        try:
            self._tokens.check()
        except StateError:
            found.append("state directory")
        if self._helpers is not None:
            try:
                await self._helpers.check()
            except WireError:
                found.append("helpers")
        return found
