"""Plans with caches as small as a test needs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from server.engine import EngineConfig
from server.engine.memory.plan import MemoryPlan
from server.engine.worker.loader import best_plan


def sized(length: int, cells: int) -> Callable[[EngineConfig], MemoryPlan]:
    """Takes the place of `loader.best_plan`: sequences of up to `length` tokens in `cells`, of their own where that
    is enough for all."""

    def plan(spec: EngineConfig) -> MemoryPlan:
        made = best_plan(spec)
        return replace(made, context_length=length, kv_cells=cells, kv_per_slot=cells >= made.slots * length)

    return plan
