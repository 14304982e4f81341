"""`/metrics`, read by Prometheus' own parser."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from server.config import Limits, ModelConfig, ModelSource, ServerConfig
from server.engine import EngineError
from server.engine.memory.device import Gpu
from server.http.metrics import exposition
from tests.http.conftest import Site, site_of

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: str) -> Values:
    """Every sample by its name and labels; each stands once."""
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    values = {(each.name, tuple(sorted(each.labels.items()))): each.value for each in samples}
    assert len(values) == len(samples)
    return values


async def metrics(site: Site) -> Values:
    response = await site.owner.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parse(response.text)


def value(values: Values, name: str, /, **labels: str) -> float:
    return values[f"nap_llm_{name}", tuple(sorted(labels.items()))]


async def test_only_the_owner_reads_it(site: Site) -> None:
    assert (await site.client.get("/metrics")).status_code == 401
    assert (await site.client.get("/metrics", headers={"authorization": ""})).status_code == 401
    assert (await site.owner.get("/metrics")).status_code == 200


async def test_no_page_of_another_origin_reads_it(tmp_path: Path) -> None:
    origin = "https://shell.example"
    async with site_of(tmp_path, ServerConfig(allowed_origins=(origin,))) as site:
        allowed = await site.client.get("/nap/llm", headers={"origin": origin})
        assert allowed.headers["access-control-allow-origin"] == origin
        assert "X-Request-Id" in allowed.headers["access-control-expose-headers"]
        assert (await site.owner.get("/metrics", headers={"origin": origin})).status_code == 403


async def test_generations_and_their_endings(tmp_path: Path) -> None:
    async with site_of(tmp_path, ServerConfig(limits=Limits(concurrent=2))) as site:
        first, second = await site.generation("one"), await site.generation("two")
        calls = [asyncio.create_task(site.call(each)) for each in (first, second)]
        run = await site.world.engine.run(0)
        await site.world.engine.run(1)
        run.say("Hello", "!")
        while not next(site.world.runtime.live()).output_tokens:
            await asyncio.sleep(0.001)
        seen = await metrics(site)
        assert value(seen, "generations_live", connection="first", stage="decoding") == 1
        assert value(seen, "generations_live", connection="first", stage="submitted") == 1
        assert value(seen, "sequences_active", connection="first") == 2
        assert value(seen, "slots", connection="first") == 8
        assert value(seen, "time_to_first_token_seconds_count", connection="first") == 1
        refused = await site.call(await site.generation("three"))
        assert refused["error"]["reason"] == "concurrency"
        run.done()
        await site.call({"type": "llm.cancel", "id": "c", "requestId": "two"})
        await asyncio.gather(*calls)
        seen = await metrics(site)
        endings = {key: count for key, count in seen.items() if key[0] == "nap_llm_generations_total"}
        assert sum(endings.values()) == 3
        assert value(seen, "generations_total", connection="first", outcome="stop", reason="") == 1
        assert value(seen, "generations_total", connection="first", outcome="cancelled", reason="caller") == 1
        assert value(seen, "generations_total", connection="", outcome="quota-exceeded", reason="concurrency") == 1
        assert value(seen, "generation_seconds_count", connection="first") == 1
        assert value(seen, "generation_seconds_bucket", connection="first", le="+Inf") == 1
        assert not [key for key in seen if key[0] == "nap_llm_generations_live"]


@pytest.mark.parametrize("cause", ["disconnect", "owner", "revoked", "unloaded", "disabled"])
async def test_cancels_have_their_cause(site: Site, cause: str) -> None:
    call = asyncio.create_task(site.call(await site.generation()))
    await site.world.engine.run()
    (live,) = site.world.runtime.live()
    if cause == "disconnect":
        call.cancel()
    elif cause == "owner":
        await site.owner.post(f"/owner/generations/{live.number}/stop")
    elif cause == "revoked":
        await site.owner.delete("/owner/tokens/shell")
    else:
        verb = {"unloaded": "unload", "disabled": "disable"}[cause]
        assert (await site.owner.post(f"/owner/models/first/{verb}")).status_code == 204
    while live.outcome is None:
        await asyncio.sleep(0.001)
    await asyncio.gather(call, return_exceptions=True)
    seen = await metrics(site)
    assert value(seen, "generations_total", connection="first", outcome="cancelled", reason=cause) == 1


async def test_the_owners_time_to_decide_is_not_the_servers(site: Site) -> None:
    headers = {"authorization": f"Bearer {site.tokens.create('asking')}"}
    envelope = await site.generation(headers=headers)
    call = asyncio.create_task(site.call(envelope, **headers))
    while not (waiting := site.world.runtime.decisions.waiting()):
        await asyncio.sleep(0.001)
    assert value(await metrics(site), "decisions_waiting") == 1
    (live,) = site.world.runtime.live()
    live.arrived -= 1000
    await asyncio.sleep(0.2)
    await site.owner.post(f"/owner/consents/{waiting[0].id}", json={"decision": "allow"})
    run = await site.world.engine.run()
    assert 0.2 <= live.decided_in < 100
    live.decided_in += 1000
    run.say("x")
    run.done()
    await call
    assert value(await metrics(site), "time_to_first_token_seconds_sum", connection="first") < 100


async def test_what_engines_did_outlives_them(site: Site) -> None:
    await site.owner.post("/owner/models/first/load")
    counts = site.world.engine.counts
    counts.prompt_tokens, counts.cache_read_tokens, counts.cache_hits, counts.finished = 30, 20, 1, 2
    counts.output_tokens, counts.jump_forward_tokens, counts.restarts, counts.hangs = 12, 5, 3, 1
    counts.draft_tokens, counts.accepted_tokens = 9, 4
    counts.gaps.observe(0.004, 9)
    expected = {
        "jobs_finished_total": 2,
        "prompt_tokens_total": 30,
        "cached_prompt_tokens_total": 20,
        "cache_hits_total": 1,
        "output_tokens_total": 12,
        "forced_tokens_total": 5,
        "drafted_tokens_total": 9,
        "confirmed_tokens_total": 4,
        "worker_restarts_total": 3,
        "worker_hangs_total": 1,
        "inter_token_seconds_count": 9,
        "load_seconds_count": 1,
    }
    before = await metrics(site)
    await site.owner.post("/owner/models/first/unload")
    after = await metrics(site)
    for seen in (before, after):
        assert {name: value(seen, name, connection="first") for name in expected} == expected
    buckets = [before[key] for key in before if key[0] == "nap_llm_inter_token_seconds_bucket"]
    assert buckets == sorted(buckets) and set(buckets) == {0, 9}
    assert value(before, "worker_up", connection="first") == value(before, "model_loaded", connection="first") == 1
    assert value(before, "worker_resident_memory_bytes", connection="first") > 0
    assert value(after, "model_loaded", connection="first") == 0


async def test_failed_loads(site: Site) -> None:
    site.world.start_failure = EngineError("not enough memory")
    await site.owner.post("/owner/models/first/load")
    assert value(await metrics(site), "load_failures_total", connection="first") == 1


async def test_gpus_and_odd_names(tmp_path: Path) -> None:
    odd = ModelConfig(key="odd-key_1", name='"\\\n', model="m", source=ModelSource(path=tmp_path / "model.gguf"))
    async with site_of(tmp_path, connections=(odd,)) as site:
        devices = (Gpu('Card "A"\\\n1', 80 << 30, 3 << 30), Gpu("B", 2, 1))
        seen = parse(exposition(site.world.runtime, devices))
        assert value(seen, "gpu_memory_bytes", gpu="0", name='Card "A"\\\n1') == 80 << 30
        assert value(seen, "gpu_memory_free_bytes", gpu="1", name="B") == 1
        assert value(seen, "connection_enabled", connection="odd-key_1") == 1
        assert seen["process_cpu_seconds_total", ()] > 0 and seen["process_resident_memory_bytes", ()] > 0


async def test_no_label_tells_of_a_shell(site: Site) -> None:
    headers = {"napplet_identity": "canary-1", "napplet_account": "canary-2", "napplet_endpoint": "canary-3"}
    call = asyncio.create_task(site.call(await site.generation("canary-4", "canary-5", headers=headers), **headers))
    run = await site.world.engine.run()
    run.say("canary-6")
    run.done()
    await call
    text = (await site.owner.get("/metrics")).text
    assert "canary" not in text and "shell" not in text
    assert {key for _, labels in parse(text) for key, _ in labels} == {
        "connection", "le", "outcome", "reason", "version"
    }  # fmt: skip


async def test_the_owner_sees_what_the_worker_holds(site: Site) -> None:
    await site.owner.post("/owner/models/first/load")
    (connection,) = (await site.owner.get("/owner/state")).json()["connections"]
    assert {"forcedTokens", "workerActive", "workerQueued", "outputTokens"} <= set(connection)
