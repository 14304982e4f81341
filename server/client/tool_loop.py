"""Tool loop: a turn of a conversation, from the user's message through rounds of tool calls to an answer or a stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypedDict

from server.client.blocks import PartialCall
from server.client.nap import Client
from server.client.stream import Stream
from server.client.tool_runner import OnToolCall, OnToolError, ToolRunner
from server.client.tools import AnyTool, Toolbox
from server.client.transport import TransportError
from server.wire.records import (
    Delta,
    Generation,
    GenerationRequest,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolChoice,
    WireError,
)

StopReason = Literal["completed", "unhandled_tool_calls", "max_rounds", "context_exceeded", "truncated", "cancelled"]


CANCEL_SECONDS = 5.0
"""Seconds that a cancel may take, and the end that it brings; then the stream is closed, which is a cancel too."""


class TurnOptions(TypedDict, total=False):
    """Options of a turn.

    `tool_choice` applies to the first request alone, so that a forced call is made once and the rest can answer.
    After `max_rounds` (5) rounds of calls, further ones are returned unrun. `on_delta` and `on_message` are told
    what arrives and what the turn adds to the history; what they raise ends the turn.
    """

    tools: Iterable[AnyTool]
    tool_choice: ToolChoice | None
    max_rounds: int
    on_tool_call: OnToolCall | None
    on_tool_error: OnToolError | None
    on_delta: Callable[[Delta], None] | None
    on_message: Callable[[Message], None] | None


@dataclass(frozen=True, slots=True)
class TurnResult:
    """A turn that has ended."""

    stop_reason: StopReason
    rolled_back: bool
    """The turn's messages were taken out of the history."""
    messages: tuple[Message, ...]
    """Every message of the turn, also where it was rolled back: what tools did stays done."""
    generations: tuple[Generation, ...]
    """Results as the wire reported them, one for each reply that ended by itself."""
    pending_tool_calls: tuple[ToolCallPart, ...] = ()
    """Calls that were not run and may be."""
    partial_tool_calls: tuple[PartialCall, ...] = ()
    """Calls that a truncated or refused reply had begun or even ended, as far as deltas told of them: discarded by the
    server, never to be run. None of a cancelled reply."""

    @property
    def text(self) -> str:
        """The text of the last reply, whole or partial."""
        if not self.messages or self.messages[-1].role != "assistant":
            return ""
        return "".join(part.text for part in self.messages[-1].content if isinstance(part, TextPart))


@dataclass(frozen=True, slots=True)
class _Reply:
    stream: Stream
    generation: Generation | None
    """None where the reply was cancelled."""


