"""What `POST /llm/complete` takes and what it refuses, by name (complete-binding)."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from server.wire.complete import CompleteRequest, Constraints, Continuation, read_complete, visible, write_completion
from server.wire.records import (
    Generation,
    ImagePart,
    Message,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCallPart,
    Usage,
    WireError,
)

PNG = "iVBORw0KGgo="
CALL = {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"at": 1}}
RESULT = {"type": "tool_result", "call_id": "c1", "result": "seen", "is_error": False}
IMAGE = {"type": "image", "image": {"base64": PNG, "mimeType": "image/png"}}
CONTINUATION = {"format": "f.v1", "compatibility_key": "k", "payload": {"opaque": [1, None]}}
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def message(role: str, *content: Any, **members: Any) -> dict[str, Any]:
    return {"role": role, "content": [*content], **members}


ASK = message("user", said("Look."))
LOOP = [ASK, message("assistant", CALL), message("tool", RESULT)]


def read(*messages: Any, **members: Any) -> CompleteRequest:
    return read_complete(json.dumps({"messages": [*messages], **members}).encode())


def refusal(*messages: Any, **members: Any) -> WireError:
    with pytest.raises(WireError) as raised:
        read(*messages, **members)
    return raised.value


# --- what is taken


def test_the_least_request() -> None:
    request = read(ASK)
    assert request == CompleteRequest(request.generation, names=("messages[0]",))
    assert request.generation.messages == (Message("user", (TextPart("Look."),)),)
    assert (request.generation.handle, request.generation.tools, request.generation.tool_choice) == ("", (), None)
    assert (request.generation.format, request.generation.max_tokens) == ("text", None)
    assert request.generation.temperature is None


def test_everything_that_can_be_said() -> None:
    request = read(
        message("system", said("Be "), said("brief.")),
        message("user", said("Look."), IMAGE),
        message("assistant", said("I do."), CALL, {**CALL, "id": "c2"}, continuation=CONTINUATION),
        message("tool", {**RESULT, "call_id": "c2", "result": {"a": [1.5, None]}, "is_error": True}, RESULT),
        message("assistant"),
        message("user", said("Thanks.")),
        useCase="chat",
        mode="quick",
        tools=[TOOL],
        constraints={"input": ["image"], "tool_calling": True, "structured_output": True},
        responseFormat={"type": "json_schema", "schema": {"type": "array"}},
        options={"maxTokens": 7},
        diagnostics=True,
    )
    assert request.generation.messages == (
        Message("system", (TextPart("Be "), TextPart("brief."))),
        Message("user", (TextPart("Look."), ImagePart("image/png", PNG))),
        Message(
            "assistant",
            (TextPart("I do."), ToolCallPart("c1", "look", {"at": 1}), ToolCallPart("c2", "look", {"at": 1})),
        ),
        Message("toolResult", (TextPart('{"a": [1.5, null]}'),), "c2", "look", True),
        Message("toolResult", (TextPart("seen"),), "c1", "look", False),
        Message("assistant", (TextPart(""),)),
        Message("user", (TextPart("Thanks."),)),
    )
    assert request.continuations == {2: Continuation("f.v1", "k", {"opaque": [1, None]})}
    assert request.generation.tools == (Tool("look", "Looks.", {"type": "object"}),)
    assert (request.generation.tool_choice, request.generation.max_tokens) == ("auto", 7)
    assert (request.use_case, request.mode, request.diagnostics) == ("chat", "quick", True)
    assert request.constraints == Constraints(frozenset({"image"}), True, True)
    assert (request.schema, request.generation.format) == ({"type": "array"}, "text")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is \u00e9", "as it is \u00e9"),
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ([], "[]"),
        ("", ""),
        ({"\u00e9": 1}, '{"\u00e9": 1}'),
    ],
)
def test_a_result_is_any_json(result: Any, text: str) -> None:
    request = read(*LOOP[:2], message("tool", {**RESULT, "result": result}))
    assert request.generation.messages[2].content == (TextPart(text),)


def test_an_index_of_a_continuation_is_that_of_its_message() -> None:
    results = message("tool", RESULT, {**RESULT, "call_id": "c2"})
    request = read(
        ASK,
        message("assistant", CALL, {**CALL, "id": "c2"}),
        results,
        message("assistant", said("So."), continuation=CONTINUATION),
        ASK,
    )
    (index,) = request.continuations
    assert request.generation.messages[index].content == (TextPart("So."),)


def test_flags_that_are_false_impose_nothing() -> None:
    assert read(ASK, constraints={}) == read(ASK)
    assert read(ASK, constraints={"input": [], "tool_calling": False, "structured_output": False}) == read(ASK)
    assert read(ASK, tools=[TOOL]).constraints == Constraints()


def test_a_json_object() -> None:
    request = read(ASK, responseFormat={"type": "json_object"}, constraints={"structured_output": True})
    assert (request.generation.format, request.schema) == ("json", None)


# --- what is refused

STRUCTURED = {"structured_output": True}
REFUSED: list[tuple[str, list[Any], dict[str, Any]]] = [
    # what the message must name, messages, further members
    ("messages must be a non-empty list", [], {}),
    ("provider", [ASK], {"provider": "other"}),
    ("request.model is not a known field", [ASK], {"model": "m"}),
    ("request.temperature is not a known field", [ASK], {"temperature": 1}),
    ("request.reasoning is not a known field", [ASK], {"reasoning": "high"}),
    ("request.tools must not be null", [ASK], {"tools": None}),
    ("request.mode must not be null", [ASK], {"mode": None}),
    ("useCase must be non-empty text", [ASK], {"useCase": ""}),
    ("mode must be non-empty text", [ASK], {"mode": 1}),
    ("diagnostics must be true or false", [ASK], {"diagnostics": 1}),
    # options
    ("options must be an object", [ASK], {"options": []}),
    ("options.temperature belongs to the connection", [ASK], {"options": {"temperature": 0.1}}),
    ("options.thinking belongs to the connection", [ASK], {"options": {"thinking": True}}),
    ("options.reasoning belongs to the connection", [ASK], {"options": {"reasoning": {}}}),
    ("options.reasoning_effort belongs to the connection", [ASK], {"options": {"reasoning_effort": "low"}}),
    (
        "options.reasoningEffort belongs to the connection",
        [ASK],
        {"options": {"reasoningEffort": "low", "maxTokens": 1}},
    ),
    ("options.topK is not a known field", [ASK], {"options": {"topK": 1}}),
    ("options.maxTokens must be a positive integer", [ASK], {"options": {"maxTokens": 0}}),
    ("options.maxTokens must be a positive integer", [ASK], {"options": {"maxTokens": True}}),
    ("options.maxTokens must not be null", [ASK], {"options": {"maxTokens": None}}),
    # constraints, version 3
    ("constraints must be an object", [ASK], {"constraints": []}),
    ("constraints.vision is not a known field", [ASK], {"constraints": {"vision": True}}),
    ("constraints.reasoning is not a known field", [ASK], {"constraints": {"reasoning": True}}),
    ("constraints.input must be a list", [ASK], {"constraints": {"input": "image"}}),
    ("constraints.input[0] must be one of image, video, audio, file", [ASK], {"constraints": {"input": ["text"]}}),
    ("constraints.input[1] must be one of", [ASK], {"constraints": {"input": ["image", "vision"]}}),
    ("constraints.input[0] must be one of", [ASK], {"constraints": {"input": ["Image"]}}),
    ("constraints.tool_calling must be true or false", [ASK], {"constraints": {"tool_calling": 1}}),
    ("constraints.structured_output must not be null", [ASK], {"constraints": {"structured_output": None}}),
    # tools
    ("tools[0].input_schema is missing", [ASK], {"tools": [{"name": "a", "description": ""}]}),
    ("tools[0].description is missing", [ASK], {"tools": [{"name": "a", "input_schema": {"type": "object"}}]}),
    ("tools[0].parameters is not a known field", [ASK], {"tools": [{**TOOL, "parameters": {}}]}),
    ("tools[0].name must match", [ASK], {"tools": [{**TOOL, "name": "a b"}]}),
    (
        'tools[0].input_schema must be a JSON Schema with root type "object"',
        [ASK],
        {"tools": [{**TOOL, "input_schema": {}}]},
    ),
    ("tools[0].input_schema must be an object", [ASK], {"tools": [{**TOOL, "input_schema": True}]}),
    ("tools[1].name stands twice", [ASK], {"tools": [TOOL, TOOL]}),
    # response format
    ("needs constraints.structured_output", [ASK], {"responseFormat": {"type": "json_object"}}),
    (
        "needs constraints.structured_output",
        [ASK],
        {"responseFormat": {"type": "json_schema", "schema": {}}, "constraints": {"structured_output": False}},
    ),
    ("responseFormat.type must be one of", [ASK], {"responseFormat": {"type": "text"}, "constraints": STRUCTURED}),
    ("responseFormat.schema is missing", [ASK], {"responseFormat": {"type": "json_schema"}, "constraints": STRUCTURED}),
    (
        "responseFormat.schema must be an object",
        [ASK],
        {"responseFormat": {"type": "json_schema", "schema": True}, "constraints": STRUCTURED},
    ),
    (
        "responseFormat.schema is not a known field",
        [ASK],
        {"responseFormat": {"type": "json_object", "schema": {}}, "constraints": STRUCTURED},
    ),
    (
        "responseFormat.name is not a known field",
        [ASK],
        {"responseFormat": {"type": "json_schema", "schema": {}, "name": "x"}, "constraints": STRUCTURED},
    ),
    # messages
    ("messages[0] must be an object", ["hello"], {}),
    ("messages[0].role must be one of", [message("developer", said("x"))], {}),
    ("messages[0].role must be one of", [message("toolResult", said("x"))], {}),
    ("messages[0].content must be a list", [{"role": "user", "content": "x"}], {}),
    ("messages[0].name is not a known field", [message("user", said("x"), name="n")], {}),
    ("messages[0].content[0].type must be one of", [message("user", {"type": "thinking", "text": "x"})], {}),
    ("messages[0].content[0] must be an object", [message("user", "x")], {}),
    ("messages[0].content[0].text must be text", [message("user", {"type": "text", "text": 1})], {}),
    ("messages[0].content[0].cache is not a known field", [message("user", {**said("x"), "cache": 1})], {}),
    ("messages[0].content[0].text must not be null", [message("user", {"type": "text", "text": None})], {}),
    # calls and results
    ("messages[1].content[0].id must be non-empty text", [ASK, message("assistant", {**CALL, "id": ""})], {}),
    ("messages[1].content[0].name must be non-empty text", [ASK, message("assistant", {**CALL, "name": ""})], {}),
    (
        "messages[1].content[0].arguments is missing",
        [ASK, message("assistant", {"type": "tool_call", "id": "c", "name": "n"})],
        {},
    ),
    ("messages[0].content[0] is allowed in assistant messages only", [message("user", CALL)], {}),
    ("messages ends before every tool call has its result", LOOP[:2], {}),
    ("messages[2] stands before every tool call", [*LOOP[:2], ASK], {}),
    ("messages[1].content[1].id stands twice", [ASK, message("assistant", CALL, CALL), LOOP[2]], {}),
    ("messages[3].content[0].id stands twice", [*LOOP, message("assistant", CALL), LOOP[2]], {}),
    ("messages[1].content[0].call_id answers no open call", [ASK, message("tool", RESULT)], {}),
    ("messages[2].content[1].call_id answers no open call", [*LOOP[:2], message("tool", RESULT, RESULT)], {}),
    ("messages[3].content[0].call_id answers no open call", [*LOOP, message("tool", RESULT)], {}),
    ("messages[2].content must be a non-empty list", [*LOOP[:2], message("tool")], {}),
    ("messages[2].content[0] must be a tool_result", [*LOOP[:2], message("tool", said("seen"))], {}),
    ("messages[2].content[0] is allowed in tool messages only", [*LOOP[:2], message("user", RESULT)], {}),
    (
        "messages[2].content[0].is_error is missing",
        [*LOOP[:2], message("tool", {k: v for k, v in RESULT.items() if k != "is_error"})],
        {},
    ),
    (
        "messages[2].content[0].is_error must be true or false",
        [*LOOP[:2], message("tool", {**RESULT, "is_error": "no"})],
        {},
    ),
    (
        "messages[2].content[0].result is missing",
        [*LOOP[:2], message("tool", {k: v for k, v in RESULT.items() if k != "result"})],
        {},
    ),
    # continuations
    ("messages[0].continuation is allowed in assistant messages only", [{**ASK, "continuation": CONTINUATION}], {}),
    (
        "messages[2].continuation is allowed in assistant messages only",
        [*LOOP[:2], {**LOOP[2], "continuation": CONTINUATION}],
        {},
    ),
    ("messages[0].continuation must not be null", [message("assistant", said("x"), continuation=None), ASK], {}),
    (
        "messages[0].continuation.payload is missing",
        [message("assistant", continuation={"format": "f", "compatibility_key": "k"})],
        {},
    ),
    (
        "messages[0].continuation.format must be non-empty text",
        [message("assistant", continuation={**CONTINUATION, "format": ""})],
        {},
    ),
    (
        "messages[0].continuation.compatibility_key must be non-empty",
        [message("assistant", continuation={**CONTINUATION, "compatibility_key": 1})],
        {},
    ),
    (
        "messages[0].continuation.more is not a known field",
        [message("assistant", continuation={**CONTINUATION, "more": 1})],
        {},
    ),
]


@pytest.mark.parametrize(("named", "messages", "members"), REFUSED)
def test_what_is_refused_is_named(named: str, messages: list[Any], members: dict[str, Any]) -> None:
    error = refusal(*messages, **members)
    assert error.code == "invalid-request"
    assert named in error.message


@pytest.mark.parametrize("arguments", [None, 1, "x", [], True])
def test_arguments_that_are_no_object_are_unsupported(arguments: Any) -> None:
    error = refusal(ASK, message("assistant", {**CALL, "arguments": arguments}), LOOP[2])
    assert (error.code, "messages[1].content[0].arguments" in error.message) == ("unsupported", True)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'{"messages":',
        b'{"messages":[],"messages":[]}',
        b'{"messages":NaN}',
        b"\xff",
        b'"\\ud800"',
        b"[" * 200 + b"]" * 200,
    ],
)
def test_strict_json(body: bytes) -> None:
    with pytest.raises(WireError) as raised:
        read_complete(body)
    assert raised.value.code == "invalid-request"


# --- images and artifacts: payload within what is declared

DECLARED = {"constraints": {"input": ["image", "video", "audio", "file"]}}


def artifact(mime_type: Any, uri: Any = "meow-artifact://v1/abc") -> dict[str, Any]:
    return message("user", {"type": "artifact", "uri": uri, "mime_type": mime_type})


def picture(**members: Any) -> dict[str, Any]:
    return message("user", {"type": "image", "image": members})


@pytest.mark.parametrize("declared", [None, [], ["video", "audio", "file"]])
def test_an_image_that_is_not_declared_is_refused(declared: Any) -> None:
    members = {} if declared is None else {"constraints": {"input": declared}}
    error = refusal(message("user", IMAGE), **members)
    assert (error.code, error.message) == (
        "invalid-request",
        "messages[0].content[0].image needs image in constraints.input",
    )


@pytest.mark.parametrize(
    ("code", "named", "members"),
    [
        ("unsupported", "image.url", {"url": "https://images.example/a.png"}),
        ("unsupported", "image.url", {"url": "data:image/png;base64,AA==", "base64": PNG, "mimeType": "image/png"}),
        ("unsupported", "image.mimeType", {"base64": PNG, "mimeType": "image/gif"}),
        ("invalid-request", "image.base64 is missing", {}),
        ("invalid-request", "image.base64 is missing", {"mimeType": "image/png"}),
        ("invalid-request", "image.mimeType is missing", {"base64": PNG}),
        ("invalid-request", "image.mimeType", {"base64": PNG, "mimeType": "audio/wav"}),
        ("invalid-request", "image.mimeType", {"base64": PNG, "mimeType": "png"}),
        ("invalid-request", "image.base64 must be standard", {"base64": "data:,", "mimeType": "image/png"}),
        ("invalid-request", "image.base64 must be non-empty", {"base64": "", "mimeType": "image/png"}),
        ("invalid-request", "image.createdAt", {"base64": PNG, "mimeType": "image/png", "createdAt": "now"}),
        ("invalid-request", "image.alt is not a known field", {"base64": PNG, "mimeType": "image/png", "alt": "x"}),
    ],
)
def test_images(code: str, named: str, members: dict[str, Any]) -> None:
    error = refusal(picture(**members), **DECLARED)
    assert (error.code, f"messages[0].content[0].{named}" in error.message) == (code, True), error.message
    assert "images.example" not in error.message


def test_an_image_comes_as_base64() -> None:
    request = read(picture(base64=PNG, mimeType="Image/PNG", createdAt=1700000000), **DECLARED)
    assert request.generation.messages[0].content == (ImagePart("image/png", PNG),)


@pytest.mark.parametrize(
    ("mime_type", "kind"),
    [
        ("image/png", "image"),
        ("video/mp4", "video"),
        ("audio/ogg", "audio"),
        ("application/pdf", "file"),
        ("text/plain", "file"),
    ],
)
def test_artifacts_are_of_the_kind_that_their_type_tells(mime_type: str, kind: str) -> None:
    for declared in ("image", "video", "audio", "file"):
        error = refusal(artifact(mime_type), constraints={"input": [declared]})
        if declared == kind:
            assert error.code == "unsupported" and "meow-artifact://" in error.message
        else:
            assert (error.code, error.message) == (
                "invalid-request",
                f"messages[0].content[0] needs {kind} in constraints.input",
            )
    named = f"meow-artifact://v1/{kind}/abc"
    assert refusal(artifact(mime_type, named), **DECLARED).code == "unsupported"
    for other in {"image", "video", "audio", "file"} - {kind}:
        error = refusal(artifact(mime_type, f"meow-artifact://v1/{other}/abc"), **DECLARED)
        assert error.code == "invalid-request" and "does not agree" in error.message


@pytest.mark.parametrize(
    ("mime_type", "uri", "named"),
    [
        ("", "meow-artifact://v1/a", "mime_type"),
        ("png", "meow-artifact://v1/a", "mime_type"),
        ("image/png; charset=x", "meow-artifact://v1/a", "mime_type"),
        (1, "meow-artifact://v1/a", "mime_type"),
        ("image/png", "https://images.example/a", "uri"),
        ("image/png", "meow-artifact://v2/a", "uri"),
        ("image/png", 1, "uri"),
    ],
)
def test_malformed_artifacts(mime_type: Any, uri: Any, named: str) -> None:
    error = refusal(artifact(mime_type, uri), **DECLARED)
    assert error.code == "invalid-request" and f"messages[0].content[0].{named}" in error.message


KEPT = {"notes/a.md": "# Höhe".encode(), "b": b"{}", "c.png": b"\x89PNG", "d": b"\xff\xfe", "e": b"\xef\xbb\xbfx"}


def resolved(part: dict[str, Any], *declared: str) -> Any:
    """The part that a kept artifact becomes, or the error."""
    body = json.dumps({"messages": [part], "constraints": {"input": [*declared]}}).encode()
    try:
        return read_complete(body, artifact=KEPT.__getitem__).generation.messages[0].content[0]
    except WireError as error:
        return error


@pytest.mark.parametrize(
    ("name", "mime_type", "declared", "part"),
    [
        ("notes/a.md", "text/markdown", "file", TextPart("# Höhe")),
        ("notes/a.md", "Text/Plain", "file", TextPart("# Höhe")),
        ("b", "application/json", "file", TextPart("{}")),
        ("b", "application/ld+json", "file", TextPart("{}")),
        ("e", "text/csv", "file", TextPart("x")),
        ("c.png", "image/png", "image", ImagePart("image/png", "iVBORw==")),
    ],
)
def test_kept_artifacts_become_what_their_type_says(name: str, mime_type: str, declared: str, part: Any) -> None:
    given = artifact(mime_type, f"meow-artifact://v1/{name}")
    assert resolved(given, declared) == part
    for other in {"image", "video", "audio", "file"} - {declared}:
        error = resolved(given, other)
        assert (error.code, error.message) == (
            "invalid-request",
            f"messages[0].content[0] needs {declared} in constraints.input",
        )


@pytest.mark.parametrize(
    ("name", "mime_type", "code", "named"),
    [
        # No other modality is made a text of, whatever its bytes are.
        ("b", "audio/ogg", "unsupported", "mime_type"),
        ("b", "video/mp4", "unsupported", "mime_type"),
        ("b", "application/pdf", "unsupported", "mime_type"),
        ("b", "image/svg+xml", "unsupported", "mime_type"),
        ("d", "text/plain", "invalid-request", "mime_type"),
        ("missing", "text/plain", "unsupported", "uri"),
        ("", "text/plain", "unsupported", "uri"),
        ("../b", "text/plain", "unsupported", "uri"),
        ("notes/../b", "text/plain", "unsupported", "uri"),
        ("/b", "text/plain", "unsupported", "uri"),
        ("notes//a.md", "text/plain", "unsupported", "uri"),
        ("%2e%2e/b", "text/plain", "unsupported", "uri"),
        (".hidden", "text/plain", "unsupported", "uri"),
        ("b\u0000", "text/plain", "unsupported", "uri"),
    ],
)
def test_artifacts_that_cannot_be_had(name: str, mime_type: str, code: str, named: str) -> None:
    error = resolved(artifact(mime_type, f"meow-artifact://v1/{name}"), "image", "video", "audio", "file")
    assert isinstance(error, WireError) and error.code == code
    assert error.message.startswith(f"messages[0].content[0].{named}")


# --- what is never shown, and what is answered


def test_a_continuation_is_redacted() -> None:
    request = read(message("assistant", said("x"), continuation={**CONTINUATION, "payload": "secret-payload"}), ASK)
    (continuation,) = request.continuations.values()
    assert continuation.payload == "secret-payload"
    for shown in (repr(continuation), str(continuation), repr(request), f"{request!s}"):
        assert "secret-payload" not in shown
    error = refusal(message("assistant", continuation={**CONTINUATION, "payload": "secret-payload", "x": 1}))
    assert "secret-payload" not in error.message


ROUTE = {"provider": "llama.cpp on this machine", "model": "m", "mode": "default"}
USAGE = Usage(input_tokens=9, output_tokens=4, cache_read_tokens=5, reasoning_tokens=2)


def test_a_response() -> None:
    content = (ThinkingPart("Hm."), TextPart("Look: "), ToolCallPart("c1", "look", {"at": 1}))
    assert visible(content) == content[1:]
    answer = write_completion(
        Generation(content, "toolUse", USAGE), route=ROUTE, continuation=Continuation("f", "k", "payload")
    )
    assert answer == {
        "message": {
            "role": "assistant",
            "content": [said("Look: "), CALL],
            "continuation": {"format": "f", "compatibility_key": "k", "payload": "payload"},
        },
        "finishReason": "tool_calls",
        "usage": {
            "input_tokens": 9,
            "output_tokens": 4,
            "cached_input_tokens": 5,
            "reasoning_output_tokens": 2,
            "credits": 0,
        },
        "route": ROUTE,
    }
    # It can be sent back as it came.
    again = read(ASK, copy.deepcopy(answer["message"]), message("tool", RESULT))
    assert again.continuations == {1: Continuation("f", "k", "payload")}


@pytest.mark.parametrize(
    ("finish", "reason"), [("stop", "stop"), ("length", "length"), ("refusal", "other"), ("toolUse", "tool_calls")]
)
def test_finish_reasons(finish: Any, reason: str) -> None:
    answer = write_completion(Generation((TextPart("x"),), finish, Usage(1, 1)), route=ROUTE)
    assert answer["finishReason"] == reason and "continuation" not in answer["message"]
    assert answer["usage"]["cached_input_tokens"] == answer["usage"]["reasoning_output_tokens"] == 0
