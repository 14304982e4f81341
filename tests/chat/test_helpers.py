"""The helper pool: concurrent, bounded in time and memory, and alive after every mishap."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from grammars import compiler
from server.chat import ChatSettings, HelperPool, PromptRequest
from server.chat import pool as helpers
from server.wire.records import Message, TextPart, Tool, WireError
from tests.engine.test_gguf import tiny
from tests.fixtures.projectors import Seer

pytestmark = pytest.mark.slow

HELLO = PromptRequest((Message("user", (TextPart("Hello"),)),))
OWN = ChatSettings()
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
# The probe has two words in mind; a template is only slow or greedy where a conversation says so.
SLOW = PLAIN + (
    "{% if messages[0].content == 'Hello' %}{% for i in range(99999) %}{% for j in range(99999) %}"
    "{% endfor %}{% endfor %}{% endif %}"
)
GREEDY = PLAIN + "{% if messages[0].content == 'Hello' %}{{ ('x' * 3000000000) | length }}{% endif %}"


@pytest.fixture
async def pool() -> AsyncIterator[HelperPool]:
    pool = HelperPool(size=2, seconds=1.5, memory=1 << 30)
    await pool.start()
    yield pool
    await pool.close()


def children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "server.chat.pool" in " ".join(p.cmdline())]


async def test_prepare_inspect_validate(pool: HelperPool, smollm2: Path) -> None:
    assert (await pool.inspect(str(smollm2), OWN)).tools
    prepared = await pool.prepare(str(smollm2), OWN, HELLO)
    assert len(prepared.tokens) > 10
    tool = Tool("t", None, {"type": "object", "properties": {"a": {"type": "integer"}}})
    await pool.validate(tool, {"a": 1})
    with pytest.raises(WireError) as caught:
        await pool.validate(tool, {"a": "x"})
    assert caught.value.code == "provider-error" and "type" in caught.value.message


async def test_the_form_of_tools_is_checked_without_a_model(pool: HelperPool) -> None:
    members = {"a": {"type": "integer"}}
    await pool.check_tools([Tool("fine", None, {"type": "object", "properties": members})], "someone")
    with pytest.raises(WireError) as caught:
        await pool.check_tools([Tool("odd", None, {"type": "object", "properties": {"a": {"type": 7}}})], "someone")
    assert caught.value.code == "invalid-request" and "tool odd: /properties/a: type" in caught.value.message


def test_what_is_kept_of_schemas_is_found_in_the_same_scope_alone(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    compile_ = compiler._compile
    monkeypatch.setattr(compiler, "_compile", lambda text, *rest: compiled.append(text) or compile_(text, *rest))
    schema = {"type": "object", "properties": {"seen by one scope": {"type": "string"}}, "minProperties": 1}
    tool, nobody = Tool("t", None, schema), PromptRequest(HELLO.messages)
    asked: list[tuple[str, tuple[Any, ...]]] = [
        ("prepare", (str(smollm2), OWN, replace(nobody, tools=(tool,), tool_choice="auto"))),
        ("prepare", (str(smollm2), OWN, replace(nobody, response_schema=schema))),
        ("validate", (tool, {"seen by one scope": "x"})),
        ("validate_answer", (schema, {"seen by one scope": "x"})),
    ]
    for name, arguments in asked:
        costs = []
        for scope in ("one", "one", "other", "one", "other", ""):
            before = len(compiled)
            done, value = helpers._work(name, arguments, scope)
            assert done, value
            costs.append(len(compiled) - before)
        assert costs == [1, 0, 1, 0, 0, 1], name
        compiler._cache.clear()


async def test_requests_run_side_by_side_and_the_loop_stays_free(smollm2: Path) -> None:
    pool = HelperPool(size=2, seconds=120)
    await pool.start()
    try:
        slow = asyncio.ensure_future(pool.prepare(str(smollm2), ChatSettings(SLOW), HELLO))
        ticks = 0
        for _ in range(20):
            other = asyncio.ensure_future(pool.prepare(str(smollm2), ChatSettings(PLAIN), HELLO))
            while not other.done():
                await asyncio.sleep(0.001)
                ticks += 1
            await other
        assert ticks >= 20
        assert not slow.done()
        slow.cancel()
    finally:
        await pool.close()


async def test_time_is_bounded(pool: HelperPool, smollm2: Path) -> None:
    began = time.monotonic()
    with pytest.raises(WireError) as caught:
        await pool.prepare(str(smollm2), ChatSettings(SLOW), HELLO)
    assert caught.value.code == "quota-exceeded"
    assert time.monotonic() - began < 6
    await pool.prepare(str(smollm2), ChatSettings(PLAIN), HELLO)


@pytest.mark.skipif(sys.platform != "linux", reason="address space limits are Linux's")
async def test_memory_is_bounded(pool: HelperPool, smollm2: Path) -> None:
    with pytest.raises(WireError) as caught:
        await pool.prepare(str(smollm2), ChatSettings(GREEDY), HELLO)
    assert caught.value.code == "quota-exceeded"
    await pool.prepare(str(smollm2), ChatSettings(PLAIN), HELLO)


async def test_a_killed_helper_is_replaced(pool: HelperPool, smollm2: Path) -> None:
    for process in children():
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    await asyncio.gather(*(pool.prepare(str(smollm2), ChatSettings(PLAIN), HELLO) for _ in range(4)))


async def test_a_cancelled_request_frees_its_helper(smollm2: Path) -> None:
    pool = HelperPool(size=1, seconds=60)
    await pool.start()
    try:
        await pool.prepare(str(smollm2), ChatSettings(PLAIN), HELLO)
        request = asyncio.ensure_future(pool.prepare(str(smollm2), ChatSettings(SLOW), HELLO))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(request, 0.2)
        await asyncio.wait_for(pool.prepare(str(smollm2), ChatSettings(PLAIN), HELLO), 20)
    finally:
        await pool.close()


async def test_close_leaves_no_process(smollm2: Path) -> None:
    pool = HelperPool(size=2)
    await pool.start()
    processes = children()
    assert len(processes) == 2
    request = asyncio.ensure_future(pool.prepare(str(smollm2), ChatSettings(SLOW), HELLO))
    await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(WireError):
        await request
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert not alive


async def test_helpers_do_not_import_the_web_stack(pool: HelperPool, smollm2: Path) -> None:
    await pool.inspect(str(smollm2), OWN)
    for process in children():
        loaded = {entry.path for entry in process.memory_maps()}
        assert not any("uvloop" in path or "httptools" in path or "pydantic_core" in path for path in loaded)


async def test_all_helpers_are_ready_for_a_model_that_one_has_inspected(
    pool: HelperPool, seers: dict[str, Seer]
) -> None:
    seer = seers["mlp"]
    found = await pool.inspect(str(seer.model), ChatSettings(projector=str(seer.projector)))
    assert found.images
    async with asyncio.timeout(30):
        while not all(decodes_images(process) for process in children()):
            await asyncio.sleep(0.01)


async def test_a_helper_that_had_to_be_replaced_gets_ready_again_for_what_others_have_met(
    pool: HelperPool, seers: dict[str, Seer], smollm2: Path
) -> None:
    seer = seers["mlp"]
    await pool.inspect(str(seer.model), ChatSettings(projector=str(seer.projector)))
    before = {process.pid for process in children()}
    with pytest.raises(WireError) as caught:
        await pool.prepare(str(smollm2), ChatSettings(SLOW), HELLO)
    assert caught.value.code == "quota-exceeded"
    async with asyncio.timeout(30):
        while not any(decodes_images(process) for process in children() if process.pid not in before):
            await asyncio.sleep(0.01)


async def test_a_helper_that_llama_cpp_ends_prints_nothing(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It may quote what it was given."""
    pool = HelperPool(size=1)
    await pool.start()
    try:
        with pytest.raises(WireError) as caught:
            await pool.inspect(str(tiny(tmp_path / "hostile.gguf", {"tokenizer.ggml.tokens": ["a"] * 268})), OWN)
    finally:
        await pool.close()
    assert caught.value.code == "quota-exceeded"
    assert capfd.readouterr() == ("", "")


