"""Lease of one model's engine: loaded on first use, shared by its users, unloaded when idle."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context

from server.config import ModelConfig
from server.engine import EngineError
from server.engine.counters import EngineCounters
from server.engine.histogram import Histogram
from server.engine.types import EngineConfig
from server.runtime.clock import Clock, Timer
from server.runtime.ports import ModelEngine, StartEngine
from server.wire.records import WireError

log = logging.getLogger(__name__)

LOADS = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
"""Bounds of the times that loading a model takes, in seconds."""


class EngineLease:
    """The engine of one connection, while it is loaded. `engine_config` finds the files that it is started with;
    `started` hears of each engine that has been loaded; `make_room` unloads idle models of others, and says whether
    there were any."""

    def __init__(
        self,
        config: ModelConfig,
        engine_config: Callable[[], Awaitable[EngineConfig]],
        *,
        start_engine: StartEngine,
        clock: Clock,
        changed: Callable[[], None],
        started: Callable[[ModelEngine], None],
        make_room: Callable[[], Awaitable[bool]] | None,
    ) -> None:
        self._config = config
        self._engine_config = engine_config
        self._start_engine = start_engine
        self._clock = clock
        self._changed = changed
        self._started = started
        self._make_room = make_room
        self.engine: ModelEngine | None = None
        self.loads = Histogram(LOADS)
        """Times of the loads that succeeded."""
        self.failed_loads = 0
        self._users = 0
        self._idle: Timer | None = None
        self._loading: asyncio.Task[ModelEngine] | None = None
        self._past = EngineCounters()
        self._retired: set[asyncio.Task[None]] = set()

    @property
    def loading(self) -> bool:
        """True while a load is under way."""
        return self._loading is not None

    def counts(self) -> EngineCounters:
        """Sum over all engines of this connection so far."""
        total = EngineCounters()
        total.add(self._past)
        if self.engine is not None:
            total.add(self.engine.counts)
        return total

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[ModelEngine]:
        """The loaded model, which does not count as idle meanwhile. Raises `provider-error` with a safe reason."""
        self._users += 1
        self._stop_idling()
        try:
            yield await self.load()
        finally:
            self._users -= 1
            self._idle_from_now()

    async def load(self) -> ModelEngine:
        """One load serves all that wait for it. Raises `provider-error` with a safe reason."""
        if self.engine is not None:
            return self.engine
        if self._loading is None:
            # The model outlives the request that needs it first: what its worker logs later is not that request's.
            self._loading = asyncio.create_task(self._load(), context=Context())
            self._changed()
        loading = self._loading
        # A caller that gives up does not take the model from the others.
        await asyncio.wait((loading,))
        if loading.cancelled():
            raise unloadable("the connection's model was unloaded")
        return loading.result()

    @property
    def idle(self) -> bool:
        """True while it holds memory that nobody needs."""
        return self._users == 0 and self.engine is not None

    async def release(self) -> None:
        """Unloads the model and returns once its memory is free."""
        self.unload()
        if self._retired:
            await asyncio.wait(self._retired)

    def unload(self) -> None:
        """Closes the engine, loaded or loading. The caller settles its running generations first: the engine knows no
        better than that it was closed."""
        if self.engine is not None:
            self._past = self.counts()
            self._retire(self.engine.close())
            self.engine = None
        if self._loading is not None:
            self._retire(_abandon(self._loading))
            self._loading = None
        self._stop_idling()
        self._changed()

    async def _load(self) -> ModelEngine:
        task = asyncio.current_task()
        began = time.monotonic()
        try:
            engine = await self._start()
            self.loads.observe(time.monotonic() - began)
        except WireError:
            self.failed_loads += 1
            raise
        finally:
            # An unload in between has taken the task over, and closes what it makes.
            current = self._loading is task
            if current:
                self._loading = None
                self._changed()
        if current:
            self.engine = engine
            self._idle_from_now()
            self._started(engine)
        return engine

    async def _start(self) -> ModelEngine:
        spec = await self._engine_config()
        try:
            try:
                engine = await self._start_engine(spec)
            except EngineError:
                # It may be memory that is missing; no backend says so reliably.
                if self._make_room is None or not await self._make_room():
                    raise
                return await self._start_engine(spec)
            # Rather whole on the GPUs than in part, beside a model that nobody uses.
            if engine.info.gpu_contended and self._make_room is not None and await self._make_room():
                await engine.close()
                return await self._start_engine(spec)
            return engine
        except EngineError as error:
            log.warning("connection %s: the model does not load: %s", self._config.key, error.reason)
            raise unloadable(f"the connection's model cannot be loaded: {error.reason}") from None

    def _idle_from_now(self) -> None:
        if self.idle and self._config.unload_after > 0:
            self._stop_idling()
            self._idle = self._clock.call_later(self._config.unload_after, self.unload)

    def _stop_idling(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _retire(self, ending: Awaitable[None]) -> None:
        task = asyncio.ensure_future(ending)
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)


def unloadable(message: str) -> WireError:
    """Failure of a model that cannot be had; the message is safe to tell."""
    return WireError("provider-error", message, reason="load")


async def _abandon(loading: asyncio.Task[ModelEngine]) -> None:
    """Waits for a load nobody wants any more to let go of what it had."""
    loading.cancel()
    try:
        engine = await loading
    except (asyncio.CancelledError, WireError):
        return
    await engine.close()
