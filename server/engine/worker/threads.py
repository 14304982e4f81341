"""Thread count of CPU steps: as many as there are free cores."""

from __future__ import annotations

_WINDOW = 0.3
"""Seconds of decoding between judgements."""
_VERDICT = 0.6
"""Seconds of bad judgements in a row that it takes to use fewer threads: any machine hiccups."""
_SLACK = 0.75
"""Cores that may be missing. Two threads beside a neighbour that takes most of one core are still quicker than one."""
_CALM = 0.15
"""Cores that may be missing where all threads are tried again."""
_BACKOFF = 2.0, 60.0
"""Seconds until all threads are tried again: at first, and when that has failed again and again (doubling)."""


class ThreadTuner:
    """Tunes the thread count by the CPU time that steps really get.

    ggml's threads wait for each other at about a thousand barriers a step, spinning. Where cores are free that is the
    quickest way. Where another program wants the cores, each barrier may wait for a thread that is not running, and
    those that spin take the core it needs: measured on two cores under a load of eight, two threads took 1,850 ms
    a step and one took 64; shorter spinning (GOMP_SPINCOUNT) lies between and costs the idle machine up to half of its
    speed. So a step that gets less CPU time than its threads could use continues with the threads it has cores for.
    """

    def __init__(self, most: int) -> None:
        self.count = self._most = most
        self._wall = self._cpu = 0.0
        self._bad = 0.0
        self._backoff = _BACKOFF[0]
        self._again = 0.0

    def note(self, wall: float, cpu: float, now: float) -> bool:
        """Note a step: its seconds of wall-clock time and of all threads' CPU time. True where `count` has changed."""
        self._wall += wall
        self._cpu += cpu
        if self._wall < _WINDOW:
            return False
        before, cores = self.count, self._cpu / self._wall
        missing = self.count - cores
        self._bad = self._bad + self._wall if missing > _SLACK else 0.0
        self._wall = self._cpu = 0.0
        if self._bad >= _VERDICT and self.count > 1:
            self._bad = 0.0
            self.count = max(1, int(cores))
            self._again = now + self._backoff
            self._backoff = min(2 * self._backoff, _BACKOFF[1])
        elif self.count == self._most:
            self._backoff = self._backoff if self._bad else _BACKOFF[0]
        elif missing < _CALM and now >= self._again:
            self.count = self._most
        return self.count != before
