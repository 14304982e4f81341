"""How many prompt tokens a step takes beside running answers."""

from __future__ import annotations

_LEAST = 8
"""Tokens a step: prompts always make progress."""
_FEWER, _MORE = 0.75, 1.25
_SMOOTH = 0.2
"""Weight of a new step in the moving average."""
_STALL = 1.5
"""What one step counts for at most, of the average: one that something else on the machine held up is not the pace."""
_PAIR = 0.8
"""Of the chunk, what a step with an image and the next one take together: the former has a cost of its own beside."""


class Pace:
    """The chunk that slows running answers down by no more than `slowdown`.

    A control loop without a model of the machine: steps that decode alone give the pace of the answers; a step that
    also prefills and takes longer than `slowdown` times that makes the next chunk smaller, one well below it larger.
    """

    def __init__(self, most: int, slowdown: float) -> None:
        self._most = most
        self._slowdown = slowdown
        self._alone: dict[int, float] = {}
        self._chunk = float(max(_LEAST, most // 2))

    @property
    def chunk(self) -> int:
        """Prompt tokens of the next step that also decodes."""
        return min(self._most, int(self._chunk))

    @property
    def pair(self) -> int:
        """Tokens of an image's step and the prompts' in the next one, for both of which running answers wait."""
        return max(1, int(_PAIR * self.chunk))

    def note(self, decoding: int, prefilling: int, seconds: float) -> None:
        """Note a step of so many decoding sequences and prompt tokens."""
        if not decoding:
            return
        alone = self._alone.get(decoding)
        if not prefilling:
            if alone is not None:
                seconds = alone + _SMOOTH * (min(seconds, _STALL * alone) - alone)
            self._alone[decoding] = seconds
        elif alone and prefilling * 2 > self.chunk:  # a step with little to prefill tells nothing of a full one
            if seconds > self._slowdown * alone:
                self._chunk = max(float(_LEAST), self._chunk * _FEWER)
            elif seconds < 0.8 * self._slowdown * alone:
                self._chunk = min(float(self._most), self._chunk * _MORE)
