"""Blocking client for programs without an event loop: the async one, on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from server.client.blocks import PartialCall
from server.client.conversation import Content, Conversation
from server.client.nap import Client
from server.client.stream import Stream
from server.client.tool_loop import TurnOptions, TurnResult
from server.wire.records import (
    Delta,
    Format,
    Generation,
    GenerationRequest,
    Message,
    Model,
    Part,
    Requirements,
    ToolCallPart,
)

T = TypeVar("T")


class Portal:
    """Calls from ordinary threads into an event loop, which runs in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nap-llm client", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result. An exception in the caller's thread, such as KeyboardInterrupt, cancels the work."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback on the client's own thread cannot wait for the client")
        tasks: list[asyncio.Task[Any]] = []
        try:
            return asyncio.run_coroutine_threadsafe(_noted(work, tasks), self._loop).result()
        except BaseException:
            # What the work cleans up, a history say, is clean when the caller sees the exception.
            asyncio.run_coroutine_threadsafe(_ended(tasks), self._loop).result()
            raise

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncClient:
    """`Client` for threads: any of them may call it, several at a time."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        identity: str = "",
        endpoint: str = "",
        account: str = "",
        consent: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.inner = Client(
            url, token, identity=identity, endpoint=endpoint, account=account, consent=consent, transport=transport
        )
        self.portal = Portal()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.portal.call(self.inner.close())
        self.portal.close()

    def select(self, requirements: Requirements | None = None) -> Model:
        return self.portal.call(self.inner.select(requirements))

    def describe(self, handle: str) -> Model:
        return self.portal.call(self.inner.describe(handle))

    def cancel(self, request_id: str) -> bool:
        return self.portal.call(self.inner.cancel(request_id))

    def generate(self, request: GenerationRequest, *, id: str | None = None) -> SyncStream:
        return SyncStream(self.portal, self.inner.generate(request, id=id))


class SyncStream(Iterator[Delta | Generation]):
    """`Stream` as a plain iterator."""

    def __init__(self, portal: Portal, stream: Stream) -> None:
        self._portal = portal
        self._stream = stream
        self.id = stream.id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __next__(self) -> Delta | Generation:
        event = self._portal.call(_next(self._stream))
        if event is None:
            raise StopIteration
        return event

    def result(self) -> Generation:
        return self._portal.call(self._stream.result())

    def cancel(self) -> bool:
        return self._portal.call(self._stream.cancel())

    def close(self) -> None:
        self._portal.call(self._stream.aclose())

    @property
    def partial(self) -> tuple[Part, ...]:
        return self._stream.partial

    @property
    def partial_tool_calls(self) -> tuple[PartialCall, ...]:
        return self._stream.partial_tool_calls


class SyncConversation:
    """`Conversation` with blocking methods.

    `on_delta` and `on_message` run on the client's thread, tools on threads of their own.
    """

    def __init__(
        self,
        client: SyncClient,
        model: Model,
        history: Iterable[Message] = (),
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        format: Format = "text",
    ) -> None:
        self.inner = Conversation(
            client.inner, model, history, max_tokens=max_tokens, temperature=temperature, format=format
        )
        self._portal = client.portal

    @property
    def history(self) -> list[Message]:
        return self.inner.history

    def send(self, content: Content, **options: Unpack[TurnOptions]) -> TurnResult:
        return self._portal.call(self.inner.send(content, **options))

    def resume(self, **options: Unpack[TurnOptions]) -> TurnResult:
        return self._portal.call(self.inner.resume(**options))

    def add(self, *messages: Message) -> None:
        self.inner.add(*messages)

    def answer(self, call: ToolCallPart, value: Any, *, is_error: bool = False) -> None:
        self.inner.answer(call, value, is_error=is_error)

    def cancel(self) -> bool:
        return self.inner.cancel()

    def reset(self, history: Iterable[Message] = ()) -> None:
        self.inner.reset(history)


async def _noted(work: Coroutine[Any, Any, T], tasks: list[asyncio.Task[Any]]) -> T:
    task = asyncio.current_task()
    assert task is not None, "a coroutine of a loop runs in a task"
    tasks.append(task)
    return await work


async def _ended(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _next(stream: Stream) -> Delta | Generation | None:
    """A future cannot carry StopAsyncIteration to a thread that waits; None is no event."""
    return await anext(stream, None)