class ToolLoop:
    """One turn, run once.

    `history` is the conversation's own list and grows as the turn goes, until it is discarded; `opened` are those of
    its messages that belong to the turn already. Raises ValueError for options that make no sense, with the history
    untouched."""

    def __init__(
        self,
        client: Client,
        request: GenerationRequest,
        history: list[Message],
        opened: Iterable[Message],
        options: TurnOptions,
    ) -> None:
        self._client = client
        self._tools = Toolbox(options.get("tools", ()))
        self._request = replace(request, tools=self._tools.definitions)
        self._choice = options.get("tool_choice")
        self._max_rounds = options.get("max_rounds", 5)
        if self._max_rounds < 0:
            raise ValueError("max_rounds is negative")
        self._round = ToolRunner(self._tools, options.get("on_tool_call"), options.get("on_tool_error"))
        self._on_delta = options.get("on_delta")
        self._on_message = options.get("on_message")
        self._history = history
        self._messages = list(opened)
        self._generations: list[Generation] = []
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._cancelled = False
        self._discarded = False

    def cancel(self) -> None:
        """Cancels the turn, from any thread, a tool's own too. Tools that run finish first."""
        self._cancelled = True
        self._loop.call_soon_threadsafe(self._stop.set)

    def discard(self) -> None:
        """Cancels, from any thread: the chat it belonged to is over. What still comes is in the result alone."""
        self._discarded = True
        self.cancel()

    async def run(self, *added: Message) -> TurnResult:
        """`added` are the messages that open the turn. An error rolls it back and is raised."""
        try:
            self._keep(*added)
            return await self._rounds()
        except BaseException:
            self._roll_back()
            raise

    async def _rounds(self) -> TurnResult:
        rounds = 0
        while not self._cancelled:
            try:
                reply = await self._reply()
            except WireError as error:
                if error.code == "quota-exceeded" and error.extra.get("reason") == "context":
                    return self._rolled_back("context_exceeded")
                raise
            self._choice = None
            if reply.generation is None:
                return self._interrupted(reply.stream)
            self._generations.append(reply.generation)
            content = reply.generation.content
            if reply.generation.finish in ("length", "refusal"):
                return self._cut_off(reply.stream, content)
            calls = tuple(part for part in content if isinstance(part, ToolCallPart))
            if reply.generation.finish != ("toolUse" if calls else "stop"):
                # Nothing runs, and nothing counts as an answer, on any other word (NAP-LLM, "Generation").
                raise TransportError("the server's reply breaks the wire: its finish does not go with its content")
            message = Message("assistant", tuple(_sendable(part) for part in content))
            if not calls:
                self._keep(message)
                return self._kept("completed")
            if self._cancelled or rounds == self._max_rounds:
                self._keep(message)
                return self._rolled_back("cancelled" if self._cancelled else "max_rounds", calls)
            if not all(self._round.runs(call) for call in calls):
                self._keep(message)
                return self._kept("unhandled_tool_calls", calls)
            # Together: what other code adds while the tools run must not stand between a call and its result.
            self._keep(message, *await self._round.run(calls))
            rounds += 1
        return self._rolled_back("cancelled")

    async def _reply(self) -> _Reply:
        request = replace(self._request, messages=tuple(self._history), tool_choice=self._choice)
        stream = self._client.generate(request)
        reading = asyncio.create_task(self._read(stream))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                if await self._stops(stream):
                    await asyncio.wait({reading}, timeout=CANCEL_SECONDS)
                # The server did not know the request (yet), or does not end it: a closed stream gives it up as well.
                reading.cancel()
            return _Reply(stream, await reading)
        except WireError as error:
            # Also the owner's doing, or the model's unloading.
            if error.code == "cancelled":
                return _Reply(stream, None)
            raise
        except asyncio.CancelledError:
            # Reading was ended here, and not because the whole turn's task was.
            if reading.cancelled() and (task := asyncio.current_task()) is not None and not task.cancelling():
                return _Reply(stream, None)
            raise
        finally:
            reading.cancel()
            stopping.cancel()
            await asyncio.gather(reading, stopping, return_exceptions=True)

    async def _read(self, stream: Stream) -> Generation:
        async with contextlib.aclosing(stream):
            async for event in stream:
                if isinstance(event, Delta) and self._on_delta is not None and not self._discarded:
                    self._on_delta(event)
            return await stream.result()

    async def _stops(self, stream: Stream) -> bool:
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                return await stream.cancel()
        except (TransportError, WireError, TimeoutError):
            return False

    def _interrupted(self, stream: Stream) -> TurnResult:
        """A cancelled reply is kept where it had begun to answer: a call or thinking alone is no answer."""
        partial = stream.partial
        if partial:
            self._keep(Message("assistant", partial))
        if stream.partial_tool_calls or not any(isinstance(part, TextPart) for part in partial):
            return self._rolled_back("cancelled")
        return self._kept("cancelled")

    def _cut_off(self, stream: Stream, content: tuple[Part, ...]) -> TurnResult:
        """The end of a turn whose reply was cut short: its text may be half a call; even whole calls are withheld."""
        if partial := tuple(part for part in content if not isinstance(part, ToolCallPart)):
            self._keep(Message("assistant", partial))
        if self._cancelled:
            return self._rolled_back("cancelled")
        return self._rolled_back("truncated", partial_calls=stream.partial_tool_calls)

    def _keep(self, *messages: Message) -> None:
        for message in messages:
            self._messages.append(message)
            if self._discarded:
                continue
            self._history.append(message)
            if self._on_message is not None:
                self._on_message(message)

    def _kept(self, reason: StopReason, pending: tuple[ToolCallPart, ...] = ()) -> TurnResult:
        if self._discarded:
            return self._rolled_back("cancelled", pending)
        return TurnResult(reason, False, tuple(self._messages), tuple(self._generations), pending)

    def _rolled_back(
        self,
        reason: StopReason,
        pending: tuple[ToolCallPart, ...] = (),
        partial_calls: tuple[PartialCall, ...] = (),
    ) -> TurnResult:
        self._roll_back()
        return TurnResult(reason, True, tuple(self._messages), tuple(self._generations), pending, partial_calls)

    def _roll_back(self) -> None:
        """Takes out the turn's own messages alone: what other code added meanwhile stays, equal or not."""
        own = {id(message) for message in self._messages}
        self._history[:] = [message for message in self._history if id(message) not in own]


def _sendable(part: Part) -> Part:
    """Arguments that are no object have no place on the wire; the result that answers the call says so."""
    if isinstance(part, ToolCallPart) and not isinstance(part.arguments, Mapping):
        return replace(part, arguments={})
    return part
