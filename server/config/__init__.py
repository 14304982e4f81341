"""Configuration: `models.toml` as typed, checked values, read once at start.

An unknown key, a wrong type or a value out of bounds is refused there, naming table and key, so that a spelling mistake
never becomes a silent default.
"""

from server.config.load import load_config
from server.config.schema import (
    LOOPBACK_HOSTS,
    CapabilityLimits,
    Config,
    HuggingFaceFile,
    Limits,
    ModelConfig,
    ModelLimitsConfig,
    ModelSource,
    Route,
    ServerConfig,
    WheelFile,
)
from server.config.table import ConfigError

__all__ = [
    "LOOPBACK_HOSTS",
    "CapabilityLimits",
    "Config",
    "ConfigError",
    "HuggingFaceFile",
    "Limits",
    "ModelConfig",
    "ModelLimitsConfig",
    "ModelSource",
    "Route",
    "ServerConfig",
    "WheelFile",
    "load_config",
]
