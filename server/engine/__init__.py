"""llama.cpp for the rest of the server: a worker process for each model, and vocabularies anywhere."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from server.engine.messages import (
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
from server.engine.params import Sampling

if TYPE_CHECKING:
    from server.engine.client import Engine, TokenStream
    from server.engine.device import DeviceReport, Gpu, device_report
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
    "Engine": "client",
    "TokenStream": "client",
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
