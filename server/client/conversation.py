"""A conversation with a model: its history, and turns that run tools until the model answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Unpack

from server.client.nap import Client
from server.client.tool_loop import ToolLoop, TurnOptions, TurnResult
from server.client.tool_runner import result_message
from server.wire.records import Format, GenerationRequest, ImagePart, Message, Model, TextPart, ToolCallPart

Content = str | Sequence[TextPart | ImagePart]


class Conversation:
    """A conversation. `history` may be edited between turns. Tools run in this program, never in the server."""

    def __init__(
        self,
        client: Client,
        model: Model,
        history: Iterable[Message] = (),
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        format: Format = "text",
    ) -> None:
        self.history = list(history)
        self.max_tokens = max_tokens
        self.temperature = temperature
        self.format: Format = format
        self._client = client
        self._model = model
        self._turn: ToolLoop | None = None

    async def send(self, content: Content, **options: Unpack[TurnOptions]) -> TurnResult:
        """A user's message, and all that follows from it. Raises WireError, TransportError, what `on_tool_error`
        raises, and RuntimeError while another turn runs; then the history is as it was."""
        return await self._run((), (user_message(content),), options)

    async def resume(self, **options: Unpack[TurnOptions]) -> TurnResult:
        """Goes on with the open turn, whose calls have been answered, without a new message of the user.
        Where it is rolled back, the whole turn is: from its user message on."""
        asked = [index for index, message in enumerate(self.history) if message.role == "user"]
        return await self._run(self.history[asked[-1] :] if asked else (), (), options)

    def add(self, *messages: Message) -> None:
        """Appends messages to the history."""
        self.history.extend(messages)

    def answer(self, call: ToolCallPart, value: Any, *, is_error: bool = False) -> None:
        """The result of a pending call, found by hand. `value` is what a tool's function may return."""
        self.add(result_message(call, value, is_error=is_error))

    def cancel(self) -> bool:
        """Ends the running turn with `cancelled`, from any thread. False: no turn runs."""
        turn = self._turn
        if turn is not None:
            turn.cancel()
        return turn is not None

    def reset(self, history: Iterable[Message] = ()) -> None:
        """Starts a new chat, from any thread; `history` is what it begins with.

        A turn that runs ends with `cancelled`, its tools once they are done: its reply, however late, is told to the
        caller of that turn alone and is no part of the new chat, which may begin at once.
        """
        turn, self._turn = self._turn, None
        self.history = list(history)
        if turn is not None:
            turn.discard()

    async def _run(self, opened: Iterable[Message], added: tuple[Message, ...], options: TurnOptions) -> TurnResult:
        if self._turn is not None:
            raise RuntimeError("a turn of this conversation is running")
        request = GenerationRequest(
            handle=self._model.handle,
            messages=(),
            format=self.format,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
        )
        turn = self._turn = ToolLoop(self._client, request, self.history, opened, options)
        try:
            return await turn.run(*added)
        finally:
            if self._turn is turn:
                self._turn = None


def user_message(content: Content) -> Message:
    return Message("user", (TextPart(content),) if isinstance(content, str) else tuple(content))
