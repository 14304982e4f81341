"""Memory plan: the layers, experts, KV cache and slots that fit a machine, with every figure.

What the owner configured is kept whatever comes of it; the rest is chosen so that it fits (see `layout`).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from server.engine.memory.hparams import HParams
from server.engine.memory.layout import (
    CELL_BLOCK,
    LEAST_CELLS,
    MARGIN,
    SLOTS,
    Device,
    DeviceMemory,
    KvLayout,
    Layout,
    Machine,
    MemoryPlan,
    padded,
)
from server.engine.types import EngineConfig

__all__ = [
    "SNAPSHOTS",
    "Device",
    "DeviceMemory",
    "KvLayout",
    "Machine",
    "MemoryPlan",
    "gpu_contended",
    "plan",
    "plans",
]

_AMPLE, _ENOUGH = 16384, 8192
"""Cells of the KV cache: below the first it is stored in fewer bits, for the second weights leave the GPU."""

SNAPSHOTS = 4, 2
"""Tokens that can be taken back of a running state: each step of prompts writes as many copies of it."""

_SHRINK, _TRIES = 0.7, 8
"""After a load that ran out of memory, the next plan has this share of it; so many times."""


def plan(shape: HParams, machine: Machine, spec: EngineConfig) -> MemoryPlan:
    """The best that fits; where what is configured does not, that nevertheless, with a note."""
    layout = Layout(shape, machine, spec)
    made = on_gpus(layout) if machine.devices and spec.gpu_layers != 0 else on_cpu(layout)
    made = with_snapshots(layout, made)
    return replace(made, notes=tuple(_notes(made, shape, machine, spec)))


def gpu_contended(shape: HParams, machine: Machine, spec: EngineConfig) -> bool:
    """True where the plan would be a better one if no GPU held anything else."""
    devices = tuple(replace(each, free=max(each.free, each.memory * 19 // 20)) for each in machine.devices)
    return _choices(plan(shape, machine, spec)) != _choices(plan(shape, replace(machine, devices=devices), spec))


def plans(shape: HParams, machine: Machine, spec: EngineConfig) -> Iterator[MemoryPlan]:
    """The best that fits, then, for loads that run out of memory nevertheless, ever smaller ones."""
    before = None
    for number in range(_TRIES):
        made = plan(shape, machine.scaled(_SHRINK**number), spec)
        what = _choices(made)
        if what != before:
            yield made
        before = what


_NOTHING = DeviceMemory("", 0, 0, 0, 0)


def _choices(made: MemoryPlan) -> MemoryPlan:
    """The choices of a plan, without the memory they take."""
    return replace(made, host=_NOTHING, devices=(), notes=())


def with_snapshots(layout: Layout, made: MemoryPlan) -> MemoryPlan:
    """The same with as many snapshots of running states as there is memory for beside."""
    if not (layout.hparams.recurrent and layout.draft_model):
        return made
    for count in SNAPSHOTS:
        more = layout.build(
            made.kv_cells,
            split=made.kv_per_slot,
            kv=made.kv_type,
            gpu_layers=made.gpu_layers,
            cpu_experts=made.cpu_experts,
            slots=made.slots,
            snapshots=count,
        )
        if more.fits if made.devices else _modest(layout, more):
            return more
    return made


def _modest(layout: Layout, made: MemoryPlan) -> bool:
    """Whether the KV cache, and what is kept beside it, take at most a quarter of RAM, and no more than is free
    beside the weights."""
    budget = min(layout.machine.memory // 4, max(0, layout.machine.free - layout.hparams.size))
    return made.host.kv + made.host.prefix_cache + made.host.draft_model <= budget


def on_cpu(layout: Layout) -> MemoryPlan:
    """Every slot gets cells of its own for all its tokens where these, and what is kept beside them, take at most a
    quarter of the memory: steps are quicker so. Else there are fewer: enough for two full sequences or 16,384
    tokens, in one pool; beyond that sequences step aside for each other. What a model was trained for may be more
    than the machine holds: the pool stays within a quarter of its memory, and of what is free beside the weights,
    as long as it takes in one sequence of the configured length.
    """
    spec, kv = layout.spec, layout.spec.kv_type or "f16"
    own = layout.slots * padded(layout.length)
    split = layout.build(own, split=True, kv=kv)
    if _modest(layout, split):
        return split
    wanted = _pool(layout)
    floor = min(wanted, padded(spec.context_length or LEAST_CELLS // 2))
    for slots in _slot_choices(layout):
        made = _most(layout, floor, wanted, partial(_modest, layout), kv=kv, slots=slots)
        if made is not None:
            return made
    return layout.build(floor, kv=kv, slots=_slot_choices(layout)[-1])


def on_gpus(layout: Layout) -> MemoryPlan:
    """All on the GPUs with ample context; else the KV cache in fewer bits; else, of a mixture, as many layers'
    experts with the CPU as it takes; else whole layers."""
    spec, shape = layout.spec, layout.hparams
    count = len(shape.layers)
    every = count + 1 if spec.gpu_layers < 0 else min(spec.gpu_layers, count + 1)
    kinds = [spec.kv_type] if spec.kv_type else ["f16", "q8_0"]
    experts = max(0, spec.cpu_experts)
    wanted = _pool(layout)
    least = min(wanted, padded(spec.context_length or LEAST_CELLS))
    ample, enough = (min(wanted, max(least, cells)) for cells in (_AMPLE, _ENOUGH))

    def fitting(floor: int, kv: str, layers: int, outside: int, slots: int = 0) -> MemoryPlan | None:
        return _most(
            layout, floor, wanted, lambda made: made.fits, kv=kv, gpu_layers=layers, cpu_experts=outside, slots=slots
        )

    for floor in (ample, least):
        for slots in _slot_choices(layout) if floor == least else (layout.slots,):
            for kv in kinds:
                if (made := fitting(floor, kv, every, experts, slots)) is not None:
                    return made
    holding = [at + 1 for at, layer in enumerate(shape.layers) if layer.experts]
    if spec.cpu_experts < 0 and holding:
        if (made := _first(holding, lambda outside: fitting(enough, kinds[0], every, outside))) is not None:
            return made
        experts = holding[-1]
    if spec.gpu_layers < 0:
        fewer = range(count, 0, -1)
        for floor in (enough, least):
            made = _first(fewer, partial(fitting, floor, kinds[0], outside=experts))
            if made is not None:
                return made
        return on_cpu(layout)
    return layout.build(least, kv=kinds[-1], gpu_layers=every, cpu_experts=experts)


def _pool(layout: Layout) -> int:
    return padded(min(layout.slots * layout.length, max(2 * layout.length, 16384)))


def _slot_choices(layout: Layout) -> list[int]:
    """Fewer slots save memory only where each has some of its own."""
    if layout.spec.slots or not (layout.hparams.recurrent or layout.hparams.n_swa):
        return [layout.slots]
    return [layout.slots, 4, 2, 1]


def _most(
    layout: Layout, floor: int, wanted: int, fits: Callable[[MemoryPlan], bool], **choices: Any
) -> MemoryPlan | None:
    """With as many cells as fit, at least `floor`; None where not even these do."""

    def at(blocks: int) -> MemoryPlan:
        return layout.build(blocks * CELL_BLOCK, **choices)

    sizes = range(floor // CELL_BLOCK, max(floor, wanted) // CELL_BLOCK + 1)
    past = bisect.bisect_left(sizes, True, key=lambda blocks: not fits(at(blocks)))
    return at(sizes[past - 1]) if past else None


def _first(choices: Sequence[int], make: Callable[[int], MemoryPlan | None]) -> MemoryPlan | None:
    """The plan of the first choice that has one, where all after it have one too."""
    at = bisect.bisect_left(choices, True, key=lambda choice: make(choice) is not None)
    return make(choices[at]) if at < len(choices) else None


def _notes(made: MemoryPlan, shape: HParams, machine: Machine, spec: EngineConfig) -> Iterator[str]:
    count = len(shape.layers) + 1
    if machine.devices and spec.gpu_layers < 0 and made.gpu_layers < count:
        yield f"{count - made.gpu_layers} of {count} layers stay with the CPU: the GPU has no room for them"
    if spec.cpu_experts < 0 and made.cpu_experts:
        yield f"the experts of the first {made.cpu_experts} layers stay with the CPU: the GPU has no room for them"
    if not spec.kv_type and made.kv_type != "f16":
        yield f"the KV cache is stored as {made.kv_type}, for a longer context"
    wanted = spec.context_length or shape.n_ctx_train
    if made.context_length < wanted:
        yield f"context of {made.context_length:,} tokens, not {wanted:,}: there is no memory for more"
    if not spec.slots and made.slots < SLOTS:
        yield f"{made.slots} slots, not {SLOTS}: there is no memory for more"
    if spec.draft_model_path and shape.recurrent and not made.rollback_tokens:
        yield "the draft model is not used: a running state cannot be taken back where a draft was wrong"
    for each in made.devices:
        if (lacking := each.used + MARGIN - each.free) > 0:
            yield f"{each.name} lacks {lacking / 2**20:,.0f} MiB for what is configured; it is tried nevertheless"
    if made.host.used > machine.free:
        yield "this is more than the free RAM: weights will be read from the disk again and again"
