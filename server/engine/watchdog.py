"""Watchdog of worker processes: a hung one neither answers nor dies, so its progress has to be asked for."""

from __future__ import annotations

CHECKS = 4
"""Checks of a worker within one `hang_timeout`. They are counted, not timed: where the web process itself stood still,
the worker's answers are heard before the next check."""
LONGEST = 10
"""Times `hang_timeout` that a single step may take as long as it computes."""
_BUSY = 0.1
"""Share of a core that counts as computing. A thread that merely answers takes far less."""


class Watchdog:
    """Judges one worker by its answers: how many steps it has finished, and how much CPU time it has used.

    A finished step is progress. So is CPU time, for a while: a large prefill on a slow machine, or the encoding of an
    image, is one step that takes long. A process that is stopped or waits for ever uses none; one that spins for ever
    finishes no step.
    """

    def __init__(self) -> None:
        self._steps = -1
        self._cpu = 0.0
        self._heard = 0.0
        self._silent = 0
        self._unfinished = 0

    def rest(self) -> None:
        """Note that the worker has no work, so no progress is to be expected."""
        self._silent = self._unfinished = 0

    def answered(self, steps: int, cpu: float, now: float) -> None:
        """Note the worker's answer at the time `now`: steps finished and seconds of CPU time used since its start."""
        if steps != self._steps:
            self.rest()
        elif cpu - self._cpu >= _BUSY * (now - self._heard):
            self._silent = 0
        self._steps, self._cpu, self._heard = steps, cpu, now

    def check(self) -> bool:
        """Note that another part of `hang_timeout` is over, with work to do. True where the worker hangs."""
        self._silent += 1
        self._unfinished += 1
        return self._silent > CHECKS or self._unfinished > CHECKS * LONGEST
