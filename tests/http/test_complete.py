"""`POST /llm/complete` over real HTTP, with an engine that does as told: statuses, routes, policy, settlement."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from array import array
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from server.chat import PromptRequest
from server.chat.events import BlockDelta, BlockEnd, BlockStart, Refusal
from server.config import CapabilityLimits, Limits, ModelConfig, ModelLimitsConfig, ModelSource, Route, ServerConfig
from server.engine.sampling.params import Sampling
from server.http.api import STATUS
from server.wire.message_schema import MESSAGE_SCHEMA
from server.wire.records import ImagePart, Message, TextPart, Tool, WireError
from tests.http.conftest import Site, site_of

HELLO = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
LOOK = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
IMAGE = {"type": "image", "image": {"base64": "iVBORw0KGgo=", "mimeType": "image/png"}}
THOUGHT = [BlockStart(0, "thinking"), BlockDelta(0, "A thought.")]
CALL = [
    BlockEnd(0),
    BlockStart(1, "toolCall", name="look"),
    BlockDelta(1, '{"at":1}'),
    BlockEnd(1),
]
TOOLS = {"tools": [LOOK], "constraints": {"tool_calling": True}}


async def post(site: Site, *messages: Any, headers: dict[str, str] | None = None, **members: Any) -> httpx.Response:
    body = {"messages": [*messages] or [HELLO], **members}
    return await site.client.post("/llm/complete", json=body, headers=headers)


async def answer(
    site: Site, *messages: Any, said: tuple[str, ...] = ("Hi",), tokens: Any = (7, 8), **members: Any
) -> Any:
    """The response to a request whose generation says this."""
    number = len(site.world.engine.runs)
    call = asyncio.create_task(post(site, *messages, **members))
    run = await site.world.engine.run(number)
    run.say(*said)
    run.done(tokens=tokens, cached=2)
    response = await call
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    value = response.json()
    Draft202012Validator(MESSAGE_SCHEMA).validate(value["message"])
    return value


def failure(response: httpx.Response, code: str, words: str = "") -> None:
    error = response.json()["error"]
    assert (error["code"], response.status_code) == (code, STATUS[code]), response.text  # type: ignore[index]
    assert set(response.json()) == {"error"} and words in error["message"], error


# --- the response


async def test_one_request_one_response(site: Site) -> None:
    value = await answer(site)
    payload = value["message"].pop("continuation")
    assert payload["format"] == "llama.tokens.v1" and set(payload) == {"format", "compatibility_key", "payload"}
    assert value == {
        "message": {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]},
        "finishReason": "stop",
        "usage": {
            "input_tokens": 5,
            "output_tokens": 1,
            "cached_input_tokens": 2,
            "reasoning_output_tokens": 0,
            "credits": 0,
        },
        "route": {"provider": "llama.cpp on this machine", "model": "first-1", "mode": "default"},
    }


async def test_calls_are_content_and_thinking_is_not(site: Site) -> None:
    site.world.chat.script |= {"think": THOUGHT, "call": CALL}
    value = await answer(site, **TOOLS, said=("think", "call"))
    (call,) = value["message"]["content"]
    assert call == {"type": "tool_call", "id": call["id"], "name": "look", "arguments": {"at": 1}}
    assert value["finishReason"] == "tool_calls" and value["usage"]["reasoning_output_tokens"] > 0
    assert "A thought." not in json.dumps(value)
    (conversation,) = site.world.chat.conversations
    assert conversation.tools == (Tool("look", "Looks.", {"type": "object"}),) and conversation.tool_choice == "auto"


async def test_a_loop_of_calls(site: Site) -> None:
    site.world.chat.script |= {"think": THOUGHT, "call": CALL}
    first = (await answer(site, **TOOLS, said=("think", "call"), tokens=(1, 2, 3)))["message"]
    id = first["content"][0]["id"]
    results = [{"type": "tool_result", "call_id": id, "result": {"seen": True}, "is_error": True}]
    value = await answer(site, HELLO, first, {"role": "tool", "content": results}, **TOOLS, diagnostics=True)
    conversation = site.world.chat.conversations[-1]
    assert conversation.messages[2] == Message("toolResult", (TextPart('{"seen": true}'),), id, "look", True)
    assert conversation.kept_tokens == {1: array("i", [1, 2, 3])}
    assert value["diagnostics"]["cache"]["continuations_given"] == 1
    assert value["diagnostics"]["cache"]["continuations_replayed"] == 1


async def test_truncated_output_has_no_calls_and_no_continuation(site: Site) -> None:
    site.world.chat.script |= {"think": THOUGHT, "call": CALL}
    call = asyncio.create_task(post(site, **TOOLS, options={"maxTokens": 3}))
    run = await site.world.engine.run()
    assert run.job.max_tokens == 3
    run.say("think", "call")
    run.done("length", tokens=(1, 2))
    value = (await call).json()
    assert (value["finishReason"], value["message"]) == ("length", {"role": "assistant", "content": []})


async def test_a_refusal_is_another_finish(site: Site) -> None:
    site.world.chat.script["no"] = [BlockStart(0, "text"), BlockDelta(0, "No."), Refusal()]
    call = asyncio.create_task(post(site))
    (await site.world.engine.run()).say("no")
    value = (await call).json()
    assert (value["finishReason"], value["message"]["content"]) == ("other", [{"type": "text", "text": "No."}])
    assert (value["usage"]["input_tokens"], value["usage"]["output_tokens"]) == (5, 1)


async def test_diagnostics_are_figures(site: Site) -> None:
    value = await answer(site, {**HELLO, "content": [{"type": "text", "text": "canary"}]}, diagnostics=True)
    found = value["diagnostics"]
    stages = {"preparing", "loading", "submitted", "decoding", "checking", "total"}
    assert set(found) == {"timings", "cache"} and set(found["timings"]) == stages
    assert all(isinstance(each, int | float) and each >= 0 for each in found["timings"].values())
    assert sum(found["timings"].values()) == pytest.approx(2 * found["timings"]["total"], abs=0.1)
    assert found["cache"] == {
        "prompt_tokens": 6,
        "cached_tokens": 2,
        "continuations_given": 0,
        "continuations_replayed": 0,
    }
    assert "canary" not in json.dumps(value)
    assert "diagnostics" not in await answer(site, diagnostics=False)


async def test_the_schema_is_served_to_anybody(site: Site) -> None:
    async with httpx.AsyncClient(base_url=f"http://localhost:{site.port}", verify=False) as client:
        response = await client.get("/llm/message.v1.schema.json")
    assert (response.status_code, response.json()) == (200, MESSAGE_SCHEMA)


# --- who may ask, and how much


async def test_who_asks_and_what_is_sent_is_checked_as_everywhere(tmp_path: Path) -> None:
    async with site_of(tmp_path, ServerConfig(limits=Limits(body_bytes=1000, json_depth=9))) as site:
        assert (await post(site, headers={"authorization": "Bearer other"})).status_code == 401
        assert (await post(site, headers={"host": "other.example"})).status_code == 403
        assert (await post(site, headers={"origin": "https://other.example"})).status_code == 403
        large = {**HELLO, "content": [{"type": "text", "text": "x" * 1000}]}
        assert (await post(site, large)).status_code == 413
        plain = await site.client.post("/llm/complete", content=b"{}", headers={"content-type": "text/plain"})
        assert plain.status_code == 415
        failure(await post(site, HELLO, diagnostics=[[[[[[[[[]]]]]]]]]), "invalid-request", "nested")
        assert (await site.client.get("/llm/complete")).status_code == 405
        assert site.world.chat.inspected == 0


def artifact(name: str, mime_type: str = "text/plain") -> dict[str, Any]:
    return {"type": "artifact", "uri": f"meow-artifact://v1/{name}", "mime_type": mime_type}


FILES = {"constraints": {"input": ["file"]}}


async def test_texts_of_the_owner_s_directory_are_read(tmp_path: Path) -> None:
    kept, other = tmp_path / "kept", tmp_path / "other"
    for directory in (kept / "notes", other):
        directory.mkdir(parents=True)
    (kept / "notes/a.md").write_text("The ferry", encoding="utf-8")
    (kept / "large").write_bytes(b"x" * 21)
    (other / "secret").write_text("secret", encoding="utf-8")
    (kept / "link").symlink_to(other / "secret")
    (kept / "way").symlink_to(other)
    (kept / "same").symlink_to(kept / "notes/a.md")
    os.mkfifo(kept / "pipe")
    limits = Limits(artifact_bytes=20)
    async with site_of(tmp_path, ServerConfig(artifacts=kept, limits=limits)) as site:
        read = {
            "role": "user",
            "content": [artifact("notes/a.md", "text/markdown"), {"type": "text", "text": " goes?"}],
        }
        await answer(site, read, **FILES)
        assert site.world.chat.conversations[-1].messages[0].content == (TextPart("The ferry"), TextPart(" goes?"))
        await answer(site, {"role": "user", "content": [artifact("same")] * 2}, **FILES)
        submitted = len(site.world.engine.runs)
        for name in ("missing", "notes", "link", "way/secret", "pipe", "notes/../../other/secret", "x" * 5000):
            failure(await post(site, {"role": "user", "content": [artifact(name)]}, **FILES), "unsupported", ".uri")
        for names in (["large"], ["same"] * 3):
            content = [artifact(name) for name in names]
            failure(await post(site, {"role": "user", "content": content}, **FILES), "quota-exceeded", "artifacts")
        failure(await post(site, read), "invalid-request", "needs file")
        sound = [artifact("same", "audio/ogg")]
        declared = {"constraints": {"input": ["audio"]}}
        failure(await post(site, {"role": "user", "content": sound}, **declared), "unsupported", "mime_type")
        failure(await post(site, **declared), "unsupported", "audio")
        assert len(site.world.engine.runs) == submitted


async def test_images_of_the_owner_s_directory_are_images(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "a").write_bytes(b64decode(IMAGE["image"]["base64"]))  # type: ignore[index]
    shown = {"role": "user", "content": [artifact("a", "image/png")]}
    declared = {"constraints": {"input": ["image"]}}
    async with site_of(tmp_path, ServerConfig(artifacts=kept)) as site:
        # The connection sees nothing: what is declared is not what it is able to.
        failure(await post(site, shown, **declared), "unsupported")
        connection = site.world.runtime.connections[0]
        site.world.chat.capabilities = replace(site.world.chat.capabilities, images=True)
        connection.expire()
        await answer(site, shown, **declared)
        assert site.world.chat.conversations[-1].messages[0].content == (
            ImagePart("image/png", IMAGE["image"]["base64"]),  # type: ignore[index]
        )


async def test_without_a_directory_there_are_no_artifacts(site: Site) -> None:
    failure(await post(site, {"role": "user", "content": [artifact("a")]}, **FILES), "unsupported", "meow-artifact")
    failure(await post(site, **FILES), "unsupported", "file")


async def test_an_absent_domain_is_404(tmp_path: Path) -> None:
    async with site_of(tmp_path, ServerConfig(enabled=False)) as site:
        for response in (await post(site), await site.client.get("/llm/message.v1.schema.json")):
            assert (response.status_code, response.json()["error"]["code"]) == (404, "unsupported")


async def test_statuses(site: Site) -> None:
    assert set(STATUS.values()) == {400, 403, 409, 422, 429, 502, 504}
    failure(await post(site, HELLO, provider="other"), "invalid-request", "provider")
    site.world.chat.refusal = WireError("unsupported", "the template refuses")
    failure(await post(site), "unsupported", "the template refuses")
    site.world.chat.refusal = None
    failure(await post(site, {**HELLO, "content": [{"type": "text", "text": "x" * 2000}]}), "quota-exceeded", "context")

    async def ended(how: Any) -> httpx.Response:
        number = len(site.world.engine.runs)
        call = asyncio.create_task(post(site))
        how(await site.world.engine.run(number))
        return await call

    failure(await ended(lambda run: run.fail("provider-error", "canary")), "provider-error", "the engine failed")
    failure(await ended(lambda run: run.fail("timeout")), "timeout")
    failure(
        await ended(lambda _: [site.world.runtime.stop(live.number) for live in [*site.world.runtime.live()]]),
        "cancelled",
    )
    disable = site.world.runtime.disable
    failure(await ended(lambda _: disable(site.world.runtime.connections[0])), "cancelled")
    failure(await post(site), "unsupported", "no connection")


async def test_the_deadline_is_504(tmp_path: Path) -> None:
    async with site_of(tmp_path, ServerConfig(deadline=0.05)) as site:
        failure(await post(site), "timeout", "deadline")


async def test_limits_are_those_of_the_endpoint(tmp_path: Path) -> None:
    async with site_of(tmp_path, ServerConfig(limits=Limits(concurrent_per_endpoint=1))) as site:
        first = asyncio.create_task(post(site))
        run = await site.world.engine.run()
        failure(await post(site), "quota-exceeded", "too many generations")
        other = asyncio.create_task(post(site, headers={"napplet-endpoint": "other"}))
        (await site.world.engine.run(1)).done()
        run.done()
        assert [(await each).status_code for each in (first, other)] == [200, 200]


async def test_consent(site: Site) -> None:
    shell = {"authorization": f"Bearer {site.tokens.create('careful', consent='shell')}"}
    failure(await post(site, headers=shell), "user-cancelled")
    assert site.world.engine.runs == []
    granted = asyncio.create_task(post(site, headers={**shell, "napplet-consent": "granted"}))
    (await site.world.engine.run()).done()
    assert (await granted).status_code == 200

    asking = {"authorization": f"Bearer {site.tokens.create('asking')}"}
    for number, allowed in enumerate((False, True), 1):
        call = asyncio.create_task(post(site, headers=asking, **TOOLS))
        while not (waiting := site.world.runtime.decisions.waiting()):
            await asyncio.sleep(0)
        assert len(site.world.engine.runs) == 1
        assert waiting[0].disclosure.tool_names == ("look",)  # type: ignore[union-attr]
        site.world.runtime.decisions.settle_consent(waiting[0].id, allowed)
        if allowed:
            (await site.world.engine.run(number - 1)).done()
            assert (await call).status_code == 200
        else:
            failure(await call, "user-cancelled")


async def test_a_changed_connection_during_consent_is_409(site: Site) -> None:
    asking = {"authorization": f"Bearer {site.tokens.create('asking')}"}
    call = asyncio.create_task(post(site, headers=asking))
    while not site.world.runtime.decisions.waiting():
        await asyncio.sleep(0)
    site.world.runtime.connections[0].expire()
    failure(await call, "cancelled", "changed")


async def test_a_client_that_is_gone_has_given_it_up(site: Site) -> None:
    body = json.dumps({"messages": [HELLO]}).encode()
    _, writer = await site.raw(
        b"POST /llm/complete HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nauthorization: %b\r\n"
        b"content-length: %d\r\n\r\n%b" % (site.client.headers["authorization"].encode(), len(body), body)
    )
    run = await site.world.engine.run()
    (live,) = site.world.runtime.live()
    writer.close()
    await run.closed.wait()
    assert isinstance(live.outcome, WireError) and live.outcome.code == "cancelled" and run.cancelled


# --- routes


@asynccontextmanager
async def routed(directory: Path) -> AsyncIterator[Site]:
    source = ModelSource(path=directory / "model.gguf")
    connections = (
        ModelConfig("plain", "Plain", "plain-1", source, capabilities=CapabilityLimits(json=False, tools=False)),
        ModelConfig("able", "Able", "able-1", source),
        ModelConfig("quick", "Quick", "quick-1", source),
    )
    routes = {Route("chat", None): "able", Route("chat", "quick"): "quick", Route(None, "slow"): "plain"}
    async with site_of(directory, connections=connections, routes=routes) as site:
        yield site


async def test_a_use_case_and_a_mode_pick_the_connection(tmp_path: Path) -> None:
    async with routed(tmp_path) as site:
        for members, model, mode in (
            ({}, "plain-1", "default"),
            ({"useCase": "chat"}, "able-1", "default"),
            ({"useCase": "chat", "mode": "quick"}, "quick-1", "quick"),
            ({"mode": "slow"}, "plain-1", "slow"),
        ):
            route = (await answer(site, **members))["route"]
            assert (route["model"], route["mode"]) == (model, mode)
        for members in (
            {"useCase": "other"},
            {"mode": "quick"},
            {"useCase": "chat", "mode": "slow"},
            {"useCase": "chat/quick"},
        ):
            failure(await post(site, **members), "unsupported", "no route")


async def test_the_default_is_the_first_that_can_do_what_is_declared(tmp_path: Path) -> None:
    async with routed(tmp_path) as site:
        value = await answer(site, constraints={"tool_calling": True})
        assert value["route"]["model"] == "able-1"
        value = await answer(site, constraints={"structured_output": True})
        assert value["route"]["model"] == "able-1"
        failure(await post(site, mode="slow", constraints={"tool_calling": True}), "unsupported", "requirements")
        failure(await post(site, constraints={"input": ["image"]}), "unsupported", "requirements")
        assert {each.job.id for each in site.world.engine.runs} and len(site.world.engine.runs) == 2


async def test_an_owner_who_chooses_is_asked_once(site: Site) -> None:
    choosing = {"authorization": f"Bearer {site.tokens.create('choosing', consent='always', select='ask')}"}
    call = asyncio.create_task(post(site, headers=choosing))
    while not (waiting := site.world.runtime.decisions.waiting()):
        await asyncio.sleep(0)
    site.world.runtime.decisions.settle_selection(waiting[0].id, "first")
    (await site.world.engine.run()).done()
    assert (await call).status_code == 200
    again = asyncio.create_task(post(site, headers=choosing))
    (await site.world.engine.run(1)).done()
    assert (await again).status_code == 200


# --- what is declared, and what the connection can do


@pytest.mark.parametrize("kind", ["video", "audio", "file"])
async def test_input_that_nothing_here_takes(site: Site, kind: str) -> None:
    failure(await post(site, constraints={"input": [kind]}), "unsupported", kind)


async def test_images_are_what_the_connection_says(site: Site) -> None:
    seen = {"role": "user", "content": [{"type": "text", "text": "See."}, IMAGE]}
    declared = {"constraints": {"input": ["image"]}}
    failure(await post(site, seen), "invalid-request", "constraints.input")
    failure(await post(site, seen, **declared), "unsupported")
    site.world.chat.capabilities = replace(site.world.chat.capabilities, images=True)
    site.world.runtime.connections[0].expire()
    await answer(site, seen, **declared)
    assert site.world.chat.conversations[-1].messages[0].content[1] == ImagePart("image/png", "iVBORw0KGgo=")
    url = {"role": "user", "content": [{"type": "image", "image": {"url": "http://127.0.0.1:1/a.png"}}]}
    failure(await post(site, url, **declared), "unsupported", "image.url")
    artifact = {"type": "artifact", "uri": "meow-artifact://v1/x", "mime_type": "image/png"}
    failure(await post(site, {"role": "user", "content": [artifact]}, **declared), "unsupported", "meow-artifact")


async def test_tools_need_a_connection_that_takes_them(tmp_path: Path) -> None:
    source = ModelSource(path=tmp_path / "model.gguf")
    one = ModelConfig("a", "A", "a", source, capabilities=CapabilityLimits(json=False, tools=False))
    async with site_of(tmp_path, connections=(one,)) as site:
        for members in (
            {"tools": [LOOK]},
            TOOLS,
            {"responseFormat": {"type": "json_object"}, "constraints": {"structured_output": True}},
            {"constraints": {"structured_output": True}},
        ):
            failure(await post(site, **members), "unsupported")
        assert site.world.engine.runs == []


# --- structured output


async def test_structured_output(site: Site) -> None:
    declared = {"structured_output": True}
    value = await answer(site, responseFormat={"type": "json_object"}, constraints=declared, said=('{"a":1}',))
    assert value["message"]["content"] == [{"type": "text", "text": '{"a":1}'}]
    schema = {"type": "array", "items": {"type": "integer"}}
    wanted = {"responseFormat": {"type": "json_schema", "schema": schema}, "constraints": declared}
    await answer(site, **wanted, said=("[1]",))
    json_object, json_schema = site.world.chat.conversations
    assert (json_object.format, json_object.response_schema) == ("json", None)
    assert (json_schema.format, json_schema.response_schema) == ("text", schema)
    call = asyncio.create_task(post(site, **wanted))
    run = await site.world.engine.run(2)
    run.say("no json")
    run.done()
    failure(await call, "provider-error")


# --- generation belongs to the connection


async def test_policy_is_the_connections_alone(tmp_path: Path) -> None:
    one = ModelConfig(
        "a",
        "A",
        "a",
        ModelSource(path=tmp_path / "model.gguf"),
        reasoning_effort="ultra",
        temperature=1.9,
        supports=ModelLimitsConfig(temperature_max=1.0, max_output_tokens=40),
    )
    async with site_of(tmp_path, connections=(one,)) as site:
        chat = site.world.chat
        chat.capabilities = replace(chat.capabilities, thinking=True, reasoning_efforts=("low", "high"))
        for option in ("temperature", "thinking", "reasoning", "reasoning_effort"):
            failure(await post(site, options={option: 0}), "invalid-request", f"options.{option}")
        await answer(site, options={"maxTokens": 100})
        (run,) = site.world.engine.runs
        assert (run.job.sampling, run.job.max_tokens) == (Sampling(temperature=1.0), 40)
        assert (chat.settings[-1].thinking, chat.settings[-1].reasoning_effort) == (True, "high")


# --- continuations


def with_payload(message: dict[str, Any], **change: Any) -> dict[str, Any]:
    return {**message, "continuation": {**message["continuation"], **change}}


async def test_a_continuation_comes_back_as_the_tokens_it_was(site: Site) -> None:
    first = (await answer(site, tokens=(3, 1, 2)))["message"]
    stored = json.loads(json.dumps(first, sort_keys=True, indent=1))
    await answer(site, HELLO, stored, HELLO)
    assert site.world.chat.conversations[-1].kept_tokens == {1: array("i", [3, 1, 2])}
    # Text in pieces is the same text.
    pieces = {**first, "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}
    await answer(site, HELLO, pieces, HELLO)
    assert site.world.chat.conversations[-1].kept_tokens == {1: array("i", [3, 1, 2])}


async def test_a_tampered_one_is_refused_and_never_shown(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    first = (await answer(site))["message"]
    payload = first["continuation"]["payload"]
    other = (await answer(site, said=("Ho",)))["message"]
    for message in (
        with_payload(first, payload=payload[:-4] + "AAAA"),
        with_payload(first, payload={"a": payload}),
        with_payload(other, payload=payload),
        {**first, "content": [{"type": "text", "text": "Ha"}]},
        {**first, "content": []},
    ):
        response = await post(site, HELLO, message, HELLO)
        failure(response, "invalid-request", "continuation")
        assert payload[:16] not in response.text
    assert len(site.world.chat.conversations) == 2, "nothing was prepared"
    ours = [each.getMessage() for each in caplog.records if not each.name.startswith(("httpx", "httpcore"))]
    assert payload[:16] not in "\n".join(ours)


async def test_another_key_is_a_new_context(site: Site) -> None:
    first = (await answer(site))["message"]
    for change in ({"compatibility_key": "other"}, {"format": "llama.tokens.v2"}):
        await answer(site, HELLO, with_payload(first, **change), HELLO)
        assert site.world.chat.conversations[-1].kept_tokens == {}
    chat = site.world.chat
    changes: list[Any] = [
        lambda: setattr(chat, "capabilities", replace(chat.capabilities, fingerprint="other template")),
        lambda: site.world.file.write_bytes(b"another model"),
    ]
    for change in changes:
        first = (await answer(site))["message"]
        change()
        site.world.runtime.connections[0].expire()
        second = (await answer(site, HELLO, first, HELLO))["message"]
        assert chat.conversations[-1].kept_tokens == {}
        assert second["continuation"]["compatibility_key"] != first["continuation"]["compatibility_key"]


async def test_it_holds_as_long_as_the_servers_secret(tmp_path: Path) -> None:
    async with site_of(tmp_path, secret=b"one") as site:
        first = (await answer(site))["message"]
    for secret, kept in ((b"one", 1), (b"two", 0)):
        async with site_of(tmp_path / "again", file=tmp_path / "model.gguf", secret=secret) as site:
            await answer(site, HELLO, first, HELLO)
            conversation: PromptRequest = site.world.chat.conversations[-1]
            assert len(conversation.kept_tokens) == kept
        (tmp_path / "again" / "state" / "tokens.json").unlink()


async def test_a_server_that_ends_says_when_to_come_again(site: Site) -> None:
    old = asyncio.create_task(post(site))
    run = await site.world.engine.run()
    drained = asyncio.create_task(site.world.runtime.drain(60))
    while not site.world.runtime.draining:
        await asyncio.sleep(0)
    refused = await post(site)
    assert (refused.status_code, refused.json()["error"]["reason"]) == (502, "shutdown")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    run.say("All of it.")
    run.done()
    assert (await old).status_code == 200
    assert await drained is True
