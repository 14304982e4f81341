"""Continuations: sealed with a secret to the message they came with, opened only as they were."""

from __future__ import annotations

import base64
import itertools
import json
from array import array
from typing import Any

import pytest

from server.runtime.continuation import FORMAT, Continuations
from server.wire.complete import Continuation
from server.wire.records import Message, Part, TextPart, ThinkingPart, ToolCallPart, WireError

TOKENS = array("i", [0, 1, 49151, 2**31 - 1, 5])
CALL = ToolCallPart("c1", "look", {"b": 1, "a": [True, None, 2.0, {"y": 1e3, "x": "é"}], "big": 2**60})
CONTENT: tuple[Part, ...] = (ThinkingPart("Hm."), TextPart("Look: "), CALL)
ONE = Continuations(b"one")
KEY = ONE.key("route")


def test_tokens_come_back_as_they_were() -> None:
    for tokens in (TOKENS, array("i")):
        sealed = ONE.seal(KEY, CONTENT, tokens)
        assert (sealed.format, sealed.compatibility_key) == (FORMAT, KEY)
        assert ONE.open(sealed, KEY, CONTENT) == tokens
        assert Continuations(b"one").open(sealed, KEY, CONTENT) == tokens, "the secret is all there is to it"


def test_the_message_may_be_stored_as_json_is() -> None:
    """Thinking is no part of it; members change order, numbers their spelling, text its cuts."""
    sealed = ONE.seal(KEY, CONTENT, TOKENS)
    stored = json.loads(json.dumps({"arguments": CALL.arguments, "sealed": sealed.payload}, sort_keys=True))
    arguments = {**stored["arguments"], "b": 1.0, "big": float(2**60), "a": [True, None, 2, {"x": "é", "y": 1000}]}
    again = Continuation(FORMAT, KEY, stored["sealed"])
    content = (TextPart("Loo"), TextPart("k: "), ToolCallPart("c1", "look", arguments))
    assert ONE.open(again, KEY, content) == TOKENS


@pytest.mark.parametrize(
    "content",
    [
        (),
        (TextPart("Look: "),),
        (CALL,),
        (TextPart("Look:"), CALL),
        (TextPart("Look: "), CALL, CALL),
        *(
            (TextPart("Look: "), ToolCallPart(*changed))
            for changed in (
                ("c2", "look", CALL.arguments),
                ("c1", "see", CALL.arguments),
                ("c1", "look", {}),
                ("c1", "look", {**CALL.arguments, "b": 2}),
                ("c1", "look", {**CALL.arguments, "b": "1"}),
                ("c1", "look", {**CALL.arguments, "b": True}),
            )
        ),
    ],
)
def test_it_belongs_to_its_message(content: tuple[Part, ...]) -> None:
    with pytest.raises(ValueError):
        ONE.open(ONE.seal(KEY, CONTENT, TOKENS), KEY, content)


def test_no_bit_of_it_can_be_changed() -> None:
    sealed = ONE.seal(KEY, CONTENT, TOKENS)
    payload = base64.b64decode(sealed.payload)
    for byte, bit in itertools.product(range(len(payload)), range(8)):
        changed = bytearray(payload)
        changed[byte] ^= 1 << bit
        with pytest.raises(ValueError):
            ONE.open(Continuation(FORMAT, KEY, base64.b64encode(changed).decode()), KEY, CONTENT)
    for length in range(len(payload)):
        with pytest.raises(ValueError):
            ONE.open(Continuation(FORMAT, KEY, base64.b64encode(payload[:length]).decode()), KEY, CONTENT)


@pytest.mark.parametrize("payload", [None, 1, True, [], {}, "", "!", "é", "AAA", " ", "A" * 43, "\ud800"])
def test_what_is_no_payload_at_all(payload: Any) -> None:
    with pytest.raises(ValueError):
        ONE.open(Continuation(FORMAT, KEY, payload), KEY, CONTENT)


def test_keys_tell_routes_and_servers_apart() -> None:
    two = Continuations(b"two")
    keys = {ONE.key("route"), ONE.key("other"), two.key("route"), two.key("other")}
    assert len(keys) == 4 and ONE.key("route") == KEY
    # Another's is not ours to judge: it counts for nothing.
    assert ONE.open(two.seal(two.key("route"), CONTENT, TOKENS), KEY, CONTENT) is None
    assert ONE.open(Continuation("llama.tokens.v2", KEY, None), KEY, CONTENT) is None
    # Nor does a key let a payload of another route pass.
    moved = Continuation(FORMAT, KEY, ONE.seal(ONE.key("other"), CONTENT, TOKENS).payload)
    with pytest.raises(ValueError):
        ONE.open(moved, KEY, CONTENT)


def test_all_of_a_conversation() -> None:
    messages = [Message("user", (TextPart("Hi"),)), Message("assistant", CONTENT), Message("assistant", (CALL,))]
    sealed = ONE.seal(KEY, CONTENT, TOKENS)
    foreign = Continuation("other", "key", {"any": "thing"})
    assert ONE.open_all({1: sealed, 2: foreign}, KEY, messages) == {1: TOKENS}
    with pytest.raises(WireError) as raised:
        ONE.open_all({2: sealed}, KEY, messages)
    assert raised.value.code == "invalid-request"
    assert sealed.payload not in raised.value.message and sealed.payload not in repr(sealed)
