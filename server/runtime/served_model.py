"""Served models: connections of `models.toml`, each with its files, its capabilities and a lease of its engine."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from server.chat import Capabilities, ChatSettings, ImageLimits
from server.config import ModelConfig
from server.engine.sampling.params import Sampling
from server.engine.types import EngineConfig
from server.runtime.clock import Clock
from server.runtime.engine_lease import EngineLease, unloadable
from server.runtime.policy import GenerationDefaults, ModelLimits, resolve, supported
from server.runtime.ports import ChatService, FetchFile, ModelEngine, StartEngine
from server.wire.records import Requirements, WireError

log = logging.getLogger(__name__)

_IMAGES = ImageLimits()


@dataclass(frozen=True, slots=True)
class FileVersion:
    """Identity of one state of a model's file."""

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
        self._fetch_file = fetch_file
        self._expired = expired
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
        self.lease = lease = EngineLease(
            config,
            self._engine_config,
            start_engine=start_engine,
            clock=clock,
            changed=changed,
            started=self._check_vision,
            make_room=make_room,
        )
        self.in_use, self.load, self.unload, self.release = lease.in_use, lease.load, lease.unload, lease.release
        self.counts = lease.counts

    @property
    def key(self) -> str:
        return self.config.key

    @property
    def loaded(self) -> ModelEngine | None:
        """The engine, while the model is in memory."""
        return self.lease.engine

    async def ready(self) -> Path:
        """The model's file, and what belongs to it, found or fetched, again where it has been removed. Raises
        `provider-error` with a safe reason."""
        if not self.refresh_file():
            if self._fetching is None:
                self._fetching = _shared(self._fetch())
            await _join(self._fetching)
            if not self.refresh_file():
                raise unloadable("the connection's model file cannot be read")
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
            raise unloadable("the connection's model file cannot be had") from None
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
        """Capabilities of the model, cut down to what the owner offers, true when it returns: what changes while this
        waits is looked at again. Raises `provider-error`; `selection-expired` where the owner has disabled the
        connection."""
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

    async def _engine_config(self) -> EngineConfig:
        path = await self.ready()
        return self.config.spec(
            path, queue=self._queue, patience=self._patience, projector=self._projector, draft=self._draft
        )

    def _check_vision(self, engine: ModelEngine) -> None:
        """Takes images away from a model that turns out, once loaded, to take none."""
        if self._capabilities is not None and self._capabilities.images and not engine.info.vision:
            log.warning("connection %s: its projector takes no images", self.key)
            self._blind = True
            self._end_selections()

    async def close(self) -> None:
        """Gives up what it is finding out, and releases the model."""
        for task in (self._looking, self._fetching):
            if task is not None:
                task.cancel()
        await self.release()

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


def _file_version(path: Path) -> FileVersion | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return FileVersion(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def satisfies(config: ModelConfig, capabilities: Capabilities, requirements: Requirements) -> bool:
    """True where a connection can do all that is required, without any downgrade (NAP-LLM, "Requirements")."""
    return (
        (requirements.model is None or requirements.model == config.model)
        and (capabilities.images or not requirements.images)
        and (capabilities.json or not requirements.json)
        and (capabilities.tools or not requirements.tools)
    )
