"""Time as the runtime sees it, so that tests can turn the hands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds of `time.monotonic()`: one clock for all processes of the machine."""
        ...

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer: ...


class LoopClock:
    """The running event loop's time."""

    def now(self) -> float:
        return time.monotonic()

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(delay, callback)
