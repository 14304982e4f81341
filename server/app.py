"""The web process: one FastAPI application over one runtime."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from server.chat import HelperPool, make_parser
from server.config import LOOPBACK_HOSTS, Config
from server.engine import Engine
from server.http.complete import CompleteApi
from server.http.console import Console
from server.http.health import Health
from server.http.metrics import MetricsEndpoint
from server.http.middleware import RequestMiddleware
from server.http.nap import NapApi
from server.http.openai import OpenAIApi
from server.http.openai.errors import no_route
from server.http.owner import OwnerApi
from server.runtime import Runtime
from server.runtime.faults import log_fault
from server.state import TokenStore, continuation_secret, default_state_dir, owner_token
from server.weights import fetch

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
    for projection in (NapApi, CompleteApi, OpenAIApi):
        app.router.routes.extend(projection(runtime, tokens).routes())
    owner = OwnerApi(runtime, tokens, owner_token(tokens.directory))
    app.router.routes.extend([*owner.routes(), *Console(owner, helpers).routes()])
    app.router.routes.extend([*MetricsEndpoint(runtime, owner).routes(), *Health(runtime, tokens, helpers).routes()])
    app.add_exception_handler(HTTPException, _http_error)
    app.add_middleware(
        RequestMiddleware, hosts=(*config.server.allowed_hosts, *_own_name(host)), origins=config.server.allowed_origins
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


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    """Unknown paths and methods, in the shape of all our errors; below `/v1`, in that of its clients."""
    assert isinstance(error, HTTPException)
    # The router knows the methods of the first route of this path alone.
    headers = {"allow": _methods(request)} if error.status_code == 405 else error.headers
    if request.url.path.startswith("/v1/"):
        return JSONResponse(no_route(error.status_code, error.detail), error.status_code, headers)
    content = {"error": {"code": "invalid-request", "message": error.detail}}
    return JSONResponse(content, error.status_code, headers)


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
