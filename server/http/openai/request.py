"""Parameters that requests of the OpenAI API share, read strictly into the wire's records.

A parameter is honoured, or asks for nothing that we do not do anyway, or is refused by its name: none that would change
the output is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar, cast

from server.engine.sampling.params import PARAMS, Param
from server.http.openai.errors import bad
from server.http.openai.values import boolean, integer, items, members, named, number, one_of, text
from server.runtime import GenerationOptions
from server.wire import check_history, fields, strict_json
from server.wire.envelopes import DEFAULT_PARAMETERS
from server.wire.records import (
    GenerationRequest,
    ImagePart,
    Message,
    NamedTool,
    TextPart,
    Tool,
    ToolCallPart,
    ToolChoice,
    WireError,
)

T = TypeVar("T")

MAX_STOP = 16
"""Stop sequences of one request; OpenAI takes four."""
MAX_STOP_LENGTH = 256
MAX_LOGPROBS = 20

_IMAGES = ("image/png", "image/jpeg", "image/webp")

SAMPLING = frozenset(PARAMS) - {"temperature"}
"""Parameters that become fields of the engine's sampling, some of which only local servers have. The temperature goes
another way: the wire has it too, and models that do not take it."""

INERT = {
    "user",
    "metadata",
    "safety_identifier",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
}
"""Parameters that say something about the caller, or about how he would be served, and nothing about the output."""


@dataclass(frozen=True, slots=True)
class ParameterPolicy:
    """Treatment of an API's parameters: by name, those honoured; those without effect; and those known and
    not honoured, each with the values that ask for nothing."""

    honoured: frozenset[str]
    accepted_defaults: Mapping[str, tuple[Any, ...]]
    ignored: frozenset[str] = frozenset(INERT)


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """The form of the answer."""

    json: bool = False
    schema: Mapping[str, Any] | bool | None = None


@dataclass(frozen=True, slots=True)
class ToolChoiceSpec:
    """`tool_choice` as our records have it."""

    choice: ToolChoice | None = None
    allowed: frozenset[str] | None = None


@dataclass(slots=True)
class ParsedRequest:
    """One request, read."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    choice: ToolChoiceSpec = field(default_factory=ToolChoiceSpec)
    format: ResponseFormat = field(default_factory=ResponseFormat)
    parallel: bool = True
    max_tokens: int | None = None
    temperature: float | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    stream: bool = False

    @property
    def request(self) -> GenerationRequest:
        return GenerationRequest(
            # The options name the connection.
            handle="",
            messages=self.messages,
            format="json" if self.format.json else "text",
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            tools=self.tools,
            tool_choice=self.choice.choice,
        )

    def options(self, connection: str) -> GenerationOptions:
        return GenerationOptions(
            connection=connection,
            sampling=self.sampling,
            response_schema=self.format.schema,
            allowed_tools=self.choice.allowed,
            parallel=self.parallel,
            stop=self.stop,
            logprobs=self.logprobs,
            # These clients repeat a history that they cannot mend, and know no way to carry what is missing.
            lenient=True,
        )


def read_json(body: bytes, *, max_depth: int) -> dict[str, Any]:
    """The body's object, by the rules of all our JSON. Raises ApiError(400)."""
    try:
        parsed = strict_json.parse(body, max_depth=max_depth)
    except strict_json.NotJson as error:
        raise bad(str(error), None) from None
    if parsed.violation:
        raise bad(parsed.violation, None)
    if not isinstance(parsed.value, dict):
        raise bad("the body must be one JSON object", None)
    return parsed.value


def check_parameters(body: Mapping[str, Any], policy: ParameterPolicy, required: tuple[str, ...]) -> dict[str, Any]:
    """The parameters that are honoured and given; null is as good as absent. Raises ApiError(400) by name."""
    for name, value in body.items():
        if name in policy.honoured or name in policy.ignored:
            continue
        shown = name if name.isidentifier() and name.isascii() and len(name) <= 64 else None
        if name not in policy.accepted_defaults:
            raise bad(f"unknown parameter{': ' + shown if shown else ''}", shown, "unknown_parameter")
        if value is not None and not any(
            type(value) is type(each) and value == each for each in policy.accepted_defaults[name]
        ):
            raise bad(f"{name} is not supported with this value", name, "unsupported_parameter")
    given = {name: value for name, value in body.items() if name in policy.honoured and value is not None}
    for name in required:
        if name not in given:
            raise bad(f"{name} is missing", name, "missing_required_parameter")
    return given


# --- parameters


