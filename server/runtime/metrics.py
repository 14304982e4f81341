"""Counters of generations and their endings. No endpoint, id or content is kept."""

from __future__ import annotations

import time
from collections import Counter, defaultdict

from server.engine.histogram import Histogram
from server.runtime.generation import LiveGeneration
from server.wire.records import Generation, WireError

WAITS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Bounds of the times a caller waits for something, in seconds."""

NO_CONNECTION = ""
"""In place of a connection's key, for what ended before its connection was known."""


class GenerationCounters:
    """Counts generations at the two moments that matter: their first token, and their settlement."""

    def __init__(self) -> None:
        self.endings: Counter[tuple[str, str, str]] = Counter()
        """By connection, outcome (what finished it, or the error's code) and reason (why it was cancelled, or which
        limit it met; else empty)."""
        self.first_tokens: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(WAITS))
        """By connection: seconds from arrival to the first text, without what the owner took to decide."""
        self.durations: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(WAITS))
        """By connection: seconds from arrival to the answer, without what the owner took to decide."""

    def began(self, live: LiveGeneration) -> None:
        """Its first text has come."""
        self.first_tokens[live.connection or NO_CONNECTION].observe(_seconds(live))

    def ended(self, live: LiveGeneration) -> None:
        """It is settled."""
        key = live.connection or NO_CONNECTION
        outcome = live.outcome
        if isinstance(outcome, Generation):
            self.durations[key].observe(_seconds(live))
            self.endings[key, outcome.finish, ""] += 1
        elif outcome is not None:
            self.endings[key, outcome.code, live.cause or _reason(outcome)] += 1

    def refused(self, error: WireError) -> None:
        """A request did not become a generation."""
        self.endings[NO_CONNECTION, error.code, _reason(error)] += 1


def _seconds(live: LiveGeneration) -> float:
    return time.monotonic() - live.arrived - live.decided_in


def _reason(error: WireError) -> str:
    """One of the few words of our own that tell errors of one code apart."""
    return str(error.extra.get("reason", ""))
