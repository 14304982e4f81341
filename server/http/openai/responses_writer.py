"""Answers of `POST /v1/responses`: a generation written as items, whole or as events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from server.http import stream
from server.http.openai.errors import failed
from server.http.openai.response import LogprobCursor, arguments_text
from server.runtime import LiveGeneration
from server.wire import encode
from server.wire.records import Delta, Generation, TextPart, ThinkingPart, ToolCallPart, Usage, WireError

Item = dict[str, Any]
_KINDS = {"text": "msg", "thinking": "rs", "toolCall": "fc"}


@dataclass(slots=True)
class _Open:
    """An item under way."""

    id: str
    delta: Delta
    """The one that began it."""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class ResponsesWriter:
    """One generation as a response, or as the events of one. `echo`: parameters that the answer repeats."""

    def __init__(self, live: LiveGeneration, model: str, echo: Mapping[str, Any]) -> None:
        self._live = live
        self._model = model
        self._echo = echo
        self._tokens = LogprobCursor(live)
        self._sequence = 0
        self._counts = dict.fromkeys(_KINDS, 0)
        self._items: dict[int, _Open] = {}
        self._logprobs: list[list[dict[str, Any]]] = []

    def whole(self) -> dict[str, Any]:
        generation = self._live.outcome
        assert isinstance(generation, Generation)
        incomplete = generation.finish == "length"
        status = "incomplete" if incomplete else "completed"
        details = {"reason": "max_output_tokens"} if incomplete else None
        refused = generation.finish == "refusal"
        output = [*self._output(generation, status, refused=refused)]
        return self._response(status, output, write_usage(generation.usage), incomplete_details=details)

    def write(self, deltas: list[Delta]) -> bytes:
        if not deltas:
            return b""
        return self._opening() + b"".join(event for delta in deltas for event in self._events(delta))

    def end(self) -> bytes:
        outcome = self._live.outcome
        opening = self._opening()
        if isinstance(outcome, WireError):
            error = failed(outcome)
            code = "rate_limit_exceeded" if error.status == 429 else "server_error"
            response = self._response("failed", [], None, error={"code": code, "message": error.message})
            return opening + self._event("response.failed", response=response)
        # The items of a stream and those of its end are the same ones.
        self._counts = dict.fromkeys(_KINDS, 0)
        response = self.whole()
        return opening + self._event(f"response.{response['status']}", response=response)

    def _opening(self) -> bytes:
        """The first events, before all others."""
        if self._sequence:
            return b""
        response = self._response("in_progress", [], None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def _events(self, delta: Delta) -> Iterator[bytes]:
        if delta.event == "start":
            yield from self._begin(delta)
            return
        item = self._items[delta.block_index]
        at = {"item_id": item.id, "output_index": delta.block_index}
        part = {**at, "content_index": 0}
        if delta.event == "delta":
            item.pieces.append(delta.text or "")
            if delta.block == "toolCall":
                yield self._event("response.function_call_arguments.delta", **at, delta=delta.text)
            elif delta.block == "thinking":
                yield self._event("response.reasoning_text.delta", **part, delta=delta.text)
            else:
                found = self._tokens.new()
                item.logprobs += found
                yield self._event("response.output_text.delta", **part, delta=delta.text, logprobs=found)
            return
        said = item.text
        if delta.block == "toolCall":
            name = item.delta.name
            yield self._event("response.function_call_arguments.done", **at, name=name, arguments=said)
            done = _call(item.id, item.delta.tool_call_id or "", name or "", said, "completed")
        elif delta.block == "thinking":
            yield self._event("response.reasoning_text.done", **part, text=said)
            yield self._event("response.content_part.done", **part, part=_thought_part(said))
            done = _thought(item.id, said, "completed")
        else:
            self._logprobs.append(item.logprobs)
            yield self._event("response.output_text.done", **part, text=said, logprobs=item.logprobs)
            yield self._event("response.content_part.done", **part, part=_text_part(said, item.logprobs))
            done = _message(item.id, [_text_part(said, item.logprobs)], "completed")
        yield self._event("response.output_item.done", output_index=delta.block_index, item=done)

    def _begin(self, delta: Delta) -> Iterator[bytes]:
        item = self._items[delta.block_index] = _Open(self._id(delta.block), delta)
        at = {"item_id": item.id, "output_index": delta.block_index, "content_index": 0}
        if delta.block == "toolCall":
            begun = _call(item.id, delta.tool_call_id or "", delta.name or "", "", "in_progress")
        elif delta.block == "thinking":
            begun = {**_thought(item.id, "", "in_progress"), "content": []}
        else:
            begun = _message(item.id, [], "in_progress")
        yield self._event("response.output_item.added", output_index=delta.block_index, item=begun)
        if delta.block != "toolCall":
            part = _thought_part("") if delta.block == "thinking" else _text_part("", [])
            yield self._event("response.content_part.added", **at, part=part)

    def _output(self, generation: Generation, status: str, *, refused: bool) -> Iterator[Item]:
        """The items of a generation that has ended. Only the last can have been cut short."""
        last = len(generation.content) - 1
        for index, part in enumerate(generation.content):
            state = status if index == last else "completed"
            if isinstance(part, ToolCallPart):
                arguments = arguments_text(part.arguments)
                yield _call(self._id("toolCall"), part.tool_call_id, part.name, arguments, state)
            elif isinstance(part, ThinkingPart):
                yield _thought(self._id("thinking"), part.text, state)
            elif isinstance(part, TextPart):
                number = self._counts["text"]
                streamed = number < len(self._logprobs)
                logprobs = self._logprobs[number] if streamed else self._tokens.of(part.text)
                said = {"type": "refusal", "refusal": part.text} if refused else _text_part(part.text, logprobs)
                yield _message(self._id("text"), [said], state)

    def _id(self, block: str) -> str:
        """The next item's of this kind."""
        self._counts[block] += 1
        return f"{_KINDS[block]}_{self._live.id.removeprefix('resp_')}_{self._counts[block]}"

    def _response(
        self, status: str, output: list[Item], usage: dict[str, Any] | None, **members: Any
    ) -> dict[str, Any]:
        return {
            "id": self._live.id,
            "object": "response",
            "created_at": int(self._live.created),
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._model,
            "output": output,
            "usage": usage,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "truncation": "disabled",
            **self._echo,
            **members,
        }

    def _event(self, kind: str, **members: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._sequence, **members}
        self._sequence += 1
        return stream.event(encode(event), kind)


def _message(id: str, content: list[Item], status: str) -> Item:
    return {"id": id, "type": "message", "status": status, "role": "assistant", "content": content}


def _text_part(said: str, logprobs: list[dict[str, Any]]) -> Item:
    return {"type": "output_text", "text": said, "annotations": [], "logprobs": logprobs}


def _thought(id: str, said: str, status: str) -> Item:
    return {"id": id, "type": "reasoning", "status": status, "summary": [], "content": [_thought_part(said)]}


def _thought_part(said: str) -> Item:
    return {"type": "reasoning_text", "text": said}


def _call(id: str, call_id: str, name: str, arguments: str, status: str) -> Item:
    head = {"id": id, "type": "function_call", "status": status}
    return {**head, "call_id": call_id, "name": name, "arguments": arguments}


def write_usage(usage: Usage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    cached = {"cached_tokens": usage.cache_read_tokens or 0, "cache_write_tokens": usage.cache_write_tokens or 0}
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": cached,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