def read_common(given: Mapping[str, Any], format: ResponseFormat, inner: str | None) -> dict[str, Any]:
    """The members of `ParsedRequest` that all requests have alike. `inner`: the member of a tool, or of a chosen one,
    in which its function stands; None where the function's members are the tool's own."""
    tools = check_tools(items(given.get("tools", []), "tools", partial(read_function_tool, inner=inner)))
    name_of = partial(read_function_name, inner=inner)
    choice = read_choice(given["tool_choice"], name_of) if "tool_choice" in given else ToolChoiceSpec()
    stop = read_stop(given["stop"]) if "stop" in given else ()
    check_stop(stop, format)
    return {
        "model": text(given["model"], "model"),
        "tools": tools,
        "choice": check_choice(choice, tools),
        "format": format,
        "parallel": boolean(given.get("parallel_tool_calls", True), "parallel_tool_calls"),
        "temperature": _sampler_param(given, PARAMS["temperature"]) if "temperature" in given else None,
        "sampling": read_sampling(given),
        "stop": stop,
        "stream": boolean(given.get("stream", False), "stream"),
    }


def read_sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the engine's sampling."""
    return {name: _sampler_param(given, param) for name, param in PARAMS.items() if name in SAMPLING & given.keys()}


def _sampler_param(given: Mapping[str, Any], param: Param) -> float:
    read: Callable[..., float] = integer if param.whole else number
    return read(given[param.name], param.name, param.low, param.high)


def read_stop(value: Any) -> tuple[str, ...]:
    found = items([value] if isinstance(value, str) else value, "stop", text)
    if len(found) > MAX_STOP or any(len(each) > MAX_STOP_LENGTH for each in found):
        raise bad(f"stop must be at most {MAX_STOP} texts of at most {MAX_STOP_LENGTH} characters", "stop")
    return found


def read_function_tool(value: Any, at: str, *, inner: str | None) -> Tool:
    """A tool, which must be a function."""
    given = members(value, at, ("type",), (inner, "custom")) if inner else value
    if not isinstance(given, dict) or given.get("type") != "function" or (inner and inner not in given):
        raise bad(f"{at}: only function tools are supported", f"{at}.type", "unsupported_parameter")
    known = ("description", "parameters", "strict")
    if inner is None:
        return read_tool(members(value, at, ("type", "name"), known), at)
    where = f"{at}.{inner}"
    return read_tool(members(given[inner], where, ("name",), known), where)


def read_function_name(value: Any, at: str, *, inner: str | None) -> str:
    """Name of a function that is chosen or allowed."""
    given = members(value, at, ("type", inner or "name"))
    one_of(given["type"], f"{at}.type", ("function",))
    if inner is None:
        return text(given["name"], f"{at}.name")
    where = f"{at}.{inner}"
    return text(members(given[inner], where, ("name",))["name"], f"{where}.name")


def read_tool(given: Mapping[str, Any], at: str) -> Tool:
    """A function's members. `strict` changes nothing: arguments always follow their schema."""
    name = named(f"{at}.name", lambda: fields.tool_name(given["name"], f"{at}.name"))
    if "strict" in given:
        boolean(given["strict"], f"{at}.strict")
    parameters: Mapping[str, Any] = DEFAULT_PARAMETERS
    if "parameters" in given:
        where = f"{at}.parameters"
        schema = named(where, lambda: fields.mapping(given["parameters"], where))
        # Arguments are an object whether or not the schema says so.
        typed = {"type": "object", **schema}
        parameters = named(where, lambda: fields.tool_parameters(typed, where))
    description = text(given["description"], f"{at}.description", empty=True) if "description" in given else None
    return Tool(name, description, parameters)


