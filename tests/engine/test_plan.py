"""Plans: estimates held against what llama.cpp reports, and choices for machines that do not exist."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.engine import Engine, EngineConfig, EngineError, Vocab, llama, process
from server.engine.llama import KV_TYPES, C
from server.engine.memory import gguf
from server.engine.memory.device import machine
from server.engine.memory.hparams import HParams
from server.engine.memory.plan import SNAPSHOTS, Device, DeviceMemory, Machine, MemoryPlan, gpu_contended, plan, plans
from server.engine.process import WorkerProcess
from server.engine.types import ENCODER_CACHE_BYTES, PREFIX_CACHE_BYTES
from server.engine.worker.loader import LoadedModel
from server.engine.worker.slot_memory import SlotMemory
from tests.chat.standin import write_model
from tests.engine import mtp, sparse
from tests.engine.conftest import Model

GIB = 2**30
MIB = 2**20
RAM = Machine((), 64 * GIB, 48 * GIB)


def shape_of(path: Path) -> HParams:
    return HParams.of(gguf.read(path))


def reported(path: Path, made: MemoryPlan, *, allocate: bool = True) -> dict[str, float]:
    """Bytes that llama.cpp says it takes for this plan on the CPU, by what for."""
    lines: list[str] = []
    llama.log_to(lambda _, text: lines.append(text))
    try:
        llama.initialise()
        model = C.llama_model_default_params()
        model.no_alloc = not allocate
        model.n_gpu_layers = 0
        model.load_mtp = made.mtp
        if not allocate:
            model.load_mode = 0
        loaded = C.llama_model_load_from_file(str(path).encode(), model)
        assert loaded
        context = C.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = made.kv_cells, made.batch, made.batch
        context.n_seq_max = context.n_outputs_max = made.slots
        context.flash_attn_type = -1 if made.flash_attn else 0
        context.kv_unified, context.swa_full = not made.kv_per_slot, False
        context.type_k = context.type_v = KV_TYPES[made.kv_type]
        context.offload_kqv = context.op_offload = False
        context.n_rs_seq = made.rollback_tokens
        for kind in range(1 + made.mtp):
            context.ctx_type = kind
            running = C.llama_init_from_model(loaded, context)
            assert running
            C.llama_free(running)
        C.llama_model_free(loaded)
    finally:
        llama.log_to(None)
    said = "".join(lines)
    found: dict[str, float] = {"weights": 0, "repacked": 0, "kv": 0, "compute": 0}
    for name, size in re.findall(r"(\S+ +(?:model|compute|output|RS) buffer size) = +([\d.]+) MiB", said):
        kind = "compute" if "compute" in name or "output" in name else "kv" if "RS" in name else "weights"
        if "AMX" in name or "REPACK" in name:
            kind = "repacked"
        found[kind] += float(size) * MIB
    for size in re.findall(r"llama_kv_cache: size = +([\d.]+) MiB", said):
        found["kv"] += float(size) * MIB
    return found


def near(share: DeviceMemory, found: dict[str, float], *names: str) -> None:
    for name in names:
        assert getattr(share, name) == pytest.approx(found[name], rel=0.1, abs=0.2 * MIB), name


REAL = [
    {"context_length": 2048, "slots": 1},
    {"context_length": 1024, "slots": 8},
    {"context_length": 4096, "slots": 4},
    {"context_length": 8192, "slots": 2, "kv_type": "q8_0"},
]


@pytest.mark.slow
@pytest.mark.parametrize("memory", [64, 1], ids=["split", "pool"])
@pytest.mark.parametrize("wishes", REAL, ids=lambda wishes: "-".join(map(str, wishes.values())))
@pytest.mark.parametrize("name", ["smollm2", "gemma"])
def test_the_estimate_is_what_llama_cpp_takes(
    request: pytest.FixtureRequest, name: str, wishes: dict[str, Any], memory: int
) -> None:
    path: Path = request.getfixturevalue(name)
    here = replace(machine(), devices=(), memory=memory * GIB // 8 if memory == 1 else memory * GIB)
    made = plan(shape_of(path), here, EngineConfig(str(path), speculation=False, **wishes))
    assert made.kv_per_slot == (memory == 64) or made.host.kv < here.memory // 4
    near(made.host, reported(path, made), "weights", "repacked", "kv", "compute")


@pytest.mark.parametrize(
    "wishes",
    [
        {"context_length": 2048, "slots": 1},
        {"context_length": 65_536, "slots": 8, "prefill_chunk": 512},
        {"context_length": 16_384, "slots": 8, "prefill_chunk": 512, "kv_type": "q8_0"},
    ],
    ids=["short", "long", "quantized"],
)
@pytest.mark.parametrize("make", [sparse.llama, sparse.qwen3moe], ids=["dense", "mixture"])
def test_the_estimate_holds_for_models_of_other_sizes(
    tmp_path: Path, make: Callable[[Path], Path], wishes: dict[str, Any]
) -> None:
    path = make(tmp_path / "model.gguf")
    made = plan(shape_of(path), RAM, EngineConfig(str(path), speculation=False, **wishes))
    near(made.host, reported(path, made, allocate=False), "kv", "compute")
    assert made.host.weights == pytest.approx(path.stat().st_size, rel=0.01)


@pytest.mark.parametrize("slots", [1, 8])
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "mamba"])
def test_the_estimate_holds_for_windows_and_running_states(
    tmp_path: Path, sdist: Path, architecture: str, slots: int
) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf", [], size=600, architecture=architecture)
    shape = shape_of(path)
    assert shape.recurrent == (architecture == "mamba") and bool(shape.n_swa) == (architecture == "gemma3")
    made = plan(shape, RAM, EngineConfig(str(path), context_length=2048, slots=slots, speculation=False))
    near(made.host, reported(path, made), "weights", "kv")


@pytest.mark.parametrize("memory", [64, 1], ids=["split", "pool"])
@pytest.mark.parametrize("architecture", ["glm4moe", "qwen35"])
def test_a_layer_that_guesses_counts(tmp_path: Path, sdist: Path, architecture: str, memory: int) -> None:
    base = sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf"
    path = mtp.write_model(tmp_path / "model.gguf", base, architecture=architecture)
    shape, here = shape_of(path), RAM if memory == 64 else Machine((), GIB // 32, GIB // 32)
    made = plan(shape, here, EngineConfig(str(path), context_length=4096, slots=2))
    assert made.mtp and made.kv_per_slot == (memory == 64)
    assert made.rollback_tokens == (SNAPSHOTS[0] if architecture == "qwen35" else 0)
    found = reported(path, made)
    near(made.host, found, "weights", "kv")
    assert found["compute"] < made.host.compute + made.host.draft_model < 2 * found["compute"]
    without = plan(shape, here, EngineConfig(str(path), context_length=4096, slots=2, speculation=False))
    assert not without.mtp and without.rollback_tokens == without.host.draft_model == 0
    near(without.host, reported(path, without), "weights", "kv")


def test_snapshots_take_what_nothing_else_needs(tmp_path: Path, sdist: Path) -> None:
    base = sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf"
    shape = shape_of(mtp.write_model(tmp_path / "model.gguf", base, architecture="qwen35"))
    ample = plan(shape, RAM, EngineConfig("", context_length=4096, slots=2))
    state = 2 * sum(layer.state_bytes for layer in shape.layers)
    most, fewer = SNAPSHOTS
    least = ample.host.kv + ample.host.draft_model - most * state
    for free, count in ((most * state, most), (most * state - 1, fewer), (fewer * state, fewer), (state, 0)):
        here = Machine((), 4 * (least + free), RAM.free)
        made = plan(shape, here, EngineConfig("", context_length=4096, slots=2))
        assert (made.kv_per_slot, made.rollback_tokens) == (True, count)
    made = plan(shape, gpus(8), EngineConfig("", context_length=4096, slots=2))
    assert made.rollback_tokens == most and made.fits and made.devices[0].draft_model > 0
    without = mtp.write_model(tmp_path / "plain.gguf", base, architecture="qwen35", heads=0)
    assert plan(shape_of(without), RAM, EngineConfig("", context_length=4096, slots=2)).rollback_tokens == 0
    drafting = EngineConfig("", context_length=4096, slots=2, draft_model_path=str(without))
    assert plan(shape_of(without), RAM, drafting).rollback_tokens == most


def test_a_projector_counts(tmp_path: Path, dense: HParams) -> None:
    projector = sparse.projector(tmp_path / "projector.gguf")
    for where in (gpus(8), RAM):
        plain, seeing = (choose(dense, where, context_length=4096, mmproj_path=each) for each in (None, str(projector)))
        first, second = (each.devices[0] if each.devices else each.host for each in (plain, seeing))
        assert GIB < second.weights - first.weights < 1.1 * GIB
        assert (plain.host.encoder_cache, seeing.host.encoder_cache) == (0, ENCODER_CACHE_BYTES)
        assert seeing.host.used >= ENCODER_CACHE_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("memory", [64, 1], ids=["split", "pool"])
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_a_draft_model_counts(smollm2: Path, dense: HParams, memory: int, kv_type: str) -> None:
    here = replace(RAM, memory=memory * GIB, repacks=machine().repacks)
    made = plan(
        dense,
        here,
        EngineConfig(
            "", context_length=2048, slots=2, kv_type=kv_type, prefill_chunk=64, draft_model_path=str(smollm2)
        ),
    )
    assert made.kv_per_slot == (memory == 64)
    taken = reported(smollm2, made)
    taken["weights"] = max(taken["weights"], taken.pop("repacked"))
    assert made.host.draft_model == pytest.approx(sum(taken.values()), rel=0.1)
    assert made.host.used - made.host.draft_model == replace(made.host, draft_model=0).used


def test_a_draft_model_has_its_place_on_the_gpus(smollm2: Path, dense: HParams) -> None:
    for where in (gpus(80), gpus(16), gpus(12, 12), gpus(4)):
        plain, drafting = (choose(dense, where, draft_model_path=each) for each in (None, str(smollm2)))
        assert drafting.fits and sum(each.draft_model for each in drafting.devices) > 0.1 * GIB
        assert (drafting.gpu_layers, drafting.kv_cells) <= (plain.gpu_layers, plain.kv_cells)
    assert drafting.gpu_layers < plain.gpu_layers


def test_a_draft_model_that_cannot_be_read_is_named(tmp_path: Path, dense: HParams) -> None:
    path = tmp_path / "draft.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(EngineError, match="the draft model cannot be used"):
        choose(dense, RAM, draft_model_path=str(path))
    assert choose(dense, RAM, draft_model_path=str(path), speculation=False).host.draft_model == 0


@pytest.mark.parametrize("memory", [64, 1], ids=["split", "pool"])
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "mamba"])
def test_beginnings_of_prompts_count_where_they_are_kept(
    tmp_path: Path, sdist: Path, architecture: str, slots: int, memory: int
) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf", [], size=600, architecture=architecture)
    spec = EngineConfig(str(path), context_length=512, slots=slots, threads=1)
    made = plan(shape_of(path), Machine((), memory * GIB, GIB), spec)
    loaded = LoadedModel.load(spec, made, repack=False)
    cache = SlotMemory(loaded).prefix_cache
    loaded.close()
    assert made.host.prefix_cache == (PREFIX_CACHE_BYTES if cache is not None else 0)
    assert made.host.used == replace(made.host, prefix_cache=0).used + made.host.prefix_cache
    assert bool(made.host.prefix_cache) == (architecture == "llama" and slots == 2 and memory == 64)


# --- machines that do not exist


def gpus(*free: float, ram: int = 64) -> Machine:
    devices = tuple(Device(f"GPU {at}", int(size * GIB)) for at, size in enumerate(free))
    return Machine(devices, ram * GIB, ram * GIB * 3 // 4)


@pytest.fixture
def dense(tmp_path: Path) -> HParams:
    """8 billion parameters: 4.2 GiB of weights, 128 KiB of KV cache a token, trained for 131,072 tokens."""
    return shape_of(sparse.llama(tmp_path / "dense.gguf"))


@pytest.fixture
def mixture(tmp_path: Path) -> HParams:
    """30 billion parameters, 16 GiB, of which nearly all are experts'."""
    return shape_of(sparse.qwen3moe(tmp_path / "mixture.gguf"))


