"""Controllable stand-ins for the rooms below the runtime: an engine, a chat service and a clock that do as told."""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from server.chat import Capabilities, ChatSettings, PreparedPrompt, PromptRequest
from server.chat.events import BlockDelta, BlockEnd, BlockEvent, BlockStart
from server.config import Config, Limits, ModelConfig, ModelSource, Route, ServerConfig
from server.engine.counters import EngineCounters
from server.engine.types import (
    EngineConfig,
    EngineRequest,
    EngineStats,
    Event,
    Failed,
    Finished,
    ModelInfo,
    RgbImage,
    StopCriteria,
    TextChunk,
)
from server.runtime import Caller, Endpoint, Runtime
from server.runtime.ports import ChatService, MakeParser
from server.wire.records import GenerationRequest, Message, TextPart, Tool, WireError

ALL_MODES = ("auto", "none", "required", "tool")


class PlainParser:
    """All text is one text block. `script` replaces single texts by block events; a text is thinking as a whole where
    some of it is."""

    def __init__(self, script: Mapping[str, Iterable[BlockEvent]] | None = None) -> None:
        self.script = script or {}
        self.open = False
        self.broken = False
        self.thoughts: list[tuple[int, int | None]] = []
        self.read = 0
        self.thinking: int | None = None

    def feed(self, text: str) -> list[BlockEvent]:
        begin, self.read = self.read, self.read + len(text)
        if text in self.script:
            self.open = False
            self._note(begin, self.script[text])
            return list(self.script[text])
        begin: list[BlockEvent] = [] if self.open else [BlockStart(0, "text")]
        self.open = True
        return [*begin, BlockDelta(0, text)]

    def _note(self, begin: int, events: Iterable[BlockEvent]) -> None:
        for event in events:
            if isinstance(event, BlockStart) and event.block == "thinking":
                self.thinking = event.index
                self.thoughts.append((begin, None))
            elif isinstance(event, BlockEnd) and event.index == self.thinking:
                self.thoughts[-1] = self.thoughts[-1][0], self.read

    def finish(self, finish: str) -> list[BlockEvent]:
        return [BlockEnd(0)] if self.open else []


class ChatDouble:
    """Renders nothing: a prompt has as many tokens as its text has characters."""

    def __init__(self) -> None:
        self.capabilities = Capabilities(images=False, json=True, tools=True, tool_choice_modes=ALL_MODES)
        self.script: dict[str, list[BlockEvent]] = {}
        self.checked: frozenset[str] = frozenset()
        self.refusal: WireError | None = None
        self.invalid: WireError | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.preparing = asyncio.Event()
        self.validating = asyncio.Event()
        self.conversations: list[PromptRequest] = []
        self.settings: list[ChatSettings] = []
        self.pictures: tuple[tuple[int, RgbImage], ...] = ()
        self.answers: list[Any] = []
        self.scopes: list[str] = []
        """Those of validations."""
        self.malformed: WireError | None = None
        self.checked_answer = False
        self.inspected = 0

    async def inspect(self, model_path: str, settings: ChatSettings) -> Capabilities:
        self.inspected += 1
        self.settings.append(settings)
        return self.capabilities

    async def prepare(self, model_path: str, settings: ChatSettings, conversation: PromptRequest) -> PreparedPrompt:
        self.conversations.append(conversation)
        self.settings.append(settings)
        self.preparing.set()
        await self.gate.wait()
        if self.refusal is not None:
            raise self.refusal
        size = sum(len(p.text) for m in conversation.messages for p in m.content if isinstance(p, TextPart))
        return PreparedPrompt(
            tokens=array("i", [1] * size),
            constraint=None,
            suppress_tokens=(),
            parser=PlainParser(self.script),  # type: ignore[arg-type]
            tools_to_validate=self.checked,
            images=self.pictures,
            places=tuple(f"place {number}" for number, _ in enumerate(self.pictures)),
            validate_answer=self.checked_answer,
            stop=StopCriteria(conversation.stop) if conversation.stop else None,
            replayed=frozenset(conversation.kept_tokens),
        )

    async def check_tools(self, tools: Sequence[Tool], scope: str) -> None:
        if self.malformed is not None:
            raise self.malformed

    async def validate(self, tool: Tool, arguments: Mapping[str, Any], scope: str) -> None:
        self.scopes.append(scope)
        self.validating.set()
        await self.gate.wait()
        if self.invalid is not None:
            raise self.invalid

    async def validate_answer(self, schema: Mapping[str, Any] | bool, answer: Any, scope: str) -> None:
        self.scopes.append(scope)
        self.answers.append(answer)
        if self.invalid is not None:
            raise self.invalid


@dataclass
class Run:
    """One submitted job. `say`, `done` and `fail` are the engine's side of it."""

    job: EngineRequest
    events: asyncio.Queue[Event | None] = field(default_factory=asyncio.Queue)
    cancelled: bool = False
    finished: bool = False
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    said: int = 0
    ends: array[int] = field(default_factory=lambda: array("i", [0]))

    def say(self, *texts: str) -> None:
        """Each text as that of one token."""
        for text in texts:
            self.said += 1
            self.ends.append(self.ends[-1] + len(text))
            self.events.put_nowait(TextChunk(text, 1))

    def done(self, finish: str = "stop", *, tokens: Sequence[int] = (), cached: int = 0) -> None:
        output = array("i", tokens)
        self.events.put_nowait(
            Finished(finish, len(self.job.tokens), self.said, cached, tokens=output, ends=self.ends[1:])
        )  # type: ignore[arg-type]

    def fail(self, code: str = "provider-error", words: str = "died", **extra: str) -> None:
        self.events.put_nowait(Failed(code, words, extra))  # type: ignore[arg-type]


