"""How likely the model found the tokens of an output, where somebody asks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from server.engine.types import Logprob


class Logprobs:
    """The log probabilities of one position: the model's own, before temperature, bans and grammar bend them.

    Made before the sampler works on the logits, of which it keeps what is needed.
    """

    def __init__(self, logits: NDArray[np.float32], count: int) -> None:
        self._logits = logits
        peak = float(logits.max())
        self._total = peak + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
        top = np.argpartition(logits, -count)[-count:] if count else np.zeros(0, np.intp)
        top = top[np.argsort(-logits[top], kind="stable")]
        self._top = [(int(token), float(logits[token]) - self._total) for token in top]

    def of(self, token: int, piece: bytes, pieces: Sequence[bytes]) -> Logprob:
        """The chosen token's, whose output may be shorter than its piece, with the likeliest beside it."""
        return Logprob(
            piece, float(self._logits[token]) - self._total, tuple((pieces[each], value) for each, value in self._top)
        )


def certain(piece: bytes) -> Logprob:
    """A token that the grammar left no choice about: it was certain, and no other could have stood there."""
    return Logprob(piece, 0.0, ((piece, 0.0),))