def choose(shape: HParams, where: Machine, **wishes: Any) -> MemoryPlan:
    return plan(shape, where, EngineConfig("", **{"slots": 0, **wishes}))


def test_a_gpu_with_room_takes_all(dense: HParams) -> None:
    made = choose(dense, gpus(80))
    assert (made.gpu_layers, made.cpu_experts, made.kv_type, made.slots) == (33, 0, "f16", 8)
    assert made.context_length == 131_072 and made.kv_cells >= 2 * 131_072
    assert made.fits and made.notes == ()
    (gpu,) = made.devices
    assert gpu.weights == dense.size - dense.embedding
    assert made.host.weights == dense.embedding and made.host.kv == 0


def test_less_room_costs_context_first(dense: HParams) -> None:
    made = choose(dense, gpus(16))
    assert (made.gpu_layers, made.kv_type) == (33, "f16")
    assert 32_768 < made.context_length < 131_072 and made.fits
    assert any("context of" in note for note in made.notes)


def test_then_the_precision_of_the_cache(dense: HParams) -> None:
    made = choose(dense, gpus(6.4))
    assert (made.gpu_layers, made.kv_type) == (33, "q8_0")
    assert made.context_length >= 4096 and made.fits
    assert any("q8_0" in note for note in made.notes)


def test_then_whole_layers_go_to_the_cpu(dense: HParams) -> None:
    made = choose(dense, gpus(4))
    assert 10 < made.gpu_layers < 33 and made.context_length >= 4096 and made.fits
    (gpu,) = made.devices
    assert gpu.weights + made.host.weights == dense.size
    assert made.host.kv and any("layers stay with the CPU" in note for note in made.notes)
    assert choose(dense, gpus(3)).gpu_layers < made.gpu_layers


