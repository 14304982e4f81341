"""Requests of the NAP-LLM wire (nap-llm.md, "Wire Protocol"), read from bytes.

Reading is strict: unknown members, explicit null, wrong types, bad base64, bad names, duplicate tools, misplaced
parts and unpaired tool results never get past this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, cast

from server.wire import strict_json
from server.wire.history import check_history
from server.wire.records import (
    Format,
    GenerationRequest,
    ImagePart,
    Message,
    NamedTool,
    Part,
    Requirements,
    Role,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCallPart,
    ToolChoice,
    WireError,
)

T = TypeVar("T")

MAX_ID: Final = 512
"""Characters of a request id. Every delta repeats it, so an unbounded one would multiply."""

DEFAULT_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)")
_PRINTABLE_NAME = re.compile(r"[A-Za-z0-9_.$-]{1,64}")
_ROLES: Final = ("system", "user", "assistant", "toolResult")
_MIME_TYPES: Final = ("image/png", "image/jpeg", "image/webp")


@dataclass(frozen=True, slots=True)
class Select:
    id: str
    requirements: Requirements


@dataclass(frozen=True, slots=True)
class Describe:
    id: str
    handle: str


@dataclass(frozen=True, slots=True)
class Generate:
    id: str
    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class Cancel:
    id: str
    request_id: str


Envelope = Select | Describe | Generate | Cancel


class BadEnvelope(Exception):
    """A body that is no valid envelope.

    It can be answered in correlation where `result_type` and `id` are both set; otherwise the projection says 400.
    """

    def __init__(self, error: WireError, result_type: str | None = None, id: str | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.result_type = result_type
        self.id = id


def read_envelope(body: bytes, *, max_depth: int = strict_json.MAX_DEPTH) -> Envelope:
    """Reads one request. Raises `BadEnvelope` with the error to report, correlated where that is possible."""
    try:
        parsed = strict_json.parse(body, max_depth=max_depth)
    except strict_json.NotJson as error:
        raise BadEnvelope(_invalid(str(error))) from None
    value = parsed.value
    if not isinstance(value, dict):
        raise BadEnvelope(_invalid("the body must be one JSON object"))

    usable = {
        key: member
        for key in ("type", "id")
        if isinstance(member := value.get(key), str) and member and key not in parsed.duplicate_members
    }
    reader = _READERS.get(usable.get("type", ""))
    # An id that cannot be written back as UTF-8 cannot correlate anything.
    id_ = usable.get("id") if "id" in usable and _encodable(usable["id"]) else None
    result_type = f"{usable['type']}.result" if reader else None

    def bad(error: WireError) -> BadEnvelope:
        return BadEnvelope(error, result_type if id_ else None, id_ if result_type else None)

    if parsed.violation:
        raise bad(_invalid(parsed.violation))
    if reader is None:
        raise bad(_invalid("type must be llm.select, llm.describe, llm.generate or llm.cancel"))
    if id_ is None:
        raise bad(_invalid("id must be non-empty text"))
    if len(id_) > MAX_ID:
        raise bad(WireError("quota-exceeded", f"id is longer than {MAX_ID} characters"))
    try:
        return reader(id_, value)
    except WireError as error:
        raise bad(error) from None


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _invalid(message: str) -> WireError:
    return WireError("invalid-request", message)


# --- the readers of each kind of value; `at` names the field in messages


def _members(value: Any, at: str, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _invalid(f"{at} must be an object")
    for key, member in value.items():
        if key not in required and key not in optional:
            named = f"{at}.{key} is not a known field" if _PRINTABLE_NAME.fullmatch(key) else f"{at} has unknown fields"
            raise _invalid(named)
        if member is None:
            raise _invalid(f"{at}.{key} must not be null")
    for key in required:
        if key not in value:
            raise _invalid(f"{at}.{key} is missing")
    return value


def _text(value: Any, at: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty):
        raise _invalid(f"{at} must be text" if empty else f"{at} must be non-empty text")
    return value


def _boolean(value: Any, at: str) -> bool:
    if not isinstance(value, bool):
        raise _invalid(f"{at} must be true or false")
    return value


def _number(value: Any, at: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid(f"{at} must be a number")
    return float(value)


def _positive_integer(value: Any, at: str) -> int:
    # JSON does not tell 128 from 128.0; both are the integer.
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 1:
        raise _invalid(f"{at} must be a positive integer")
    return int(value)


def _one_of(value: Any, at: str, words: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in words:
        raise _invalid(f"{at} must be one of {', '.join(words)}")
    return value


def _list(value: Any, at: str, read: Callable[[Any, str], T], *, empty: bool = False) -> tuple[T, ...]:
    if not isinstance(value, list) or not (value or empty):
        raise _invalid(f"{at} must be a list" if empty else f"{at} must be a non-empty list")
    return tuple(read(item, f"{at}[{index}]") for index, item in enumerate(value))


def _map(value: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _invalid(f"{at} must be an object")
    return value


# --- records


def _requirements(value: Any, at: str) -> Requirements:
    members = _members(value, at, (), ("model", "images", "json", "tools"))
    flags = {key: _boolean(members[key], f"{at}.{key}") for key in ("images", "json", "tools") if key in members}
    model = _text(members["model"], f"{at}.model") if "model" in members else None
    return Requirements(model=model, **flags)


def _part(value: Any, at: str) -> Part:
    if not isinstance(value, dict):
        raise _invalid(f"{at} must be an object")
    kind = _one_of(value.get("type"), f"{at}.type", ("text", "image", "thinking", "toolCall"))
    if kind == "text":
        return TextPart(_text(_members(value, at, ("type", "text"))["text"], f"{at}.text", empty=True))
    if kind == "thinking":
        return ThinkingPart(_text(_members(value, at, ("type", "text"))["text"], f"{at}.text", empty=True))
    if kind == "image":
        members = _members(value, at, ("type", "mimeType", "data"))
        mime_type = _one_of(members["mimeType"], f"{at}.mimeType", _MIME_TYPES)
        data = _text(members["data"], f"{at}.data")
        if not _BASE64.fullmatch(data):
            raise _invalid(f"{at}.data must be standard padded base64 without white space or prefix")
        return ImagePart(cast(Literal["image/png", "image/jpeg", "image/webp"], mime_type), data)
    members = _members(value, at, ("type", "toolCallId", "name", "arguments"))
    return ToolCallPart(
        tool_call_id=_text(members["toolCallId"], f"{at}.toolCallId"),
        name=_text(members["name"], f"{at}.name"),
        arguments=_map(members["arguments"], f"{at}.arguments"),
    )


def _message(value: Any, at: str) -> Message:
    if not isinstance(value, dict):
        raise _invalid(f"{at} must be an object")
    role = cast(Role, _one_of(value.get("role"), f"{at}.role", _ROLES))
    if role != "toolResult":
        members = _members(value, at, ("role", "content"))
        return Message(role, _list(members["content"], f"{at}.content", _part))
    members = _members(value, at, ("role", "content", "toolCallId", "toolName"), ("isError",))
    return Message(
        role,
        _list(members["content"], f"{at}.content", _part),
        tool_call_id=_text(members["toolCallId"], f"{at}.toolCallId"),
        tool_name=_text(members["toolName"], f"{at}.toolName"),
        is_error=_boolean(members["isError"], f"{at}.isError") if "isError" in members else False,
    )


def _tool(value: Any, at: str) -> Tool:
    members = _members(value, at, ("name",), ("description", "parameters"))
    name = _text(members["name"], f"{at}.name")
    if not _TOOL_NAME.fullmatch(name):
        raise _invalid(f"{at}.name must match ^[A-Za-z0-9_-]{{1,64}}$")
    parameters = _map(members.get("parameters", DEFAULT_PARAMETERS), f"{at}.parameters")
    if parameters.get("type") != "object":
        raise _invalid(f'{at}.parameters must be a JSON Schema with root type "object"')
    description = _text(members["description"], f"{at}.description", empty=True) if "description" in members else None
    return Tool(name, description, parameters)


def _tool_choice(value: Any, at: str) -> ToolChoice:
    if isinstance(value, str):
        return cast(Literal["auto", "none", "required"], _one_of(value, at, ("auto", "none", "required")))
    members = _members(value, at, ("type", "name"))
    _one_of(members["type"], f"{at}.type", ("tool",))
    return NamedTool(_text(members["name"], f"{at}.name"))


def _generation_request(value: Any, at: str) -> GenerationRequest:
    members = _members(value, at, ("handle", "messages"), ("format", "maxTokens", "temperature", "tools", "toolChoice"))
    messages = _list(members["messages"], f"{at}.messages", _message)
    check_history(messages, f"{at}.messages")
    tools = _list(members.get("tools", []), f"{at}.tools", _tool, empty=True)
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise _invalid(f"{at}.tools[{index}].name stands twice")
    choice: ToolChoice | None = "auto" if tools else None
    if "toolChoice" in members:
        choice = _tool_choice(members["toolChoice"], f"{at}.toolChoice")
        if not tools:
            raise _invalid(f"{at}.toolChoice needs a non-empty {at}.tools")
        if isinstance(choice, NamedTool) and choice.name not in names:
            raise _invalid(f"{at}.toolChoice.name is not among {at}.tools")
    return GenerationRequest(
        handle=_text(members["handle"], f"{at}.handle"),
        messages=messages,
        format=cast(Format, _one_of(members.get("format", "text"), f"{at}.format", ("text", "json"))),
        max_tokens=_positive_integer(members["maxTokens"], f"{at}.maxTokens") if "maxTokens" in members else None,
        temperature=_number(members["temperature"], f"{at}.temperature") if "temperature" in members else None,
        tools=tools,
        tool_choice=choice,
    )


# --- envelopes


def _select(id: str, value: Any) -> Select:
    members = _members(value, "envelope", ("type", "id"), ("requirements",))
    return Select(id, _requirements(members.get("requirements", {}), "requirements"))


def _describe(id: str, value: Any) -> Describe:
    return Describe(id, _text(_members(value, "envelope", ("type", "id", "handle"))["handle"], "handle"))


def _generate(id: str, value: Any) -> Generate:
    members = _members(value, "envelope", ("type", "id", "request"))
    return Generate(id, _generation_request(members["request"], "request"))


def _cancel(id: str, value: Any) -> Cancel:
    return Cancel(id, _text(_members(value, "envelope", ("type", "id", "requestId"))["requestId"], "requestId"))


_READERS: Final[Mapping[str, Callable[[str, Any], Envelope]]] = {
    "llm.select": _select,
    "llm.describe": _describe,
    "llm.generate": _generate,
    "llm.cancel": _cancel,
}
