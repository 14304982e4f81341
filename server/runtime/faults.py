"""Faults of the program itself, told without a word of what callers sent or models said."""

from __future__ import annotations

import logging
import traceback


def log_fault(logger: logging.Logger, what: str, error: BaseException) -> None:
    """Logs where a fault happened, never its message: that may hold content."""
    frames = traceback.extract_tb(error.__traceback__)
    places = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
    logger.error("%s: %s at %s", what, type(error).__name__, places)