def test_a_gpu_without_room_is_left_alone(dense: HParams) -> None:
    made = choose(dense, gpus(0.6))
    assert (made.gpu_layers, made.devices) == (0, ())
    assert any("33 of 33 layers stay with the CPU" in note for note in made.notes)


def test_a_mixture_keeps_experts_with_the_cpu_and_everything_else_on_the_gpu(mixture: HParams) -> None:
    whole = choose(mixture, gpus(40))
    assert (whole.gpu_layers, whole.cpu_experts) == (49, 0)
    made = choose(mixture, gpus(12))
    assert made.gpu_layers == 49 and 0 < made.cpu_experts < 48 and made.fits
    fewer = choose(mixture, gpus(6))
    assert fewer.gpu_layers == 49 and made.cpu_experts < fewer.cpu_experts and fewer.fits
    experts = sum(layer.experts for layer in mixture.layers[: made.cpu_experts])
    assert made.host.weights == mixture.embedding + experts
    assert any("experts" in note for note in made.notes)
    least = choose(mixture, gpus(2))
    assert least.cpu_experts == 48 and least.gpu_layers < 49


def test_two_gpus_share_layers_by_their_room(dense: HParams) -> None:
    made = choose(dense, gpus(6, 3))
    first, second = made.devices
    assert made.gpu_layers == 33 and made.fits
    assert first.weights > second.weights > 0 and first.kv > second.kv > 0
    assert first.weights + second.weights == dense.size - dense.embedding


