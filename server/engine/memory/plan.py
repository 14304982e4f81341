"""How a model is laid over a machine's memory: layers and experts, context, KV cache and slots, with every figure.

Nothing is loaded for it: the sizes of weights stand in the file's header, those of the KV cache follow from the model's
shape, and those of the compute buffers from what llama.cpp's graph holds at once where it holds most. What the owner
configured is kept whatever comes of it; the rest is chosen so that it fits.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypedDict

from server.engine.memory import gguf
from server.engine.memory.hparams import HParams, element_bytes, projector_bytes
from server.engine.types import ENCODER_CACHE_BYTES, MAX_DRAFT_TOKENS, PREFIX_CACHE_BYTES, EngineConfig, EngineError

CHUNK_CPU, CHUNK_GPU = 64, 512
"""Prompt tokens a step. On a CPU 64 take about a third of a second, and larger steps are no quicker per token."""

SLOTS = 8

_CELL_BLOCK = 256
"""llama.cpp gives a sequence cells by this many."""

_MARGIN = 512 * 2**20
"""Bytes of a GPU left alone: its driver's context, the libraries' workspaces, what other programs may yet take."""

_AMPLE, _ENOUGH, _LEAST = 16384, 8192, 4096
"""Cells of the KV cache: below the first it is stored in fewer bits, for the second weights leave the GPU, and with
fewer than the last nothing is done."""

SNAPSHOTS = 4, 2
"""Tokens that can be taken back of a running state: each step of prompts writes as many copies of it."""

_SHRINK, _TRIES = 0.7, 8
"""After a load that ran out of memory, the next plan has this share of it; so many times."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or another machine, as llama.cpp lists it."""

    name: str
    free: int
    """Bytes."""
    memory: int = 0
    """Bytes in all; 0: unknown."""


@dataclass(frozen=True, slots=True)
class Machine:
    devices: tuple[Device, ...]
    memory: int
    """Bytes of RAM that this process may use."""
    free: int
    """Of these, what no program holds."""
    repacks: Mapping[int, float] = field(default_factory=dict)
    """The `ggml_type`s of matrices that the CPU lays out anew beside the mapped file, and how much larger."""

    def scaled(self, share: float) -> Machine:
        """The same with less memory."""
        devices = tuple(replace(each, free=int(each.free * share)) for each in self.devices)
        return replace(self, devices=devices, memory=int(self.memory * share), free=int(self.free * share))


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What one memory holds, in bytes."""

    name: str
    free: int
    weights: int
    kv: int
    compute: int
    repacked: int = 0
    """Weights laid out anew beside the file's own, which the system may drop then."""
    prefix_cache: int = 0
    """What beginnings of prompts may take beside the KV cache."""
    encoder_cache: int = 0
    """What embeddings of images may take, kept for those who show the same one again."""
    draft_model: int = 0
    """All that a draft model takes, or the layer that guesses beside what it takes as one of the model's."""

    @property
    def used(self) -> int:
        return (
            max(self.weights, self.repacked)
            + self.kv
            + self.compute
            + self.prefix_cache
            + self.encoder_cache
            + self.draft_model
        )


class KvLayout(TypedDict):
    """Of a `llama.Context`: what all have in common that stand beside each other in one plan."""

    cells: int
    sequences: int
    split: bool
    flash: bool
    kv_type: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    context_length: int
    """Tokens one sequence may hold."""
    slots: int
    kv_cells: int
    """Tokens that the KV cache holds, all sequences together."""
    kv_per_slot: bool
    """Whether each slot has cells of its own."""
    kv_type: str
    gpu_layers: int
    """Of the model's layers and the output behind them, the last so many are on GPUs."""
    cpu_experts: int
    """The experts of the first so many layers stay with the CPU."""
    batch: int
    """Tokens of one step."""
    host: DeviceMemory
    devices: tuple[DeviceMemory, ...]
    rollback_tokens: int = 0
    """Of a running state: so many of the last tokens can be taken back."""
    mtp: bool = False
    """Whether the model's last layer drafts (multi-token prediction)."""
    notes: tuple[str, ...] = ()
    """What is less than the model has or the machine could want, and why."""

    @property
    def chunk(self) -> int:
        """Prompt tokens of one step."""
        return self.batch - self.slots

    @property
    def flash_attn(self) -> bool:
        """Whether flash attention may be used: on a CPU it is slower, but a cache in fewer bits needs it."""
        return self.gpu_layers > 0 or self.kv_type != "f16"

    @property
    def layout(self) -> KvLayout:
        return KvLayout(
            cells=self.kv_cells,
            sequences=self.slots,
            split=self.kv_per_slot,
            flash=self.flash_attn,
            kv_type=self.kv_type,
        )

    @property
    def fits(self) -> bool:
        return all(each.used + _MARGIN <= each.free for each in self.devices)


