"""What the machine offers: llama.cpp's backends, GPUs and memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from server.engine import llama
from server.engine.memory.plan import Device, Machine


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    memory: int
    """Bytes."""
    free: int


@dataclass(frozen=True, slots=True)
class DeviceReport:
    backends: tuple[str, ...]
    """Compute backends built into llama.cpp; always at least `CPU`."""
    gpus: tuple[Gpu, ...]
    """NVIDIA GPUs, through their driver; empty where there is no driver."""
    cores: int
    """Physical CPU cores this process may use."""
    memory: int
    """Bytes of RAM."""


def device_report() -> DeviceReport:
    """Look at the machine. Never fails for want of a GPU or a driver."""
    return DeviceReport(
        backends=llama.backends(),
        gpus=gpus(),
        cores=cores(),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def machine() -> Machine:
    """The memory that a model can be laid over now. GPUs are those that llama.cpp would use."""
    memory, free = _memory()
    devices = (
        tuple(Device(name, unused, whole) for name, whole, unused in llama.list_devices()) if llama.offloads() else ()
    )
    return Machine(devices, memory, free, _repacks(llama.features()))


def _memory() -> tuple[int, int]:
    """Bytes of RAM that this process may use, and of these free ones."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        free = 1024 * _figures("/proc/meminfo")["MemAvailable:"]
    except (OSError, KeyError):
        free = memory * 3 // 4  # macOS does not say; it makes room by compressing
    try:  # a container's limit (cgroup v2); what is only cached gives way
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        held = int((group / "memory.current").read_text()) - _figures(str(group / "memory.stat"))["inactive_file"]
        memory, free = min(memory, limit), min(free, limit - held)
    except (OSError, KeyError, ValueError):
        pass
    return memory, max(0, free)


def _figures(path: str) -> dict[str, int]:
    lines = (line.split() for line in Path(path).read_text().splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}


def _repacks(features: frozenset[str]) -> dict[int, float]:
    """The `ggml_type`s of matrices for which this CPU has another layout, and how much more room that takes (llama.cpp,
    `ggml-cpu/amx`, `ggml-cpu/repack.cpp`)."""
    if "AMX_INT8" in features:
        return {2: 1, 3: 1, 8: 38 / 34, 12: 148 / 144, 13: 180 / 176, 14: 1, 23: 138 / 136}
    if "REPACK" not in features:
        return {}
    if "AVX2" in features:
        return dict.fromkeys((2, 12, 20, *((10,) if "AVX512" in features else ())), 1.0)
    return dict.fromkeys((2, 12, 13, 14, 20), 1.0) if "NEON" in features else {}


def cores() -> int:
    """Physical CPU cores this process may use: two hyperthreads share the units that inference keeps busy."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cpus = os.sched_getaffinity(0)
    siblings = set()
    for cpu in cpus:
        try:
            text = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
        except OSError:
            return len(cpus)
        siblings.add(text.strip())
    return len(siblings)


def gpus() -> tuple[Gpu, ...]:
    """NVIDIA GPUs as their driver tells; empty where there is none."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = pynvml.nvmlDeviceGetName(handle)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            found.append(Gpu(name if isinstance(name, str) else name.decode(), int(memory.total), int(memory.free)))
        return tuple(found)
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()
