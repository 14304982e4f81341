"""What the machine offers: llama.cpp's backends, GPUs and memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from server.engine import llama


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
