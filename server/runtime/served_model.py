"""Connections: what `models.toml` offers, and the engine behind each, loaded on first use."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from server.chat import Capabilities, ChatSettings, ImageLimits
from server.config import ModelConfig
from server.engine import EngineError
from server.engine.counters import EngineCounters
from server.engine.histogram import Histogram
from server.engine.sampling.params import Sampling
from server.runtime.clock import Clock, Timer
from server.runtime.policy import GenerationDefaults, ModelLimits, resolve, supported
from server.runtime.ports import ChatService, FetchFile, ModelEngine, StartEngine
from server.wire.records import Requirements, WireError

log = logging.getLogger(__name__)

LOADS = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
"""Bounds of the times that loading a model takes, in seconds."""


_IMAGES = ImageLimits()


@dataclass(frozen=True, slots=True)
class FileVersion:
    """What tells one state of a model's file from another."""

    inode: int
    size: int
    modified: int
    changed: int
    """Moves with every write. Unlike the time of modification nobody can set it back, so it stands for a hash of the
    content, which would take a minute for a large model."""


class ServedModel:
    """One way to a model. Its `revision` changes whenever handles to it must end: other file, disabled by the owner."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        queue: int,
        patience: float = 0.0,
        chat: ChatService,
        start_engine: StartEngine,
        fetch_file: FetchFile,
        clock: Clock,
        changed: Callable[[], None] = lambda: None,
        expired: Callable[[ServedModel], None] = lambda _: None,
        make_room: Callable[[], Awaitable[bool]] | None = None,
        images: ImageLimits = _IMAGES,
    ) -> None:
        self.config = config
        self.settings = ChatSettings(
            template=config.template,
            reasoning_continuation=config.reasoning_continuation,
            system_messages=config.system_messages,
            images=images,
        )
        self.supports = ModelLimits()
        self.parameters = GenerationDefaults()
        """How its model generates; settled with its capabilities."""
        self.enabled = True
        self.revision = 0
        self._queue = queue
        self._patience = patience
        self._chat = chat
        self._start_engine = start_engine
        self._fetch_file = fetch_file
        self._clock = clock
        self._changed = changed
        self._expired = expired
        self._make_room = make_room
        self._users = 0
        self._idle: Timer | None = None
        self._path: Path | None = None
        self._projector: Path | None = None
        self._draft: Path | None = None
        self._stamps: list[FileVersion] | None = None
        self._capabilities: Capabilities | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        """Finds out what the model can do; given up where it is to be found out anew."""
        self._blind = False
        """Loading has shown that the projector takes no images, whatever its file says."""
        self._loading: asyncio.Task[ModelEngine] | None = None
        self.loaded: ModelEngine | None = None
        self.loads = Histogram(LOADS)
        """Times of the loads that succeeded."""
        self.failed_loads = 0
        self._past = EngineCounters()
        self._retired: set[asyncio.Task[None]] = set()

    @property
    def loading(self) -> bool:
        return self._loading is not None

    def counts(self) -> EngineCounters:
        """What all engines of this connection have done so far."""
        total = EngineCounters()
        total.add(self._past)
        if self.loaded is not None:
            total.add(self.loaded.counts)
        return total

    @property
    def key(self) -> str:
        return self.config.key

    async def ready(self) -> Path:
        """The model's file, and what belongs to it, found or fetched, again where it has been removed. Raises
        `provider-error` with a safe reason."""
        if not self.refresh_file():
            if self._fetching is None:
                self._fetching = _shared(self._fetch())
            await _join(self._fetching)
            if not self.refresh_file():
                raise _unloadable("the connection's model file cannot be read")
        assert self._path is not None
        return self._path

    async def _fetch(self) -> None:
        try:
            if self.config.mmproj is not None:
                self._projector = await asyncio.to_thread(self._fetch_file, self.config.mmproj)
                self.settings = replace(self.settings, projector=str(self._projector))
            if self.config.draft is not None:
                self._draft = await asyncio.to_thread(self._fetch_file, self.config.draft)
            self._path = await asyncio.to_thread(self._fetch_file, self.config.source)
        except Exception as error:
            log.warning("connection %s: its file cannot be had (%s)", self.key, type(error).__name__)
            raise _unloadable("the connection's model file cannot be had") from None
        finally:
            self._fetching = None

    def refresh_file(self) -> bool:
        """Looks at the files again. Where one has changed, the revision does, and its engine is retired."""
        if self._path is None:
            return False
        stamps = [_file_version(path) for path in (self._path, self._projector, self._draft) if path is not None]
        known = [stamp for stamp in stamps if stamp is not None]
        if len(known) < len(stamps):
            return False
        if self._stamps is not None and known != self._stamps:
            self.expire()
        self._stamps = known
        return True

    def expire(self) -> None:
        """Ends all handles to this connection; the next use starts afresh."""
        self._end_selections()
        self._blind = False
        self.unload()

    def _end_selections(self) -> None:
        self.revision += 1
        self._capabilities = None
        # Unless it is this look that has found the change: then it goes on with the file as it is now.
        if self._looking is not None and self._looking is not asyncio.current_task():
            self._looking.cancel()
            self._looking = None
        self._expired(self)

    async def capabilities(self) -> Capabilities:
        """What the model can do, cut down to what the owner offers, true when it returns: what changes while this waits
        is looked at again. Raises `provider-error`; `selection-expired` where the owner has disabled the connection."""
        while self.enabled:
            if self.refresh_file() and self._capabilities is not None:
                return self._capabilities
            if self._looking is None:
                self._looking = _shared(self._look())
            await _join(self._looking)
        raise selection_changed()

    async def _look(self) -> None:
        try:
            path = await self.ready()
            found = await self._chat.inspect(str(path), self.settings)
            self._capabilities = self._restrict(found)
            self._cache_capabilities(found)
        finally:
            if self._looking is asyncio.current_task():
                self._looking = None

    def _cache_capabilities(self, found: Capabilities) -> None:
        config = self.config
        self.supports = supported(config, found)
        wished = GenerationDefaults(config.reasoning_effort, config.thinking, config.temperature)
        self.parameters = resolve(wished, self.supports)
        self.settings = replace(
            self.settings, thinking=self.parameters.thinking, reasoning_effort=self.parameters.reasoning_effort
        )

    @property
    def sampling(self) -> Sampling:
        """How it samples where a request does not say."""
        temperature = self.parameters.temperature
        return self.config.sampling if temperature is None else replace(self.config.sampling, temperature=temperature)

    def fingerprint(self, capabilities: Capabilities) -> str:
        """Changes with whatever the tokens of an earlier turn depend on: the files, what is told of tokenizer, template
        and format, and how the template is told to reason."""
        told = self.parameters.thinking, self.parameters.reasoning_effort
        parts = (self._stamps, capabilities.fingerprint, told)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    @property
    def context_length(self) -> int:
        """Tokens of one sequence; 0 where nobody can say before the model is loaded."""
        return self.loaded.info.context_length if self.loaded is not None else self.config.context_length

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
        if self.loaded is not None:
            return self.loaded
        if self._loading is None:
            # The model outlives the request that needs it first: what its worker logs later is not that request's.
            self._loading = asyncio.create_task(self._load(), context=Context())
            self._changed()
        loading = self._loading
        # A caller that gives up does not take the model from the others.
        await asyncio.wait((loading,))
        if loading.cancelled():
            raise _unloadable("the connection's model was unloaded")
        return loading.result()

    @property
    def idle(self) -> bool:
        """Whether it holds memory that nobody needs now."""
        return self._users == 0 and self.loaded is not None

    async def close(self) -> None:
        """Gives up what it is finding out, and releases the model."""
        for task in (self._looking, self._fetching):
            if task is not None:
                task.cancel()
        await self.release()

    async def release(self) -> None:
        """Unloads the model and returns once its memory is free."""
        self.unload()
        if self._retired:
            await asyncio.wait(self._retired)

    def unload(self) -> None:
        """Lets the engine go, loaded or loading. Whoever takes it from running generations settles them first: the
        engine knows no better than that it was closed."""
        if self.loaded is not None:
            self._past = self.counts()
            self._retire(self.loaded.close())
            self.loaded = None
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
            self.loaded = engine
            self._idle_from_now()
            if self._capabilities is not None and self._capabilities.images and not engine.info.vision:
                log.warning("connection %s: its projector takes no images", self.key)
                self._blind = True
                self._end_selections()
        return engine

    async def _start(self) -> ModelEngine:
        path = await self.ready()
        spec = self.config.spec(
            path, queue=self._queue, patience=self._patience, projector=self._projector, draft=self._draft
        )
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
            log.warning("connection %s: the model does not load: %s", self.key, error.reason)
            raise _unloadable(f"the connection's model cannot be loaded: {error.reason}") from None

    def _idle_from_now(self) -> None:
        if self.idle and self.config.unload_after > 0:
            self._stop_idling()
            self._idle = self._clock.call_later(self.config.unload_after, self.unload)

    def _stop_idling(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _retire(self, ending: Awaitable[None]) -> None:
        task = asyncio.ensure_future(ending)
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)

    def _restrict(self, found: Capabilities) -> Capabilities:
        allowed = self.config.capabilities
        tools = found.tools and allowed.tools is not False
        modes = tuple(
            mode
            for mode in found.tool_choice_modes
            if allowed.tool_choice_modes is None or mode in allowed.tool_choice_modes
        )
        return replace(
            found,
            images=found.images and allowed.images is not False and not self._blind,
            json=found.json and allowed.json is not False,
            tools=tools,
            tool_choice_modes=modes if tools else (),
        )


def selection_changed() -> WireError:
    return WireError("selection-expired", "the selection has changed; select again")


def _unloadable(message: str) -> WireError:
    return WireError("provider-error", message, reason="load")


def _shared(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Work that several may wait for, and that outlives each of them; what it logs is no single request's."""
    task = asyncio.create_task(work, context=Context())
    # All may have given up by the time it fails.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def _join(shared: asyncio.Task[None]) -> None:
    """Waits for shared work, of which nothing is to be had if it is given up. Raises what it raises."""
    await asyncio.wait((shared,))
    if not shared.cancelled():
        shared.result()


async def _abandon(loading: asyncio.Task[ModelEngine]) -> None:
    """Waits for a load nobody wants any more to let go of what it had."""
    loading.cancel()
    try:
        engine = await loading
    except (asyncio.CancelledError, WireError):
        return
    await engine.close()


def _file_version(path: Path) -> FileVersion | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return FileVersion(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def satisfies(config: ModelConfig, capabilities: Capabilities, requirements: Requirements) -> bool:
    """Whether a connection can do all that is required, without any downgrade (NAP-LLM, "Requirements")."""
    return (
        (requirements.model is None or requirements.model == config.model)
        and (capabilities.images or not requirements.images)
        and (capabilities.json or not requirements.json)
        and (capabilities.tools or not requirements.tools)
    )
