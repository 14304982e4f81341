"""Drafts by prompt lookup (n-grams): for outputs that copy, as an edited text or a tool's arguments."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from server.engine.types import MAX_DRAFT_TOKENS

if TYPE_CHECKING:
    from server.engine.speculative.base import DraftRequest

_NGRAM = 3
"""Last tokens that must have stood side by side before."""


class NgramDrafter:
    """Drafts from the tokens that a sequence holds already."""

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
    """Up to `most` tokens that followed a sequence's last ones where they stood before; none where they never did."""
    last = len(tokens) - 1
    if most < 1 or last < _NGRAM:
        return array("i")
    seen = np.frombuffer(tokens, np.int32)
    hits = np.flatnonzero(seen[_NGRAM - 1 : last] == seen[last]) + (_NGRAM - 1)
    for back in range(1, _NGRAM):
        hits = hits[seen[hits - back] == seen[last - back]]
    if not len(hits):
        return array("i")
    # The last that has enough behind it: of a short loop, nearly all of it stands at the very end.
    far = hits[hits + most <= last]
    start = int(far[-1] if len(far) else hits[0]) + 1
    return tokens[start : start + most]
