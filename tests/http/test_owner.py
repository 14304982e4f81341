"""The owner's API (http-binding, "The owner")."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.config import ServerConfig
from server.http import owner, owner_state
from server.http.asgi import HttpError
from server.http.owner import OwnerApi
from server.state import TokenStore
from tests.http.conftest import Site, events, names
from tests.runtime.doubles import World

ASK = {"consent": "ask"}


async def state(site: Site) -> dict[str, Any]:
    response = await site.owner.get("/owner/state")
    assert response.status_code == 200
    return response.json()


async def pending(site: Site) -> dict[str, Any]:
    """The only decision, once it waits."""
    while not site.world.runtime.decisions.waiting():
        await asyncio.sleep(0.001)
    (decision,) = (await state(site))["decisions"]
    return decision


def asking(site: Site, **policy: str) -> dict[str, str]:
    return {
        "authorization": f"Bearer {site.tokens.create('asking', **policy)}",  # type: ignore[arg-type]
        "napplet_identity": "notes;abc",
        "napplet_account": "alice",
    }


def owners_calls(site: Site) -> list[tuple[str, str]]:
    """Method and path of every route of the owner's, with names that may exist."""
    names = {"number:int": "1", "key": "first"}
    calls = [
        (method, re.sub(r"\{([^}]*)\}", lambda found: names.get(found[1], "x"), route.path))
        for route in site.routes
        for method in sorted(route.methods - {"HEAD"})
        if route.path.startswith("/owner/")
    ]
    assert len(calls) >= 16
    return calls


async def test_only_the_owners_token_opens_it(site: Site) -> None:
    shell = site.client.headers["authorization"]
    for method, path in owners_calls(site):
        for headers in ({"authorization": shell}, {"authorization": "Bearer x"}, {"authorization": ""}):
            response = await site.owner.request(method, path, headers=headers)
            assert response.status_code == 401, (method, path)
    assert (await state(site))["connections"][0]["enabled"] is True
    response = await site.client.post(
        "/nap/llm", json={}, headers={"authorization": site.owner.headers["authorization"]}
    )
    assert response.status_code == 401


async def test_only_from_loopback_and_named_networks(tmp_path: Path) -> None:
    server = ServerConfig(owner_from=(ipaddress.ip_network("172.17.0.0/16"),))
    runtime = World(tmp_path / "model.gguf", server=server).runtime
    api = OwnerApi(runtime, TokenStore(tmp_path / "state"), "secret")
    inside = ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "172.17.3.4", "::ffff:172.17.0.9")
    outside = ("172.18.0.1", "10.0.0.1", "::2", "::ffff:10.0.0.1", "nonsense")
    for client in (*((address, 1) for address in inside + outside), None):
        with pytest.raises(HttpError) as refused:
            api.authenticate({"client": client, "headers": []})
        # From inside, it is the token that is missing.
        assert refused.value.status == (401 if client is not None and client[0] in inside else 403), client


def test_the_docs_list_every_call() -> None:
    page = (Path(__file__).parents[2] / "docs/api.md").read_text(encoding="utf-8")
    for file in ("owner", "console"):
        source = (Path(owner.__file__).parent / f"{file}.py").read_text(encoding="utf-8")
        for path in re.findall(r'"(/owner/[^"]+)"', source):
            *_, last = [each for each in path.split("/") if not each.startswith("{")]
            assert re.search(rf"`[^`]*\b{last}\b[^`]*`", page), path


