"""Memory layout: the bytes that a choice of layers, KV cache and slots takes, on each device and in RAM.

Nothing is loaded for it: the sizes of weights stand in the file's header, those of the KV cache follow from the model's
hyperparameters, and those of the compute buffers from the peak of llama.cpp's graph.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypedDict

from server.engine.memory import gguf
from server.engine.memory.hparams import HParams, element_bytes, projector_bytes
from server.engine.types import ENCODER_CACHE_BYTES, MAX_DRAFT_TOKENS, PREFIX_CACHE_BYTES, EngineConfig, EngineError

CHUNK_CPU, CHUNK_GPU = 64, 512
"""Prompt tokens a step. On a CPU 64 take about a third of a second, and larger steps are no quicker per token."""

SLOTS = 8

CELL_BLOCK = 256
"""llama.cpp gives a sequence cells by this many."""

MARGIN = 512 * 2**20
"""Bytes of a GPU left alone: its driver's context, the libraries' workspaces, what other programs may yet take."""

LEAST_CELLS = 4096
"""Cells of the KV cache with fewer than which nothing is done."""


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
        return all(each.used + MARGIN <= each.free for each in self.devices)


@dataclass(frozen=True, slots=True)
class _Choice:
    """The arguments of `Layout.build`, and the sizes that follow from them alone."""

    cells: int
    split: bool
    kv: str
    gpu_layers: int
    cpu_experts: int
    slots: int
    snapshots: int
    batch: int
    window: int
    """Cells of the layers with a sliding window."""

    @property
    def flash(self) -> bool:
        return self.gpu_layers > 0 or self.kv != "f16"


class Layout:
    """The memory that a model takes on a machine, as a function of what is chosen.

    `slots` and `length` (tokens of one sequence) are wishes; `draft_model` counts the draft tokens of a step.
    """

    def __init__(self, shape: HParams, machine: Machine, spec: EngineConfig) -> None:
        self.hparams, self.machine, self.spec = shape, machine, spec
        self.length = spec.context_length or shape.n_ctx_train or LEAST_CELLS
        self.slots = spec.slots or SLOTS
        self.projector = projector_bytes(spec.mmproj_path) if spec.mmproj_path else 0
        drafts = spec.speculation and shape.supports_rollback
        self.mtp = drafts and shape.has_mtp and not spec.draft_model_path
        if shape.recurrent:  # what an answer copies is not worth the snapshots
            drafts = drafts and (self.mtp or spec.draft_model_path is not None)
        self.draft_model = MAX_DRAFT_TOKENS if drafts else 0
        self.prefix_cache = PREFIX_CACHE_BYTES if not (shape.recurrent or shape.n_swa) else 0
        self.draft = (
            Layout(_draft_shape(spec.draft_model_path), machine, _drafting(spec))
            if spec.draft_model_path and self.draft_model
            else None
        )

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
        window = self._window_cells(cells, slots, batch, split)
        made = _Choice(cells, split, kv, gpu_layers, cpu_experts, slots, snapshots, batch, window)
        weights, caches = self._weights_and_kv(made)
        compute = self._compute(cells // slots if split else cells, window, batch, slots, made.flash)
        if kv != "f16":
            compute += 8 * (shape.n_embd_q // max(1, shape.n_head)) ** 2  # keys and values are rotated, then stored
        devices = tuple(
            DeviceMemory(device.name, device.free, held, kv_bytes, compute if held else 0)
            for device, held, kv_bytes in zip(self.machine.devices, weights, caches, strict=False)
            if on_gpu
        )
        host = self._host(made, weights[-1], caches[-1], compute)
        host, devices = self._draft_memory(made, compute, host, devices)
        if on_gpu and gpu_layers > len(shape.layers) and not cpu_experts:
            # The CPU's part is what goes in: embeddings and masks.
            entering = 4 * batch * shape.n_embd + 2 * batch * (cells + window)
            host = replace(host, compute=entering + self._outputs(slots))
        length = min(self.length, cells)
        return MemoryPlan(
            length, slots, cells, split, kv, gpu_layers, cpu_experts, batch, host, devices, snapshots, self.mtp
        )

    def _weights_and_kv(self, made: _Choice) -> tuple[list[int], list[int]]:
        """Bytes of weights and of the KV cache on each device, those in RAM last."""
        shape, count = self.hparams, len(self.hparams.layers)
        weights, caches = [0] * (len(self.machine.devices) + 1), [0] * (len(self.machine.devices) + 1)
        values = max(layer.values for layer in shape.layers)
        for at, layer in enumerate(shape.layers):
            if at >= count - shape.nextn_layers and not self.mtp:
                continue
            where = self._device(at, made.gpu_layers, count)
            outside = layer.experts if at < made.cpu_experts else 0
            weights[where] += layer.weights - outside
            weights[-1] += outside
            width = layer.keys + (values if layer.values and not made.flash else layer.values)
            windowed = layer.windowed and shape.n_swa
            kept = made.window * (made.slots if made.split else 1) if windowed else made.cells
            caches[where] += int(kept * width * element_bytes(made.kv))
            caches[where] += made.slots * layer.state_bytes * (1 + made.snapshots)
        weights[self._device(count, made.gpu_layers, count)] += shape.output
        weights[-1] += shape.embedding
        if not made.gpu_layers:
            weights[-1] = shape.size
        weights[0] += self.projector  # on the first GPU, or in RAM where there is none
        return weights, caches

    def _host(self, made: _Choice, weights: int, kv: int, compute: int) -> DeviceMemory:
        """RAM, without what drafting takes."""
        repacks = self.machine.repacks if not made.gpu_layers else {}
        return DeviceMemory(
            "RAM",
            self.machine.free,
            weights,
            kv,
            compute + self._outputs(made.slots),
            int(sum(size * repacks.get(kind, 0) for kind, size in self.hparams.repackable)),
            self.prefix_cache if made.split and made.slots > 1 else 0,
            ENCODER_CACHE_BYTES if self.projector else 0,
        )

    def _draft_memory(
        self, made: _Choice, compute: int, host: DeviceMemory, devices: tuple[DeviceMemory, ...]
    ) -> tuple[DeviceMemory, tuple[DeviceMemory, ...]]:
        """RAM and devices with what the draft model, or the model's own layer that drafts, takes."""
        if self.draft is not None:
            layers = len(self.draft.hparams.layers) + 1 if made.gpu_layers else 0
            beside = self.draft.build(made.cells, split=made.split, kv=made.kv, gpu_layers=layers, slots=made.slots)
            host = replace(host, draft_model=replace(beside.host, prefix_cache=0).used)
            return host, tuple(
                replace(each, draft_model=its.used) for each, its in zip(devices, beside.devices, strict=True)
            )
        if not self.mtp:
            return host, devices
        # A context more, of one layer; and hidden states, as they come out, go in, and wait.
        count = len(self.hparams.layers)
        where = self._device(count - 1, made.gpu_layers, count)
        states = 4 * (made.slots * self.hparams.vocabulary + 3 * made.batch * self.hparams.n_embd)
        if where < 0:
            return replace(host, draft_model=states + compute), devices
        return replace(host, draft_model=states), tuple(
            replace(each, draft_model=compute if at == where else 0) for at, each in enumerate(devices)
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
        return padded(min(cells // slots if split else cells, self.hparams.n_swa * (1 if split else slots) + batch))

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


def _draft_shape(path: str) -> HParams:
    try:
        return HParams.of(gguf.read(path))
    except EngineError as error:
        raise EngineError(f"the draft model cannot be used: {error.reason}") from None


def _drafting(spec: EngineConfig) -> EngineConfig:
    """How the draft model is loaded beside its target."""
    return replace(spec, draft_model_path=None, mmproj_path=None, speculation=False, cpu_experts=0)


def padded(cells: int) -> int:
    return -(-cells // CELL_BLOCK) * CELL_BLOCK
