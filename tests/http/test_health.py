"""`/healthz` and `/readyz`, and what the server says while it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
from pathlib import Path

import httpx
import psutil
import pytest

from server.chat import HelperPool
from server.chat.pool import _Helper
from server.wire.records import WireError
from tests.http.conftest import Site, events, site_of


async def ready(site: Site) -> tuple[int, list[str]]:
    # No token: a supervisor has none.
    async with httpx.AsyncClient(base_url=site.client.base_url, trust_env=False) as anyone:
        assert (await anyone.get("/healthz")).json() == {"status": "ok"}
        response = await anyone.get("/readyz")
    assert (response.status_code == 503) == ("retry-after" in response.headers)
    return response.status_code, response.json().get("reasons", [])


async def test_ready_without_a_model_in_memory(site: Site) -> None:
    assert await ready(site) == (200, [])


async def test_names_that_are_not_ours_learn_nothing(site: Site) -> None:
    for path in ("/healthz", "/readyz"):
        assert (await site.client.get(path, headers={"host": "foreign.example"})).status_code == 403


@pytest.mark.parametrize("damage", ["gone", "damaged", "unreadable"])
async def test_not_ready_without_its_state(site: Site, damage: str) -> None:
    directory = site.tokens.directory
    if damage == "gone":
        directory.rename(directory.with_name("elsewhere"))
    elif damage == "damaged":
        (directory / "tokens.json").write_text("{")
    else:
        (directory / "tokens.json").unlink()
        (directory / "tokens.json").mkdir()
    assert await ready(site) == (503, ["state directory"])
    assert await ready(site) == (503, ["state directory"]), "however often it is asked"
    if damage == "gone":
        directory.with_name("elsewhere").rename(directory)
    elif damage == "damaged":
        (directory / "tokens.json").unlink()
    else:
        (directory / "tokens.json").rmdir()
    assert await ready(site) == (200, [])


@pytest.mark.slow
async def test_not_ready_without_helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = HelperPool(size=1)
    async with site_of(tmp_path, helpers=pool) as site:
        assert await ready(site) == (200, [])
        start = _Helper.start

        def broken(self: _Helper) -> None:
            raise WireError("provider-error", "a chat helper does not start")

        monkeypatch.setattr(_Helper, "start", broken)
        assert await ready(site) == (200, []), "one that runs need not be started"
        (helper,) = [each for each in psutil.Process().children() if "server.chat.pool" in " ".join(each.cmdline())]
        os.kill(helper.pid, signal.SIGKILL)
        helper.wait(10)
        assert await ready(site) == (503, ["helpers"])
        monkeypatch.setattr(_Helper, "start", start)
        assert await ready(site) == (200, []), "the helper is started anew"


async def test_draining_lets_accepted_work_finish_and_takes_no_more(site: Site) -> None:
    running = await site.generation("running")
    refused = await site.generation("refused")
    call = asyncio.create_task(site.call(running))
    run = await site.world.engine.run()
    drained = asyncio.create_task(site.world.runtime.drain(60))
    while not site.world.runtime.draining:
        await asyncio.sleep(0)
    assert await ready(site) == (503, ["draining"])
    response = await site.client.post("/nap/llm", json=refused)
    assert response.status_code == 200 and 1 <= int(response.headers["retry-after"]) <= 60
    error = response.json()["error"]
    assert (error["code"], error["reason"]) == ("provider-error", "shutdown")
    async with site.stream(refused) as streamed:
        assert 1 <= int(streamed.headers["retry-after"]) <= 60
        (result,) = [each async for each in events(streamed)]
        assert result["error"] == error
    response = await site.client.post("/nap/llm", json={"type": "llm.select", "id": "s"})
    assert response.json()["error"]["reason"] == "shutdown" and "retry-after" in response.headers
    described = {"type": "llm.describe", "id": "d", "handle": running["request"]["handle"]}
    assert "model" in await site.call(described)
    assert (await site.owner.get("/owner/state")).status_code == 200, "the owner still sees and decides"
    assert not drained.done()
    run.say("All of it.")
    run.done()
    assert (await call)["result"]["content"][0]["text"] == "All of it."
    assert await drained is True


async def test_what_does_not_finish_in_time_is_settled(site: Site) -> None:
    call = asyncio.create_task(site.call(await site.generation()))
    await site.world.engine.run()
    assert await site.world.runtime.drain(0.05) is False
    assert not call.done()
    await site.world.runtime.close()
    assert (await call)["error"]["reason"] == "shutdown"


async def test_an_idle_server_is_drained_at_once_and_a_cancel_drains_too(site: Site) -> None:
    call = asyncio.create_task(site.call(await site.generation("g")))
    await site.world.engine.run()
    drained = asyncio.create_task(site.world.runtime.drain(3600))
    await asyncio.sleep(0)
    assert (await site.call({"type": "llm.cancel", "id": "c", "requestId": "g"}))["cancelled"] is True
    assert (await call)["error"]["code"] == "cancelled"
    assert await drained is True
    assert await site.world.runtime.drain(3600) is True


async def test_a_choice_that_waits_for_the_owner_ends_with_the_server(site: Site) -> None:
    headers = {"authorization": f"Bearer {site.tokens.create('asking', select='ask')}"}
    call = asyncio.create_task(site.call({"type": "llm.select", "id": "s"}, **headers))
    while not site.world.runtime.decisions.waiting():
        await asyncio.sleep(0.001)
    assert await site.world.runtime.drain(3600) is True, "it would lead to nothing"
    await site.world.runtime.close()
    assert (await call)["error"]["reason"] == "shutdown"


async def test_probes_that_succeed_are_not_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await ready(site)
    await site.owner.get("/metrics")
    assert not [each for each in caplog.records if each.name == "nap_llm.access"]
    (site.tokens.directory / "tokens.json").write_text("{")
    await ready(site)
    assert [each.getMessage().split(" ")[1:3] for each in caplog.records if each.name == "nap_llm.access"] == [
        ["/readyz", "503"]
    ]


async def test_a_cancel_says_how_long_it_took(site: Site) -> None:
    call = asyncio.create_task(site.call(await site.generation("g")))
    await site.world.engine.run()
    for found in (True, False):
        response = await site.client.post("/nap/llm", json={"type": "llm.cancel", "id": "c", "requestId": "g"})
        assert response.json()["cancelled"] is found
        timing = re.fullmatch(r"settle;dur=(\d+\.\d{3})", response.headers["server-timing"])
        assert timing and float(timing[1]) < 1000
    await call
