"""HTTP server process of `nap-llm serve`, from its socket to its end.

The first signal to end (SIGTERM, SIGINT) drains: nothing new is accepted, what was accepted gets `[server] drain`
seconds to finish, then the rest is settled. The second one settles the rest and cuts the connections at once.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from server.app import create_app
from server.cli.systemd import keep_alive, notify
from server.config import Config
from server.logs import LogFormat, start_logging
from server.runtime import Runtime

log = logging.getLogger(__name__)

FLUSH_SECONDS = 1.0
"""Seconds in which clients read what is left for them, all generations settled, before they are cut off."""
GRACE_SECONDS = 10.0
"""Seconds that the end may take beyond the drain: settling, flushing, and ending workers and helpers."""


def serve(
    config: Config,
    listener: socket.socket,
    *,
    host: str,
    state: Path,
    log_format: LogFormat,
    announce: Callable[[], None],
) -> bool:
    """Serves on `listener` until a signal ends it; `announce` is called once it answers. False: it never did.

    Raises StateError where the state directory cannot be used.
    """
    start_logging(log_format)
    # A process that crashes must not leave its memory, which holds prompts, in a file. Workers and helpers inherit it.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    app = create_app(config, state=state, host=host)
    server = _Server(
        uvicorn.Config(
            app,
            loop="uvloop",
            http="httptools",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(FLUSH_SECONDS + 5),
        ),
        app.state.runtime,
        announce,
    )
    # uvicorn raises the signal that ended it again, for whoever started it; the end asked for is no failure.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: None)
    server.run(sockets=[listener])
    return server.started


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, runtime: Runtime, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._runtime = runtime
        self._announce = announce
        self._hurry = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._alive: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self._announce()
            notify("READY=1")
            self._alive = asyncio.create_task(keep_alive())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            super().handle_exit(sig, frame)
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._hurry.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        seconds = self._runtime.config.server.drain
        # The manager need not know how long that is: it is told.
        notify(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={int((seconds + GRACE_SECONDS) * 1e6)}")
        await self._unless_hurried(self._drain(seconds))
        # Streams end with their terminal result; uvicorn alone would wait for them, then cut them.
        await self._runtime.close()
        cutting = asyncio.create_task(self._cut_off())
        await super().shutdown(sockets)
        cutting.cancel()
        if self._alive is not None:
            self._alive.cancel()

    async def _drain(self, seconds: float) -> None:
        """The listener stays open meanwhile: who asks is told of the end, cancels arrive, the owner decides."""
        running = sum(1 for _ in self._runtime.live())
        if running:
            log.info("ending: %d generations have %g s to finish", running, seconds)
        if not await self._runtime.drain(seconds):
            log.warning("ending: %d generations have not finished in time", sum(1 for _ in self._runtime.live()))

    async def _cut_off(self) -> None:
        """Ends the connections of clients that have stopped reading."""
        await self._unless_hurried(asyncio.sleep(FLUSH_SECONDS))
        for each in [*self.server_state.connections]:
            each.transport.abort()

    async def _unless_hurried(self, waiting: Coroutine[Any, Any, None]) -> None:
        """Waits, unless a second signal has come or comes meanwhile."""
        tasks = asyncio.create_task(waiting), asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
