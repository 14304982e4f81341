"""llama.cpp for the rest of the server: a worker process for each model, and vocabularies anywhere."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from server.engine.sampling.params import Sampling
from server.engine.types import (
    Constraint,
    EngineConfig,
    EngineError,
    EngineRequest,
    EngineStats,
    Event,
    Failed,
    Finished,
    Logprob,
    ModelInfo,
    RgbImage,
    Segment,
    StopCriteria,
    TextChunk,
)

if TYPE_CHECKING:
    from server.engine.engine import Engine, TokenStream
    from server.engine.memory.device import DeviceReport, Gpu, device_report
    from server.engine.vocab import Vocab

__all__ = [
    "Constraint",
    "DeviceReport",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineRequest",
    "EngineStats",
    "Event",
    "Failed",
    "Finished",
    "Gpu",
    "Logprob",
    "ModelInfo",
    "RgbImage",
    "Sampling",
    "Segment",
    "StopCriteria",
    "TextChunk",
    "TokenStream",
    "Vocab",
    "device_report",
]

_ROOMS = {
    "Engine": "engine",
    "TokenStream": "engine",
    "Vocab": "vocab",
    "device_report": "memory.device",
    "DeviceReport": "memory.device",
    "Gpu": "memory.device",
}


def __getattr__(name: str) -> Any:
    """Import on first use: who only reads a configuration or passes messages on loads neither asyncio nor llama.cpp."""
    if name in _ROOMS:
        return getattr(import_module(f"server.engine.{_ROOMS[name]}"), name)
    raise AttributeError(name)
