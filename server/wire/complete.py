"""`POST /llm/complete`: one request of the mhome LLM contract, read from bytes, and its response (complete-binding).

Reading is as strict as on the NAP wire: what is unknown, null, undeclared or unpaired never gets past this module.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast, get_args

from server.wire import fields, strict_json
from server.wire.history import check_history
from server.wire.records import (
    Generation,
    GenerationRequest,
    ImagePart,
    Message,
    Part,
    TextPart,
    Tool,
    ToolCallPart,
    Usage,
    WireError,
)

InputKind = Literal["image", "video", "audio", "file"]
"""What a conversation may hold beside text, which is never declared."""

_ROLES: Final = ("system", "user", "assistant", "tool")
_PARTS: Final = ("text", "image", "artifact", "tool_call", "tool_result")
_IMAGES: Final = ("image/png", "image/jpeg", "image/webp")
_ARTIFACT: Final = "meow-artifact://v1/"
_MIME_TYPE = re.compile(r"(?P<kind>[a-z0-9][a-z0-9!#$&^_.+-]*)/[a-z0-9][a-z0-9!#$&^_.+-]*", re.IGNORECASE)
"""RFC 6838, section 4.2, without parameters."""
_TEXT = re.compile(
    r"text/.+|application/(?:json|xml|yaml|toml|sql|javascript|ecmascript)|application/.+\+(?:json|xml|yaml)"
)
"""Types of files that are UTF-8 text (RFC 6657, RFC 6839)."""
_NAME = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*")
"""What may follow an artifact's scheme where it is kept: segments of unreserved characters (RFC 3986), none hidden."""
_POLICY: Final = ("temperature", "thinking", "reasoning", "reasoning_effort", "reasoningEffort")
"""Options that other contracts leave to the caller and this one to the connection."""

_FINISH: Final = {"stop": "stop", "toolUse": "tool_calls", "length": "length", "refusal": "other"}


ReadArtifact = Callable[[str], bytes]
"""The content of an artifact by its name, which is what follows `meow-artifact://v1/`: segments without dots in front,
with slashes between them. Raises LookupError where there is none, and `quota-exceeded`."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a request declares that it needs (version 3). Nothing is inferred from what it holds."""

    input: frozenset[InputKind] = frozenset()
    tool_calling: bool = False
    structured_output: bool = False


@dataclass(frozen=True, slots=True)
class Continuation:
    """A model's own state behind one of its messages, for whoever made it: opaque to everybody else."""

    format: str
    compatibility_key: str
    payload: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class CompleteRequest:
    """`generation` names no handle: `use_case` and `mode` pick the connection. `continuations` are those of its
    messages, by their index there. `schema`: the JSON Schema that the answer must satisfy."""

    generation: GenerationRequest
    constraints: Constraints = Constraints()
    use_case: str | None = None
    mode: str | None = None
    schema: Mapping[str, Any] | None = None
    continuations: Mapping[int, Continuation] = field(default_factory=dict)
    diagnostics: bool = False
    names: tuple[str, ...] = ()
    """Where each of `generation`'s messages stands in the request: a message of results is one for each there."""


def read_complete(
    body: bytes, *, max_depth: int = strict_json.MAX_DEPTH, artifact: ReadArtifact | None = None
) -> CompleteRequest:
    """Reads one request, with the content of its artifacts. Raises WireError: `invalid-request`, `unsupported` for what
    can be said but not served, and what `artifact` raises."""
    try:
        parsed = strict_json.parse(body, max_depth=max_depth)
    except strict_json.NotJson as error:
        raise fields.invalid(str(error)) from None
    if parsed.violation:
        raise fields.invalid(parsed.violation)
    if isinstance(parsed.value, dict) and "provider" in parsed.value:
        raise fields.invalid("request.provider is not the caller's to name: routes are the deployment's")
    members = fields.members(
        parsed.value,
        "request",
        ("messages",),
        ("useCase", "mode", "tools", "constraints", "responseFormat", "options", "diagnostics"),
    )
    constraints = _constraints(members.get("constraints", {}), "constraints")
    conversation = _Conversation(constraints, artifact)
    fields.items(members["messages"], "messages", conversation.add)
    conversation.check()
    tools = fields.items(members.get("tools", []), "tools", _tool, empty=True)
    fields.check_tool_names(tools, "tools")
    json_object, schema = False, None
    if "responseFormat" in members:
        json_object, schema = _response_format(members["responseFormat"], "responseFormat")
        if not constraints.structured_output:
            raise fields.invalid("responseFormat needs constraints.structured_output")
    return CompleteRequest(
        generation=GenerationRequest(
            handle="",
            messages=tuple(conversation.messages),
            format="json" if json_object else "text",
            max_tokens=_max_tokens(members.get("options", {}), "options"),
            tools=tools,
            tool_choice="auto" if tools else None,
        ),
        constraints=constraints,
        use_case=fields.text(members["useCase"], "useCase") if "useCase" in members else None,
        mode=fields.text(members["mode"], "mode") if "mode" in members else None,
        schema=schema,
        continuations=conversation.continuations,
        diagnostics=fields.boolean(members.get("diagnostics", False), "diagnostics"),
        names=tuple(conversation.names),
    )


