"""The log's two formats, and what neither shows."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from server.logs import FIELDS, ConsoleFormatter, JsonFormatter, fault, request_id

CANARY = "canary-5e1c7"


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture(params=[ConsoleFormatter, JsonFormatter])
def handler(request: pytest.FixtureRequest, stream: io.StringIO) -> Iterator[logging.Handler]:
    """In the place of all others, as `start_logging` has it."""
    made = logging.StreamHandler(stream)
    made.setFormatter(request.param())
    root = logging.getLogger()
    root.addHandler(made)
    yield made
    root.removeHandler(made)


def fail(words: str) -> None:
    raise ValueError(words)


def test_json_is_one_object_a_line(stream: io.StringIO) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    log = logging.Logger("nap_llm.test")
    log.addHandler(handler)
    token = request_id.set("abc")
    log.warning("two\nlines of %s", "€", extra={FIELDS: {"status": 200}})
    request_id.reset(token)
    log.info("later")
    first, second = map(json.loads, stream.getvalue().splitlines())
    time = datetime.fromisoformat(first.pop("time"))
    assert abs(datetime.now(UTC) - time) < timedelta(minutes=1)
    assert first == {
        "level": "warning",
        "logger": "nap_llm.test",
        "message": "two\nlines of €",
        "request_id": "abc",
        "status": 200,
    }
    assert "request_id" not in second


def test_console_shows_the_request(stream: io.StringIO) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(ConsoleFormatter())
    log = logging.Logger("test")
    log.addHandler(handler)
    token = request_id.set("abc")
    log.info("hello %d", 1)
    request_id.reset(token)
    log.info("bye")
    first, second = stream.getvalue().splitlines()
    assert first.endswith(" INFO test [abc]: hello 1") and second.endswith(" INFO test: bye")


def test_exceptions_are_told_without_their_message(handler: logging.Handler, stream: io.StringIO) -> None:
    try:
        fail(CANARY)
    except ValueError:
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application", stack_info=True)
    written = stream.getvalue()
    assert CANARY not in written
    assert "ValueError at fail:" in written and "Exception in ASGI application" in written


def test_asyncios_own_words_show_nothing(handler: logging.Handler, stream: io.StringIO) -> None:
    async def forgotten() -> None:
        task = asyncio.create_task(asyncio.to_thread(fail, CANARY))
        asyncio.get_running_loop().call_soon(fail, CANARY)
        await asyncio.wait([task])
        del task
        gc.collect()

    asyncio.run(forgotten())
    written = stream.getvalue()
    assert written.count("ValueError at fail:") == 2
    assert "Task exception was never retrieved" in written and "Exception in callback fail" in written
    assert CANARY not in written


def test_a_fault_names_its_places() -> None:
    try:
        fail("x")
    except ValueError as error:
        assert fault(error).startswith("ValueError at fail:")
        assert "< test_a_fault_names_its_places:" in fault(error)
    assert fault(KeyError("x")) == "KeyError"
