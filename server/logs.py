"""How the server's log is written: lines to read, or JSON; each with the id of the request it belongs to.

Whatever is logged goes through here, uvicorn's and asyncio's own words included. No message of an exception does: it
may quote what a caller sent or a model said. Its type and the places it passed are told instead.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, cast

LogFormat = Literal["console", "json"]

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The request that is being served; empty for what the server does of its own accord."""

FIELDS = "fields"
"""Attribute of a record that holds a mapping of further members for JSON: `log.info(…, extra={FIELDS: {…}})`."""


def start_logging(format: LogFormat) -> None:
    """Sends the log of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else ConsoleFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.captureWarnings(True)
    for chatty in ("uvicorn", "httpx"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def fault(error: BaseException) -> str:
    """What an exception is and where it passed, the innermost place first, without its message."""
    frames = traceback.extract_tb(error.__traceback__)
    places = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__} at {places}" if places else type(error).__name__


class ConsoleFormatter(logging.Formatter):
    """Lines to read: time, level, logger, request, message, and the fault where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        id = request_id.get()
        request = f" [{id}]" if id else ""
        line = f"{self.formatTime(record)} {record.levelname} {record.name}{request}: {_message(record)}"
        error = _error(record)
        return line if error is None else f"{line}: {fault(error)}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line. `time` is UTC (RFC 3339); `request_id`, `fault` and further members where there are."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        value: dict[str, Any] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        if id := request_id.get():
            value["request_id"] = id
        if (error := _error(record)) is not None:
            value["fault"] = fault(error)
        value |= cast(Mapping[str, Any], getattr(record, FIELDS, {}))
        return json.dumps(value, ensure_ascii=False)


def _error(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


def _message(record: logging.LogRecord) -> str:
    message = record.getMessage()
    if record.name == "asyncio":
        # What follows shows arguments and exceptions as they are.
        message = message.partition("\n")[0].partition("(")[0]
    return message