def test_what_is_configured_wins(dense: HParams, mixture: HParams) -> None:
    assert choose(dense, gpus(80), gpu_layers=10).gpu_layers == 10
    assert choose(dense, gpus(80), gpu_layers=0).devices == ()
    assert choose(dense, gpus(80), kv_type="q4_0").kv_type == "q4_0"
    assert choose(dense, gpus(80), slots=3).slots == 3
    assert choose(mixture, gpus(80), cpu_experts=7).cpu_experts == 7
    short = choose(dense, gpus(80), context_length=3000)
    assert short.context_length == 3000 and short.kv_cells >= 6000
    # Even where it does not fit: then it is said.
    made = choose(dense, gpus(3), gpu_layers=33, context_length=32_768, kv_type="f16")
    assert (made.gpu_layers, made.context_length, made.kv_type, made.fits) == (33, 32_768, "f16", False)
    assert any("lacks" in note for note in made.notes)


def test_a_cpu_gives_each_slot_its_own_cells_where_there_is_memory(dense: HParams) -> None:
    made = choose(dense, RAM, context_length=4096, slots=4)
    assert made.kv_per_slot and made.kv_cells == 4 * 4096 and made.notes == ()
    made = choose(dense, RAM)
    assert not made.kv_per_slot and made.context_length == made.kv_cells == 131_072
    assert made.host.kv <= RAM.memory // 4
    small = choose(dense, Machine((), 8 * GIB, 7 * GIB))
    assert small.host.kv <= 2 * GIB and small.context_length < made.context_length
    tight = choose(dense, Machine((), 4 * GIB, 3 * GIB))
    assert any("free RAM" in note for note in tight.notes)


