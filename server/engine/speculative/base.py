"""Speculative decoding: drafters, and the controller that decides how much to draft.

Draft tokens are verified in the target's forward pass and accepted while they equal the token that the sampler takes,
or the grammar forces, at their place: the output distribution is unchanged (for one fixed draft, Leviathan et al. 2023,
"Fast inference from transformers via speculative decoding", comes to just that).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from server.engine.speculative.ngram import NgramDrafter
from server.engine.types import MAX_DRAFT_TOKENS

__all__ = [
    "MAX_DRAFT_TOKENS",
    "DraftController",
    "DraftRequest",
    "Drafter",
    "NgramDrafter",
    "append_if_confident",
]

MIN_PROBABILITY = 0.5
"""Least probability of the likeliest token, for a draft of a model to go on (llama.cpp's `p_min`)."""
_SMOOTH = 0.2
"""Weight of a new step in the moving averages."""
_REST = 16, 1024
"""Steps without drafts once they did not pay: at first, and when that happens again and again (doubling)."""


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A sequence to draft for: its tokens, the last of them yet to be decoded, and `room`, the most that may follow.
    Tokens of `images` are negative."""

    request_id: int
    slot: int
    cache_salt: str
    tokens: array[int]
    room: int
    images: bool = False


class Drafter(Protocol):
    """A source of draft tokens."""

    def propose(self, asked: Sequence[DraftRequest], most: int) -> dict[int, array[int]]:
        """By request id, up to `most` tokens of each and `MAX_DRAFT_TOKENS` in all."""


def append_if_confident(draft: array[int], row: NDArray[np.float32], ends: frozenset[int], most: int) -> bool:
    """Add the likeliest token of these logits, unless it is an end or improbable; True where another may follow."""
    token = int(row.argmax())
    if token in ends or 1 / np.exp(row - row[token]).sum() < MIN_PROBABILITY:
        return False
    draft.append(token)
    return len(draft) < most


class DraftController:
    """Draft length of one drafter, adapted to its measured speed-up.

    A step with drafts is compared with the steps without drafts that the same tokens would have taken. Where drafts do
    not pay, there are none for a while.
    """

    def __init__(self, source: Drafter) -> None:
        self.drafter = source
        self._plain: dict[int, float] = {}
        self._length = 4.0
        self._gain = 1.0
        self._cooldown, self._backoff = 0, _REST[0]

    def draft_length(self, decoding: int) -> int:
        """Tokens to draft for each sequence of a step that decodes `decoding` of them; 0: none now."""
        if decoding not in self._plain:
            return 0
        if self._cooldown:
            self._cooldown -= 1
            return 0
        return int(self._length)

    def observe(self, decoding: int, drafted: int, accepted: int, seconds: float) -> None:
        """Note a step of `decoding` sequences and nothing else, and how many of its draft tokens were accepted."""
        plain = self._plain.get(decoding, seconds)
        if not drafted:
            self._plain[decoding] = plain + _SMOOTH * (seconds - plain)
            return
        self._gain += _SMOOTH * ((decoding + accepted) / decoding * plain / seconds - self._gain)
        if self._gain < 1:
            self._gain, self._cooldown = 1.0, self._backoff
            self._backoff = min(2 * self._backoff, _REST[1])
        elif accepted:
            self._backoff = _REST[0]
        if accepted == drafted:
            self._length = min(float(MAX_DRAFT_TOKENS), 1.5 * self._length + 1)
        elif 2 * accepted < drafted:
            self._length = max(2.0, self._length / 2)