async def test_a_consent_tells_of_answer_schema_and_continuations(site: Site) -> None:
    """Neither stands in a message: the one describes the answer, the others bring back what the model thought."""
    schema = {"type": "object", "properties": {"secret plan": {"type": "string"}}}
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]}

    async def complete(headers: dict[str, str]) -> Any:
        return await site.client.post("/llm/complete", json=body, headers=names(headers))

    first = asyncio.create_task(complete({}))
    run = await site.world.engine.run()
    run.say("Hi")
    run.done(tokens=[7, 8, 9])
    said = (await first).json()["message"]
    assert said["continuation"]["payload"]
    body["messages"] += [said, {"role": "user", "content": [{"type": "text", "text": "Go on"}]}]
    body |= {"responseFormat": {"type": "json_schema", "schema": schema}, "constraints": {"structured_output": True}}
    second = asyncio.create_task(complete(asking(site, **ASK)))
    waiting = await pending(site)
    assert waiting["disclosure"]["answer_schema"] == {
        "count": 1,
        "bytes": len(json.dumps(schema, separators=(",", ":"))),
    }
    assert waiting["disclosure"]["continuations"] == {"count": 1, "bytes": 12}
    content = (await site.owner.get(f"/owner/consents/{waiting['id']}")).json()
    assert content["schema"] == schema and content["continued"] == [{"message": 1, "tokens": 3}]
    assert "secret plan" not in (await site.owner.get("/owner/state")).text
    await site.owner.post(f"/owner/consents/{waiting['id']}", json={"decision": "deny"})
    assert (await second).json()["error"]["code"] == "user-cancelled"
    assert len(site.world.engine.runs) == 1


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_a_consent_with_its_disclosure(site: Site, decision: str) -> None:
    headers = asking(site, **ASK)
    envelope = await site.generation(headers=headers, text="private", tools=[{"name": "weather", "description": "sky"}])
    call = asyncio.create_task(site.call(envelope, **headers))
    waiting = await pending(site)
    assert waiting["kind"] == "consent" and waiting["expires"] - waiting["created"] == pytest.approx(60, abs=1)
    assert (waiting["endpoint"]["identity"], waiting["endpoint"]["account"]) == ("notes;abc", "alice")
    disclosure = waiting["disclosure"]
    assert disclosure == {
        "connection": "First",
        "key": "first",
        "model": "first-1",
        "route": "llama.cpp on this machine",
        "charge": disclosure["charge"],
        "messages": {"user": {"count": 1, "bytes": 7}},
        "images": {"count": 0, "bytes": 0},
        "tool_definitions": {"count": 1, "bytes": disclosure["tool_definitions"]["bytes"]},
        "tool_names": ["weather"],
        "tool_results": {"count": 0, "bytes": 0},
        "answer_schema": {"count": 0, "bytes": 0},
        "continuations": {"count": 0, "bytes": 0},
    }
    assert "no charge" in disclosure["charge"]
    path = f"/owner/consents/{waiting['id']}"
    content = (await site.owner.get(path)).json()
    assert content["messages"] == envelope["request"]["messages"] and content["tools"][0]["description"] == "sky"
    assert "private" not in (await site.owner.get("/owner/state")).text
    assert (await site.owner.post(path, json={"decision": "maybe"})).status_code == 400
    assert (await site.owner.post(path, json={"decision": "allow", "more": "x"})).status_code == 400
    assert (await site.owner.post(path, json={"decision": decision})).status_code == 204
    if decision == "allow":
        (await site.world.engine.run()).done()
        assert (await call)["result"]["finish"] == "stop"
    else:
        assert (await call)["error"]["code"] == "user-cancelled"
        assert site.world.engine.runs == [] and site.world.starts == []
    assert (await site.owner.post(path, json={"decision": "allow"})).status_code == 404
    assert (await site.owner.get(path)).status_code == 404


async def test_cancel_while_consent_is_pending_submits_nothing(site: Site) -> None:
    headers = asking(site, **ASK)
    call = asyncio.create_task(site.call(await site.generation(headers=headers), **headers))
    waiting = await pending(site)
    cancel = await site.call({"type": "llm.cancel", "id": "c", "requestId": "g"}, **headers)
    assert cancel["cancelled"] is True
    assert (await call)["error"]["code"] == "cancelled"
    assert (await site.owner.post(f"/owner/consents/{waiting['id']}", json={"decision": "allow"})).status_code == 404
    assert site.world.engine.runs == []


