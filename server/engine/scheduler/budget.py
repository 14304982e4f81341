"""Prefill budget: the prompt tokens of a step beside running answers."""

from __future__ import annotations

_LEAST = 8
"""Tokens a step: prompts always make progress."""
_SMOOTH = 0.2
"""Weight of a new step in the moving average."""
_STALL = 1.5
"""Limit of a new step, in averages: one that something else on the machine held up tells little."""
_PAIR = 0.8
"""Share of the chunk that a step with an image and the next one take together: the former has a cost of its own."""


class PrefillBudget:
    """The prefill chunk that makes steps of running answers at most `slowdown` times as long.

    Steps that decode alone give the pace of the answers; those that also prefill give the cost of a prompt token beside
    them; the chunk is the time left, by that cost. It follows a prompt that becomes costlier the longer it is.
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
        """Note the duration of a step of `decoding` sequences and `prefilling` prompt tokens."""
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


def split_budget(wanted: list[int], budget: int) -> list[int]:
    """Split a budget of tokens: half of it to the first, so that none starves, the rest to the smallest first.

    Few get much and some nothing: each sequence that prefills beside others costs a micro-batch of its own.
    """
    counts = [0] * len(wanted)
    if wanted:
        counts[0] = min(wanted[0], max(1, budget // 2))
    left = budget - sum(counts)
    for index in sorted(range(len(wanted)), key=wanted.__getitem__):
        more = max(0, min(wanted[index] - counts[index], left))
        counts[index] += more
        left -= more
    return counts
