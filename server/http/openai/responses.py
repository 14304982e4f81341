"""`POST /v1/responses`, without state: items read into the wire's records, a generation written back as items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from server.http import stream
from server.http.openai.errors import bad, failed
from server.http.openai.request import (
    MAX_LOGPROBS,
    SAMPLING,
    ParameterPolicy,
    ParsedRequest,
    ResponseFormat,
    check_messages,
    check_parameters,
    count,
    integer,
    items,
    members,
    one_of,
    read_call,
    read_common,
    read_image,
    read_schema,
    read_tool,
    result,
    text,
)
from server.http.openai.response import LogprobCursor, arguments_text
from server.runtime import LiveGeneration
from server.wire import encode
from server.wire.records import (
    Delta,
    Generation,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCallPart,
    Usage,
    WireError,
)

PARAMETERS = ParameterPolicy(
    honoured=frozenset(
        SAMPLING
        | {"model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "stop"}
        | {"temperature", "max_output_tokens", "include", "top_logprobs", "stream", "stream_options"}
    ),
    accepted_defaults={
        "store": (False,),
        "background": (False,),
        "truncation": ("disabled",),
        "reasoning": ({},),
        "context_management": ([],),
        "previous_response_id": (),
        "conversation": (),
        "prompt": (),
        "max_tool_calls": (),
        "background_options": (),
        "moderation": (),
        "image": (),
        "access_programs": (),
    },
)

LOGPROBS = "message.output_text.logprobs"

_ECHOED = ("instructions", "metadata", "temperature", "top_p", "max_output_tokens", "user")
"""Parameters that an answer repeats as they were given."""


@dataclass(slots=True)
class ResponsesRequest(ParsedRequest):
    echo: dict[str, Any] = field(default_factory=dict)

    def writer(self, live: LiveGeneration) -> ResponsesWriter:
        return ResponsesWriter(live, self)


def read(body: Mapping[str, Any]) -> ResponsesRequest:
    """Raises ApiError(400) naming the parameter."""
    given = check_parameters(body, PARAMETERS, ("model", "input"))
    common = read_common(given, _format(given.get("text", {})), _tool, _function_name)
    if "stream_options" in given:
        members(given["stream_options"], "stream_options", (), ("include_obfuscation",))
    return ResponsesRequest(
        **common,
        messages=_messages(given),
        max_tokens=count(given["max_output_tokens"], "max_output_tokens") if "max_output_tokens" in given else None,
        logprobs=_logprobs(given),
        echo={
            **{name: body.get(name) for name in _ECHOED},
            "parallel_tool_calls": common["parallel"],
            "tools": given.get("tools", []),
            "tool_choice": given.get("tool_choice", "auto"),
            "text": {"format": {"type": "text"}, **given.get("text", {})},
            "top_logprobs": given.get("top_logprobs", 0),
        },
    )


def _logprobs(given: Mapping[str, Any]) -> int | None:
    for index, each in enumerate(items(given.get("include", []), "include", text)):
        if each != LOGPROBS:
            raise bad(f"include[{index}]: only {LOGPROBS} can be included", "include", "unsupported_parameter")
    top = integer(given["top_logprobs"], "top_logprobs", 0, MAX_LOGPROBS) if "top_logprobs" in given else None
    if not given.get("include"):
        if top:
            raise bad(f"top_logprobs needs {LOGPROBS} in include", "top_logprobs")
        return None
    return top or 0


def _tool(value: Any, at: str) -> Tool:
    if not isinstance(value, dict) or value.get("type") != "function":
        raise bad(f"{at}: only function tools are supported", f"{at}.type", "unsupported_parameter")
    return read_tool(members(value, at, ("type", "name"), ("description", "parameters", "strict")), at)


def _function_name(value: Any, at: str) -> str:
    given = members(value, at, ("type", "name"))
    one_of(given["type"], f"{at}.type", ("function",))
    return text(given["name"], f"{at}.name")


def _format(value: Any) -> ResponseFormat:
    given = members(value, "text", (), ("format", "verbosity"))
    if given.get("verbosity", "medium") != "medium":
        raise bad("text.verbosity is not supported with this value", "text.verbosity", "unsupported_parameter")
    if "format" not in given:
        return ResponseFormat()
    at = "text.format"
    format = members(given["format"], at, ("type",), ("name", "schema", "strict", "description"))
    kind = one_of(format["type"], f"{at}.type", ("text", "json_object", "json_schema"))
    if kind != "json_schema":
        return ResponseFormat(json=kind == "json_object")
    return read_schema(members(given["format"], at, ("type", "name", "schema"), ("strict", "description")), at)


# --- input


def _messages(given: Mapping[str, Any]) -> tuple[Message, ...]:
    history = _History()
    if "instructions" in given:
        history.add("system", (TextPart(text(given["instructions"], "instructions", empty=True)),))
    asked = given["input"]
    if isinstance(asked, str):
        history.add("user", (TextPart(asked),))
    else:
        items(asked, "input", history.item, empty=False)
    messages = history.messages()
    if not messages:
        raise bad("input holds no message", "input")
    check_messages(messages, "input")
    return messages


class _History:
    """Items as messages: what a model has put out in one go is one message of the assistant's."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._said: list[Part] = []
        self._names: dict[str, str] = {}

    def messages(self) -> tuple[Message, ...]:
        self._flush()
        return tuple(self._messages)

    def add(self, role: Literal["system", "user"], content: tuple[Part, ...]) -> None:
        self._flush()
        self._messages.append(Message(role, content))

    def item(self, value: Any, at: str) -> None:
        if not isinstance(value, dict):
            raise bad(f"{at} must be an object", at)
        kinds = {
            "message": self._message,
            "function_call": self._call,
            "function_call_output": self._output,
            "reasoning": self._reasoning,
        }
        kind = value.get("type", "message")
        if not isinstance(kind, str) or kind not in kinds:
            raise bad(f"{at}.type must be one of {', '.join(kinds)}", f"{at}.type", "unsupported_parameter")
        kinds[kind](value, at)

    def _flush(self) -> None:
        if self._said:
            self._messages.append(Message("assistant", tuple(self._said)))
            self._said = []

    def _message(self, value: Any, at: str) -> None:
        given = members(value, at, ("role", "content"), ("type", "id", "status", "phase"))
        role = one_of(given["role"], f"{at}.role", ("system", "developer", "user", "assistant"))
        where = f"{at}.content"
        content = given["content"]
        parts = (TextPart(content),) if isinstance(content, str) else items(content, where, _part)
        if role == "assistant":
            self._said += parts
        elif parts:
            self.add("user" if role == "user" else "system", parts)
        else:
            raise bad(f"{where} must be a non-empty list", where)

    def _call(self, value: Any, at: str) -> None:
        known = ("id", "status", "async", "caller", "namespace")
        given = members(value, at, ("type", "call_id", "name", "arguments"), known)
        call_id, name = text(given["call_id"], f"{at}.call_id"), text(given["name"], f"{at}.name")
        where = f"{at}.arguments"
        self._said.append(read_call(call_id, name, text(given["arguments"], where), where))
        self._names[call_id] = name

    def _output(self, value: Any, at: str) -> None:
        given = members(value, at, ("type", "call_id", "output"), ("id", "status", "caller"))
        output, where = given["output"], f"{at}.output"
        content = (TextPart(output),) if isinstance(output, str) else items(output, where, _part, empty=False)
        self._flush()
        call_id = text(given["call_id"], f"{at}.call_id")
        self._messages.append(result(call_id, self._names, content, f"{at}.call_id"))

    def _reasoning(self, value: Any, at: str) -> None:
        """Read and kept out of the prompt, as thinking always is."""
        given = members(value, at, ("type",), ("id", "summary", "content", "status"))
        for name in ("summary", "content"):
            for part in items(
                given.get(name, []), f"{at}.{name}", lambda each, at: members(each, at, ("type", "text"))
            ):
                self._said.append(ThinkingPart(text(part["text"], f"{at}.{name}", empty=True)))


def _part(value: Any, at: str) -> TextPart | ImagePart:
    if not isinstance(value, dict):
        raise bad(f"{at} must be an object", at)
    kind = value.get("type")
    if kind == "input_image":
        image = members(value, at, ("type", "image_url"), ("detail",))
        return read_image(image["image_url"], f"{at}.image_url", image.get("detail"))
    if kind == "refusal":
        return TextPart(text(members(value, at, ("type", "refusal"))["refusal"], f"{at}.refusal", empty=True))
    if kind not in ("input_text", "output_text"):
        raise bad(f"{at}.type must be input_text, output_text or input_image", f"{at}.type", "unsupported_parameter")
    given = members(value, at, ("type", "text"), ("annotations", "logprobs"))
    return TextPart(text(given["text"], f"{at}.text", empty=True))


# --- answers

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
    """One generation as a response, or as the events of one."""

    def __init__(self, live: LiveGeneration, asked: ResponsesRequest) -> None:
        self._live = live
        self._asked = asked
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
            "model": self._asked.model,
            "output": output,
            "usage": usage,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "truncation": "disabled",
            **self._asked.echo,
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
