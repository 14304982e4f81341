"""The binding: statuses, strictness, streams, disconnects (http-binding)."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.chat.events import BlockDelta, BlockEnd, BlockStart, Refusal
from server.config import Limits, ServerConfig
from server.http import nap, stream
from tests.http.conftest import Site, events, site_of


async def test_presence_needs_no_token(site: Site) -> None:
    async with httpx.AsyncClient(base_url=f"http://localhost:{site.port}", verify=False) as client:
        response = await client.get("/nap/llm")
    assert (response.status_code, response.json()) == (200, {"domain": "llm"})


async def test_an_absent_domain_is_404(tmp_path: Path) -> None:
    async with site_of(tmp_path, ServerConfig(enabled=False)) as site:
        for response in (
            await site.client.get("/nap/llm"),
            await site.client.post("/nap/llm", json={"type": "llm.select", "id": "s"}),
            await site.client.delete("/nap/llm/endpoint"),
        ):
            assert response.status_code == 404 and response.json()["error"]["code"] == "unsupported"


async def test_no_token_no_answer(site: Site) -> None:
    for given in (None, "Bearer wrong", "Basic x", "bearer"):
        headers = {} if given is None else {"authorization": given}
        client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{site.port}", verify=False)
        for response in (
            await client.post("/nap/llm", content=b"not even JSON", headers=headers),
            await client.delete("/nap/llm/endpoint", headers=headers),
            await client.delete("/nap/llm/account", headers=headers),
        ):
            assert response.status_code == 401
            assert set(response.json()["error"]) == {"code", "message"}
            assert response.headers["www-authenticate"] == "Bearer"
        await client.aclose()


async def test_select_describe_generate(site: Site) -> None:
    model = (await site.call({"type": "llm.select", "id": "s", "requirements": {"json": True}}))["model"]
    assert model == {
        "handle": model["handle"],
        "name": "First",
        "model": "first-1",
        "route": "llama.cpp on this machine",
        "images": False,
        "json": True,
        "tools": True,
        "toolChoiceModes": ["auto", "none", "required", "tool"],
    }
    described = await site.call({"type": "llm.describe", "id": "d", "handle": model["handle"]})
    assert described == {"type": "llm.describe.result", "id": "d", "model": model}
    call = asyncio.create_task(site.call(await site.generation()))
    run = await site.world.engine.run()
    run.say("Hi", " there")
    run.done()
    assert await call == {
        "type": "llm.generate.result",
        "id": "g",
        "result": {
            "content": [{"type": "text", "text": "Hi there"}],
            "finish": "stop",
            "usage": {"inputTokens": 5, "outputTokens": 2, "cacheReadTokens": 0},
        },
    }


async def test_failures_of_an_operation_are_correlated_results(site: Site) -> None:
    select = await site.call({"type": "llm.select", "id": "s", "requirements": {"model": "other"}})
    describe = await site.call({"type": "llm.describe", "id": "d", "handle": "other"})
    assert (select["error"]["code"], describe["error"]["code"]) == ("unsupported", "selection-expired")
    assert "model" not in select and "model" not in describe


async def test_a_stream_carries_deltas_as_they_come_then_the_result(site: Site) -> None:
    site.world.chat.script["call"] = [
        BlockEnd(0),
        BlockStart(1, "toolCall", name="weather"),
        BlockDelta(1, '{"city":"Ōsaka \\"\n'.replace("\n", "\\n") + '"}'),
        BlockEnd(1),
    ]
    envelope = await site.generation("g\u2028\n", tools=[{"name": "weather"}])
    async with site.stream(envelope) as response:
        got = events(response)
        run = await site.world.engine.run()
        run.say("Let me see.\n\ndata: x")
        assert [await anext(got), await anext(got)] == [
            {**delta(0, "start", "text", 0), "requestId": envelope["id"]},
            {**delta(1, "delta", "text", 0), "text": "Let me see.\n\ndata: x", "requestId": envelope["id"]},
        ]
        run.say("call")
        run.done()
        rest = [each async for each in got]
    result = rest.pop()
    assert result["type"] == "llm.generate.result" and result["id"] == envelope["id"]
    call = result["result"]["content"][1]
    assert result["result"]["finish"] == "toolUse"
    assert [each["sequence"] for each in rest] == [2, 3, 4, 5]
    assert rest[1] == {
        **delta(3, "start", "toolCall", 1),
        "requestId": envelope["id"],
        "toolCallId": call["toolCallId"],
        "name": "weather",
    }
    assert json.loads(rest[2]["text"]) == call["arguments"] == {"city": 'Ōsaka "\n'}


async def test_interleaved_calls_are_told_as_they_come(site: Site) -> None:
    """Of what no format of ours can write: a parser says it."""
    site.world.chat.script |= {
        "1": [BlockStart(0, "toolCall", name="weather"), BlockDelta(0, '{"city":')],
        "2": [BlockStart(1, "toolCall", name="time"), BlockDelta(1, '{"city": ')],
        "3": [BlockDelta(0, ' "Oslo"}'), BlockDelta(1, '"Ber'), BlockEnd(0)],
        "4": [BlockDelta(1, 'lin"}'), BlockEnd(1)],
    }
    async with site.stream(await site.generation(tools=[{"name": "weather"}, {"name": "time"}])) as response:
        got = events(response)
        run = await site.world.engine.run()
        deltas = []
        for text in "1234":
            run.say(text)
            deltas.append(await anext(got))
        run.done()
        rest = [each async for each in got]
    result = rest.pop()["result"]
    deltas += rest
    assert [each["sequence"] for each in deltas] == list(range(len(deltas)))
    fragments = [each["blockIndex"] for each in deltas if each["event"] == "delta"]
    assert fragments[:2] == [0, 1] and fragments != sorted(fragments)
    for index, part in enumerate(result["content"]):
        own = [each for each in deltas if each["blockIndex"] == index]
        assert (own[0]["toolCallId"], own[0]["name"]) == (part["toolCallId"], part["name"])
        assert [own[0]["event"], own[-1]["event"]] == ["start", "end"]
        assert json.loads("".join(each["text"] for each in own[1:-1])) == part["arguments"]
    assert [part["arguments"] for part in result["content"]] == [{"city": "Oslo"}, {"city": "Berlin"}]


async def test_a_refused_turn_keeps_its_text_and_no_call(site: Site) -> None:
    """Of what no local model says: a parser says it, after a whole call."""
    site.world.chat.script["no"] = [
        BlockStart(0, "toolCall", name="weather"),
        BlockDelta(0, "{}"),
        BlockEnd(0),
        BlockStart(1, "text"),
        BlockDelta(1, "I can"),
        Refusal(),
    ]
    async with site.stream(await site.generation(tools=[{"name": "weather"}], toolChoice="required")) as response:
        run = await site.world.engine.run()
        run.say("no")
        *deltas, result = [each async for each in events(response)]
    assert [each["event"] for each in deltas if each["blockIndex"] == 0] == ["start", "delta", "end"]
    assert result["result"]["finish"] == "refusal"
    assert result["result"]["content"] == [{"type": "text", "text": "I can"}]


def delta(sequence: int, event: str, block: str, index: int) -> dict[str, Any]:
    return {
        "type": "llm.delta",
        "requestId": "g",
        "sequence": sequence,
        "event": event,
        "block": block,
        "blockIndex": index,
    }


async def test_an_error_in_a_stream_is_one_event(site: Site) -> None:
    envelope = await site.generation()
    for broken in (
        envelope | {"request": envelope["request"] | {"handle": "other"}},
        envelope | {"request": envelope["request"] | {"maxTokens": 0}},
        envelope | {"more": 1},
    ):
        async with site.stream(broken) as response:
            (event,) = [each async for each in events(response)]
        assert event["type"] == "llm.generate.result" and event["id"] == "g" and set(event) == {"type", "id", "error"}


async def test_other_operations_answer_json_even_to_who_accepts_events(site: Site) -> None:
    for envelope in ({"type": "llm.select", "id": "s"}, {"type": "llm.describe", "id": "d", "handle": ""}):
        response = await site.client.post("/nap/llm", json=envelope, headers={"accept": "text/event-stream"})
        assert response.headers["content-type"] == "application/json" and response.json()["id"] == envelope["id"]


async def test_silence_is_filled_with_comments(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stream.HEARTBEAT <= 15
    monkeypatch.setattr(stream, "HEARTBEAT", 0.02)
    async with site.stream(await site.generation()) as response:
        lines = response.aiter_lines()
        assert await anext(lines) == ":"
        assert await anext(lines) == ""
        assert await anext(lines) == ":"
        (await site.world.engine.run()).done()
        assert "llm.generate.result" in [line async for line in lines][-2]


async def test_cancel_works_while_the_generation_streams(site: Site) -> None:
    async with site.stream(await site.generation()) as response:
        got = events(response)
        run = await site.world.engine.run()
        run.say("Hi")
        await anext(got)
        other = await site.call({"type": "llm.cancel", "id": "c", "requestId": "g"}, napplet_endpoint="other")
        assert other["cancelled"] is False
        assert (await site.call({"type": "llm.cancel", "id": "c", "requestId": "g"}))["cancelled"] is True
        last = [each async for each in got][-1]
        assert last["error"]["code"] == "cancelled"
    assert (await site.call({"type": "llm.cancel", "id": "c", "requestId": "g"}))["cancelled"] is False
    assert run.cancelled


async def test_a_duplicate_id_leaves_the_first_alone(site: Site) -> None:
    envelope = await site.generation()
    first = asyncio.create_task(site.call(envelope))
    run = await site.world.engine.run()
    assert (await site.call(envelope))["error"]["code"] == "invalid-request"
    run.done()
    assert (await first)["result"]["finish"] == "stop"
    assert len(site.world.engine.runs) == 1


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_before_a_byte_flows_has_cancelled(site: Site, streamed: bool) -> None:
    body = json.dumps(await site.generation()).encode()
    accept = b"text/event-stream" if streamed else b"application/json"
    token = site.client.headers["authorization"].encode()
    _, writer = await site.raw(
        b"POST /nap/llm HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nauthorization: %b\r\n"
        b"accept: %b\r\ncontent-length: %d\r\n\r\n%b" % (token, accept, len(body), body)
    )
    run = await site.world.engine.run()
    assert not run.cancelled
    writer.close()
    await asyncio.wait_for(run.closed.wait(), 5)
    assert run.cancelled
    assert [*site.world.runtime.live()] == []


async def test_a_client_that_leaves_mid_stream_has_cancelled(site: Site) -> None:
    async with site.stream(await site.generation()) as response:
        run = await site.world.engine.run()
        run.say("Hi")
        await anext(events(response))
    await asyncio.wait_for(run.closed.wait(), 5)
    assert run.cancelled


async def test_a_client_that_leaves_an_open_question_withdraws_it(site: Site) -> None:
    token = site.tokens.create("asking", select="ask")
    call = asyncio.create_task(
        site.client.post(
            "/nap/llm", json={"type": "llm.select", "id": "s"}, headers={"authorization": f"Bearer {token}"}
        )
    )
    decisions = site.world.runtime.decisions
    while not decisions.waiting():
        await asyncio.sleep(0.001)
    call.cancel()
    while decisions.waiting():
        await asyncio.sleep(0.001)


async def test_a_reader_that_stops_is_bounded_then_cut_off(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT", 0.05)
    monkeypatch.setattr(stream, "STALLED", 0.1)
    body = json.dumps(await site.generation()).encode()
    token = site.client.headers["authorization"].encode()
    _, writer = await site.raw(
        b"POST /nap/llm HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nauthorization: %b\r\n"
        b"accept: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (token, len(body), body)
    )
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    run = await site.world.engine.run()
    while not run.closed.is_set():
        run.say("x" * 100_000)
        await asyncio.sleep(0.001)
    assert run.cancelled
    writer.transport.abort()


async def test_ending_an_endpoint_and_an_account(site: Site) -> None:
    for path in ("/nap/llm/endpoint", "/nap/llm/account"):
        headers = {"napplet_endpoint": "w1", "napplet_account": "alice"}
        envelope = await site.generation(headers=headers)
        call = asyncio.create_task(site.call(envelope, **headers))
        await site.world.engine.run(len(site.world.engine.runs))
        other = await site.select(napplet_account="bob")
        response = await site.client.delete(path, headers={"napplet-endpoint": "w1", "napplet-account": "alice"})
        assert (response.status_code, response.content) == (204, b"")
        assert (await call)["error"]["code"] == "cancelled"
        describe = {"type": "llm.describe", "id": "d", "handle": envelope["request"]["handle"]}
        assert (await site.call(describe, **headers))["error"]["code"] == "selection-expired"
        assert "model" in await site.call({**describe, "handle": other}, napplet_account="bob")


async def test_the_shells_consent_is_a_header_that_counts_only_for_its_policy(site: Site) -> None:
    shell = f"Bearer {site.tokens.create('careful', consent='shell')}"
    envelope = await site.generation(headers={"authorization": shell})
    assert (await site.call(envelope, authorization=shell))["error"]["code"] == "user-cancelled"
    assert (await site.call(envelope, authorization=shell, napplet_consent="Granted"))["error"]["code"] == (
        "user-cancelled"
    )
    call = asyncio.create_task(site.call(envelope, authorization=shell, napplet_consent="granted"))
    (await site.world.engine.run()).done()
    assert (await call)["result"]["finish"] == "stop"


async def test_a_token_revoked_outside_ends_its_work_without_a_restart(site: Site) -> None:
    from server.state import TokenStore

    outside = TokenStore(site.tokens.directory)
    token = outside.create("other", consent="always")
    bearer = f"Bearer {token}"
    call = asyncio.create_task(
        site.call(await site.generation(headers={"authorization": bearer}), authorization=bearer)
    )
    await site.world.engine.run()
    outside.revoke("other")
    assert (await asyncio.wait_for(call, 5))["error"]["code"] == "cancelled"
    response = await site.client.post("/nap/llm", json={}, headers={"authorization": bearer})
    assert response.status_code == 401


@pytest.mark.parametrize("path", ["/nap/llm", "/llm/complete", "/v1/chat/completions", "/v1/responses"])
async def test_a_token_revoked_while_its_request_is_still_coming_starts_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    requests = {
        "/nap/llm": await site.generation(),
        "/llm/complete": {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]},
        "/v1/chat/completions": {"model": "first", "messages": [{"role": "user", "content": "hello"}]},
        "/v1/responses": {"model": "first", "input": "hello"},
    }
    looked_up, find = asyncio.Event(), site.tokens.find

    def finding(token: str) -> Any:
        looked_up.set()
        return find(token)

    monkeypatch.setattr(site.tokens, "find", finding)

    async def body() -> Any:
        whole = json.dumps(requests[path]).encode()
        yield whole[:10]
        await looked_up.wait()
        site.tokens.revoke("shell")
        yield whole[10:]

    response = await site.client.post(path, content=body(), headers={"content-type": "application/json"})
    assert response.status_code == 401
    assert site.world.engine.runs == []


UNCORRELATED = {
    "no JSON": b"{",
    "empty": b"",
    "no object": b"[]",
    "no type": b'{"id":"x"}',
    "type no text": b'{"type":1,"id":"x"}',
    "no id": b'{"type":"llm.select"}',
    "empty id": b'{"type":"llm.select","id":""}',
    "id no text": b'{"type":"llm.select","id":1}',
    "null id": b'{"type":"llm.select","id":null}',
    "unknown type": b'{"type":"llm.embed","id":"x"}',
    "id twice": b'{"type":"llm.select","id":"x","id":"y"}',
    "type twice": b'{"type":"llm.select","type":"llm.select","id":"x"}',
    "lone surrogate in the id": b'{"type":"llm.select","id":"\\ud800"}',
    "no UTF-8": b'{"type":"llm.select","id":"\xff"}',
    "deep": b'{"type":"llm.select","id":"x","a":' + b"[" * 100_000,
}


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_what_cannot_be_correlated_is_400(site: Site, accept: str) -> None:
    for case, body in UNCORRELATED.items():
        headers = {"content-type": "application/json", "accept": accept}
        response = await site.client.post("/nap/llm", content=body, headers=headers)
        assert response.status_code == 400, case
        assert response.json()["error"]["code"] == "invalid-request", case


CORRELATED = {
    "unknown member": b'{"type":"llm.select","id":"x","more":1}',
    "null": b'{"type":"llm.select","id":"x","requirements":null}',
    "wrong type": b'{"type":"llm.select","id":"x","requirements":{"json":1}}',
    "a member twice": b'{"type":"llm.select","id":"x","requirements":{"json":true,"json":false}}',
    "NaN": b'{"type":"llm.select","id":"x","requirements":{"json":NaN}}',
    "infinity": b'{"type":"llm.select","id":"x","requirements":{"json":-Infinity}}',
    "overflow": b'{"type":"llm.select","id":"x","requirements":{"json":1e999}}',
    "lone surrogate": b'{"type":"llm.select","id":"x","requirements":{"model":"\\udc00"}}',
    "too deep": b'{"type":"llm.select","id":"x","requirements":' + b'{"a":' * 200 + b"1" + b"}" * 200 + b"}",
    "payload missing": b'{"type":"llm.describe","id":"x"}',
    "empty request id": b'{"type":"llm.cancel","id":"x","requestId":""}',
    "boolean as a number": b'{"type":"llm.generate","id":"x","request":{"handle":"h","maxTokens":true,"messages":'
    b'[{"role":"user","content":[{"type":"text","text":"canary"}]}]}}',
}


async def test_what_can_be_correlated_is_a_result(site: Site) -> None:
    for case, body in CORRELATED.items():
        response = await site.client.post("/nap/llm", content=body, headers={"content-type": "application/json"})
        assert response.status_code == 200, case
        value = response.json()
        assert value["id"] == "x" and value["type"] == json.loads(body)["type"] + ".result", case
        assert value["error"]["code"] == "invalid-request" and set(value) == {"type", "id", "error"}, case
        assert "canary" not in response.text


async def test_the_content_type_must_be_json(site: Site) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = await site.client.post("/nap/llm", content=b"{}", headers={"content-type": kind})
        assert response.status_code == 415
    response = await site.client.post(
        "/nap/llm", content=b"{}", headers={"content-type": "Application/JSON; charset=utf-8"}
    )
    assert response.status_code == 400


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_limit_is_413_before_it_is_parsed(tmp_path: Path, declared: bool) -> None:
    async with site_of(tmp_path, ServerConfig(limits=Limits(body_bytes=1000))) as site:

        async def chunks() -> Any:
            for _ in range(20):
                yield b"[" * 100

        content: Any = b"[" * 2000 if declared else chunks()
        response = await site.client.post("/nap/llm", content=content, headers={"content-type": "application/json"})
        assert response.status_code == 413
        assert response.json()["error"] == {
            "code": "quota-exceeded",
            "message": "the body is larger than 1000 bytes",
            "reason": "size",
        }
        assert await site.select()


async def test_an_unfinished_body_is_no_request(site: Site) -> None:
    token = site.client.headers["authorization"].encode()
    _, writer = await site.raw(
        b"POST /nap/llm HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nauthorization: %b\r\n"
        b"content-length: 100\r\n\r\n{" % token
    )
    writer.close()
    await writer.wait_closed()
    assert await site.select()


async def test_a_large_body_is_read_beside_the_loop(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    read, readers = nap.read_envelope, []

    def reading(body: bytes, *, max_depth: int) -> Any:
        readers.append(threading.current_thread() is threading.main_thread())
        return read(body, max_depth=max_depth)

    monkeypatch.setattr(nap, "read_envelope", reading)
    envelope = await site.generation(text="word " * 400_000)
    assert (await site.call(envelope))["error"]["reason"] == "context"
    assert readers == [True, False]


async def test_names_in_headers_are_bounded_and_single(site: Site) -> None:
    token = site.client.headers["authorization"]
    for extra in (
        [("napplet-identity", "a"), ("napplet-identity", "b")],
        [("napplet-account", "x" * 2000)],
        [("napplet-endpoint", b"\xff")],
    ):
        headers = [("authorization", token), ("content-type", "application/json"), *extra]
        response = await site.client.post("/nap/llm", content=b"{}", headers=headers)
        assert response.status_code == 400, extra
    headers = [("authorization", token), ("authorization", token), ("content-type", "application/json")]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{site.port}", verify=False) as client:
        assert (await client.post("/nap/llm", content=b"{}", headers=headers)).status_code == 401


async def test_unknown_paths_and_methods(site: Site) -> None:
    assert (await site.client.get("/other")).json()["error"]["code"] == "invalid-request"
    response = await site.client.put("/nap/llm", content=b"{}")
    assert response.status_code == 405 and "error" in response.json()
    assert response.headers.get_list("allow") == ["GET, HEAD, POST"]
    assert (await site.client.get("/v1/responses")).headers["allow"] == "POST"
    assert (await site.client.get("/docs")).status_code == (await site.client.get("/openapi.json")).status_code == 404


async def test_nothing_confidential_is_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    token = site.client.headers["authorization"].removeprefix("Bearer ")
    handle = await site.select()
    call = asyncio.create_task(site.call(await site.generation(text="canary")))
    run = await site.world.engine.run()
    run.say("canary")
    run.fail("provider-error", "canary")
    await call
    await site.client.get("/canary?canary=1")
    await site.client.post("/nap/llm?token=canary", content=b"canary", headers={"content-type": "application/json"})
    ours = "\n".join(
        each.getMessage() for each in caplog.records if each.name.startswith(("server", "nap_llm", "uvicorn.error"))
    )
    assert "POST /nap/llm 200" in ours
    for secret in ("canary", token, handle):
        assert secret not in ours
