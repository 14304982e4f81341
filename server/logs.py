"""Log formats: lines to read, or JSON; each record with the id of its request.

Records of uvicorn and asyncio are formatted here too. The message of an exception is left out, since it may quote a
request or a model's output; its type and its traceback's functions and lines stand for it.
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
"""The request that is being served; empty outside requests."""

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
    """An exception's type and traceback on one line, the innermost frame first, without its message."""
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
