"""How many prompt tokens a step takes beside running answers."""

from __future__ import annotations

_LEAST = 8
"""Tokens a step: prompts always make progress."""
_SMOOTH = 0.2
"""Weight of a new step in the moving average."""
_STALL = 1.5
"""What one step counts for at most, of the average: one that something else on the machine held up tells little."""
_PAIR = 0.8
"""Of the chunk, what a step with an image and the next one take together: the former has a cost of its own beside."""


class PrefillBudget:
    """The chunk that slows running answers down by no more than `slowdown`.

    Steps that decode alone give the pace of the answers, those that also prefill what a prompt token costs beside them;
    the chunk is what may be spent, by that cost. It follows a prompt that becomes costlier the longer it is.
    """

    def __init__(self, most: int, slowdown: float) -> None:
        self._most = most
        self._slowdown = slowdown
        self._alone: dict[int, float] = {}
        self._cost: float | None = None
        self._chunk = float(max(_LEAST, most // 2))

    @property
    def tokens(self) -> int:
        """Prompt tokens of the next step that also decodes."""
        return min(self._most, int(self._chunk))

    @property
    def image_tokens(self) -> int:
        """Tokens of an image's step and the prompts' in the next one, for both of which running answers wait."""
        return max(1, int(_PAIR * self.tokens))

    def observe(self, decoding: int, prefilling: int, seconds: float) -> None:
        """Note a step of so many decoding sequences and prompt tokens."""
        if not decoding:
            return
        alone = self._alone.get(decoding)
        if not prefilling:
            self._alone[decoding] = _averaged(alone, seconds)
        elif alone and prefilling * 2 > self.tokens:  # a step with little to prefill tells nothing of a full one
            self._cost = _averaged(self._cost, max(1e-6, (seconds - alone) / prefilling))
            chunk = (self._slowdown - 1) * alone / self._cost
            self._chunk = min(max(chunk, float(_LEAST)), float(self._most))


def _averaged(average: float | None, new: float) -> float:
    return new if average is None else average + _SMOOTH * (min(new, _STALL * average) - average)