async def test_what_costs_a_new_helper_its_process_is_not_tried_for_ever(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **given: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **given))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    pool = HelperPool(size=1, seconds=1.5)
    await pool.start()
    try:
        file = tiny(tmp_path / "tiny.gguf", {"tokenizer.chat_template": PLAIN})
        await pool.inspect(str(file), OWN)
        os.replace(tiny(tmp_path / "hostile.gguf", {"tokenizer.ggml.tokens": ["a"] * 268}), file)
        with pytest.raises(WireError):
            await pool.prepare(str(smollm2), ChatSettings(SLOW), HELLO)
        async with asyncio.timeout(30):
            while len(started) < 2 or started[1].returncode is None:
                await asyncio.sleep(0.01)
        for _ in range(3):
            await pool.prepare(str(smollm2), ChatSettings(PLAIN), HELLO)
    finally:
        await pool.close()
    # The first, one in place of it when it was too slow, and one in place of that, which met the file.
    assert len(started) == 3


async def test_a_file_in_place_of_another_is_another_model(tmp_path: Path) -> None:
    file = tiny(tmp_path / "tiny.gguf", {"tokenizer.chat_template": PLAIN})
    pool = HelperPool(size=1)
    await pool.start()
    try:
        before = await pool.prepare(str(file), OWN, HELLO)
        os.replace(tiny(tmp_path / "next.gguf", {"tokenizer.chat_template": "now: " + PLAIN}), file)
        assert (await pool.inspect(str(file), OWN)).json
        after = await pool.prepare(str(file), OWN, HELLO)
    finally:
        await pool.close()
    assert len(after.tokens) > len(before.tokens)


def decodes_images(process: psutil.Process) -> bool:
    """Whether it has loaded what decodes images, which is the last that it does to get ready."""
    return any("_imaging" in entry.path for entry in process.memory_maps())


async def test_errors_keep_their_code_and_say_nothing_of_content(pool: HelperPool, smollm2: Path) -> None:
    odd = Tool("odd", None, {"type": "object", "properties": {"a": {"type": "strin"}}})
    conversation = PromptRequest((Message("user", (TextPart("secret"),)),), (odd,), "auto")
    with pytest.raises(WireError) as caught:
        await pool.prepare(str(smollm2), OWN, conversation)
    assert caught.value.code == "invalid-request"
    assert "secret" not in caught.value.message


async def test_a_damaged_model_file_costs_at_most_a_helper(pool: HelperPool, tmp_path: Path) -> None:
    file = tiny(tmp_path / "tiny.gguf")
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(WireError) as caught:
        await pool.inspect(str(file), OWN)
    assert (caught.value.code, caught.value.message) == ("provider-error", "the model's vocabulary cannot be read")
    # llama.cpp ends its process over this one.
    with pytest.raises(WireError) as caught:
        await pool.inspect(str(tiny(tmp_path / "hostile.gguf", {"tokenizer.ggml.tokens": ["a"] * 268})), OWN)
    assert str(tmp_path) not in caught.value.message
    assert (await pool.inspect(str(tiny(tmp_path / "whole.gguf")), ChatSettings(PLAIN))).json
