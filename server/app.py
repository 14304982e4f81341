"""Web process: one FastAPI application over one runtime."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from server.chat import HelperPool, make_parser
from server.config import LOOPBACK_HOSTS, Config
from server.engine import Engine
from server.http import apis
from server.http.asgi import NoRoute
from server.http.middleware import RequestMiddleware
from server.runtime import Runtime
from server.runtime.faults import log_fault
from server.state import TokenStore, continuation_secret, default_state_dir, owner_token
from server.weights import fetch
from server.wire.records import WireError

log = logging.getLogger(__name__)

TOKEN_CHECK = 1.0
"""Seconds after which a token revoked from outside is noticed although nobody uses it."""


def create_app(
    config: Config,
    runtime: Runtime | None = None,
    *,
    tokens: TokenStore | None = None,
    state: Path | None = None,
    host: str = "127.0.0.1",
    helpers: HelperPool | None = None,
) -> FastAPI:
    """The application. `host` is the address it will listen on; beyond loopback, selections name this machine.

    Without `runtime`, helper processes and engines are started and ended with the application; so are `helpers` that
    are given. Raises StateError where the state directory cannot be used.
    """
    tokens = tokens or TokenStore(state or default_state_dir())
    if runtime is None:
        helpers = helpers or HelperPool()
        runtime = Runtime(
            config,
            chat=helpers,
            start_engine=Engine.start,
            make_parser=make_parser,
            fetch_file=fetch,
            machine=None if host in LOOPBACK_HOSTS else socket.gethostname(),
            secret=continuation_secret(tokens.directory),
        )
    tokens.on_revoked = runtime.end_token

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if helpers is not None:
            await helpers.start()
        watch = asyncio.create_task(_watch(tokens))
        try:
            yield
        finally:
            watch.cancel()
            await runtime.close()
            if helpers is not None:
                await helpers.close()

    app = FastAPI(lifespan=lifespan, openapi_url=None, redirect_slashes=False)
    served = apis(runtime, tokens, owner_token(tokens.directory), helpers)
    for api in served:
        app.router.routes.extend(api.routes())
    app.add_exception_handler(HTTPException, _no_route)
    app.add_middleware(
        RequestMiddleware,
        apis=served,
        hosts=(*config.server.allowed_hosts, *_own_name(host)),
        origins=config.server.allowed_origins,
    )
    app.state.runtime = runtime
    return app


async def _watch(tokens: TokenStore) -> None:
    while True:
        await asyncio.sleep(TOKEN_CHECK)
        try:
            tokens.refresh()
        except Exception as error:
            log_fault(log, "the tokens cannot be read", error)


async def _no_route(request: Request, error: Exception) -> NoReturn:
    """Unknown paths and methods, for the middleware to answer in the form of the path's API."""
    assert isinstance(error, HTTPException)
    # The router knows the methods of the first route of this path alone.
    headers = [(b"allow", _methods(request).encode())] if error.status_code == 405 else []
    raise NoRoute(error.status_code, WireError("invalid-request", error.detail), headers)


def _methods(request: Request) -> str:
    """All methods of a path (RFC 9110, 10.2.1)."""
    routes = [
        each
        for each in request.app.routes
        if isinstance(each, Route) and each.matches(request.scope)[0] is not Match.NONE
    ]
    return ", ".join(sorted({method for each in routes for method in each.methods or ()}))


def _own_name(host: str) -> tuple[str, ...]:
    """An address the owner had us listen on is one of our names; the wildcard addresses are none."""
    return () if host in ("0.0.0.0", "::", "") else (host,)
