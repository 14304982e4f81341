"""The served schema of a message says what the contract says, and the reader obeys it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from server.wire.complete import read_complete
from server.wire.message_schema import MESSAGE_SCHEMA
from server.wire.records import WireError

VALIDATOR = Draft202012Validator(MESSAGE_SCHEMA)

# The contract as a table: each record's members with instances that fit and that do not; `!` marks a required one.
TEXTS = (["", "x"], [1, None, ["x"], True])
IDENTIFIERS = (["x"], ["", 1, None, {}])
ANYTHING = ([None, 1, "x", [], {}, False], [])
RECORDS: dict[str, dict[str, tuple[list[Any], list[Any]]]] = {
    "text": {"type!": (["text"], ["Text"]), "text!": TEXTS},
    "artifact": {
        "type!": (["artifact"], ["file"]),
        "uri!": (["meow-artifact://v1/", "meow-artifact://v1/a/b"], ["meow-artifact://v2/a", "v1/", "", 1]),
        "mime_type!": IDENTIFIERS,
    },
    "tool_call": {
        "type!": (["tool_call"], ["toolCall"]),
        "id!": IDENTIFIERS,
        "name!": IDENTIFIERS,
        "arguments!": ANYTHING,
    },
    "tool_result": {
        "type!": (["tool_result"], ["toolResult"]),
        "call_id!": IDENTIFIERS,
        "result!": ANYTHING,
        "is_error!": ([True, False], [0, "false", None]),
    },
    "image part": {"type!": (["image"], ["picture"]), "image!": ([{}, {"url": "x"}], [None, "x", {"data": "x"}])},
    "image": {
        "url": TEXTS,
        "base64": TEXTS,
        "mimeType": TEXTS,
        "createdAt": ([0, -1, 1700000000], ["0", 1.5, True, None]),
    },
    "continuation": {"format!": IDENTIFIERS, "compatibility_key!": IDENTIFIERS, "payload!": ANYTHING},
    "message": {
        "role!": (["system", "user", "assistant", "tool"], ["developer", "toolResult", "", None]),
        "content!": ([[], [{"type": "text", "text": "x"}]], [None, "x", {}, [1], ["x"], [[]]]),
        "continuation": ([{"format": "f", "compatibility_key": "k", "payload": 1}], [None, "x", {}]),
    },
}


def held(name: str, value: Any) -> Any:
    """A message that holds this record."""
    match name:
        case "message":
            return value
        case "continuation":
            return {"role": "assistant", "content": [], "continuation": value}
        case "image":
            return held("image part", {"type": "image", "image": value})
    return {"role": "user", "content": [value]}


def instances(name: str) -> Iterator[tuple[Any, bool]]:
    """Records of this name, and whether the contract has them."""
    table = RECORDS[name]
    required = [key.rstrip("!") for key in table if key.endswith("!")]
    members = {key.rstrip("!"): values for key, values in table.items()}
    whole = {key: good[0] for key, (good, _) in members.items()}
    yield whole, True
    yield {key: whole[key] for key in required}, True
    for key in members:
        yield {other: value for other, value in whole.items() if other != key}, key not in required
    for key, (good, bad) in members.items():
        for value, fits in (*zip(good, itertools.repeat(True)), *zip(bad, itertools.repeat(False))):
            yield {**whole, key: value}, fits
    yield {**whole, "more": 1}, False
    for other in (None, 1, "x", []):
        yield other, False


CASES = [(name, value, fits) for name in RECORDS for value, fits in instances(name)]


@pytest.mark.parametrize(("name", "value", "fits"), CASES)
def test_the_schema_has_what_the_contract_has(name: str, value: Any, fits: bool) -> None:
    assert VALIDATOR.is_valid(held(name, value)) is fits


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(MESSAGE_SCHEMA)
    assert MESSAGE_SCHEMA["$id"] == "urn:mhome:llm:message:v1"
    assert set(MESSAGE_SCHEMA["$defs"]) == {
        *("message", "content_part", "continuation", "identifier", "image", "tool_call")
    }
    assert json.loads(json.dumps(MESSAGE_SCHEMA)) == MESSAGE_SCHEMA


FURTHER = (
    *("image.base64 is missing", "image.mimeType is missing", "image.base64 must be", "image.mimeType must be"),
    *("mime_type must be a MIME type", "is allowed in assistant messages only", "is allowed in tool messages only"),
    *("content must be a non-empty list", "must be a tool_result in a tool message", "before every tool call"),
)
"""Rules of the contract that no schema can say, or ours does not."""


@pytest.mark.parametrize(("name", "value", "fits"), CASES)
def test_no_message_is_read_that_the_schema_refuses(name: str, value: Any, fits: bool) -> None:
    """And what it takes is refused only by a further rule of the contract, never as a malformed record."""
    body = {"messages": [held(name, value)], "constraints": {"input": ["image", "video", "audio", "file"]}}
    try:
        read_complete(json.dumps(body).encode())
    except WireError as error:
        assert not fits or error.code == "unsupported" or any(rule in error.message for rule in FURTHER), error.message
    else:
        assert fits
