"""`POST /v1/chat/completions`: a conversation read into the wire's records, a generation written back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    read_call,
    read_common,
    read_format,
    read_image,
    result,
)
from server.http.openai.response import LogprobCursor, arguments_text
from server.http.openai.values import boolean, count, integer, items, members, one_of, text
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
    ToolCallPart,
    Usage,
    WireError,
)

PARAMETERS = ParameterPolicy(
    honoured=frozenset(
        SAMPLING
        | {"model", "messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "stop", "temperature"}
        | {"max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "stream", "stream_options"}
    ),
    accepted_defaults={
        "n": (1, 1.0),
        "store": (False,),
        "frequency_penalty": (0, 0.0),
        "presence_penalty": (0, 0.0),
        "logit_bias": ({},),
        "modalities": (["text"],),
        "verbosity": ("medium",),
        "functions": ([],),
        "function_call": (),
        "audio": (),
        "prediction": (),
        "reasoning_effort": (),
        "web_search_options": (),
        "moderation": (),
    },
)

_FINISH = {"stop": "stop", "length": "length", "toolUse": "tool_calls", "refusal": "stop"}


@dataclass(slots=True)
class ChatRequest(ParsedRequest):
    include_usage: bool = False

    def writer(self, live: LiveGeneration) -> ChatCompletionWriter:
        return ChatCompletionWriter(live, self)


def read(body: Mapping[str, Any]) -> ChatRequest:
    """Raises ApiError(400) naming the parameter."""
    given = check_parameters(body, PARAMETERS, ("model", "messages"))
    format = ResponseFormat()
    if "response_format" in given:
        format = read_format(given["response_format"], "response_format", inner="json_schema")
    common = read_common(given, format, "function")
    return ChatRequest(
        **common,
        messages=_messages(given["messages"]),
        max_tokens=_max_tokens(given),
        logprobs=_logprobs(given),
        include_usage=_include_usage(given, common["stream"]),
    )


def _max_tokens(given: Mapping[str, Any]) -> int | None:
    names = [name for name in ("max_completion_tokens", "max_tokens") if name in given]
    if len(names) == 2:
        raise bad("max_tokens and max_completion_tokens say the same; give one", "max_tokens")
    return count(given[names[0]], names[0]) if names else None


def _logprobs(given: Mapping[str, Any]) -> int | None:
    wanted = boolean(given.get("logprobs", False), "logprobs")
    if "top_logprobs" not in given:
        return 0 if wanted else None
    if not wanted:
        raise bad("top_logprobs needs logprobs", "top_logprobs")
    return integer(given["top_logprobs"], "top_logprobs", 0, MAX_LOGPROBS)


def _include_usage(given: Mapping[str, Any], stream: bool) -> bool:
    if "stream_options" not in given:
        return False
    if not stream:
        raise bad("stream_options needs stream", "stream_options")
    options = members(given["stream_options"], "stream_options", (), ("include_usage", "include_obfuscation"))
    return boolean(options.get("include_usage", False), "stream_options.include_usage")


# --- messages


def _messages(value: Any) -> tuple[Message, ...]:
    names: dict[str, str] = {}
    messages = items(value, "messages", lambda each, at: _message(each, at, names), empty=False)
    check_messages(messages, "messages")
    return messages


def _message(value: Any, at: str, names: dict[str, str]) -> Message:
    """`names`: of the calls so far, by id."""
    if not isinstance(value, dict):
        raise bad(f"{at} must be an object", at)
    role = one_of(value.get("role"), f"{at}.role", ("system", "developer", "user", "assistant", "tool"))
    if role == "assistant":
        return _assistant(value, at, names)
    if role == "tool":
        given = members(value, at, ("role", "content", "tool_call_id"), ("name",))
        call_id = text(given["tool_call_id"], f"{at}.tool_call_id")
        return result(call_id, names, _content(given["content"], f"{at}.content"), f"{at}.tool_call_id")
    given = members(value, at, ("role", "content"))
    return Message("user" if role == "user" else "system", _content(given["content"], f"{at}.content"))


def _assistant(value: Any, at: str, names: dict[str, str]) -> Message:
    """An earlier answer as it was given, with what its thinking was; the model does not get that again."""
    known = ("content", "refusal", "tool_calls", "reasoning_content", "reasoning", "annotations")
    given = members(value, at, ("role",), known)
    parts: list[Part] = []
    for name in ("reasoning_content", "reasoning"):
        if name in given:
            parts.append(ThinkingPart(text(given[name], f"{at}.{name}", empty=True)))
    if "content" in given:
        parts += _content(given["content"], f"{at}.content")
    if "refusal" in given:
        parts.append(TextPart(text(given["refusal"], f"{at}.refusal", empty=True)))
    calls = items(given.get("tool_calls", []), f"{at}.tool_calls", _call)
    names.update((call.tool_call_id, call.name) for call in calls)
    if not parts and not calls:
        raise bad(f"{at} has neither content nor tool_calls", f"{at}.content")
    return Message("assistant", (*parts, *calls))


def _call(value: Any, at: str) -> ToolCallPart:
    # Some clients give calls the index that they had in a stream.
    given = members(value, at, ("id", "type", "function"), ("index",))
    one_of(given["type"], f"{at}.type", ("function",))
    where = f"{at}.function"
    function = members(given["function"], where, ("name", "arguments"))
    name = text(function["name"], f"{where}.name")
    arguments = text(function["arguments"], f"{where}.arguments")
    return read_call(text(given["id"], f"{at}.id"), name, arguments, f"{where}.arguments")


def _content(value: Any, at: str) -> tuple[TextPart | ImagePart, ...]:
    if isinstance(value, str):
        return (TextPart(value),)
    return items(value, at, _part, empty=False)


def _part(value: Any, at: str) -> TextPart | ImagePart:
    if not isinstance(value, dict):
        raise bad(f"{at} must be an object", at)
    kind = value.get("type")
    if kind == "image_url":
        where = f"{at}.image_url"
        image = members(members(value, at, ("type", "image_url"))["image_url"], where, ("url",), ("detail",))
        return read_image(image["url"], f"{where}.url", image.get("detail"))
    if kind == "refusal":
        return TextPart(text(members(value, at, ("type", "refusal"))["refusal"], f"{at}.refusal", empty=True))
    if kind != "text":
        raise bad(f"{at}.type must be text or image_url", f"{at}.type", "unsupported_parameter")
    return TextPart(text(members(value, at, ("type", "text"))["text"], f"{at}.text", empty=True))


# --- answers


class ChatCompletionWriter:
    """One generation as a completion, or as its chunks."""

    def __init__(self, live: LiveGeneration, asked: ChatRequest) -> None:
        self._live = live
        self._asked = asked
        self._tokens = LogprobCursor(live)
        self._calls: dict[int, int] = {}
        self._begun = False

    def whole(self) -> dict[str, Any]:
        generation = self._live.outcome
        assert isinstance(generation, Generation)
        said = "".join(part.text for part in generation.content if isinstance(part, TextPart))
        thought = "".join(part.text for part in generation.content if isinstance(part, ThinkingPart))
        calls = [part for part in generation.content if isinstance(part, ToolCallPart)]
        refused = generation.finish == "refusal"
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if refused or (calls and not said) else said,
            "refusal": said if refused else None,
        }
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = [
                {**_call_head(call.tool_call_id), "function": _function(call.name, arguments_text(call.arguments))}
                for call in calls
            ]
        choice = {"index": 0, "message": message, "finish_reason": _FINISH[generation.finish], "logprobs": None}
        if self._asked.logprobs is not None:
            choice["logprobs"] = {"content": self._tokens.new(), "refusal": None}
        return {**self._head("chat.completion"), "choices": [choice], "usage": write_usage(generation.usage)}

    def write(self, deltas: list[Delta]) -> bytes:
        chunks: list[bytes] = []
        for each in deltas:
            change = self._change(each)
            if change is not None:
                chunks.append(self._chunk(change, text=each.block == "text"))
        if chunks:
            chunks[:0] = self._opening()
        return b"".join(chunks)

    def end(self) -> bytes:
        outcome = self._live.outcome
        assert outcome is not None
        if isinstance(outcome, WireError):
            return stream.event(encode(failed(outcome).body))
        chunks = [*self._opening(), self._chunk({}, finish=_FINISH[outcome.finish])]
        if self._asked.include_usage:
            usage = {**self._head("chat.completion.chunk"), "choices": [], "usage": write_usage(outcome.usage)}
            chunks.append(stream.event(encode(usage)))
        return b"".join([*chunks, stream.event(b"[DONE]")])

    def _change(self, delta: Delta) -> dict[str, Any] | None:
        """Addition of a delta to the message."""
        if delta.event == "start" and delta.block == "toolCall":
            index = self._calls[delta.block_index] = len(self._calls)
            head = {"index": index, **_call_head(delta.tool_call_id), "function": _function(delta.name, "")}
            return {"tool_calls": [head]}
        if delta.event != "delta":
            return None
        if delta.block == "toolCall":
            return {"tool_calls": [{"index": self._calls[delta.block_index], "function": {"arguments": delta.text}}]}
        return {"content" if delta.block == "text" else "reasoning_content": delta.text}

    def _opening(self) -> list[bytes]:
        """The first chunk, before all others."""
        if self._begun:
            return []
        self._begun = True
        return [self._chunk({"role": "assistant", "content": "", "refusal": None})]

    def _chunk(self, change: dict[str, Any], *, finish: str | None = None, text: bool = False) -> bytes:
        choice: dict[str, Any] = {"index": 0, "delta": change, "finish_reason": finish, "logprobs": None}
        if text and self._asked.logprobs is not None:
            choice["logprobs"] = {"content": self._tokens.new(), "refusal": None}
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        if self._asked.include_usage:
            chunk["usage"] = None
        return stream.event(encode(chunk))

    def _head(self, kind: str) -> dict[str, Any]:
        live = self._live
        return {"id": live.id, "object": kind, "created": int(live.created), "model": self._asked.model}


def _call_head(call_id: str | None) -> dict[str, Any]:
    return {"id": call_id, "type": "function"}


def _function(name: str | None, arguments: str) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def write_usage(usage: Usage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens or 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
    }