def _constraints(value: Any, at: str) -> Constraints:
    members = fields.members(value, at, (), ("input", "tool_calling", "structured_output"))
    kinds = fields.items(members.get("input", []), f"{at}.input", _input_kind, empty=True)
    flags = {
        key: fields.boolean(members[key], f"{at}.{key}")
        for key in ("tool_calling", "structured_output")
        if key in members
    }
    return Constraints(frozenset(kinds), **flags)


def _input_kind(value: Any, at: str) -> InputKind:
    return cast(InputKind, fields.one_of(value, at, get_args(InputKind)))


def _tool(value: Any, at: str) -> Tool:
    members = fields.members(value, at, ("name", "description", "input_schema"))
    return Tool(
        name=fields.tool_name(members["name"], f"{at}.name"),
        description=fields.text(members["description"], f"{at}.description", empty=True),
        parameters=fields.tool_parameters(members["input_schema"], f"{at}.input_schema"),
    )


def _response_format(value: Any, at: str) -> tuple[bool, Mapping[str, Any] | None]:
    """Whether the answer is any JSON object, or else the schema it satisfies."""
    kind = fields.mapping(value, at).get("type")
    if fields.one_of(kind, f"{at}.type", ("json_object", "json_schema")) == "json_object":
        fields.members(value, at, ("type",))
        return True, None
    return False, fields.mapping(fields.members(value, at, ("type", "schema"))["schema"], f"{at}.schema")


def _max_tokens(value: Any, at: str) -> int | None:
    for key in _POLICY:
        if key in fields.mapping(value, at):
            raise fields.invalid(f"{at}.{key} belongs to the connection: a request cannot set it")
    members = fields.members(value, at, (), ("maxTokens",))
    return fields.positive_integer(members["maxTokens"], f"{at}.maxTokens") if "maxTokens" in members else None


class _Conversation:
    """The contract's messages as those of the NAP wire: a result there is a message of its own."""

    def __init__(self, constraints: Constraints, artifact: ReadArtifact | None) -> None:
        self.messages: list[Message] = []
        self.continuations: dict[int, Continuation] = {}
        self._declared = constraints.input
        self._read_artifact = artifact
        self.names: list[str] = []
        self._called: dict[str, str] = {}

    def add(self, value: Any, at: str) -> None:
        members = fields.members(value, at, ("role", "content"), ("continuation",))
        role = fields.one_of(members["role"], f"{at}.role", _ROLES)
        if role == "tool":
            fields.items(members["content"], f"{at}.content", self._result)
        else:
            # A message without parts says nothing, as one with an empty text does.
            parts = fields.items(members["content"], f"{at}.content", self._part, empty=True) or (TextPart(""),)
            self._put(Message(cast(Literal["system", "user", "assistant"], role), parts), at)
        if "continuation" in members:
            if role != "assistant":
                raise fields.invalid(f"{at}.continuation is allowed in assistant messages only")
            found = _continuation(members["continuation"], f"{at}.continuation")
            self.continuations[len(self.messages) - 1] = found

    def check(self) -> None:
        check_history(self.messages, places=self.names, call="id", answer="call_id")

    def _put(self, message: Message, place: str) -> None:
        self.messages.append(message)
        self.names.append(place)

    def _part(self, value: Any, at: str) -> Part:
        kind = fields.one_of(fields.mapping(value, at).get("type"), f"{at}.type", _PARTS)
        match kind:
            case "text":
                return TextPart(
                    fields.text(fields.members(value, at, ("type", "text"))["text"], f"{at}.text", empty=True)
                )
            case "image":
                return self._image(fields.members(value, at, ("type", "image"))["image"], f"{at}.image")
            case "artifact":
                return self._artifact(value, at)
            case "tool_result":
                raise fields.invalid(f"{at} is allowed in tool messages only")
        members = fields.members(value, at, ("type", "id", "name", "arguments"), nullable=("arguments",))
        call = ToolCallPart(
            tool_call_id=fields.text(members["id"], f"{at}.id"),
            name=fields.text(members["name"], f"{at}.name"),
            arguments=_arguments(members["arguments"], f"{at}.arguments"),
        )
        self._called[call.tool_call_id] = call.name
        return call

    def _result(self, value: Any, at: str) -> None:
        if fields.one_of(fields.mapping(value, at).get("type"), f"{at}.type", _PARTS) != "tool_result":
            raise fields.invalid(f"{at} must be a tool_result in a tool message")
        members = fields.members(value, at, ("type", "call_id", "result", "is_error"), nullable=("result",))
        result = members["result"]
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        call_id = fields.text(members["call_id"], f"{at}.call_id")
        self._put(
            Message(
                "toolResult",
                (TextPart(text),),
                tool_call_id=call_id,
                tool_name=self._called.get(call_id),
                is_error=fields.boolean(members["is_error"], f"{at}.is_error"),
            ),
            at,
        )

    def _image(self, value: Any, at: str) -> ImagePart:
        self._check_declared("image", at)
        members = fields.members(value, at, (), ("url", "base64", "mimeType", "createdAt"))
        created = members.get("createdAt", 0)
        if isinstance(created, bool) or not isinstance(created, int | float) or created != int(created):
            raise fields.invalid(f"{at}.createdAt must be an integer")
        if "url" in members:
            fields.text(members["url"], f"{at}.url", empty=True)
            raise WireError("unsupported", f"{at}.url: nothing is fetched here; send base64 and mimeType")
        for key in ("base64", "mimeType"):
            if key not in members:
                raise fields.invalid(f"{at}.{key} is missing")
        kind, mime_type = _mime_type(members["mimeType"], f"{at}.mimeType")
        if kind != "image":
            raise fields.invalid(f"{at}.mimeType is not that of an image")
        data = fields.base64(members["base64"], f"{at}.base64")
        if mime_type not in _IMAGES:
            raise WireError("unsupported", f"{at}.mimeType must be one of {', '.join(_IMAGES)}")
        return ImagePart(cast(Literal["image/png", "image/jpeg", "image/webp"], mime_type), data)

    def _artifact(self, value: Any, at: str) -> TextPart | ImagePart:
        """An image, or a text that is declared as the file it is. No other kind is ever made a text of."""
        members = fields.members(value, at, ("type", "uri", "mime_type"))
        uri = fields.text(members["uri"], f"{at}.uri")
        if not uri.startswith(_ARTIFACT):
            raise fields.invalid(f"{at}.uri must begin with {_ARTIFACT}")
        kind, mime_type = _mime_type(members["mime_type"], f"{at}.mime_type")
        name = uri.removeprefix(_ARTIFACT)
        named = name.partition("/")[0]
        if named in get_args(InputKind) and named != kind:
            raise fields.invalid(f"{at}.mime_type does not agree with the kind in {at}.uri")
        self._check_declared(kind, at)
        if self._read_artifact is None:
            message = f"{at}: {_ARTIFACT} cannot be resolved here; send texts as text and images as base64"
            raise WireError("unsupported", message)
        if mime_type not in _IMAGES and not (kind == "file" and _TEXT.fullmatch(mime_type)):
            raise WireError("unsupported", f"{at}.mime_type must be that of a text, or one of {', '.join(_IMAGES)}")
        try:
            data = self._read_artifact(name) if _NAME.fullmatch(name) else None
        except LookupError:
            data = None
        if data is None:
            raise WireError("unsupported", f"{at}.uri: no such artifact is kept here")
        if kind == "image":
            return ImagePart(
                cast(Literal["image/png", "image/jpeg", "image/webp"], mime_type), b64encode(data).decode()
            )
        try:
            return TextPart(data.decode("utf-8-sig"))
        except UnicodeDecodeError:
            raise fields.invalid(f"{at}.mime_type is that of a text, and the artifact is no UTF-8") from None

    def _check_declared(self, kind: InputKind, at: str) -> None:
        if kind not in self._declared:
            raise fields.invalid(f"{at} needs {kind} in constraints.input")


