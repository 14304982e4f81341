"""llama.cpp for the rest of the server: a worker process for each model, and vocabularies anywhere."""

from server.engine.client import Engine, Generation
from server.engine.device import DeviceReport, Gpu, device_report
from server.engine.messages import (
    Constraint,
    Done,
    EngineError,
    EngineStats,
    Event,
    Failed,
    Job,
    ModelInfo,
    ModelSpec,
    Sampling,
    Segment,
    Text,
)
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
    "ModelInfo",
    "ModelSpec",
    "Sampling",
    "Segment",
    "Text",
    "Vocab",
    "device_report",
]
