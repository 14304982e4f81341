"""llama.cpp for the rest of the server: a worker process for each model, and vocabularies anywhere."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from server.engine.messages import (
    Constraint,
    Done,
    EngineError,
    EngineStats,
    Event,
    Failed,
    Job,
    Logprob,
    ModelInfo,
    ModelSpec,
    Picture,
    Segment,
    Stop,
    Text,
)
from server.engine.params import Sampling

if TYPE_CHECKING:
    from server.engine.client import Engine, Generation
    from server.engine.device import DeviceReport, Gpu, device_report
    from server.engine.vocab import Vocab

__all__ = [
    "Constraint",
    "DeviceReport",
    "Done",
    "Engine",
    "EngineError",
    "EngineStats",
    "Event",
    "Failed",
    "Generation",
    "Gpu",
    "Job",
    "Logprob",
    "ModelInfo",
    "ModelSpec",
    "Picture",
    "Sampling",
    "Segment",
    "Stop",
    "Text",
    "Vocab",
    "device_report",
]

_ROOMS = {
    "Engine": "client",
    "Generation": "client",
    "Vocab": "vocab",
    "device_report": "device",
    "DeviceReport": "device",
    "Gpu": "device",
}


def __getattr__(name: str) -> Any:
    """Import on first use: who only reads a configuration or passes messages on loads neither asyncio nor llama.cpp."""
    if name in _ROOMS:
        return getattr(import_module(f"server.engine.{_ROOMS[name]}"), name)
    raise AttributeError(name)