def _mime_type(value: Any, at: str) -> tuple[InputKind, str]:
    """The kind of input that a MIME type tells, and the type itself, in small letters."""
    found = _MIME_TYPE.fullmatch(fields.text(value, at))
    if found is None:
        raise fields.invalid(f"{at} must be a MIME type without parameters")
    kind = found["kind"].lower()
    return cast(InputKind, kind if kind in ("image", "video", "audio") else "file"), found.group().lower()


def _arguments(value: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise WireError("unsupported", f"{at} must be an object: no model here calls with anything else")
    return value


def _continuation(value: Any, at: str) -> Continuation:
    members = fields.members(value, at, ("format", "compatibility_key", "payload"), nullable=("payload",))
    return Continuation(
        fields.text(members["format"], f"{at}.format"),
        fields.text(members["compatibility_key"], f"{at}.compatibility_key"),
        members["payload"],
    )


# --- the response


def write_completion(
    generation: Generation, *, route: Mapping[str, str], continuation: Continuation | None = None
) -> dict[str, Any]:
    """The response to a request. Thinking is no content here: it is in the continuation."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": [_write_part(part) for part in visible(generation.content)],
    }
    if continuation is not None:
        message["continuation"] = {
            "format": continuation.format,
            "compatibility_key": continuation.compatibility_key,
            "payload": continuation.payload,
        }
    value = {"message": message, "finishReason": _FINISH[generation.finish], "route": dict(route)}
    return value if generation.usage is None else {**value, "usage": _write_usage(generation.usage)}


def visible(content: Sequence[Part]) -> tuple[TextPart | ToolCallPart, ...]:
    """What of an assistant's turn stands in its message."""
    return tuple(part for part in content if isinstance(part, TextPart | ToolCallPart))


def _write_part(part: TextPart | ToolCallPart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    return {"type": "tool_call", "id": part.tool_call_id, "name": part.name, "arguments": dict(part.arguments)}


def _write_usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_input_tokens": usage.cache_read_tokens or 0,
        "reasoning_output_tokens": usage.reasoning_tokens or 0,
        "credits": 0,
    }
