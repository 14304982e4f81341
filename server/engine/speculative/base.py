"""Speculation: tokens that a sequence may go on with are decoded together with its last one.

Each is kept only where it is what the sampler takes, or the grammar forces, at its place. The output is thus
distributed as without them (for one fixed draft, Leviathan et al. 2023, "Fast inference from transformers via
speculative decoding", comes to just that). Where drafts come from: `Lookup` here, for outputs that copy (an edited
text, a tool's arguments); a smaller model (`drafter.py`); a layer of the model itself (`mtp.py`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

MAX_DRAFT_TOKENS = 16
"""Drafted tokens of one step, all sequences together."""
MIN_PROBABILITY = 0.5
"""The least share of the likeliest token, for a model that guesses."""
_KEY = 3
"""As many last tokens must have stood side by side before."""
_SMOOTH = 0.2
"""Weight of a new step in the moving averages."""
_REST = 16, 1024
"""Steps without drafts once they did not pay: at first, and when that happens again and again (doubling)."""


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A sequence that drafts are wanted for: its tokens, the last of them yet to be decoded, and `room` for how many
    more. Those of `images` are negative."""

    request_id: int
    slot: int
    cache_salt: str
    tokens: array[int]
    room: int
    images: bool = False


class Drafter(Protocol):
    """Where drafts come from."""

    def propose(self, asked: Sequence[DraftRequest], most: int) -> dict[int, array[int]]:
        """By job, up to so many tokens of each and `MOST` in all."""


def append_if_confident(draft: array[int], row: NDArray[np.float32], ends: frozenset[int], most: int) -> bool:
    """Add the likeliest token by these logits, unless it is an end or no likely one; whether there may be another."""
    token = int(row.argmax())
    if token in ends or 1 / np.exp(row - row[token]).sum() < MIN_PROBABILITY:
        return False
    draft.append(token)
    return len(draft) < most


class NgramDrafter:
    """Drafts from what a sequence holds already."""

    def propose(self, asked: Sequence[DraftRequest], most: int) -> dict[int, array[int]]:
        drafts, left = {}, MAX_DRAFT_TOKENS
        for each in asked:
            draft = ngram_draft(each.tokens, min(most, left, each.room))
            if each.images:  # which cannot be copied
                draft = array("i", takewhile(lambda token: token >= 0, draft))
            if draft:
                drafts[each.request_id] = draft
                left -= len(draft)
        return drafts


def ngram_draft(tokens: array[int], most: int) -> array[int]:
    """How a sequence went on where its last tokens stood before: up to `most` tokens, none where they never did."""
    last = len(tokens) - 1
    if most < 1 or last < _KEY:
        return array("i")
    seen = np.frombuffer(tokens, np.int32)
    hits = np.flatnonzero(seen[_KEY - 1 : last] == seen[last]) + (_KEY - 1)
    for back in range(1, _KEY):
        hits = hits[seen[hits - back] == seen[last - back]]
    if not len(hits):
        return array("i")
    # The last that has enough behind it: of a short loop, nearly all of it stands at the very end.
    far = hits[hits + most <= last]
    start = int(far[-1] if len(far) else hits[0]) + 1
    return tokens[start : start + most]


class DraftController:
    """How much to draft from a source, by what it brought.

    A step with drafts is held against the steps without that the same tokens would have taken. Where drafts do not pay
    there are none for a while.
    """

    def __init__(self, source: Drafter) -> None:
        self.drafter = source
        self._plain: dict[int, float] = {}
        self._length = 4.0
        self._gain = 1.0
        self._cooldown, self._backoff = 0, _REST[0]

    def draft_length(self, decoding: int) -> int:
        """Tokens to draft for a sequence in a step that decodes so many."""
        if decoding not in self._plain:
            return 0
        if self._cooldown:
            self._cooldown -= 1
            return 0
        return int(self._length)

    def observe(self, decoding: int, drafted: int, confirmed: int, seconds: float) -> None:
        """Note a step of `decoding` sequences and nothing else."""
        plain = self._plain.get(decoding, seconds)
        if not drafted:
            self._plain[decoding] = plain + _SMOOTH * (seconds - plain)
            return
        self._gain += _SMOOTH * ((decoding + confirmed) / decoding * plain / seconds - self._gain)
        if self._gain < 1:
            self._gain, self._cooldown = 1.0, self._backoff
            self._backoff = min(2 * self._backoff, _REST[1])
        elif confirmed:
            self._backoff = _REST[0]
        if confirmed == drafted:
            self._length = min(float(MAX_DRAFT_TOKENS), 1.5 * self._length + 1)
        elif 2 * confirmed < drafted:
            self._length = max(2.0, self._length / 2)