@pytest.mark.parametrize(
    ("method", "path", "body", "ends_handle"),
    [
        ("POST", "/owner/models/first/unload", {}, False),
        ("POST", "/owner/models/first/disable", {}, True),
        ("DELETE", "/owner/tokens/asking", None, True),
        ("POST", "/owner/account", {"token": "asking", "account": "alice"}, True),
        ("POST", "/owner/endpoints/{id}/revoke", {}, True),
        ("POST", "/owner/generations/1/stop", {}, False),
    ],
)
async def test_what_changes_meanwhile_cancels_a_pending_consent(
    site: Site, method: str, path: str, body: Any, ends_handle: bool
) -> None:
    headers = asking(site, **ASK)
    envelope = await site.generation(headers=headers)
    call = asyncio.create_task(site.call(envelope, **headers))
    waiting = await pending(site)
    response = await site.owner.request(method, path.format(id=waiting["endpoint"]["id"]), json=body)
    assert response.status_code == 204, response.text
    assert (await call)["error"]["code"] == "cancelled"
    assert site.world.engine.runs == [] and (await state(site))["decisions"] == []
    if "tokens" in path:
        response = await site.client.post("/nap/llm", json={}, headers={"authorization": headers["authorization"]})
        assert response.status_code == 401
        return
    handle = envelope["request"]["handle"]
    describe = await site.call({"type": "llm.describe", "id": "d", "handle": handle}, **headers)
    assert ("error" in describe) == ends_handle
    if ends_handle:
        assert describe["error"]["code"] == "selection-expired"


async def test_another_account_goes_on(site: Site) -> None:
    alice, bob = {"napplet_account": "alice"}, {"napplet_account": "bob"}
    first = asyncio.create_task(site.call(await site.generation(headers=alice), **alice))
    await site.world.engine.run(0)
    second = asyncio.create_task(site.call(await site.generation(headers=bob), **bob))
    run = await site.world.engine.run(1)
    await site.owner.post("/owner/account", json={"token": "shell", "account": "alice"})
    assert (await first)["error"]["code"] == "cancelled"
    run.say("for bob")
    run.done()
    assert (await second)["result"]["content"][0]["text"] == "for bob"


async def test_a_selection(site: Site) -> None:
    headers = asking(site, select="ask")
    select = {"type": "llm.select", "id": "s", "requirements": {"json": True}}
    call = asyncio.create_task(site.call(select, **headers))
    waiting = await pending(site)
    assert (waiting["kind"], waiting["requirements"]) == ("selection", {"json": True})
    assert waiting["choices"] == [{"key": "first", "name": "First", "model": "first-1"}]
    path = f"/owner/selections/{waiting['id']}"
    assert (await site.owner.post(path, json={"connection": "other"})).status_code == 404
    assert (await site.owner.post(path, json={"decision": "allow"})).status_code == 400
    assert (await site.owner.post(path, json={"connection": "first"})).status_code == 204
    assert (await call)["model"]["name"] == "First"
    call = asyncio.create_task(site.call(select, **headers))
    waiting = await pending(site)
    assert (await site.owner.post(f"/owner/selections/{waiting['id']}", json={"decision": "deny"})).status_code == 204
    assert (await call)["error"]["code"] == "user-cancelled"


async def test_tokens(site: Site) -> None:
    made = (await site.owner.post("/owner/tokens", json={"name": "new", "consent": "always"})).json()
    assert set(made) == {"token"}
    assert await site.select(authorization=f"Bearer {made['token']}")
    listed = (await state(site))["tokens"]
    assert [(each["name"], each["consent"], each["select"]) for each in listed] == [
        ("shell", "always", "default"),
        ("new", "always", "default"),
    ]
    assert all(set(each) == {"name", "consent", "select", "created"} for each in listed)
    for wrong in ({"name": "new"}, {"name": "a b"}, {}, {"name": "x", "consent": "never"}, {"name": "x", "y": "z"}):
        assert (await site.owner.post("/owner/tokens", json=wrong)).status_code == 400
    assert (await site.owner.delete("/owner/tokens/new")).status_code == 204
    assert (await site.owner.delete("/owner/tokens/new")).status_code == 400


