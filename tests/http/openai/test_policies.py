"""The same tokens, limits, consent and settlement as everywhere, with failures in the API's own shape."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from server.config import Limits, ServerConfig
from server.http import stream
from tests.http.openai.conftest import HELLO, Api, api_of


def create(api: Api, **fields: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(api.client.chat.completions.create(model="first", messages=HELLO, **fields))


async def failing(task: asyncio.Task[Any]) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as raised:
        await task
    assert set(raised.value.response.json()["error"]) == {"message", "type", "param", "code"}
    return raised.value


async def test_a_token_is_needed(api: Api) -> None:
    stranger = api.client.with_options(api_key="wrong")
    for path in ("models", "chat/completions", "responses"):
        with pytest.raises(openai.AuthenticationError) as raised:
            if path == "models":
                await stranger.models.list()
            else:
                await stranger.post(f"/{path}", body={}, cast_to=object)
        assert raised.value.code == "invalid_api_key" and raised.value.type == "authentication_error"
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{api.site.port}") as client:
        response = await client.get("/v1/models")
        assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("code", "extra", "status", "told"),
    [
        ("quota-exceeded", {"reason": "context"}, 400, "context_length_exceeded"),
        ("quota-exceeded", {"reason": "queue"}, 429, "rate_limit_exceeded"),
        ("unsupported", {"reason": "vision"}, 400, "unsupported"),
        ("timeout", {}, 504, "timeout"),
        ("provider-error", {}, 502, "provider_error"),
        ("cancelled", {}, 403, "cancelled"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_engine_that_fails(
    api: Api, code: str, extra: dict[str, str], status: int, told: str, streamed: bool
) -> None:
    task = create(api, stream=streamed)
    (await api.run()).fail(code, "no words of the engine's", **extra)
    error = await failing(task)
    assert (error.status_code, error.code) == (status, told)
    assert "no words" not in str(error)
    assert error.response.headers.get("x-should-retry") == ("false" if status == 504 else None)


async def test_a_failure_after_the_first_text_is_an_event(api: Api) -> None:
    task = create(api, stream=True)
    run = await api.run()
    run.say("one")
    chunks = aiter(await task)
    await anext(chunks)
    await anext(chunks)
    run.fail()
    with pytest.raises(openai.APIError) as raised:
        await anext(chunks)
    assert raised.value.code == "provider_error" and raised.value.type == "server_error"


async def test_limits(tmp_path: Path) -> None:
    limits = Limits(concurrent_per_endpoint=1, body_bytes=2000)
    async with api_of(tmp_path, server=ServerConfig(deadline=60, limits=limits)) as api:
        first = create(api)
        run = await api.run()
        error = await failing(create(api))
        assert (error.status_code, error.type, error.code) == (429, "rate_limit_error", "rate_limit_exceeded")
        run.done()
        await first
        error = await failing(create(api, user="x" * 3000))
        assert (error.status_code, error.code) == (413, "request_too_large")


async def test_the_rate_is_that_of_all_projections(tmp_path: Path) -> None:
    async with api_of(tmp_path, server=ServerConfig(deadline=60, limits=Limits(requests_per_minute=1))) as api:
        task = create(api)
        await api.says("x")
        await task
        assert (await failing(create(api))).status_code == 429


@pytest.mark.parametrize("allow", [True, False])
@pytest.mark.parametrize("streamed", [True, False])
async def test_the_owner_is_asked_under_the_tokens_name(
    api: Api, monkeypatch: pytest.MonkeyPatch, allow: bool, streamed: bool
) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT", 0.02)
    asking = api.client.with_options(api_key=api.site.tokens.create("editor", consent="ask"))
    task = asyncio.create_task(asking.chat.completions.create(model="first", messages=HELLO, stream=streamed))
    decisions = api.world.runtime.decisions
    while not decisions.waiting():
        await api.world.runtime.changes.since(api.world.runtime.changes.version)
    (decision,) = decisions.waiting()
    assert (decision.endpoint.token, decision.endpoint.identity) == ("editor", "editor")
    assert decision.kind == "consent" and decision.disclosure.messages["user"].bytes == 5
    assert api.world.engine.runs == []
    decisions.settle_consent(decision.id, allow)
    if not allow:
        error = await failing(task)
        assert (error.status_code, error.code, error.type) == (403, "user_cancelled", "permission_error")
        return
    await api.says("allowed")
    answer = await task
    said = [chunk.choices[0].delta.content or "" async for chunk in answer] if streamed else None
    assert (answer.choices[0].message.content if said is None else "".join(said)) == "allowed"


async def test_a_stream_begins_although_the_owner_takes_his_time(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT", 0.02)
    monkeypatch.setattr(stream.EventStream.__init__, "__kwdefaults__", {"refuse": None, "patience": 0.01})
    asking = api.client.with_options(api_key=api.site.tokens.create("editor", consent="ask"))
    answer = await asking.chat.completions.create(model="first", messages=HELLO, stream=True)
    (decision,) = api.world.runtime.decisions.waiting()
    api.world.runtime.decisions.settle_consent(decision.id, False)
    with pytest.raises(openai.APIError) as raised:
        await anext(aiter(answer))
    assert raised.value.code == "user_cancelled"


async def test_a_model_that_changes_meanwhile_is_a_conflict_which_the_client_tries_again(api: Api) -> None:
    asking = api.client.with_options(api_key=api.site.tokens.create("editor", consent="ask"), max_retries=1)
    task = asyncio.create_task(asking.chat.completions.create(model="first", messages=HELLO))
    for content in (b"another model", None):
        async with asyncio.timeout(20):
            while not (waiting := api.world.runtime.decisions.waiting()):
                await api.world.runtime.changes.since(api.world.runtime.changes.version)
        if content is not None:
            api.world.file.write_bytes(content)
        api.world.runtime.decisions.settle_consent(waiting[0].id, True)
        while api.world.runtime.decisions.waiting() == waiting:
            await asyncio.sleep(0)
    await api.says("the new one")
    assert (await task).choices[0].message.content == "the new one"


async def test_a_shells_token_needs_its_word(api: Api) -> None:
    shell = api.client.with_options(api_key=api.site.tokens.create("other", consent="shell"))
    error = await failing(asyncio.create_task(shell.chat.completions.create(model="first", messages=HELLO)))
    assert error.code == "user_cancelled"
    granted = shell.with_options(default_headers={"Napplet-Consent": "granted"})
    task = asyncio.create_task(granted.chat.completions.create(model="first", messages=HELLO))
    await api.says("x")
    assert (await task).choices[0].message.content == "x"


async def test_a_revoked_token_ends_its_work(api: Api) -> None:
    client = api.client.with_options(api_key=api.site.tokens.create("gone", consent="always"))
    task = asyncio.create_task(client.chat.completions.create(model="first", messages=HELLO))
    run = await api.run()
    api.site.tokens.revoke("gone")
    assert (await failing(task)).code == "cancelled"
    assert run.cancelled


async def test_another_projections_work_is_another_endpoints(api: Api) -> None:
    """The token's own NAP-LLM endpoint sees nothing of it, and cannot cancel it."""
    task = create(api)
    await api.run()
    (live,) = api.world.runtime.live()
    cancelled = await api.site.call({"type": "llm.cancel", "id": "c", "requestId": live.id})
    assert cancelled["cancelled"] is False
    api.world.engine.runs[0].done()
    await task


