"""Parts that answers of the OpenAI API share: arguments and log probabilities."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from server.engine.types import Logprob
from server.runtime import LiveGeneration
from server.wire import encode


def arguments_text(arguments: Any) -> str:
    """A call's arguments as the API carries them."""
    return encode(arguments).decode()


class LogprobCursor:
    """The log probabilities of an answer's tokens, told as its text is."""

    def __init__(self, live: LiveGeneration) -> None:
        self._live = live
        self._told = 0

    def new(self) -> list[dict[str, Any]]:
        """Those since the last time."""
        found = self._live.logprobs[self._told :]
        self._told += len(found)
        return write_logprobs(found)

    def of(self, text: str) -> list[dict[str, Any]]:
        """Those of the next text."""
        left, found = len(text.encode()), []
        while left > 0 and self._told < len(self._live.logprobs):
            found.append(self._live.logprobs[self._told])
            left -= len(found[-1].piece)
            self._told += 1
        return write_logprobs(found)


def write_logprobs(found: Iterable[Logprob]) -> list[dict[str, Any]]:
    return [
        {**_token(each.piece, each.logprob), "top_logprobs": [_token(piece, value) for piece, value in each.top]}
        for each in found
    ]


def _token(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": piece.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(piece)}
