"""Continuations: the very tokens of an assistant's turn, given to whoever asks on, to be put back into the next prompt.

`payload` is text: base64 of the tokens, 32 bits each, behind an HMAC-SHA-256 (RFC 2104) that binds them to the message
they came with. The key of it never leaves the state directory, so nobody can make up what a model has thought.

`compatibility_key` tells routes apart, and servers: it is made with the same secret. What bears another one is not ours
to check; it starts anew from the visible message (mhome LLM contract: "a changed route starts a new model context").
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from server.wire.complete import Continuation, visible
from server.wire.records import Message, Part, TextPart, ToolCallPart, WireError

FORMAT = "llama.tokens.v1"
_TAG = hashlib.sha256().digest_size


class Continuations:
    """Seals and opens with one secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def key(self, fingerprint: str) -> str:
        """The compatibility key of a route with this fingerprint."""
        return self._mac(b"key", fingerprint.encode()).hex()[:32]

    def seal(self, key: str, content: Sequence[Part], tokens: array[int]) -> Continuation:
        """Continuation of the turn with this content."""
        data = _bytes(tokens)
        payload = self._tag(key, content, data) + data
        return Continuation(FORMAT, key, base64.b64encode(payload).decode("ascii"))

    def open(self, given: Continuation, key: str, content: Sequence[Part]) -> array[int] | None:
        """The tokens; None where it is another route's. Raises ValueError where it is not what was sealed with this
        content."""
        if (given.format, given.compatibility_key) != (FORMAT, key):
            return None
        try:
            payload = base64.b64decode(given.payload, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise ValueError("not base64") from None
        tag, data = payload[:_TAG], payload[_TAG:]
        if not hmac.compare_digest(tag, self._tag(key, content, data)):
            raise ValueError("not sealed here")
        return _tokens(data)

    def open_all(
        self, given: Mapping[int, Continuation], key: str, messages: Sequence[Message]
    ) -> dict[int, array[int]]:
        """The turns that are this route's, by their message's index. Raises `invalid-request` for one that has been
        changed or stands at another message than its own."""
        turns = {}
        for index, each in given.items():
            try:
                tokens = self.open(each, key, messages[index].content)
            except ValueError:
                raise WireError(
                    "invalid-request",
                    "a continuation has been changed, or is not that of its message: send both as they came",
                ) from None
            if tokens is not None:
                turns[index] = tokens
        return turns

    def _tag(self, key: str, content: Sequence[Part], data: bytes) -> bytes:
        return self._mac(b"turn", FORMAT.encode(), key.encode(), _canonical(content), data)

    def _mac(self, *parts: bytes) -> bytes:
        whole = b"".join(b"%d:%b" % (len(part), part) for part in parts)
        return hmac.new(self._secret, whole, hashlib.sha256).digest()


def _canonical(content: Sequence[Part]) -> bytes:
    """The message itself, whatever a JSON store does to the order of members or the spelling of numbers."""
    text = "".join(part.text for part in visible(content) if isinstance(part, TextPart))
    calls = [
        [part.tool_call_id, part.name, part.arguments] for part in visible(content) if isinstance(part, ToolCallPart)
    ]
    return json.dumps([text, _plain(calls)], sort_keys=True).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        # JSON has one kind of number, and many readers have but doubles.
        return float(value) if abs(value) < 1 << 1000 else str(value)
    return value


def _bytes(tokens: array[int]) -> bytes:
    fixed = array("i", tokens)
    if sys.byteorder == "big":
        fixed.byteswap()
    return fixed.tobytes()


def _tokens(data: bytes) -> array[int]:
    tokens = array("i", data)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens
