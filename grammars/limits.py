"""Bounds that keep a hostile schema from costing more than it may; every bound has a name that errors carry."""

from __future__ import annotations

import time

DEPTH = 128
"""Nesting of a schema document."""
SUBSCHEMAS = 50_000
"""Schema objects in a document."""
STATES = 20_000
"""States of one automaton."""
TRANSITIONS = 400_000
"""Ranges on the edges of one automaton."""
RULES = 60_000
"""Rules of one grammar."""
GRAMMAR = 8_000_000
"""Characters of one printed grammar."""
ALTERNATIVES = 256
"""Object or array shapes that one position may have before the compiler falls back to a wider grammar."""
SECONDS = 2.0
"""CPU time of one compilation."""
CACHED = 500_000
"""States and edges of automata that a process keeps between compilations, about 60 MB."""
REPEAT = 1_000
"""Largest count written as `{m,n}`; llama.cpp refuses or ignores counts above 2,000."""


class LimitExceeded(Exception):
    """A bound was hit; `limit` is its name in lower case. `compile_schema` turns it into `UnsupportedSchema`."""

    def __init__(self, limit: str) -> None:
        self.limit = limit
        super().__init__(limit)


class Deadline:
    """CPU time bound of one compilation in the calling thread; `check` is cheap enough for inner loops."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.end = time.thread_time() + seconds

    def check(self) -> None:
        if time.thread_time() > self.end:
            raise LimitExceeded("seconds")


_current: Deadline | None = None


def start(seconds: float = SECONDS) -> None:
    """Starts the clock of the compilation that this process runs now (a process compiles one schema at a time)."""
    global _current
    _current = Deadline(seconds)


def stop() -> None:
    """The compilation is over; validation has a bound of its own."""
    global _current
    _current = None


def check() -> None:
    """Raises `LimitExceeded("seconds")` when the running compilation has used its time."""
    if _current is not None:
        _current.check()
