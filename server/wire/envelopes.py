"""Requests of the NAP-LLM wire (nap-llm.md, "Wire Protocol"), read from bytes.

Reading is strict: unknown members, explicit null, wrong types, bad base64, bad names, duplicate tools, misplaced
parts and unpaired tool results never get past this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from server.wire import fields, strict_json
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

MAX_ID: Final = 512
"""Characters of a request id. Every delta repeats it, so an unbounded one would multiply."""

DEFAULT_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}

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
        raise BadEnvelope(fields.invalid(str(error))) from None
    value = parsed.value
    if not isinstance(value, dict):
        raise BadEnvelope(fields.invalid("the body must be one JSON object"))

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
        raise bad(fields.invalid(parsed.violation))
    if reader is None:
        raise bad(fields.invalid("type must be llm.select, llm.describe, llm.generate or llm.cancel"))
    if id_ is None:
        raise bad(fields.invalid("id must be non-empty text"))
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


# --- records


def _requirements(value: Any, at: str) -> Requirements:
    members = fields.members(value, at, (), ("model", "images", "json", "tools"))
    flags = {key: fields.boolean(members[key], f"{at}.{key}") for key in ("images", "json", "tools") if key in members}
    model = fields.text(members["model"], f"{at}.model") if "model" in members else None
    return Requirements(model=model, **flags)


def _part(value: Any, at: str) -> Part:
    if not isinstance(value, dict):
        raise fields.invalid(f"{at} must be an object")
    kind = fields.one_of(value.get("type"), f"{at}.type", ("text", "image", "thinking", "toolCall"))
    if kind == "text":
        return TextPart(fields.text(fields.members(value, at, ("type", "text"))["text"], f"{at}.text", empty=True))
    if kind == "thinking":
        return ThinkingPart(fields.text(fields.members(value, at, ("type", "text"))["text"], f"{at}.text", empty=True))
    if kind == "image":
        members = fields.members(value, at, ("type", "mimeType", "data"))
        mime_type = fields.one_of(members["mimeType"], f"{at}.mimeType", _MIME_TYPES)
        data = fields.base64(members["data"], f"{at}.data")
        return ImagePart(cast(Literal["image/png", "image/jpeg", "image/webp"], mime_type), data)
    members = fields.members(value, at, ("type", "toolCallId", "name", "arguments"))
    return ToolCallPart(
        tool_call_id=fields.text(members["toolCallId"], f"{at}.toolCallId"),
        name=fields.text(members["name"], f"{at}.name"),
        arguments=fields.mapping(members["arguments"], f"{at}.arguments"),
    )


def _message(value: Any, at: str) -> Message:
    if not isinstance(value, dict):
        raise fields.invalid(f"{at} must be an object")
    role = cast(Role, fields.one_of(value.get("role"), f"{at}.role", _ROLES))
    if role != "toolResult":
        members = fields.members(value, at, ("role", "content"))
        return Message(role, fields.items(members["content"], f"{at}.content", _part))
    members = fields.members(value, at, ("role", "content", "toolCallId", "toolName"), ("isError",))
    return Message(
        role,
        fields.items(members["content"], f"{at}.content", _part),
        tool_call_id=fields.text(members["toolCallId"], f"{at}.toolCallId"),
        tool_name=fields.text(members["toolName"], f"{at}.toolName"),
        is_error=fields.boolean(members["isError"], f"{at}.isError") if "isError" in members else False,
    )


def _tool(value: Any, at: str) -> Tool:
    members = fields.members(value, at, ("name",), ("description", "parameters"))
    name = fields.tool_name(members["name"], f"{at}.name")
    parameters = fields.tool_parameters(members.get("parameters", DEFAULT_PARAMETERS), f"{at}.parameters")
    description = (
        fields.text(members["description"], f"{at}.description", empty=True) if "description" in members else None
    )
    return Tool(name, description, parameters)


def _tool_choice(value: Any, at: str) -> ToolChoice:
    if isinstance(value, str):
        return cast(Literal["auto", "none", "required"], fields.one_of(value, at, ("auto", "none", "required")))
    members = fields.members(value, at, ("type", "name"))
    fields.one_of(members["type"], f"{at}.type", ("tool",))
    return NamedTool(fields.text(members["name"], f"{at}.name"))


def _generation_request(value: Any, at: str) -> GenerationRequest:
    members = fields.members(
        value, at, ("handle", "messages"), ("format", "maxTokens", "temperature", "tools", "toolChoice")
    )
    messages = fields.items(members["messages"], f"{at}.messages", _message)
    check_history(messages, f"{at}.messages")
    tools = fields.items(members.get("tools", []), f"{at}.tools", _tool, empty=True)
    fields.check_tool_names(tools, f"{at}.tools")
    choice: ToolChoice | None = "auto" if tools else None
    if "toolChoice" in members:
        choice = _tool_choice(members["toolChoice"], f"{at}.toolChoice")
        if not tools:
            raise fields.invalid(f"{at}.toolChoice needs a non-empty {at}.tools")
        if isinstance(choice, NamedTool) and choice.name not in {tool.name for tool in tools}:
            raise fields.invalid(f"{at}.toolChoice.name is not among {at}.tools")
    return GenerationRequest(
        handle=fields.text(members["handle"], f"{at}.handle"),
        messages=messages,
        format=cast(Format, fields.one_of(members.get("format", "text"), f"{at}.format", ("text", "json"))),
        max_tokens=fields.positive_integer(members["maxTokens"], f"{at}.maxTokens") if "maxTokens" in members else None,
        temperature=fields.number(members["temperature"], f"{at}.temperature") if "temperature" in members else None,
        tools=tools,
        tool_choice=choice,
    )


# --- envelopes


def _select(id: str, value: Any) -> Select:
    members = fields.members(value, "envelope", ("type", "id"), ("requirements",))
    return Select(id, _requirements(members.get("requirements", {}), "requirements"))


def _describe(id: str, value: Any) -> Describe:
    return Describe(id, fields.text(fields.members(value, "envelope", ("type", "id", "handle"))["handle"], "handle"))


def _generate(id: str, value: Any) -> Generate:
    members = fields.members(value, "envelope", ("type", "id", "request"))
    return Generate(id, _generation_request(members["request"], "request"))


def _cancel(id: str, value: Any) -> Cancel:
    return Cancel(
        id, fields.text(fields.members(value, "envelope", ("type", "id", "requestId"))["requestId"], "requestId")
    )


_READERS: Final[Mapping[str, Callable[[str, Any], Envelope]]] = {
    "llm.select": _select,
    "llm.describe": _describe,
    "llm.generate": _generate,
    "llm.cancel": _cancel,
}
