"""Plans with caches as small as a test needs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from server.engine import ModelSpec
from server.engine.plan import Plan
from server.engine.worker import best


def sized(length: int, cells: int) -> Callable[[ModelSpec], Plan]:
    """What takes the place of `worker.best`: sequences of up to `length` tokens in `cells`, of their own where that
    is enough for all."""

    def plan(spec: ModelSpec) -> Plan:
        made = best(spec)
        return replace(made, context_length=length, cells=cells, split=cells >= made.slots * length)

    return plan
