"""What engines have done, in numbers that only grow."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from server.engine.histogram import Histogram

GAPS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds of inter-token latencies, in seconds: from a small model alone on a GPU to a busy CPU."""


@dataclass(slots=True, eq=False)
class EngineCounters:
    """Counters of one engine since its start, or of several together. Tokens of prompts are those of finished jobs."""

    finished: int = 0
    """Jobs that came to their end; failed and cancelled ones are not among them."""
    prompt_tokens: int = 0
    """Cached ones included."""
    cache_read_tokens: int = 0
    cache_hits: int = 0
    """Finished jobs that found at least one token of their prompt in the cache."""
    output_tokens: int = 0
    """Of all jobs, forced ones included."""
    jump_forward_tokens: int = 0
    """Output tokens of finished jobs that the constraint left no choice about."""
    draft_tokens: int = 0
    """Decoded ahead for finished jobs because their output might go on so."""
    accepted_tokens: int = 0
    """Of these, those that it went on with."""
    restarts: int = 0
    """Attempts to start a worker again after one had died."""
    hangs: int = 0
    """Workers that were killed because they made no progress."""
    gaps: Histogram = field(default_factory=lambda: Histogram(GAPS))
    """Times between two outputs of the same job."""

    def add(self, other: EngineCounters) -> None:
        for each in fields(self):
            mine, more = getattr(self, each.name), getattr(other, each.name)
            if isinstance(mine, Histogram):
                mine.add(more)
            else:
                setattr(self, each.name, mine + more)