async def test_models(site: Site) -> None:
    assert (await state(site))["connections"][0]["state"] == "unloaded"
    engine = site.world.engine
    engine.info = replace(engine.info, notes=("context of 1,000 tokens, not 2,000",))
    assert (await site.owner.post("/owner/models/first/load")).status_code == 204
    loaded = (await state(site))["connections"][0]
    assert loaded["state"] == "loaded" and loaded["memory"] > 0 and loaded["contextLength"] == 1000
    assert loaded["notes"] == ["context of 1,000 tokens, not 2,000"]
    handle = await site.select()
    call = asyncio.create_task(site.call(await site.generation()))
    await site.world.engine.run()
    assert (await site.owner.post("/owner/models/first/unload")).status_code == 204
    assert (await call)["error"]["code"] == "cancelled" and site.world.engine.closed
    assert "model" in await site.call({"type": "llm.describe", "id": "d", "handle": handle})
    assert (await site.owner.post("/owner/models/first/disable")).status_code == 204
    assert (await site.call({"type": "llm.select", "id": "s"}))["error"]["code"] == "unsupported"
    assert (await site.owner.post("/owner/models/first/load")).status_code == 409
    assert (await site.owner.post("/owner/models/first/enable")).status_code == 204
    describe = await site.call({"type": "llm.describe", "id": "d", "handle": handle})
    assert describe["error"]["code"] == "selection-expired"
    assert await site.select() != handle
    assert (await site.owner.post("/owner/models/other/load")).status_code == 404


async def test_a_model_that_does_not_load(site: Site) -> None:
    from server.engine import EngineError

    site.world.start_failure = EngineError("not enough memory")
    response = await site.owner.post("/owner/models/first/load")
    assert response.status_code == 502 and "not enough memory" in response.json()["error"]["message"]
    assert (await state(site))["connections"][0]["state"] == "unloaded"


async def test_a_generation_is_seen_and_stopped(site: Site) -> None:
    envelope = await site.generation("secret id")
    call = asyncio.create_task(site.call(envelope))
    run = await site.world.engine.run()
    run.say("one", "two")
    while next(site.world.runtime.live()).output_tokens < 2:
        await asyncio.sleep(0.001)
    response = await site.owner.get("/owner/state")
    (seen,) = response.json()["generations"]
    assert (seen["stage"], seen["connection"], seen["outputTokens"]) == ("decoding", "first", 2)
    assert seen["tokensPerSecond"] > 0
    assert "secret id" not in response.text and envelope["request"]["handle"] not in response.text
    assert (await site.owner.post(f"/owner/generations/{seen['number']}/stop")).status_code == 204
    assert (await call)["error"]["code"] == "cancelled"
    assert (await site.owner.post(f"/owner/generations/{seen['number']}/stop")).status_code == 404
    (endpoint,) = (await state(site))["endpoints"]
    assert endpoint["token"] == "shell" and endpoint["handles"] == 1


async def test_events_end_with_the_runtime_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("PACE", "LIVELY", "HEARTBEAT"):
        monkeypatch.setattr(owner_state, pause, 3600.0)
    async with site.owner.stream("GET", "/owner/events") as response:
        stream = events(response)
        await anext(stream)
        await site.world.runtime.close()
        assert [each async for each in stream] == []


async def test_events_follow_the_state(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_state, "PACE", 0.01)
    async with site.owner.stream("GET", "/owner/events") as response:
        stream = events(response)
        assert await anext(stream) == await state(site)
        call = asyncio.create_task(site.call(await site.generation()))
        run = await site.world.engine.run()
        while not (await anext(stream))["generations"]:
            pass
        run.done()
        await call
        while (await anext(stream))["generations"]:
            pass
        assert (await site.owner.post("/owner/models/first/disable")).status_code == 204
        while (await anext(stream))["connections"][0]["enabled"]:
            pass
    assert not site.world.runtime.changes._waiting


async def test_bodies_are_bounded_and_strict(site: Site) -> None:
    for body, status in ((b"[]", 400), (b"{", 400), (b'{"name":"a","name":"b"}', 400), (b"x" * 70_000, 413)):
        assert (await site.owner.post("/owner/tokens", content=body)).status_code == status
    assert (await site.owner.get("/owner/state", headers={"origin": "https://shell.example"})).status_code == 403
