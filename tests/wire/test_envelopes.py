"""Strictness of the wire, each rule of the records and of strict JSON as a case."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from server.wire import BadEnvelope, Cancel, Describe, Generate, Select, read_envelope
from server.wire.fields import check_tool_names
from server.wire.records import ImagePart, NamedTool, TextPart, ThinkingPart, Tool, ToolCallPart

CALL = {"type": "toolCall", "toolCallId": "c1", "name": "f", "arguments": {"x": None}}
CALL_2 = {"type": "toolCall", "toolCallId": "c2", "name": "g", "arguments": {}}
TEXT = {"type": "text", "text": "hello"}
USER = {"role": "user", "content": [TEXT]}
RESULT = {"role": "toolResult", "toolCallId": "c1", "toolName": "f", "content": [TEXT]}
RESULT_2 = {"role": "toolResult", "toolCallId": "c2", "toolName": "g", "content": [TEXT]}
TOOL = {"name": "f", "parameters": {"type": "object"}}
IMAGE = {"type": "image", "mimeType": "image/png", "data": "iVBORw=="}


def generate(**request: Any) -> dict[str, Any]:
    return {"type": "llm.generate", "id": "g1", "request": {"handle": "h", "messages": [USER], **request}}


def read(value: Any) -> Any:
    return read_envelope(json.dumps(value).encode())


def refusal(body: bytes | dict[str, Any]) -> BadEnvelope:
    with pytest.raises(BadEnvelope) as caught:
        read_envelope(body if isinstance(body, bytes) else json.dumps(body).encode())
    return caught.value


def test_reads_every_envelope() -> None:
    assert read({"type": "llm.select", "id": "s"}) == Select("s", read({"type": "llm.select", "id": "s"}).requirements)
    chosen = read({"type": "llm.select", "id": "s", "requirements": {"model": "m", "json": True, "tools": False}})
    assert (chosen.requirements.model, chosen.requirements.json, chosen.requirements.tools) == ("m", True, False)
    assert read({"type": "llm.describe", "id": "d", "handle": "h"}) == Describe("d", "h")
    assert read({"type": "llm.cancel", "id": "c", "requestId": "g"}) == Cancel("c", "g")


def test_reads_a_whole_request() -> None:
    envelope = read(
        generate(
            messages=[
                {"role": "system", "content": [TEXT]},
                {"role": "user", "content": [TEXT, IMAGE]},
                {"role": "assistant", "content": [{"type": "thinking", "text": "t"}, CALL, CALL_2]},
                RESULT_2,
                {**RESULT, "isError": True},
                {"role": "assistant", "content": [TEXT]},
            ],
            format="json",
            maxTokens=128,
            temperature=0,
            tools=[TOOL, {"name": "g", "description": ""}],
            toolChoice={"type": "tool", "name": "g"},
        )
    )
    assert isinstance(envelope, Generate)
    request = envelope.request
    assert request.messages[1].content == (TextPart("hello"), ImagePart("image/png", "iVBORw=="))
    assert request.messages[2].content == (
        ThinkingPart("t"),
        ToolCallPart("c1", "f", {"x": None}),
        ToolCallPart("c2", "g", {}),
    )
    assert request.messages[4].is_error
    assert (request.format, request.max_tokens, request.temperature) == ("json", 128, 0.0)
    assert request.tools[1].parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert request.tool_choice == NamedTool("g")


def test_defaults() -> None:
    request = read(generate()).request
    assert (request.format, request.max_tokens, request.temperature) == ("text", None, None)
    assert (request.tools, request.tool_choice) == ((), None)
    assert read(generate(tools=[])).request.tool_choice is None
    assert read(generate(tools=[TOOL])).request.tool_choice == "auto"
    assert read(generate(maxTokens=128.0)).request.max_tokens == 128


BAD_REQUESTS: dict[str, dict[str, Any]] = {
    "unknown field": {"top_k": 4},
    "null field": {"maxTokens": None},
    "empty handle": {"handle": ""},
    "handle of another type": {"handle": 7},
    "no messages": {"messages": []},
    "messages of another type": {"messages": {}},
    "zero maxTokens": {"maxTokens": 0},
    "negative maxTokens": {"maxTokens": -1},
    "fractional maxTokens": {"maxTokens": 1.5},
    "boolean maxTokens": {"maxTokens": True},
    "boolean temperature": {"temperature": False},
    "text temperature": {"temperature": "0.5"},
    "temperature that overflows by its digits alone": {"temperature": 10**309 - 1},
    "unknown format": {"format": "xml"},
    "tools of another type": {"tools": {}},
    "tool without a name": {"tools": [{"description": "d"}]},
    "tool with an unknown field": {"tools": [{"name": "f", "strict": True}]},
    "tool name with a space": {"tools": [{"name": "a b"}]},
    "tool name with a final newline": {"tools": [{"name": "f\n"}]},
    "tool name of 65 characters": {"tools": [{"name": "f" * 65}]},
    "tool name twice": {"tools": [TOOL, TOOL]},
    "tool with null description": {"tools": [{"name": "f", "description": None}]},
    "schema with an array root": {"tools": [{"name": "f", "parameters": {"type": "array"}}]},
    "schema with a list as root type": {"tools": [{"name": "f", "parameters": {"type": ["object"]}}]},
    "schema without a root type": {"tools": [{"name": "f", "parameters": {}}]},
    "choice without tools": {"toolChoice": "auto"},
    "choice with empty tools": {"tools": [], "toolChoice": "none"},
    "unknown choice": {"tools": [TOOL], "toolChoice": "any"},
    "choice of another type": {"tools": [TOOL], "toolChoice": {"type": "function", "name": "f"}},
    "choice with an unknown field": {"tools": [TOOL], "toolChoice": {"type": "tool", "name": "f", "x": 1}},
    "choice of an unknown tool": {"tools": [TOOL], "toolChoice": {"type": "tool", "name": "g"}},
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_requests_are_invalid_and_correlated(case: str) -> None:
    bad = refusal(generate(**BAD_REQUESTS[case]))
    assert (bad.error.code, bad.result_type, bad.id) == ("invalid-request", "llm.generate.result", "g1")


BAD_MESSAGES: dict[str, list[Any]] = {
    "unknown role": [{"role": "developer", "content": [TEXT]}],
    "null content": [{"role": "user", "content": None}],
    "empty content": [{"role": "user", "content": []}],
    "text content": [{"role": "user", "content": "hello"}],
    "unknown member": [{**USER, "name": "x"}],
    "isError on a user turn": [{**USER, "isError": False}],
    "toolCallId on a user turn": [{**USER, "toolCallId": "c1"}],
    "unknown part": [{"role": "user", "content": [{"type": "audio"}]}],
    "part without text": [{"role": "user", "content": [{"type": "text"}]}],
    "part with null text": [{"role": "user", "content": [{"type": "text", "text": None}]}],
    "text part with an image's member": [{"role": "user", "content": [{**TEXT, "data": "AAAA"}]}],
    "image of another type": [{"role": "user", "content": [{**IMAGE, "mimeType": "image/gif"}]}],
    "image without data": [{"role": "user", "content": [{**IMAGE, "data": ""}]}],
    "unpadded base64": [{"role": "user", "content": [{**IMAGE, "data": "iVBORw"}]}],
    "base64 with white space": [{"role": "user", "content": [{**IMAGE, "data": "iVBO\nRw=="}]}],
    "base64 as data URI": [{"role": "user", "content": [{**IMAGE, "data": "data:image/png;base64,iVBORw=="}]}],
    "base64 of the URL alphabet": [{"role": "user", "content": [{**IMAGE, "data": "iV_ORw=="}]}],
    "image as URL": [{"role": "user", "content": [{"type": "image", "mimeType": "image/png", "url": "x"}]}],
    "call in a user turn": [{"role": "user", "content": [CALL]}, RESULT],
    "thinking in a user turn": [{"role": "user", "content": [{"type": "thinking", "text": "t"}]}],
    "call with text arguments": [{"role": "assistant", "content": [{**CALL, "arguments": "{}"}]}, RESULT],
    "call without a name": [{"role": "assistant", "content": [{**CALL, "name": ""}]}, RESULT],
    "call in a result": [{"role": "assistant", "content": [CALL]}, {**RESULT, "content": [CALL]}],
    "result without an id": [{"role": "assistant", "content": [CALL]}, {**RESULT, "toolCallId": ""}],
    "isError as text": [{"role": "assistant", "content": [CALL]}, {**RESULT, "isError": "true"}],
    "orphaned result": [USER, RESULT],
    "result without its turn": [RESULT],
    "missing result at the end": [{"role": "assistant", "content": [CALL]}],
    "missing result of two": [{"role": "assistant", "content": [CALL, CALL_2]}, RESULT, USER],
    "duplicate result": [{"role": "assistant", "content": [CALL]}, RESULT, RESULT],
    "result of another tool": [{"role": "assistant", "content": [CALL]}, {**RESULT, "toolName": "g"}],
    "result after another message": [{"role": "assistant", "content": [CALL]}, USER, RESULT],
    "call id twice": [{"role": "assistant", "content": [CALL, CALL]}, RESULT, RESULT],
    "call id in two turns": [
        {"role": "assistant", "content": [CALL]},
        RESULT,
        {"role": "assistant", "content": [CALL]},
        RESULT,
    ],
}


@pytest.mark.parametrize("case", BAD_MESSAGES)
def test_bad_messages_are_invalid(case: str) -> None:
    bad = refusal(generate(messages=BAD_MESSAGES[case]))
    assert (bad.error.code, bad.id) == ("invalid-request", "g1")
    assert "request.messages" in bad.error.message


def test_history_without_tools_is_accepted() -> None:
    history = [USER, {"role": "assistant", "content": [CALL, CALL_2]}, RESULT_2, RESULT, USER]
    assert len(read(generate(messages=history)).request.messages) == 5


BAD_BODIES: dict[str, tuple[bytes, bool]] = {
    "no JSON": (b"hello", False),
    "empty": (b"", False),
    "no object": (b"[]", False),
    "not UTF-8": (b'{"type":"llm.describe","id":"\xff","handle":"h"}', False),
    "a surrogate in UTF-8": (b'{"type":"llm.describe","id":"x","handle":"\xed\xa0\x80"}', False),
    "two objects": (b"{}{}", False),
    "no id": (b'{"type":"llm.describe","handle":"h"}', False),
    "empty id": (b'{"type":"llm.describe","id":"","handle":"h"}', False),
    "number as id": (b'{"type":"llm.describe","id":1,"handle":"h"}', False),
    "null id": (b'{"type":"llm.describe","id":null,"handle":"h"}', False),
    "lone surrogate in the id": (b'{"type":"llm.describe","id":"\\ud800","handle":"h"}', False),
    "no type": (b'{"id":"x"}', False),
    "unknown type": (b'{"type":"llm.embed","id":"x"}', False),
    "a result's type": (b'{"type":"llm.select.result","id":"x"}', False),
    "id twice": (b'{"type":"llm.describe","id":"x","id":"y","handle":"h"}', False),
    "nested beyond any reading": (b"[" * 100_000, False),
    "unknown member": (b'{"type":"llm.describe","id":"x","handle":"h","extra":1}', True),
    "null member": (b'{"type":"llm.select","id":"x","requirements":null}', True),
    "missing member": (b'{"type":"llm.cancel","id":"x"}', True),
    "member twice": (b'{"type":"llm.describe","id":"x","handle":"h","handle":"h"}', True),
    "nested member twice": (b'{"type":"llm.select","id":"x","requirements":{"json":true,"json":true}}', True),
    "NaN": (b'{"type":"llm.describe","id":"x","handle":NaN}', True),
    "infinity": (b'{"type":"llm.describe","id":"x","handle":-Infinity}', True),
    "infinity by overflow": (b'{"type":"llm.describe","id":"x","handle":1e999}', True),
    "integer by overflow": (b'{"type":"llm.describe","id":"x","handle":1' + b"0" * 400 + b"}", True),
    "lone surrogate": (b'{"type":"llm.describe","id":"x","handle":"a\\udc00"}', True),
    "surrogates in the wrong order": (b'{"type":"llm.describe","id":"x","handle":"\\udc00\\ud800"}', True),
    "a key that is a lone surrogate": (b'{"type":"llm.describe","id":"x","handle":"h","\\ud800":1}', True),
    "too deep": (b'{"type":"llm.describe","id":"x","handle":' + b"[" * 200 + b"]" * 200 + b"}", True),
}


@pytest.mark.parametrize("case", BAD_BODIES)
def test_strict_bodies(case: str) -> None:
    body, correlated = BAD_BODIES[case]
    bad = refusal(body)
    assert bad.error.code == "invalid-request"
    assert (bad.id == "x", bad.result_type is not None) == (correlated, correlated)


def test_any_finite_number_is_read() -> None:
    for number in (int("1" * 309), -int("1" * 309), 1e308):
        # What temperatures there are is the connection's to say.
        assert read(generate(temperature=number)).request.temperature == float(number)


def test_names_of_many_tools_are_compared_once() -> None:
    class Name(str):
        compared = 0

        def __hash__(self) -> int:
            return super().__hash__()

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return super().__eq__(other)

    check_tool_names(tuple(Tool(Name(f"tool{number}"), None, {}) for number in range(1000)), "tools")
    assert Name.compared < 1000


def test_a_surrogate_pair_is_one_character() -> None:
    assert read_envelope(b'{"type":"llm.describe","id":"x","handle":"\\ud83d\\ude00"}') == Describe("x", "\U0001f600")


def test_depth_is_counted_in_levels() -> None:
    def nested(levels: int) -> bytes:
        schema: Any = {"type": "object"}
        for _ in range(levels):
            schema = {"type": "object", "properties": {"p": schema}}
        return json.dumps(generate(tools=[{"name": "f", "parameters": schema}])).encode()

    read_envelope(nested(50))
    assert "levels" in refusal(nested(70)).error.message


def test_a_long_id_is_refused_by_limit() -> None:
    bad = refusal({"type": "llm.describe", "id": "x" * 513, "handle": "h"})
    assert bad.error.code == "quota-exceeded"


def test_messages_never_hold_values() -> None:
    secret = "canary-7b1d"
    cases: list[dict[str, Any]] = [
        generate(handle={"x": secret}),
        generate(format=secret),
        generate(messages=[{"role": secret, "content": [TEXT]}]),
        generate(messages=[{"role": "user", "content": [{**IMAGE, "data": secret}]}]),
        generate(tools=[{"name": f"{secret} !"}]),
        generate(tools=[TOOL], toolChoice={"type": "tool", "name": secret}),
        generate(**{f"{secret} with a space": 1}),
    ]
    for case in cases:
        assert secret not in refusal(copy.deepcopy(case)).error.message