def plan(shape: HParams, machine: Machine, spec: EngineConfig) -> MemoryPlan:
    """The best that fits; where what is configured does not, that nevertheless, with a note."""
    planner = _Planner(shape, machine, spec)
    made = planner.on_gpus() if machine.devices and spec.gpu_layers != 0 else planner.on_cpu()
    made = planner.with_snapshots(made)
    return replace(made, notes=tuple(_notes(made, shape, machine, spec)))


def gpu_contended(shape: HParams, machine: Machine, spec: EngineConfig) -> bool:
    """Whether the plan would be a better one if no GPU held anything else."""
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
    """What is chosen, without what it takes."""
    return replace(made, host=_NOTHING, devices=(), notes=())


class _Planner:
    def __init__(self, shape: HParams, machine: Machine, spec: EngineConfig) -> None:
        self.hparams, self.machine, self.spec = shape, machine, spec
        self.length = spec.context_length or shape.n_ctx_train or _LEAST
        self.slots = spec.slots or SLOTS
        self.projector = projector_bytes(spec.mmproj_path) if spec.mmproj_path else 0
        drafts = spec.speculation and shape.supports_rollback
        self.mtp = drafts and shape.has_mtp and not spec.draft_model_path
        if shape.recurrent:  # what an answer copies is not worth the snapshots
            drafts = drafts and (self.mtp or spec.draft_model_path is not None)
        self.draft_model = MAX_DRAFT_TOKENS if drafts else 0
        self.prefix_cache = PREFIX_CACHE_BYTES if not (shape.recurrent or shape.n_swa) else 0
        self.draft = (
            _Planner(_draft_shape(spec.draft_model_path), machine, _drafting(spec))
            if spec.draft_model_path and self.draft_model
            else None
        )

    # --- what a choice takes

    def build(
        self,
        cells: int,
        *,
        split: bool = False,
        kv: str = "f16",
        gpu_layers: int = 0,
        cpu_experts: int = 0,
        slots: int = 0,
        snapshots: int = 0,
    ) -> MemoryPlan:
        """The plan of these choices."""
        shape, slots, on_gpu = self.hparams, slots or self.slots, gpu_layers > 0
        # llama.cpp takes no more tokens a step than its cache holds.
        chunk = self.spec.prefill_chunk or (CHUNK_GPU if on_gpu else CHUNK_CPU)
        batch = min(slots + max(chunk, self.draft_model), max(cells, slots + 1))
        count = len(shape.layers)
        weights, caches = [0] * (len(self.machine.devices) + 1), [0] * (len(self.machine.devices) + 1)
        flash = on_gpu or kv != "f16"
        values = max(layer.values for layer in shape.layers)
        window = self._window_cells(cells, slots, batch, split)
        for at, layer in enumerate(shape.layers):
            if at >= count - shape.nextn_layers and not self.mtp:
                continue
            where = self._device(at, gpu_layers, count)
            outside = layer.experts if at < cpu_experts else 0
            weights[where] += layer.weights - outside
            weights[-1] += outside
            width = layer.keys + (values if layer.values and not flash else layer.values)
            kept = window * (slots if split else 1) if layer.windowed and shape.n_swa else cells
            caches[where] += int(kept * width * element_bytes(kv)) + slots * layer.state_bytes * (1 + snapshots)
        weights[self._device(count, gpu_layers, count)] += shape.output
        weights[-1] += shape.embedding
        if not on_gpu:
            weights[-1] = shape.size
        weights[0] += self.projector  # on the first GPU, or in RAM where there is none
        compute = self._compute(cells // slots if split else cells, window, batch, slots, flash)
        if kv != "f16":
            compute += 8 * (shape.n_embd_q // max(1, shape.n_head)) ** 2  # keys and values are rotated, then stored
        repacked = 0
        if not on_gpu:
            repacked = int(sum(size * self.machine.repacks.get(kind, 0) for kind, size in shape.repackable))
        devices = tuple(
            DeviceMemory(device.name, device.free, held, kv_bytes, compute if held else 0)
            for device, held, kv_bytes in zip(self.machine.devices, weights, caches, strict=False)
            if on_gpu
        )
        host = DeviceMemory(
            "RAM",
            self.machine.free,
            weights[-1],
            caches[-1],
            compute + self._outputs(slots),
            repacked,
            self.prefix_cache if split and slots > 1 else 0,
            ENCODER_CACHE_BYTES if self.projector else 0,
        )
        if self.draft is not None:
            layers = len(self.draft.hparams.layers) + 1 if on_gpu else 0
            beside = self.draft.build(cells, split=split, kv=kv, gpu_layers=layers, slots=slots)
            host = replace(host, draft_model=replace(beside.host, prefix_cache=0).used)
            devices = tuple(
                replace(share, draft_model=its.used) for share, its in zip(devices, beside.devices, strict=True)
            )
        elif self.mtp:
            # A context more, of one layer; and hidden states, as they come out, go in, and wait.
            where = self._device(count - 1, gpu_layers, count)
            host = replace(host, draft_model=4 * (slots * shape.vocabulary + 3 * batch * shape.n_embd))
            if where < 0:
                host = replace(host, draft_model=host.draft_model + compute)
            else:
                devices = tuple(
                    replace(share, draft_model=compute if at == where else 0) for at, share in enumerate(devices)
                )
        if on_gpu and gpu_layers > count and not cpu_experts:
            # The CPU's part is what goes in: embeddings and masks.
            entering = 4 * batch * shape.n_embd + 2 * batch * (cells + window)
            host = replace(host, compute=entering + self._outputs(slots))
        length = min(self.length, cells)
        return MemoryPlan(
            length, slots, cells, split, kv, gpu_layers, cpu_experts, batch, host, devices, snapshots, self.mtp
        )

    def _device(self, layer: int, gpu_layers: int, count: int) -> int:
        """Which device has a layer, -1: the CPU. The last layers go to GPUs, in proportion to their free memory."""
        start = max(count + 1 - gpu_layers, 0)
        active = min(gpu_layers, count + 1)
        if layer < start or not active or not self.machine.devices:
            return -1
        free = [max(1, device.free) for device in self.machine.devices]
        bounds = [sum(free[: at + 1]) / sum(free) for at in range(len(free))]
        return min(bisect.bisect_right(bounds, (layer - start) / active), len(free) - 1)

    def _window_cells(self, cells: int, slots: int, batch: int, split: bool) -> int:
        """Cells of the layers that see a window, of one sequence where each has its own."""
        if not self.hparams.n_swa:
            return 0
        return _padded(min(cells // slots if split else cells, self.hparams.n_swa * (1 if split else slots) + batch))

    def _compute(self, cells: int, window: int, batch: int, slots: int, flash: bool) -> int:
        """Bytes of the graph where it holds most at once: in attention, in the feed-forward part, or at the logits.

        `cells` are those one sequence attends over. Fitted to what llama.cpp reports; tests hold it to 10 %.
        """
        shape = self.hparams
        layer_values = max(layer.keys + layer.values for layer in shape.layers)
        masks = batch * (cells + window) * (2 if flash else 4)
        attention = 4 * batch * (shape.n_embd + 3 * shape.n_embd_q + (5 * layer_values) // 2)
        if not flash:
            widest = window if shape.n_swa and all(layer.windowed for layer in shape.layers) else cells
            attention += 4 * batch * widest * shape.n_head
        inside = 4 * batch * (3 * shape.n_ff + (4 + shape.n_expert_used) * shape.n_embd)
        logits = 4 * (self._rows(slots) * shape.vocabulary + batch * shape.n_embd)
        return max(masks + attention, masks + inside, logits)

    def _rows(self, slots: int) -> int:
        return slots + self.draft_model

    def _outputs(self, slots: int) -> int:
        """Bytes of the logits that a step hands out."""
        return 4 * self._rows(slots) * self.hparams.vocabulary

    # --- the choice

    def with_snapshots(self, made: MemoryPlan) -> MemoryPlan:
        """The same with as many snapshots of running states as there is memory for beside."""
        if not (self.hparams.recurrent and self.draft_model):
            return made
        for count in SNAPSHOTS:
            more = self.build(
                made.kv_cells,
                split=made.kv_per_slot,
                kv=made.kv_type,
                gpu_layers=made.gpu_layers,
                cpu_experts=made.cpu_experts,
                slots=made.slots,
                snapshots=count,
            )
            if more.fits if made.devices else self._modest(more):
                return more
        return made

    def _modest(self, made: MemoryPlan) -> bool:
        """Whether the KV cache, and what is kept beside it, take at most a quarter of RAM, and no more than is free
        beside the weights."""
        budget = min(self.machine.memory // 4, max(0, self.machine.free - self.hparams.size))
        return made.host.kv + made.host.prefix_cache + made.host.draft_model <= budget

    def on_cpu(self) -> MemoryPlan:
        """Every slot gets cells of its own for all its tokens where these, and what is kept beside them, take at most a
        quarter of the memory: steps are quicker so. Else there are fewer: enough for two full sequences or 16,384
        tokens, in one pool; beyond that sequences step aside for each other. What a model was trained for may be more
        than the machine holds: the pool stays within a quarter of its memory, and of what is free beside the weights,
        as long as it takes in one sequence of the configured length.
        """
        spec, kv = self.spec, self.spec.kv_type or "f16"
        own = self.slots * _padded(self.length)
        split = self.build(own, split=True, kv=kv)
        if self._modest(split):
            return split
        wanted = self._pool()
        floor = min(wanted, _padded(spec.context_length or _LEAST // 2))
        for slots in self._slot_choices():
            made = self._most(floor, wanted, self._modest, kv=kv, slots=slots)
            if made is not None:
                return made
        return self.build(floor, kv=kv, slots=self._slot_choices()[-1])

    def on_gpus(self) -> MemoryPlan:
        """All on the GPUs with ample context; else the KV cache in fewer bits; else, of a mixture, as many layers'
        experts with the CPU as it takes; else whole layers."""
        spec, shape = self.spec, self.hparams
        count = len(shape.layers)
        every = count + 1 if spec.gpu_layers < 0 else min(spec.gpu_layers, count + 1)
        kinds = [spec.kv_type] if spec.kv_type else ["f16", "q8_0"]
        experts = max(0, spec.cpu_experts)
        wanted = self._pool()
        least = min(wanted, _padded(spec.context_length or _LEAST))
        ample, enough = (min(wanted, max(least, cells)) for cells in (_AMPLE, _ENOUGH))

        def fitting(floor: int, kv: str, layers: int, outside: int, slots: int = 0) -> MemoryPlan | None:
            return self._most(
                floor, wanted, lambda made: made.fits, kv=kv, gpu_layers=layers, cpu_experts=outside, slots=slots
            )

        for floor in (ample, least):
            for slots in self._slot_choices() if floor == least else (self.slots,):
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
            return self.on_cpu()
        return self.build(least, kv=kinds[-1], gpu_layers=every, cpu_experts=experts)

    def _pool(self) -> int:
        return _padded(min(self.slots * self.length, max(2 * self.length, 16384)))

    def _slot_choices(self) -> list[int]:
        """Fewer slots save memory only where each has some of its own."""
        if self.spec.slots or not (self.hparams.recurrent or self.hparams.n_swa):
            return [self.slots]
        return [self.slots, 4, 2, 1]

    def _most(self, floor: int, wanted: int, fits: Callable[[MemoryPlan], bool], **choices: Any) -> MemoryPlan | None:
        """With as many cells as fit, at least `floor`; None where not even these do."""

        def at(blocks: int) -> MemoryPlan:
            return self.build(blocks * _CELL_BLOCK, **choices)

        sizes = range(floor // _CELL_BLOCK, max(floor, wanted) // _CELL_BLOCK + 1)
        past = bisect.bisect_left(sizes, True, key=lambda blocks: not fits(at(blocks)))
        return at(sizes[past - 1]) if past else None


def _first(choices: Sequence[int], make: Callable[[int], MemoryPlan | None]) -> MemoryPlan | None:
    """The plan of the first choice that has one, where all after it have one too."""
    at = bisect.bisect_left(choices, True, key=lambda choice: make(choice) is not None)
    return make(choices[at]) if at < len(choices) else None


def _draft_shape(path: str) -> HParams:
    try:
        return HParams.of(gguf.read(path))
    except EngineError as error:
        raise EngineError(f"the draft model cannot be used: {error.reason}") from None


def _drafting(spec: EngineConfig) -> EngineConfig:
    """How the draft model is loaded beside its target."""
    return replace(spec, draft_model_path=None, mmproj_path=None, speculation=False, cpu_experts=0)


def _padded(cells: int) -> int:
    return -(-cells // _CELL_BLOCK) * _CELL_BLOCK


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
        if (lacking := each.used + _MARGIN - each.free) > 0:
            yield f"{each.name} lacks {lacking / 2**20:,.0f} MiB for what is configured; it is tried nevertheless"
    if made.host.used > machine.free:
        yield "this is more than the free RAM: weights will be read from the disk again and again"