async def test_unknown_paths_and_forms_are_told_in_the_apis_shape(api: Api) -> None:
    for method, path in (("POST", "embeddings"), ("GET", "chat/completions"), ("POST", "responses/resp_1/cancel")):
        response = await api.site.client.request(method, f"/v1/{path}")
        assert response.status_code in (404, 405) and response.json()["error"]["code"] == "unknown_url"
    response = await api.site.client.post("/v1/chat/completions", content=b"model=first")
    assert response.status_code == 415 and response.json()["error"]["type"] == "invalid_request_error"


async def test_a_switched_off_server_offers_nothing(tmp_path: Path) -> None:
    async with api_of(tmp_path, server=ServerConfig(enabled=False)) as api:
        for task in (create(api), asyncio.create_task(api.client.responses.create(model="first", input="x"))):
            assert (await failing(task)).status_code == 404


async def test_no_content_in_logs_or_errors(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "server")
    caplog.set_level(logging.DEBUG, "nap_llm")
    canary = "canary-77ab"

    async def boom(*_: Any, **__: Any) -> Any:
        raise RuntimeError(canary)

    api.world.chat.prepare = boom  # type: ignore[method-assign]
    for streamed in (False, True):
        error = await failing(
            asyncio.create_task(
                api.client.chat.completions.create(
                    model="first", messages=[{"role": "user", "content": canary}], stream=streamed
                )
            )
        )
        assert error.status_code == 502 and canary not in error.response.text
    ours = [record for record in caplog.records if record.name.startswith(("server", "nap_llm"))]
    assert ours and not any(canary in record.getMessage() for record in ours)
