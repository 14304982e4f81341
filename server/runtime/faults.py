"""Faults of the program itself, told without a word of what callers sent or models said."""

from __future__ import annotations

import logging

from server.logs import fault


def log_fault(logger: logging.Logger, what: str, error: BaseException) -> None:
    """Logs where a fault happened, never its message: that may hold content."""
    logger.error("%s: %s", what, fault(error))