def test_a_step_is_no_larger_than_the_cache(dense: HParams) -> None:
    made = choose(dense, gpus(80), context_length=200, slots=1)
    assert made.kv_cells == made.batch == 256 and made.chunk == 255


def test_each_plan_is_smaller_than_the_one_before(dense: HParams, mixture: HParams) -> None:
    for shape, where in ((dense, gpus(16)), (mixture, gpus(12)), (dense, RAM)):
        made = [*plans(shape, where, EngineConfig("", slots=0))]
        assert len(made) > 3
        assert made[0] == choose(shape, where)
        used = [sum(each.used for each in step.devices) or step.host.used for step in made]
        assert used == sorted(used, reverse=True)
    asked = EngineConfig("", slots=2, gpu_layers=33, context_length=4096, kv_type="f16")
    for step in plans(dense, gpus(5), asked):
        assert (step.gpu_layers, step.context_length, step.kv_type, step.slots) == (33, 4096, "f16", 2)


def test_a_gpu_that_others_hold_is_crowded(dense: HParams) -> None:
    def here(free: float) -> Machine:
        return Machine((Device("GPU", int(free * GIB), 24 * GIB),), 64 * GIB, 48 * GIB)

    asked = EngineConfig("", slots=0)
    assert gpu_contended(dense, here(4), asked)
    assert not gpu_contended(dense, here(23), asked)
    assert not gpu_contended(dense, here(4), replace(asked, gpu_layers=5, context_length=4096, kv_type="f16"))
    assert not gpu_contended(dense, RAM, asked)


# --- loading by plan


