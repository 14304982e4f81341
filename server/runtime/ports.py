"""Ports: protocols of the rooms below, as narrow as the runtime uses them. Tests put controllable doubles here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from server.chat import Capabilities, ChatSettings, ParserSpec, PreparedPrompt, PromptRequest
from server.chat.events import BlockEvent
from server.config import ModelSource
from server.engine.counters import EngineCounters
from server.engine.types import EngineConfig, EngineRequest, EngineStats, Event, Failed, ModelInfo
from server.wire.records import Tool


class ChatService(Protocol):
    """Work from strangers, done in helper processes: templates, schemas, validation. Failures are `WireError`s."""

    async def inspect(self, model_path: str, settings: ChatSettings) -> Capabilities: ...

    async def prepare(self, model_path: str, settings: ChatSettings, conversation: PromptRequest) -> PreparedPrompt: ...

    async def check_tools(self, tools: Sequence[Tool], scope: str) -> None: ...

    async def validate(self, tool: Tool, arguments: Mapping[str, Any], scope: str) -> None: ...

    async def validate_answer(self, schema: Mapping[str, Any] | bool, answer: Any, scope: str) -> None: ...


class StreamParser(Protocol):
    """Text in, blocks out. `finish` raises MalformedOutput."""

    @property
    def broken(self) -> bool:
        """True once the output is malformed, whatever may still come: more of it is in vain."""
        ...

    @property
    def thoughts(self) -> Sequence[tuple[int, int | None]]:
        """Where thinking stands in the output so far, in characters: its beginning, and its end where that has come."""
        ...

    def feed(self, text: str) -> Iterable[BlockEvent]: ...

    def finish(self, finish: Literal["stop", "length"]) -> Iterable[BlockEvent]: ...


class Events(Protocol):
    """Events of one request: `TextChunk`s, then exactly one `Finished` or `Failed`. Closing it cancels the request."""

    def __aiter__(self) -> AsyncIterator[Event]: ...

    async def aclose(self) -> None: ...


class ModelEngine(Protocol):
    """One loaded model. It outlives its worker's death; requests in flight fail then."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def alive(self) -> bool:
        """True while its worker is there; it comes back by itself."""
        ...

    @property
    def pid(self) -> int: ...

    @property
    def counts(self) -> EngineCounters: ...

    def stats(self) -> EngineStats: ...

    def generate(self, job: EngineRequest) -> Events: ...

    async def check(self, tokens: int, sizes: Iterable[tuple[int, int]]) -> Failed | None:
        """Why a prompt of so many tokens of text and images of these sizes (width, height) would be refused."""
        ...

    def finish(self, job_id: int) -> None:
        """Lets a request that has output end with it, and its `Finished` soon come."""
        ...

    def cancel(self, job_id: int) -> None:
        """Ends a request at once. One that is over or unknown is left alone."""
        ...

    async def close(self) -> None: ...


StartEngine = Callable[[EngineConfig], Awaitable[ModelEngine]]
"""Loads a model. Raises EngineError."""

MakeParser = Callable[[ParserSpec], StreamParser]

FetchFile = Callable[[ModelSource], Path]
"""The model's file on this machine, fetched where it is missing. Blocks; called in a thread."""