def check_tools(tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    named("tools", lambda: fields.check_tool_names(tools, "tools"))
    return tools


def check_choice(choice: ToolChoiceSpec, tools: Sequence[Tool]) -> ToolChoiceSpec:
    """A choice as it applies to the tools at hand. Raises ApiError(400) where it names others."""
    if not tools:
        if choice.choice in (None, "none", "auto") and choice.allowed is None:
            return ToolChoiceSpec()
        raise bad("tool_choice needs tools", "tool_choice")
    names = {tool.name for tool in tools}
    wanted = {choice.choice.name} if isinstance(choice.choice, NamedTool) else (choice.allowed or set())
    if not wanted <= names:
        raise bad("tool_choice names a tool that is not among tools", "tool_choice")
    return ToolChoiceSpec(choice.choice or "auto", choice.allowed)


def read_choice(value: Any, name_of: Callable[[Any, str], str]) -> ToolChoiceSpec:
    """`tool_choice`; `name_of` reads the name of a function where one is chosen or allowed."""
    at = "tool_choice"
    if isinstance(value, str):
        return ToolChoiceSpec(
            cast(Literal["auto", "none", "required"], one_of(value, at, ("auto", "none", "required")))
        )
    if not isinstance(value, dict):
        raise bad(f"{at} must be text or an object", at)
    if one_of(value.get("type"), f"{at}.type", ("function", "allowed_tools")) == "function":
        return ToolChoiceSpec(NamedTool(name_of(value, at)))
    inner, where = value, at
    if "allowed_tools" in value:
        inner, where = members(value, at, ("type", "allowed_tools"))["allowed_tools"], f"{at}.allowed_tools"
    given = members(inner, where, ("mode", "tools"), ("type",))
    mode = one_of(given["mode"], f"{where}.mode", ("auto", "required"))
    allowed = items(given["tools"], f"{where}.tools", name_of, empty=False)
    return ToolChoiceSpec(cast(Literal["auto", "required"], mode), frozenset(allowed))


def read_format(value: Any, at: str, *, inner: str | None) -> ResponseFormat:
    """The form of the answer. `inner`: the member in which a JSON Schema stands with its name; None where these are
    members of the format itself."""
    known = ("schema", "strict", "description")
    given = members(value, at, ("type",), (inner,) if inner else ("name", *known))
    kind = one_of(given["type"], f"{at}.type", ("text", "json_object", "json_schema"))
    if kind != "json_schema":
        return ResponseFormat(json=kind == "json_object")
    if inner is None:
        return read_schema(members(value, at, ("type", "name", "schema"), known[1:]), at)
    where = f"{at}.{inner}"
    return read_schema(members(members(value, at, ("type", inner))[inner], where, ("name",), known), where)


def read_schema(given: Mapping[str, Any], at: str) -> ResponseFormat:
    """The members of a `json_schema`: what is not in its schema is for people."""
    text(given["name"], f"{at}.name")
    if "strict" in given:
        boolean(given["strict"], f"{at}.strict")
    schema = given.get("schema", True)
    if not isinstance(schema, dict | bool):
        raise bad(f"{at}.schema must be a JSON Schema", f"{at}.schema")
    return ResponseFormat(schema=schema)


def check_stop(stop: tuple[str, ...], format: ResponseFormat) -> None:
    if stop and (format.json or format.schema is not None):
        raise bad("stop cannot end a JSON answer", "stop", "unsupported_parameter")


def read_image(url: Any, at: str, detail: Any) -> ImagePart:
    """A data URI (RFC 2397). Nothing is ever fetched."""
    if detail is not None and detail not in ("auto", "high", "original"):
        raise bad(f"{at}: images are taken as they are; detail may be auto or high", at, "unsupported_parameter")
    head, comma, data = text(url, at).partition(",")
    if not head.lower().startswith("data:") or not comma:
        raise bad(f"{at} must be a data URI; images are not fetched", at, "unsupported_parameter")
    kind, *flags = head[5:].lower().split(";")
    if kind not in _IMAGES or flags != ["base64"]:
        raise bad(f"{at} must be base64 of {', '.join(_IMAGES)}", at, "unsupported_parameter")
    mime_type = cast(Literal["image/png", "image/jpeg", "image/webp"], kind)
    return ImagePart(mime_type, named(at, lambda: fields.base64(data, at)))


def read_call(call_id: str, name: str, arguments: str, at: str) -> ToolCallPart:
    """An earlier call, its arguments from the text that we wrote them as."""
    try:
        parsed = strict_json.parse(arguments.encode())
    except (strict_json.NotJson, UnicodeEncodeError):
        raise bad(f"{at} must be a JSON object as text", at) from None
    if parsed.violation or not isinstance(parsed.value, dict):
        raise bad(f"{at} must be a JSON object as text", at)
    return ToolCallPart(call_id, name, parsed.value)


def result(call_id: str, names: Mapping[str, str], content: tuple[TextPart | ImagePart, ...], at: str) -> Message:
    """A tool's result. The name it needs on our wire is that of the call it answers."""
    if call_id not in names:
        raise bad(f"{at} answers no earlier call", at)
    return Message("toolResult", content, tool_call_id=call_id, tool_name=names[call_id])


def check_messages(messages: tuple[Message, ...], at: str) -> None:
    """The wire's rules of a history: every call is answered, and directly after its turn."""
    try:
        check_history(messages, at)
    except WireError as error:
        raise bad(error.message, at) from None