def test_this_machine_is_looked_at() -> None:
    here = machine()
    assert 0 < here.free <= here.memory
    assert bool(here.devices) == (llama.offloads() and bool(llama.list_devices()))
    assert all(0 < device.free <= device.memory and device.name for device in here.devices)
    if not llama.offloads():
        assert llama.list_devices() == []


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(resource, "prlimit") or llama.offloads(),
    reason="bounds address space, of which a GPU's driver wants much",
)
async def test_a_model_is_loaded_with_less_where_memory_runs_out(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its address space bounded, the worker cannot have the 1.4 GiB that eight slots of 8,192 tokens take."""
    start = process._popen

    def bounded(fd: int, worker: Sequence[str]) -> subprocess.Popen[bytes]:
        started = start(fd, worker)
        resource.prlimit(started.pid, resource.RLIMIT_AS, (GIB, GIB))
        return started

    monkeypatch.setattr(process, "_popen", bounded)
    engine = await Engine.start(EngineConfig(str(smollm2), slots=8))
    await engine.close()
    assert "loading it with more ran out of memory" in engine.info.notes
    assert "loading it with more ran out of memory" in caplog.text


SHORT = """
import os, socket
from server.engine.protocol import OutOfMemory, encode
socket.socket(fileno=FD).sendall(encode(OutOfMemory(0)))
os.abort()
"""


@pytest.mark.slow
@pytest.mark.parametrize("death", ["import os; os.kill(os.getpid(), 9)", SHORT], ids=["killed", "aborted"])
async def test_a_worker_that_dies_for_want_of_memory_is_tried_again_with_less(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch, death: str
) -> None:
    start, killed = process._popen, []

    def dying(fd: int, worker: Sequence[str]) -> subprocess.Popen[bytes]:
        if not killed:
            killed.append(fd)
            return subprocess.Popen([sys.executable, "-c", death.replace("FD", str(fd))], pass_fds=[fd])
        return start(fd, worker)

    monkeypatch.setattr(process, "_popen", dying)
    repack = WorkerProcess.repack
    engine = await Engine.start(EngineConfig(str(smollm2), slots=8))
    await engine.close()
    assert killed and WorkerProcess.repack == repack
    assert "loading it with more ran out of memory" in engine.info.notes


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
async def test_a_cache_in_fewer_bits_answers_and_is_shared(smollm2: Path, vocab: Vocab, kind: str) -> None:
    engine = await Engine.start(EngineConfig(str(smollm2), context_length=512, slots=2, kv_type=kind))
    try:
        model = Model(engine, vocab)
        prompt = "The capital of France is Paris. The capital of Italy is Rome. The capital of Germany is"
        first = await model.run(model.job(prompt, max_tokens=2, scope="s"))
        again = await model.run(model.job(prompt, max_tokens=2, scope="s"))
        assert first.text.strip().startswith("Berlin") and again.text.strip().startswith("Berlin")
        assert again.done.cache_read_tokens > 10
    finally:
        await engine.close()


async def test_what_is_configured_is_not_given_up_for_want_of_memory(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(fd: int, worker: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", SHORT.replace("FD", str(fd))], pass_fds=[fd])

    start = process._popen
    starts = iter([dying, start])
    monkeypatch.setattr(process, "_popen", lambda *given: next(starts)(*given))
    configured = EngineConfig(str(smollm2), slots=2, context_length=2048, gpu_layers=0, kv_type="f16")
    with pytest.raises(EngineError, match="not enough memory for the model as it is configured"):
        await Engine.start(configured)


def test_experts_that_stay_with_the_cpu_are_left_as_they_are(tmp_path: Path) -> None:
    """Seen on a machine without a GPU by what the CPU does not lay out anew."""
    path = sparse.qwen3moe(tmp_path / "m.gguf", layers=4, width=256, experts=8, met=2, inner=256, vocabulary=512)
    lines: list[str] = []
    llama.log_to(lambda _, text: lines.append(text))
    try:
        for count in (0, 3):
            llama.LlamaModel(str(path), cpu_experts=count).close()
    finally:
        llama.log_to(None)
    overridden = re.findall(r"tensor blk\.(\d+)\.ffn_\w+_exps\.weight .*buffer type overridden", "".join(lines))
    assert sorted(set(overridden)) == ["0", "1", "2"]
