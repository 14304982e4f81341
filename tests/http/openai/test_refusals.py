"""What is refused, by the name of the parameter it is about; and what is accepted because it changes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from server.http.openai import chat, responses
from server.http.openai.errors import ApiError
from server.http.openai.request import read_json
from tests.http.openai.conftest import HELLO, WEATHER

CHAT: dict[str, Any] = {"model": "m", "messages": HELLO}
RESPONSE: dict[str, Any] = {"model": "m", "input": "hello"}
FUNCTION = {"type": "function", "name": "weather"}


def refusal(read: Any, body: Mapping[str, Any]) -> ApiError:
    # As it comes over the wire: Python's own types tell less apart than JSON's.
    with pytest.raises(ApiError) as raised:
        read(read_json(json.dumps(body).encode(), max_depth=64))
    assert raised.value.status == 400 and raised.value.body["error"]["type"] == "invalid_request_error"
    return raised.value


def user(*content: Any) -> list[Any]:
    return [{"role": "user", "content": [*content]}]


def image(url: Any, **fields: Any) -> list[Any]:
    return user({"type": "image_url", "image_url": {"url": url, **fields}})


def called(**fields: Any) -> list[Any]:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}, **fields}
    return [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]


def named(**fields: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "weather", **fields}}]


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}

CHAT_REFUSALS: list[tuple[dict[str, Any], str]] = [
    # Known, not honoured, and of consequence.
    ({"n": 2}, "n"),
    ({"n": True}, "n"),
    ({"store": True}, "store"),
    ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ({"presence_penalty": -1}, "presence_penalty"),
    ({"logit_bias": {"50256": -100}}, "logit_bias"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "ash", "format": "wav"}}, "audio"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"verbosity": "low"}, "verbosity"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"moderation": {}}, "moderation"),
    # Unknown.
    ({"mirostat": 2}, "mirostat"),
    ({"Temperature": 1}, "Temperature"),
    # Bad values.
    ({"model": ""}, "model"),
    ({"model": None}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"temperature": 2.5}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"repeat_penalty": 0}, "repeat_penalty"),
    ({"seed": 0.5}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
    ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"stop": ""}, "stop[0]"),
    ({"stop": [1]}, "stop[0]"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": "x", "response_format": {"type": "json_object"}}, "stop"),
    ({"stop": "x", "response_format": SCHEMA}, "stop"),
    ({"response_format": {"type": "grammar"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format.json_schema.name"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": []}}},
        "response_format.json_schema.schema",
    ),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": named(name="no spaces")}, "tools[0].function.name"),
    ({"tools": named(parameters={"type": "array"})}, "tools[0].function.parameters"),
    ({"tools": named(parameters=[])}, "tools[0].function.parameters"),
    ({"tools": named(strict="yes")}, "tools[0].function.strict"),
    ({"tools": named(other=1)}, "tools[0].function.other"),
    ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice.type"),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": []}}},
        "tool_choice.allowed_tools.mode",
    ),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
        "tool_choice.allowed_tools.tools",
    ),
    # Messages.
    ({"messages": ["hello"]}, "messages[0]"),
    ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": "x", "name": "Ann"}]}, "messages[0].name"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": user({"type": "input_audio", "input_audio": {}})}, "messages[0].content[0].type"),
    ({"messages": user({"type": "file", "file": {}})}, "messages[0].content[0].type"),
    ({"messages": user({"type": "text", "text": 1})}, "messages[0].content[0].text"),
    ({"messages": image("https://example.org/a.png")}, "messages[0].content[0].image_url.url"),
    ({"messages": image("http://127.0.0.1/a.png")}, "messages[0].content[0].image_url.url"),
    ({"messages": image("file:///etc/passwd")}, "messages[0].content[0].image_url.url"),
    ({"messages": image("data:image/gif;base64,R0lG")}, "messages[0].content[0].image_url.url"),
    ({"messages": image("data:image/png,raw")}, "messages[0].content[0].image_url.url"),
    ({"messages": image("data:image/png;base64,%%%")}, "messages[0].content[0].image_url.url"),
    ({"messages": image("data:image/png;base64,AAAA", detail="low")}, "messages[0].content[0].image_url.url"),
    ({"messages": [*HELLO, {"role": "assistant", "content": None}]}, "messages[1].content"),
    ({"messages": [*HELLO, {"role": "assistant", "content": "x", "audio": {"id": "a"}}]}, "messages[1].audio"),
    ({"messages": called(type="custom")}, "messages[1].tool_calls[0].type"),
    (
        {"messages": called(function={"name": "weather", "arguments": "not JSON"})},
        "messages[1].tool_calls[0].function.arguments",
    ),
    (
        {"messages": called(function={"name": "weather", "arguments": "[1]"})},
        "messages[1].tool_calls[0].function.arguments",
    ),
    ({"messages": called()}, "messages"),
    ({"messages": [*called(), *HELLO]}, "messages"),
    (
        {"messages": [*called(), {"role": "tool", "tool_call_id": "other", "content": "x"}]},
        "messages[2].tool_call_id",
    ),
    ({"messages": [*HELLO, {"role": "tool", "tool_call_id": "c", "content": "x"}]}, "messages[1].tool_call_id"),
    ({"messages": [*called(), {"role": "tool", "content": "x"}]}, "messages[2].tool_call_id"),
]


@pytest.mark.parametrize(("fields", "param"), CHAT_REFUSALS)
def test_a_chat_completion_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = refusal(chat.read, {**CHAT, **fields})
    assert error.param == param
    if param.split("[")[0] in fields:
        assert param.split("[")[0].split(".")[0] in error.message


RESPONSE_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"store": True}, "store"),
    ({"background": True}, "background"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"truncation": "auto"}, "truncation"),
    ({"reasoning": {"effort": "low"}}, "reasoning"),
    ({"max_tool_calls": 3}, "max_tool_calls"),
    ({"moderation": {"model": "m"}}, "moderation"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"max_tokens": 3}, "max_tokens"),
    ({"messages": HELLO}, "messages"),
    ({"include": ["reasoning.encrypted_content"]}, "include"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"text": {"verbosity": "high"}}, "text.verbosity"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_object"}}, "stop": "x"}, "stop"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"input": []}, "input"),
    ({"input": 1}, "input"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": []}]}, "input[0].content"),
    ({"input": user({"type": "input_file", "file_id": "f"})}, "input[0].content[0].type"),
    ({"input": user({"type": "input_image", "file_id": "f"})}, "input[0].content[0].file_id"),
    ({"input": user({"type": "input_image", "image_url": "https://x.org/"})}, "input[0].content[0].image_url"),
    ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "input[0].encrypted_content"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]}, "input"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
]


@pytest.mark.parametrize(("fields", "param"), RESPONSE_REFUSALS)
def test_a_response_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refusal(responses.read, {**RESPONSE, **fields}).param == param


INERT: dict[str, Any] = {
    "user": "ann",
    "metadata": {"a": "b"},
    "safety_identifier": "x",
    "service_tier": "flex",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "store": False,
}
CHAT_NEUTRAL: dict[str, Any] = {
    "n": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0.0,
    "logit_bias": {},
    "modalities": ["text"],
    "verbosity": "medium",
    "reasoning_effort": None,
    "audio": None,
    "tools": None,
    "tool_choice": "none",
    "stop": [],
    "response_format": {"type": "text"},
    "stream": False,
    "stream_options": None,
    "logprobs": False,
}


def test_what_changes_nothing_is_accepted() -> None:
    plain = chat.read(CHAT)
    assert chat.read({**CHAT, **INERT, **CHAT_NEUTRAL}) == plain
    neutral = {"background": False, "truncation": "disabled", "reasoning": {}, "previous_response_id": None}
    given = responses.read({**RESPONSE, **INERT, **neutral, "include": [], "top_logprobs": 0, "text": {}})
    assert given.request == responses.read(RESPONSE).request
    assert given.options("c") == responses.read(RESPONSE).options("c")


def test_every_parameter_has_one_place() -> None:
    for policy in (chat.PARAMETERS, responses.PARAMETERS):
        places = [policy.honoured, policy.ignored, frozenset(policy.accepted_defaults)]
        assert sum(map(len, places)) == len(frozenset().union(*places))


def test_every_parameter_of_the_official_client_is_known() -> None:
    for policy, params in (
        (chat.PARAMETERS, CompletionCreateParamsBase),
        (responses.PARAMETERS, ResponseCreateParamsBase),
    ):
        unknown = set(params.__annotations__) - policy.honoured - policy.ignored - set(policy.accepted_defaults)
        assert not unknown


def test_refusals_hold_no_content() -> None:
    secret = "canary-0b8e"
    for fields, _ in CHAT_REFUSALS:
        body = json.dumps({**CHAT, **fields}).replace("not JSON", secret).replace('"x"', f'"{secret}"')
        with pytest.raises(ApiError) as raised:
            chat.read(json.loads(body))
        assert secret not in raised.value.message


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"model": NaN}', b'{"a": 1, "a": 2}', b'"\xff"', b'{"a": "\\ud800"}', b"[" * 99]
)
def test_the_body_is_strict_json(body: bytes) -> None:
    with pytest.raises(ApiError) as raised:
        read_json(body, max_depth=64)
    assert raised.value.status == 400