class EngineDouble:
    def __init__(self, context_length: int = 1000) -> None:
        self.info = ModelInfo("double", context_length, slots=8, vocabulary=10, vision=True)
        self.runs: list[Run] = []
        self.closed = False
        self.alive = True
        self.pid = os.getpid()
        self.counts = EngineCounters()
        self.refusal: Failed | None = None
        self.cached = 0
        """Tokens that a job which is told to end has read from the cache."""
        self.checks: list[tuple[int, list[tuple[int, int]]]] = []
        self._arrived = asyncio.Condition()

    def stats(self) -> EngineStats:
        return EngineStats(len(self.runs), 0, 0, 0, 0, 0)

    async def generate(self, job: EngineRequest) -> AsyncGenerator[Event, None]:
        run = Run(job)
        self.runs.append(run)
        async with self._arrived:
            self._arrived.notify_all()
        try:
            while True:
                event = await run.events.get()
                if event is None:
                    return
                yield event
                if not isinstance(event, TextChunk):
                    return
        finally:
            run.closed.set()

    def end(self) -> None:
        """Ends the streams of all runs without a completion marker."""
        for run in self.runs:
            run.events.put_nowait(None)

    async def run(self, number: int = 0) -> Run:
        """The job submitted as the `number`th, once it is."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.runs) > number)
        return self.runs[number]

    async def check(self, tokens: int, sizes: Iterable[tuple[int, int]]) -> Failed | None:
        self.checks.append((tokens, [*sizes]))
        return self.refusal

    def finish(self, job_id: int) -> None:
        for run in self.runs:
            if run.job.id == job_id and not run.closed.is_set():
                run.finished = True
                run.done(cached=self.cached)

    def cancel(self, job_id: int) -> None:
        for run in self.runs:
            if run.job.id == job_id and not run.closed.is_set():
                run.cancelled = True
                run.fail("cancelled", "cancelled")

    async def close(self) -> None:
        self.closed = True


class ClockDouble:
    """Stands still until `advance`."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.timers: list[_Timer] = []

    def now(self) -> float:
        return self.time

    def call_later(self, delay: float, callback: Callable[[], object]) -> _Timer:
        timer = _Timer(self.time + delay, callback)
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        self.time += seconds
        for timer in [each for each in self.timers if each.due <= self.time]:
            self.timers.remove(timer)
            if not timer.cancelled:
                timer.callback()


@dataclass
class _Timer:
    due: float
    callback: Callable[[], object]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class World:
    """A runtime over doubles. Build it inside a running event loop."""

    def __init__(
        self,
        file: Path,
        *,
        limits: Limits | None = None,
        server: ServerConfig | None = None,
        connections: tuple[ModelConfig, ...] | None = None,
        machine: str | None = None,
        real_clock: bool = False,
        chat: ChatService | None = None,
        make_parser: MakeParser | None = None,
        routes: Mapping[Route, str] | None = None,
        secret: bytes | None = None,
    ) -> None:
        if not file.exists():
            file.write_bytes(b"model")
        self.file = file
        self.chat = ChatDouble()
        self.engine = EngineDouble()
        self.clock = ClockDouble()
        self.starts: list[EngineConfig] = []
        self.start_failure: Exception | None = None
        self.crowded = False
        """Engines start with less than they could have, because of what others hold."""
        self.start_gate = asyncio.Event()
        self.start_gate.set()
        self.starting = asyncio.Event()
        source = ModelSource(path=file)
        server = server or ServerConfig(deadline=60, limits=limits or Limits())
        self.config = Config(
            server=server,
            connections=connections or (ModelConfig(key="first", name="First", model="first-1", source=source),),
            routes=routes or {},
        )
        self.runtime = Runtime(
            self.config,
            chat=chat or self.chat,
            start_engine=self.start_engine,
            make_parser=make_parser or (lambda spec: spec),  # type: ignore[arg-type, return-value]
            fetch_file=lambda source: source.path or file,
            clock=None if real_clock else self.clock,
            machine=machine,
            secret=secret,
        )

    async def start_engine(self, spec: EngineConfig) -> EngineDouble:
        self.starts.append(spec)
        self.starting.set()
        await self.start_gate.wait()
        if self.start_failure is not None:
            raise self.start_failure
        if self.crowded:
            engine = EngineDouble()
            engine.info = replace(engine.info, gpu_contended=True)
            return engine
        return self.engine


def caller(consent: str = "always", *, granted: bool = False, select: str = "default", **endpoint: str) -> Caller:
    endpoint.setdefault("token", "shell")
    return Caller(Endpoint(**endpoint), consent, select, granted)  # type: ignore[arg-type]


def request(handle: str, text: str = "hello", **fields: Any) -> GenerationRequest:
    fields.setdefault("messages", (Message("user", (TextPart(text),)),))
    if fields.get("tools"):
        fields.setdefault("tool_choice", "auto")
    return GenerationRequest(handle=handle, **fields)


def tool(name: str = "weather") -> Tool:
    return Tool(name, None, {"type": "object", "properties": {"city": {"type": "string"}}})
