from __future__ import annotations

import json

import pytest

from server import wire
from server.wire.records import (
    Delta,
    Generation,
    GenerationRequest,
    Message,
    Model,
    NamedTool,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCallPart,
    ToolChoice,
    Usage,
    WireError,
)

F = Tool("f", None, {"type": "object"})
G = Tool("g", None, {"type": "object"})


def request(tools: tuple[Tool, ...] = (), choice: ToolChoice | None = None, **more: str) -> GenerationRequest:
    return GenerationRequest("h", (Message("user", (TextPart("x"),)),), tools=tools, tool_choice=choice, **more)  # type: ignore[arg-type]


def call(name: str, id: str = "c1") -> ToolCallPart:
    return ToolCallPart(id, name, {})


GOOD: list[tuple[GenerationRequest, Generation]] = [
    (request(), Generation((TextPart(""),), "stop")),
    (request(), Generation((), "length")),
    (request(), Generation((), "refusal")),
    (request((F,), "auto"), Generation((TextPart("x"),), "stop")),
    (request((F,), "auto"), Generation((ThinkingPart("t"), TextPart("x"), call("f")), "toolUse")),
    (request((F, G), "required"), Generation((call("g"), call("f", "c2")), "toolUse")),
    (request((F, G), "required"), Generation((TextPart("x"),), "length")),
    (request((F, G), NamedTool("g")), Generation((call("g"), call("g", "c2")), "toolUse")),
    (request((F,), "none"), Generation((TextPart("x"),), "stop")),
    (request(format="json"), Generation((TextPart('{"a":'), TextPart("1}")), "stop")),
    (request(format="json"), Generation((TextPart('{"a":'),), "length")),
    (request((F,), "auto", format="json"), Generation((call("f"),), "toolUse")),
]


@pytest.mark.parametrize(("asked", "given"), GOOD)
def test_good_generations(asked: GenerationRequest, given: Generation) -> None:
    wire.check_generation(asked, given)


BROKEN: list[tuple[GenerationRequest, Generation]] = [
    (request(), Generation((), "stop")),
    (request(), Generation((call("f"),), "toolUse")),
    (request((F,), "auto"), Generation((call("f"),), "stop")),
    (request((F,), "auto"), Generation((TextPart("x"),), "toolUse")),
    (request((F,), "auto"), Generation((call("f"),), "length")),
    (request((F,), "auto"), Generation((call("f"),), "refusal")),
    (request((F,), "auto"), Generation((call("g"),), "toolUse")),
    (request((F,), "auto"), Generation((call("f"), call("f")), "toolUse")),
    (request((F,), "none"), Generation((call("f"),), "toolUse")),
    (request((F,), "required"), Generation((TextPart("x"),), "stop")),
    (request((F, G), NamedTool("g")), Generation((TextPart("x"),), "stop")),
    (request((F, G), NamedTool("g")), Generation((call("g"), call("f", "c2")), "toolUse")),
    (request(format="json"), Generation((TextPart("[1]"),), "stop")),
    (request(format="json"), Generation((TextPart('{"a":1} and more'),), "stop")),
    (request(format="json"), Generation((TextPart('{"a":NaN}'),), "stop")),
    (request(format="json"), Generation((ThinkingPart("{}"),), "stop")),
]


@pytest.mark.parametrize(("asked", "given"), BROKEN)
def test_broken_generations_are_provider_errors(asked: GenerationRequest, given: Generation) -> None:
    with pytest.raises(WireError) as caught:
        wire.check_generation(asked, given)
    assert caught.value.code == "provider-error"


def test_results_as_json() -> None:
    model = Model("h1", "My connection", "m", "Local", False, True, True, ("auto", "none"))
    assert wire.select_result("s", model)["model"]["toolChoiceModes"] == ["auto", "none"]
    assert wire.describe_result("s", model)["type"] == "llm.describe.result"
    generation = Generation((TextPart("é"), call("f")), "toolUse", Usage(3, 2, cache_read_tokens=0))
    assert json.loads(wire.encode(wire.generate_result("g", generation))) == {
        "type": "llm.generate.result",
        "id": "g",
        "result": {
            "content": [
                {"type": "text", "text": "é"},
                {"type": "toolCall", "toolCallId": "c1", "name": "f", "arguments": {}},
            ],
            "finish": "toolUse",
            "usage": {"inputTokens": 3, "outputTokens": 2, "cacheReadTokens": 0},
        },
    }
    error = WireError("quota-exceeded", "too long", reason="context")
    assert wire.error_result("llm.generate.result", "g", error)["error"] == {
        "code": "quota-exceeded",
        "message": "too long",
        "reason": "context",
    }


def test_deltas_as_json() -> None:
    start = wire.write_delta(Delta("g", 0, "start", "toolCall", 0, tool_call_id="c", name="f"))
    assert start == {
        "type": "llm.delta",
        "requestId": "g",
        "sequence": 0,
        "event": "start",
        "block": "toolCall",
        "blockIndex": 0,
        "toolCallId": "c",
        "name": "f",
    }
    assert "text" not in wire.write_delta(Delta("g", 2, "end", "text", 0))
    assert wire.write_delta(Delta("g", 1, "delta", "text", 0, text="x"))["text"] == "x"
