"""`POST /v1/responses`, without state: items read into the wire's records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from server.http.openai.errors import bad
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
from server.http.openai.responses_writer import ResponsesWriter
from server.http.openai.values import count, integer, items, members, one_of, text
from server.runtime import LiveGeneration
from server.wire.records import (
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
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
        return ResponsesWriter(live, self.model, self.echo)


def read(body: Mapping[str, Any]) -> ResponsesRequest:
    """Raises ApiError(400) naming the parameter."""
    given = check_parameters(body, PARAMETERS, ("model", "input"))
    common = read_common(given, _format(given.get("text", {})), None)
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


def _format(value: Any) -> ResponseFormat:
    given = members(value, "text", (), ("format", "verbosity"))
    if given.get("verbosity", "medium") != "medium":
        raise bad("text.verbosity is not supported with this value", "text.verbosity", "unsupported_parameter")
    if "format" not in given:
        return ResponseFormat()
    return read_format(given["format"], "text.format", inner=None)


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
