"""Cache directory of fetched files, and the error of everything about them.

A file appears under its final name only whole and with the right digest (written beside it, then renamed), so a run
that was interrupted is put right by running again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

Progress = Callable[[int, int], None]
"""Called with bytes so far and bytes in all; the latter is 0 while nobody knows."""

CHUNK = 2**20
"""Bytes read at a time."""


class WeightsError(Exception):
    """A model file cannot be had: which, why, and how to go on."""


def cache_directory() -> Path:
    """Directory of fetched files (XDG Base Directory Specification; `~/Library/Caches` on macOS)."""
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "nap-llm"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "nap-llm"
    return Path.home() / ".cache" / "nap-llm"


@contextlib.contextmanager
def locked_directory(target: Path) -> Iterator[Path]:
    """An empty working directory inside `target`, which one process at a time has for itself.

    It goes away afterwards, as do those of processes that were killed: no one else can be at work in them.
    """
    target.mkdir(parents=True, exist_ok=True)
    with (target / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in target.glob(".fetch-*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target) as directory:
            yield Path(directory)


def disk_complaint(error: OSError) -> str:
    """The reason for which a file cannot be written, as a person reads it."""
    return "no space left on the disk" if error.errno == errno.ENOSPC else str(error.strerror or error)
