"""Durations counted by their size, as a Prometheus histogram holds them: a few numbers, however many durations."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence


class Histogram:
    """How many observations were at most so many seconds. `bounds` ascend; a last, infinite one is implied."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        """Seconds, all observations together."""
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, seconds: float, count: int = 1) -> None:
        """Adds `count` observations of the same duration."""
        self._counts[bisect_left(self.bounds, seconds)] += count
        self.sum += seconds * count

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """(bound, observations at most that large), the last bound being infinite."""
        total = 0
        for bound, count in zip((*self.bounds, float("inf")), self._counts, strict=True):
            total += count
            yield bound, total

    def add(self, other: Histogram) -> None:
        """Adds another's observations. It must have the same bounds."""
        if other.bounds != self.bounds:
            raise ValueError("histograms of different bounds cannot be added")
        self._counts = [one + two for one, two in zip(self._counts, other._counts, strict=True)]
        self.sum += other.sum
