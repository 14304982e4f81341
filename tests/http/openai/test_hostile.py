"""Any JSON in any place of a request: it is read, or refused in the API's own way, and nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.http.openai import chat, responses
from server.http.openai.errors import ApiError
from server.http.openai.request import read_json
from tests.http.openai.conftest import HELLO, WEATHER

CALL = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
CHAT: dict[str, Any] = {
    "model": "first",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "auto"}}],
        },
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "rain"},
        *HELLO,
    ],
    "tools": [WEATHER],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "weather"}}]},
    },
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    "stream": True,
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "top_logprobs": 3,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "seed": 7,
    "max_completion_tokens": 9,
    "n": 1,
    "metadata": {"a": "b"},
}
RESPONSE: dict[str, Any] = {
    "model": "first",
    "instructions": "be brief",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": []}]},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "rain"}]},
    ],
    "tools": [{"type": "function", **WEATHER["function"]}],
    "tool_choice": {"type": "function", "name": "weather"},
    "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 1,
    "max_output_tokens": 9,
    "stream": True,
}


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places in a body."""
    if at:
        yield at
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield from paths(member, (*at, key))


def put(body: Any, at: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(body)
    inner = changed
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return changed


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(
        ["text", "function", "auto", "data:,", "data:image/png;base64,", "{}", "user", "weather", "\x00"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "name", "role", "content", "text", "x", ""]), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.slow
@pytest.mark.parametrize(("read", "body"), [(chat.read, CHAT), (responses.read, RESPONSE)])
def test_any_value_in_any_place(read: Any, body: dict[str, Any]) -> None:
    assert read(body).model == "first"
    places = [*paths(body)]

    @settings(max_examples=600, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    @given(st.lists(st.tuples(st.sampled_from(places), ANYTHING), min_size=1, max_size=2))
    def try_it(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
        changed = body
        for at, value in changes:
            try:
                changed = put(changed, at, value)
            except (KeyError, IndexError, TypeError):
                continue  # the first change has taken the place of the second away
        try:
            asked = read(read_json(json.dumps(changed).encode(), max_depth=64))
        except ApiError as error:
            assert error.status == 400 and error.body["error"]["message"]
        else:
            assert asked.request.messages and asked.options("first").connection == "first"

    try_it()
