"""LLM-C01 to LLM-C23 (NAP-LLM, "Conformance Cases"), each test under its case's id."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from server.client import Client, TransportError
from server.config import CapabilityLimits, ServerConfig
from tests.conformance.conftest import Controlled, Make, Shell, check_stream, user
from tests.pictures import png

pytestmark = pytest.mark.asyncio(loop_scope="module")

PIXEL = base64.b64encode(png(2, 2)).decode()
IMAGE = {"type": "image", "mimeType": "image/png", "data": PIXEL}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Look up current weather", "parameters": CITY}
TIME = {"name": "get_time", "parameters": CITY}
SECRET = "canary-7f3a"


def call(id: str, name: str = "get_weather", **arguments: Any) -> dict[str, Any]:
    return {"type": "toolCall", "toolCallId": id, "name": name, "arguments": arguments}


def assistant(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": [*content]}


def answer(id: str, text: str = "18 degrees", name: str = "get_weather", **fields: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"role": "toolResult", "toolCallId": id, "toolName": name, "content": content, **fields}


def calls(*pairs: tuple[str, str]) -> str:
    """Calls as SmolLM2 is made to write them."""
    inner = ", ".join(f'{{"name": "{name}", "arguments": {arguments}}}' for name, arguments in pairs)
    return f'{{"tool_calls": [{inner}]}}'


async def pending(shell: Shell) -> dict[str, Any]:
    """The question that waits for the owner because of us, once it does."""
    while True:
        decisions = await shell.decisions()
        if decisions:
            return decisions[0]
        await asyncio.sleep(0.01)


async def deny(shell: Shell, decision: dict[str, Any]) -> None:
    answered = await shell.owner.post(f"/owner/consents/{decision['id']}", json={"decision": "deny"})
    assert answered.status_code == 204


OBEYED = pytest.mark.needs("to see what the engine was given")
MISBEHAVES = pytest.mark.needs("an engine that misbehaves on command")
CONFIGURED = pytest.mark.needs("a configuration of its own")
ANSWERS = pytest.mark.needs("an engine that answers on command")
STALLS = pytest.mark.needs("an engine that stands still on command")


# LLM-C01: select, describe, generate; also omit the optional domain


async def test_llm_c01_select_describe_generate(shell: Shell) -> None:
    async with httpx.AsyncClient(base_url=shell.http.base_url, trust_env=False) as anyone:
        present = await anyone.get("/nap/llm")
    assert present.status_code == 200 and present.json() == {"domain": "llm"}
    model = await shell.select()
    assert set(model) == {"handle", "name", "model", "route", "images", "json", "tools", "toolChoiceModes"}
    assert all(isinstance(model[each], str) and model[each] for each in ("handle", "model", "route"))
    assert all(isinstance(model[each], bool) for each in ("images", "json", "tools"))
    modes = model["toolChoiceModes"]
    assert len(modes) == len(set(modes)) and set(modes) <= {"auto", "none", "required", "tool"}
    assert {"auto", "none"} <= set(modes) if model["tools"] else not modes
    assert (await shell.call("llm.describe", handle=model["handle"]))["model"] == model
    _, streamed = await shell.stream("g1", await shell.request())
    assert streamed["result"]["content"]
    buffered = await shell.call("llm.generate", request=await shell.request())
    assert buffered["result"]["finish"] in ("stop", "length")


async def test_llm_c01_another_conversation_changes_nothing(shell: Shell) -> None:
    request = await shell.request("Hello")
    first = await shell.call("llm.generate", request=request)
    longer = [user("Hello"), assistant({"type": "text", "text": "Good morning."}), user("What is your name?")]
    second = await shell.call("llm.generate", request=request | {"messages": longer})
    again = await shell.call("llm.generate", request=request)
    read = [each["result"]["usage"]["inputTokens"] for each in (first, second, again)]
    assert read[0] == read[2] < read[1]


@OBEYED
async def test_llm_c01_the_prompt_is_the_whole_conversation_and_nothing_else(controlled: Controlled) -> None:
    words = ["aardvark", "badger", "caribou", "dingo", "ermine"]
    roles = ["system", "user", "assistant", "user", "assistant"]
    messages = [
        {"role": role, "content": [{"type": "text", "text": word[:3]}, {"type": "text", "text": word[3:]}]}
        for role, word in zip(roles, words, strict=True)
    ]
    for number, conversation in enumerate((messages, [user("ferret")])):
        generation = asyncio.create_task(controlled.stream("g", await controlled.request(messages=conversation)))
        (await controlled.engine.run(number)).done()
        await generation
    first, second = controlled.prompt(0), controlled.prompt(1)
    places = [first.index(word) for word in words]
    assert places == sorted(places) and all(first.count(word) == 1 for word in words)
    assert "ferret" in second and not any(word in second for word in words)


@CONFIGURED
async def test_llm_c01_absent_domain(make: Make) -> None:
    absent: Controlled = await make(server=ServerConfig(enabled=False))
    assert (await absent.http.get("/nap/llm")).status_code == 404
    assert (await absent.post({"type": "llm.select", "id": "s"})).status_code == 404
    async with Client(str(absent.http.base_url), "any") as napplet:
        with pytest.raises(TransportError) as missing:
            await napplet.select()
    assert missing.value.status == 404


# LLM-C02: malformed record, base64, enum or explicit null


def picture(data: str, mime: str = "image/png") -> dict[str, Any]:
    """The messages of a request with one image."""
    return {"messages": [{"role": "user", "content": [{"type": "image", "mimeType": mime, "data": data}]}]}


MALFORMED: dict[str, dict[str, Any]] = {
    "unknown field": {"more": 1},
    "null": {"temperature": None},
    "null format": {"format": None},
    "wrong enum": {"format": "xml"},
    "wrong role": {"messages": [{"role": "tool", "content": [{"type": "text", "text": "x"}]}]},
    "no messages": {"messages": []},
    "no content": {"messages": [{"role": "user", "content": []}]},
    "content as text": {"messages": [{"role": "user", "content": "x"}]},
    "unknown part": {"messages": [{"role": "user", "content": [{"type": "audio", "data": "AAAA"}]}]},
    "foreign field": {"messages": [{"role": "user", "content": [{"type": "text", "text": "", "data": ""}]}]},
    "maxTokens as text": {"maxTokens": "1"},
    "maxTokens as boolean": {"maxTokens": True},
    "maxTokens fraction": {"maxTokens": 1.5},
    "temperature as boolean": {"temperature": True},
    "tools as object": {"tools": {}},
    "base64 with white space": picture("AA AA"),
    "base64 without padding": picture("AAA"),
    "base64 of the url alphabet": picture("A-_A"),
    "no base64": picture("A==="),
    "empty image": picture(""),
    "data URI": picture("data:image/png;base64,AAAA"),
    "remote URL": picture("https://pictures.example/a.png"),
    "image type": picture("AAAA", "image/gif"),
}


async def check_malformed(shell: Shell) -> None:
    request = await shell.request()
    for case, fields in MALFORMED.items():
        assert (await shell.fail(request | fields))["code"] == "invalid-request", case
    for requirements in ({"json": "yes"}, {"model": ""}, {"model": None}, {"vision": True}, None, []):
        assert (await shell.call("llm.select", requirements=requirements))["error"]["code"] == "invalid-request"
    assert (await shell.call("llm.describe", handle=""))["error"]["code"] == "invalid-request"
    assert (await shell.call("llm.cancel", requestId=1))["error"]["code"] == "invalid-request"


async def test_llm_c02_malformed(anywhere: Shell) -> None:
    before = await anywhere.submitted()
    await check_malformed(anywhere)
    assert await anywhere.submitted() == before


# LLM-C03: unsupported images/JSON/tools/exact model or provider-specific input


async def test_llm_c03_unsupported(anywhere: Shell) -> None:
    shell, before = anywhere, await anywhere.submitted()
    model = await shell.select()
    assert (await shell.call("llm.select", requirements={"model": "no such model"}))["error"]["code"] == "unsupported"
    assert (await shell.select(model=model["model"]))["model"] == model["model"]
    assert (await shell.fail(await shell.request(temperature=2.01)))["code"] == "unsupported"
    if not model["images"]:
        assert (await shell.call("llm.select", requirements={"images": True}))["error"]["code"] == "unsupported"
        assert (await shell.fail(await shell.request(**picture(PIXEL))))["code"] == "unsupported"
    impossible = {"name": "f", "parameters": {"type": "object", "properties": {"a": False}, "required": ["a"]}}
    assert (await shell.fail(await shell.request(tools=[impossible])))["code"] == "unsupported"
    assert await shell.submitted() == before
    if model["images"]:
        # The capability promises no placement; what cannot be placed is refused, never dropped.
        placed = {"role": "system", "content": [IMAGE]}
        _, result = await shell.stream("g", await shell.request(messages=[placed, user("Hello")]))
        assert "result" in result or result["error"]["code"] == "unsupported"


@CONFIGURED
async def test_llm_c03_restricted_connection(make: Make) -> None:
    controlled: Controlled = await make(CapabilityLimits(json=False, tools=False))
    for requirement in ("json", "tools", "images"):
        result = await controlled.call("llm.select", requirements={requirement: True})
        assert result["error"]["code"] == "unsupported"
    assert (await controlled.fail(await controlled.request(format="json")))["code"] == "unsupported"
    assert (await controlled.fail(await controlled.request(tools=[WEATHER])))["code"] == "unsupported"
    assert controlled.engine.runs == []


@CONFIGURED
async def test_llm_c03_images_may_be_kept_from_a_model_that_sees(make: Make) -> None:
    controlled: Controlled = await make(CapabilityLimits(images=False), sees=True)
    assert not (await controlled.select())["images"]
    assert (await controlled.call("llm.select", requirements={"images": True}))["error"]["code"] == "unsupported"
    assert (await controlled.fail(await controlled.request(**picture(PIXEL))))["code"] == "unsupported"
    assert await controlled.submitted() == (0, 0)


@OBEYED
async def test_llm_c03_images_where_the_model_sees(seeing: Controlled) -> None:
    assert (await seeing.select(images=True))["images"]
    content = [{"type": "text", "text": "first"}, IMAGE, {"type": "text", "text": "second"}, IMAGE]
    generation = asyncio.create_task(
        seeing.stream("g", await seeing.request(messages=[user("x") | {"content": content}]))
    )
    run = await seeing.engine.run()
    run.done()
    await generation
    told, start = [], 0
    for offset, picture in run.job.images:
        assert (picture.width, picture.height) == (2, 2)
        told.append(seeing.prompt(tokens=run.job.tokens[start:offset]))
        start = offset
    assert told[0].endswith("first") and told[1] == "second"


@CONFIGURED
async def test_llm_c03_places_that_no_image_may_have(seeing: Controlled) -> None:
    for messages, place in (
        ([{"role": "system", "content": [IMAGE]}, user("x")], "a system message"),
        ([user("x"), assistant(IMAGE), user("x")], "an assistant message"),
    ):
        error = await seeing.fail(await seeing.request(messages=messages))
        assert error["code"] == "unsupported" and place in error["message"]
    assert await seeing.submitted() == (0, 0)


@CONFIGURED
async def test_llm_c02_an_image_that_is_none(seeing: Controlled) -> None:
    whole = base64.b64decode(PIXEL)
    for data, mime_type in ((b"plain words", "image/png"), (whole, "image/jpeg"), (whole[:-20], "image/png")):
        part = {"type": "image", "mimeType": mime_type, "data": base64.b64encode(data).decode()}
        error = await seeing.fail(await seeing.request(messages=[{"role": "user", "content": [part]}]))
        assert error["code"] == "invalid-request"
    assert await seeing.submitted() == (0, 0)


# LLM-C04: decline consent after selecting a valid model


async def test_llm_c04_the_shell_has_no_consent(shell: Shell) -> None:
    if shell.shell_token is None:
        pytest.skip("needs --shell-token")
    headers = {"authorization": f"Bearer {shell.shell_token}"}
    request = await shell.request(headers=headers)
    assert (await shell.fail(request, **headers))["code"] == "user-cancelled"
    _, result = await shell.stream("g", request, **headers, napplet_consent="granted")
    assert "result" in result


async def test_llm_c04_the_owner_declines(anywhere: Shell) -> None:
    headers, before = await anywhere.asking(), await anywhere.submitted()
    generation = asyncio.create_task(anywhere.fail(await anywhere.request(headers=headers), **headers))
    await deny(anywhere, await pending(anywhere))
    assert (await generation)["code"] == "user-cancelled"
    assert await anywhere.submitted() == before


async def test_llm_c04_the_owner_agrees(shell: Shell) -> None:
    headers = await shell.asking()
    generation = asyncio.create_task(shell.stream("g", await shell.request(headers=headers), **headers))
    decision = await pending(shell)
    await shell.owner.post(f"/owner/consents/{decision['id']}", json={"decision": "allow"})
    assert "result" in (await generation)[1]


# LLM-C05: two endpoints reuse ids and attempt each other's handles and cancel


async def test_llm_c05_endpoints_are_apart(shell: Shell) -> None:
    places = [
        {"napplet_identity": "a;1"},
        {"napplet_identity": "b;1"},
        {"napplet_identity": "a;1", "napplet_endpoint": "second"},
        {"napplet_identity": "a;1", "napplet_account": "other"},
    ]
    requests = [await shell.request(f"Say {number}.", headers=place) for number, place in enumerate(places)]
    assert len({each["handle"] for each in requests}) == len(places)
    for request, thief in zip(requests, places[1:] + places[:1], strict=True):
        foreign = await shell.call("llm.describe", handle=request["handle"], headers=thief)
        invented = await shell.call("llm.describe", handle="invented", headers=thief)
        assert foreign["error"] == invented["error"] and foreign["error"]["code"] == "selection-expired"
        assert (await shell.fail(request, **thief))["code"] == "selection-expired"
    long = requests[0] | {"maxTokens": 400}
    async with shell.streaming("same", long, **places[0]) as source:
        await anext(source)
        for thief in places[1:]:
            assert (await shell.call("llm.cancel", requestId="same", headers=thief))["cancelled"] is False
            _, own = await shell.stream("same", requests[places.index(thief)], **thief)
            assert "result" in own
        assert (await shell.call("llm.cancel", requestId="same", headers=places[0]))["cancelled"] is True
        assert [each async for each in source][-1]["error"]["code"] == "cancelled"


# LLM-C06: duplicate an active generation id


async def test_llm_c06_duplicate_id(shell: Shell) -> None:
    request = await shell.request("Tell me a long story.", maxTokens=30)
    async with shell.streaming("twice", request) as source:
        await anext(source)
        assert (await shell.fail(request, "twice"))["code"] == "invalid-request"
        last = [each async for each in source][-1]
    assert "result" in last
    _, again = await shell.stream("twice", request | {"maxTokens": 1})
    assert "result" in again


@OBEYED
async def test_llm_c06_one_submission(controlled: Controlled) -> None:
    request = await controlled.request()
    first = asyncio.create_task(controlled.stream("twice", request))
    run = await controlled.engine.run()
    assert (await controlled.fail(request, "twice"))["code"] == "invalid-request"
    run.say("one")
    run.done()
    assert (await first)[1]["result"]["content"] == [{"type": "text", "text": "one"}]
    assert len(controlled.engine.runs) == 1


# LLM-C07: cancel or time out during revalidation, consent or a stalled provider

Stage = pytest.mark.parametrize("stage", ["revalidation", "consent", "provider"])


@contextlib.contextmanager
def helpers_stopped() -> Iterator[None]:
    """The processes that prepare prompts stand still."""
    helpers = [each for each in psutil.Process().children() if "server.chat.pool" in " ".join(each.cmdline())]
    assert helpers
    for each in helpers:
        each.suspend()
    try:
        yield
    finally:
        for each in helpers:
            with contextlib.suppress(psutil.NoSuchProcess):  # whoever is given up on is killed
                each.resume()


Standing = tuple[Controlled, asyncio.Task[Any], dict[str, str]]


@contextlib.asynccontextmanager
async def stalled(make: Make, stage: str) -> AsyncIterator[Standing]:
    """A shell, its generation that stands still in the stage, and the headers it goes under."""
    controlled: Controlled = await make(server=ServerConfig(deadline=60))
    headers = await controlled.asking() if stage == "consent" else {}
    request = await controlled.request(headers=headers)
    with helpers_stopped() if stage == "revalidation" else contextlib.nullcontext():
        task = asyncio.create_task(controlled.stream("g", request, **headers))
        if stage == "revalidation":
            await standing(controlled, "preparing")
        elif stage == "consent":
            await pending(controlled)
        else:
            await controlled.engine.run()
        yield controlled, task, headers


async def standing(controlled: Controlled, stage: str) -> None:
    """Until the one generation is in this stage."""
    while True:
        generations = (await controlled.owner.get("/owner/state")).json()["generations"]
        if [each["stage"] for each in generations] == [stage]:
            return


async def check_late(controlled: Controlled, stage: str) -> None:
    """Nothing happens after the end, whatever consent and engine say now."""
    state = (await controlled.owner.get("/owner/state")).json()
    assert state["decisions"] == [] and state["generations"] == []
    if stage == "provider":
        controlled.engine.runs[0].say("late")
        controlled.engine.runs[0].done()
        await controlled.engine.runs[0].ended()
        assert controlled.engine.runs[0].cancelled
    else:
        assert controlled.engine.runs == []


async def test_llm_c07_cancel_while_the_owner_thinks(anywhere: Shell) -> None:
    headers, before = await anywhere.asking(), await anywhere.submitted()
    generation = asyncio.create_task(anywhere.stream("g", await anywhere.request(headers=headers), **headers))
    decision = await pending(anywhere)
    assert (await anywhere.call("llm.cancel", requestId="g", headers=headers))["cancelled"] is True
    deltas, result = await generation
    assert deltas == [] and result["error"]["code"] == "cancelled"
    late = await anywhere.owner.post(f"/owner/consents/{decision['id']}", json={"decision": "allow"})
    assert late.status_code == 404
    assert await anywhere.submitted() == before
    assert (await anywhere.call("llm.cancel", requestId="g", headers=headers))["cancelled"] is False


@STALLS
@Stage
async def test_llm_c07_cancel(make: Make, stage: str) -> None:
    async with stalled(make, stage) as (controlled, task, headers):
        assert (await controlled.call("llm.cancel", requestId="g", headers=headers))["cancelled"] is True
        # All else stands still, the server's clock too: nothing but the cancel can end it.
        deltas, result = await asyncio.wait_for(task, 30)
        assert deltas == [] and result["error"]["code"] == "cancelled"
        await check_late(controlled, stage)
        assert (await controlled.call("llm.cancel", requestId="g", headers=headers))["cancelled"] is False


@STALLS
@Stage
async def test_llm_c07_timeout(make: Make, stage: str) -> None:
    async with stalled(make, stage) as (controlled, task, headers):
        controlled.clock.advance(59.9)
        assert (await controlled.owner.get("/owner/state")).json()["generations"] and not task.done()
        controlled.clock.advance(0.2)
        deltas, result = await asyncio.wait_for(task, 30)
        assert deltas == [] and result["error"]["code"] == "timeout"
        await check_late(controlled, stage)
        assert (await controlled.call("llm.cancel", requestId="g", headers=headers))["cancelled"] is False


async def test_llm_c07_cancel_while_it_decodes(shell: Shell) -> None:
    async with shell.streaming("long", await shell.request("Count.", maxTokens=400)) as source:
        await anext(source)
        assert (await shell.call("llm.cancel", requestId="long"))["cancelled"] is True
        rest = [each async for each in source]
    assert rest[-1]["error"]["code"] == "cancelled" and all(each["type"] == "llm.delta" for each in rest[:-1])
    assert (await shell.call("llm.cancel", requestId="long"))["cancelled"] is False


# LLM-C08: switch account, revoke endpoint or change connection during consent


async def key(shell: Shell) -> str:
    """The table's name of the connection that the owner's standing choice is."""
    model = (await shell.select())["model"]
    connections = (await shell.owner.get("/owner/state")).json()["connections"]
    return next(each["key"] for each in connections if each["model"] == model)


@pytest.mark.parametrize("change", ["account", "endpoint", "owner revokes", "token", "connection"])
async def test_llm_c08_change_during_consent(anywhere: Shell, change: str) -> None:
    headers = {**await anywhere.asking(), "napplet_account": "alice"}
    if change == "connection":
        # It may be loaded, and is unloaded by the change.
        await anywhere.owner.post(f"/owner/models/{await key(anywhere)}/unload")
    before = await anywhere.submitted()
    request = await anywhere.request(headers=headers)
    generation = asyncio.create_task(anywhere.fail(request, **headers))
    decision = await pending(anywhere)
    names = {key.replace("_", "-"): value for key, value in headers.items()}
    if change == "account":
        await anywhere.http.delete("/nap/llm/account", headers=names)
    elif change == "endpoint":
        await anywhere.http.delete("/nap/llm/endpoint", headers=names)
    elif change == "owner revokes":
        await anywhere.owner.post(f"/owner/endpoints/{decision['endpoint']['id']}/revoke")
    elif change == "token":
        await anywhere.owner.delete(f"/owner/tokens/{decision['endpoint']['token']}")
    else:
        await anywhere.owner.post(f"/owner/models/{decision['disclosure']['key']}/disable")
        await anywhere.owner.post(f"/owner/models/{decision['disclosure']['key']}/enable")
    assert (await generation)["code"] == "cancelled"
    late = await anywhere.owner.post(f"/owner/consents/{decision['id']}", json={"decision": "allow"})
    assert late.status_code == 404
    assert await anywhere.submitted() == before
    if change == "token":
        assert (await anywhere.post({"type": "llm.select", "id": "s"}, **headers)).status_code == 401
        return
    for account in ("alice", "bob"):
        described = await anywhere.call(
            "llm.describe", handle=request["handle"], headers={**headers, "napplet_account": account}
        )
        assert described["error"]["code"] == "selection-expired"


@pytest.mark.slow
async def test_llm_c08_shells_end_their_endpoints(shell: Shell) -> None:
    headers = {"napplet_endpoint": "closing", "napplet_account": "alice"}
    names = {"napplet-endpoint": "closing", "napplet-account": "alice"}
    for path in ("/nap/llm/endpoint", "/nap/llm/account"):
        request = await shell.request("Count.", headers=headers, maxTokens=400)
        async with shell.streaming("g", request, **headers) as source:
            await anext(source)
            assert (await shell.http.delete(path, headers=names)).status_code == 204
            assert [each async for each in source][-1]["error"]["code"] == "cancelled"
        described = await shell.call("llm.describe", handle=request["handle"], headers=headers)
        assert described["error"]["code"] == "selection-expired"


# LLM-C09: buffered and streamed responses; cancellation/completion race


async def test_llm_c09_buffered_and_streamed(shell: Shell) -> None:
    request = await shell.request("List three colours.", maxTokens=24)
    deltas, streamed = await shell.stream("s", request)
    buffered = await shell.call("llm.generate", request=request)
    assert deltas and streamed["result"]["finish"] == buffered["result"]["finish"]


async def test_llm_c09_race_of_cancel_and_completion_of_a_real_model(shell: Shell) -> None:
    request = await shell.request("Count.", maxTokens=3)
    for number in range(10):
        async with shell.streaming("g", request) as source:
            received = [await anext(source) for _ in range(number % 3)]
            cancel = asyncio.create_task(shell.call("llm.cancel", requestId="g"))
            received += [each async for each in source]
        check_stream("g", received[:-1], received[-1])
        assert (await cancel)["cancelled"] == ("error" in received[-1])


@ANSWERS
async def test_llm_c09_race_of_cancel_and_completion(controlled: Controlled) -> None:
    """Whoever comes first; then both at once, more and more of the output having been read."""
    request = await controlled.request()
    for number in range(20):
        async with controlled.streaming("g", request) as source:
            run = await controlled.engine.run(number)
            run.say("text " * 10)
            received = [await anext(source)]
            if number != 0:
                run.done()
            if number == 1:
                received += [each async for each in source]
            cancel = asyncio.create_task(controlled.call("llm.cancel", requestId="g"))
            for _ in range(number):
                await asyncio.sleep(0)
            received += [each async for each in source]
        check_stream("g", received[:-1], received[-1])
        cancelled = (await cancel)["cancelled"]
        assert cancelled == ("error" in received[-1])
        if number < 2:
            assert cancelled == (number == 0)
        await run.ended()


# LLM-C10: limit/refusal, missing finish marker or invalid JSON-object completion


async def test_llm_c10_length(shell: Shell) -> None:
    _, result = await shell.stream("g", await shell.request("Tell me a long story.", maxTokens=3))
    assert result["result"]["finish"] == "length" and result["result"]["usage"]["outputTokens"] == 3


@ANSWERS
async def test_llm_c10_partial_results_stay_partial(controlled: Controlled) -> None:
    generation = asyncio.create_task(controlled.stream("g", await controlled.request(format="json")))
    run = await controlled.engine.run()
    run.say('{"a":')
    run.done("length")
    _, result = await generation
    assert result["result"]["finish"] == "length"
    assert result["result"]["content"] == [{"type": "text", "text": '{"a":'}]


@MISBEHAVES
@pytest.mark.parametrize("text", ["[1, 2]", '"text"', "1", "{", '{"a": NaN}', '{"a": 1, "a": 2}', "so: {}"])
async def test_llm_c10_json_that_is_no_object(controlled: Controlled, text: str) -> None:
    controlled.engine.obedient = False
    generation = asyncio.create_task(controlled.fail(await controlled.request(format="json")))
    run = await controlled.engine.run()
    run.say(text)
    run.done()
    assert (await generation)["code"] == "provider-error"


@MISBEHAVES
async def test_llm_c10_missing_completion(controlled: Controlled) -> None:
    generation = asyncio.create_task(controlled.stream("g", await controlled.request()))
    run = await controlled.engine.run()
    run.say("half an")
    run.die()
    deltas, result = await generation
    assert "".join(each.get("text", "") for each in deltas) == "half an"
    assert result["error"]["code"] == "provider-error" and "half" not in json.dumps(result)


async def test_llm_c10_json(shell: Shell) -> None:
    if not (await shell.select())["json"]:
        pytest.skip("the connection has no JSON output")
    request = await shell.request("A JSON object with a name, please.", format="json", maxTokens=80)
    _, result = await shell.stream("g", request)
    if result["result"]["finish"] == "stop":
        text = "".join(part["text"] for part in result["result"]["content"] if part["type"] == "text")
        assert isinstance(json.loads(text), dict)


# LLM-C11: provider failure containing input or credentials


@MISBEHAVES
async def test_llm_c11_failures_show_nothing(controlled: Controlled) -> None:
    for number, code in enumerate(("provider-error", "quota-exceeded", "timeout")):
        request = await controlled.request(SECRET)
        generation = asyncio.create_task(controlled.stream("g", request))
        run = await controlled.engine.run(number)
        run.fail(code, f"cannot process {SECRET} with key {request['handle']}", reason=SECRET)
        _, result = await generation
        assert result["error"]["code"] == code
        assert SECRET not in json.dumps(result) and request["handle"] not in json.dumps(result)


# LLM-C12: several calls in one turn, one result missing


async def test_llm_c12_a_missing_result(anywhere: Shell) -> None:
    before = await anywhere.submitted()
    history = [user("Weather?"), assistant(call("c1", city="Berlin"), call("c2", city="Oslo")), answer("c1")]
    for messages in (history, [*history, user("And?")]):
        error = await anywhere.fail(await anywhere.request(messages=messages, tools=[WEATHER]))
        assert error["code"] == "invalid-request"
    assert await anywhere.submitted() == before


async def test_llm_c12_all_results_in_any_order(shell: Shell) -> None:
    history = [
        user("Weather?"),
        assistant(call("c1", city="Berlin"), call("c2", city="Oslo")),
        answer("c2"),
        answer("c1"),
    ]
    _, result = await shell.stream("g", await shell.request(messages=history, tools=[WEATHER], toolChoice="none"))
    assert "result" in result, result


# LLM-C13: a named tool is forced and the provider ignores it


@MISBEHAVES
@pytest.mark.parametrize(
    ("choice", "output"),
    [
        ({"type": "tool", "name": "get_weather"}, "It is sunny."),
        ({"type": "tool", "name": "get_weather"}, '{"response": "It is sunny."}'),
        ({"type": "tool", "name": "get_weather"}, calls(("get_time", '{"city": "Oslo"}'))),
        ("required", '{"response": "It is sunny."}'),
        ("none", calls(("get_weather", '{"city": "Oslo"}'))),
    ],
)
async def test_llm_c13_an_ignored_choice(controlled: Controlled, choice: Any, output: str) -> None:
    controlled.engine.obedient = False
    request = await controlled.request(tools=[WEATHER, TIME], toolChoice=choice)
    generation = asyncio.create_task(controlled.fail(request))
    run = await controlled.engine.run()
    run.say(output)
    run.done()
    assert (await generation)["code"] == "provider-error"


async def test_llm_c13_a_forced_tool(shell: Shell) -> None:
    if "tool" not in (await shell.select())["toolChoiceModes"]:
        pytest.skip("the connection does not force a named tool")
    bounded = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Berlin"]}}, "required": ["city"]}
    tools = [WEATHER | {"parameters": bounded | {"additionalProperties": False}}, TIME]
    choice = {"type": "tool", "name": "get_weather"}
    request = await shell.request("Tell me the time in Oslo.", tools=tools, toolChoice=choice, maxTokens=300)
    _, result = await shell.stream("g", request)
    assert result["result"]["finish"] == "toolUse", result
    assert {part["name"] for part in result["result"]["content"] if part["type"] == "toolCall"} == {"get_weather"}


# LLM-C14: the provider returns no tool-call id


async def test_llm_c14_an_id_goes_round(shell: Shell) -> None:
    if "required" not in (await shell.select())["toolChoiceModes"]:
        pytest.skip("the connection does not force calls")
    bounded = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}
    tools = [WEATHER | {"parameters": bounded | {"additionalProperties": False}}]
    request = await shell.request("Weather?", tools=tools, toolChoice="required", maxTokens=400)
    _, first = await shell.stream("g", request)
    content = first["result"]["content"]
    ids = [part["toolCallId"] for part in content if part["type"] == "toolCall"]
    assert ids and all(ids) and len(set(ids)) == len(ids)
    history = [user("Weather?"), assistant(*content), *(answer(each) for each in ids)]
    _, second = await shell.stream("h", request | {"messages": history, "toolChoice": "none", "maxTokens": 8})
    assert "result" in second
    wrong = [user("Weather?"), assistant(*content), *(answer(f"{each}x") for each in ids)]
    assert (await shell.fail(request | {"messages": wrong}))["code"] == "invalid-request"


@ANSWERS
async def test_llm_c14_ids_are_made_and_come_back(controlled: Controlled) -> None:
    generation = asyncio.create_task(controlled.stream("g", await controlled.request(tools=[WEATHER])))
    run = await controlled.engine.run()
    run.say(calls(("get_weather", '{"city": "Berlin"}'), ("get_weather", '{"city": "Oslo"}')))
    run.done()
    _, result = await generation
    content = result["result"]["content"]
    ids = [part["toolCallId"] for part in content]
    assert all(ids) and len(set(ids)) == 2
    history = [user("Hello"), assistant(*content), answer(ids[1], "rain"), answer(ids[0], "sun")]
    following = asyncio.create_task(controlled.stream("h", await controlled.request(messages=history, tools=[WEATHER])))
    run = await controlled.engine.run(1)
    run.say('{"response": "Sun and rain."}')
    run.done()
    assert (await following)[1]["result"]["content"] == [{"type": "text", "text": "Sun and rain."}]
    assert "rain" in controlled.prompt() and "sun" in controlled.prompt()


# LLM-C15: completed calls end as toolUse; truncation and refusal keep no call


@ANSWERS
async def test_llm_c15_completed_calls_are_tool_use(controlled: Controlled) -> None:
    generation = asyncio.create_task(controlled.stream("g", await controlled.request(tools=[WEATHER])))
    run = await controlled.engine.run()
    run.say(calls(("get_weather", '{"city": "Oslo"}')))
    run.done("stop")
    _, result = await generation
    assert result["result"]["finish"] == "toolUse"


@ANSWERS
async def test_llm_c15_truncated_turns_keep_no_call(controlled: Controlled) -> None:
    """Of several calls the first is whole when the output is cut off."""
    whole = calls(("get_weather", '{"city": "Oslo"}'), ("get_time", '{"city": "Oslo"}'))
    request = await controlled.request(tools=[WEATHER, TIME], toolChoice="required")
    generation = asyncio.create_task(controlled.stream("g", request))
    run = await controlled.engine.run()
    run.say(whole[:-9])
    run.done("length")
    deltas, result = await generation
    assert [each["event"] for each in deltas if each["blockIndex"] == 0][-1] == "end"
    assert [each["name"] for each in deltas if each["event"] == "start"] == ["get_weather", "get_time"]
    assert result["result"]["finish"] == "length" and result["result"]["content"] == []


async def test_llm_c15_a_truncated_call(shell: Shell) -> None:
    if not (await shell.select())["tools"]:
        pytest.skip("the connection has no tools")
    _, result = await shell.stream("g", await shell.request(tools=[WEATHER], toolChoice="required", maxTokens=14))
    assert result["result"]["finish"] == "length" and result["result"]["content"] == []


# LLM-C16: completed arguments malformed or no object; unknown tool name


@MISBEHAVES
@pytest.mark.parametrize(
    "output",
    [
        calls(("get_weather", f'{{"city": {SECRET}}}')),
        calls(("get_weather", f'["{SECRET}"]')),
        calls(("get_weather", f'"{SECRET}"')),
        calls(("get_weather", f'{{"city": "{SECRET}", "city": "x"}}')),
        calls((SECRET, '{"city": "Oslo"}')),
        f'{{"tool_calls": [{{"name": "get_weather", "arguments": {{"city": "{SECRET}"}}',
        f'{{"tool_calls": [{{"name": "get_weather", "arguments": {{"city": "{SECRET}"}}}}]}} and more',
    ],
)
async def test_llm_c16_malformed_calls(controlled: Controlled, output: str) -> None:
    controlled.engine.obedient = False
    generation = asyncio.create_task(controlled.stream("g", await controlled.request(tools=[WEATHER])))
    run = await controlled.engine.run()
    for start in range(0, len(output), 7):
        run.say(output[start : start + 7])
    run.done()
    _, result = await generation
    assert result["error"]["code"] == "provider-error"
    assert SECRET not in json.dumps(result)


@MISBEHAVES
async def test_llm_c16_arguments_against_the_schema(controlled: Controlled) -> None:
    """A check that the grammar left to validation, or an engine that ignores its grammar."""
    unique = {"type": "object", "properties": {"days": {"type": "array", "uniqueItems": True}}, "required": ["days"]}
    tool = {"name": "plan", "parameters": unique}
    generation = asyncio.create_task(controlled.stream("g", await controlled.request(tools=[tool])))
    run = await controlled.engine.run()
    run.say(calls(("plan", f'{{"days": ["{SECRET}", "{SECRET}"]}}')))
    run.done()
    _, result = await generation
    assert result["error"]["code"] == "provider-error"
    assert "plan" in result["error"]["message"] and "uniqueItems" in result["error"]["message"]
    assert SECRET not in json.dumps(result["error"])


# LLM-C17: replay thinking; a connection that needs opaque reasoning state


@OBEYED
async def test_llm_c17_thinking_is_not_sent(controlled: Controlled) -> None:
    thought = {"type": "thinking", "text": SECRET}
    history = [user("Hi"), assistant(thought, {"type": "text", "text": "Hello."}), user("And now?")]
    generation = asyncio.create_task(controlled.stream("g", await controlled.request(messages=history)))
    (await controlled.engine.run()).done()
    await generation
    assert "Hello." in controlled.prompt() and SECRET not in controlled.prompt()


@pytest.mark.needs("a model that cannot go on without its own reasoning")
@pytest.mark.parametrize("template", ["Kimi-K2-Thinking", "MiniMax-M2", "openai-gpt-oss-120b"])
async def test_llm_c17_unrepresentable_state(make: Make, sdist: Path, template: str) -> None:
    source = (sdist / f"vendor/llama.cpp/models/templates/{template}.jinja").read_text(encoding="utf-8")
    controlled: Controlled = await make(template=source)
    error = await controlled.fail(await controlled.request(messages=[*ASKED, answer("c1")], tools=[WEATHER]))
    assert error["code"] == "unsupported" and error["message"].startswith("messages[1]: ")
    assert await controlled.submitted() == (0, 0)


async def test_llm_c17_thinking_in_the_history(shell: Shell) -> None:
    thought = {"type": "thinking", "text": "They greet me."}
    history = [user("Hi"), assistant(thought, {"type": "text", "text": "Hello."}), user("And now?")]
    with_thought = await shell.call("llm.generate", request=await shell.request(messages=history))
    history[1]["content"].pop(0)
    without = await shell.call("llm.generate", request=await shell.request(messages=history))
    assert with_thought["result"]["usage"]["inputTokens"] == without["result"]["usage"]["inputTokens"]


# LLM-C18: interleaved tool-call blocks


@ANSWERS
async def test_llm_c18_calls_are_told_as_they_come(controlled: Controlled) -> None:
    """One after the other, as a model writes them: it has one output, in which nothing can interleave."""
    request = await controlled.request(tools=[WEATHER, TIME])
    async with controlled.streaming("g", request) as source:
        run = await controlled.engine.run()
        deltas = []
        for text in ('{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Os', 'lo"}}, {"name": "get_t'):
            run.say(text)
            while not deltas or deltas[-1]["event"] != ("delta" if text[0] == "{" else "end"):
                deltas.append(await anext(source))
        # The one has ended and the other not begun: nothing may be done yet.
        state = (await controlled.owner.get("/owner/state")).json()
        assert len(state["generations"]) == 1
        run.say('ime", "arguments": {"city": "Berlin"}}]}')
        rest = [each async for each in source]
    check_stream("g", [*deltas, *rest[:-1]], rest[-1])
    starts = [each for each in [*deltas, *rest] if each.get("event") == "start"]
    assert [(each["blockIndex"], each["name"]) for each in starts] == [(0, "get_weather"), (1, "get_time")]
    assert [part["arguments"] for part in rest[-1]["result"]["content"]] == [{"city": "Oslo"}, {"city": "Berlin"}]


# LLM-C19: an unlisted tool-choice mode


async def test_llm_c19_every_listed_mode(shell: Shell) -> None:
    modes = (await shell.select())["toolChoiceModes"]
    bounded = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}
    tools = [WEATHER | {"parameters": bounded | {"additionalProperties": False}}]
    choices: dict[str, Any] = {mode: mode for mode in modes} | {"tool": {"type": "tool", "name": "get_weather"}}
    before = await shell.submitted()
    for mode in ("auto", "none", "required", "tool"):
        choice = choices.get(mode, mode)
        request = await shell.request("Hello.", tools=tools, toolChoice=choice, maxTokens=300)
        _, result = await shell.stream("g", request)
        if mode not in modes:
            assert result["error"]["code"] == "unsupported" and await shell.submitted() == before
            continue
        before = await shell.submitted()
        called = [part["name"] for part in result["result"]["content"] if part["type"] == "toolCall"]
        assert mode == "auto" or bool(called) == (mode in ("required", "tool")), result


@CONFIGURED
async def test_llm_c19_an_unlisted_mode(make: Make) -> None:
    controlled: Controlled = await make(CapabilityLimits(tool_choice_modes=("auto", "none")))
    assert (await controlled.select())["toolChoiceModes"] == ["auto", "none"]
    for choice in ("required", {"type": "tool", "name": "get_weather"}):
        error = await controlled.fail(await controlled.request(tools=[WEATHER], toolChoice=choice))
        assert error["code"] == "unsupported"
    assert controlled.engine.runs == []


# LLM-C20: tools and choices against the rules

BAD_TOOLS: dict[str, dict[str, Any]] = {
    "duplicate names": {"tools": [WEATHER, WEATHER]},
    "invalid name": {"tools": [{"name": "get weather"}]},
    "empty name": {"tools": [{"name": ""}]},
    "long name": {"tools": [{"name": "x" * 65}]},
    "choice without tools": {"toolChoice": "auto"},
    "choice with empty tools": {"tools": [], "toolChoice": "none"},
    "unknown forced name": {"tools": [WEATHER], "toolChoice": {"type": "tool", "name": "other"}},
    "unknown choice": {"tools": [WEATHER], "toolChoice": "any"},
    "choice of unknown type": {"tools": [WEATHER], "toolChoice": {"type": "function", "name": "get_weather"}},
    "array schema": {"tools": [{"name": "f", "parameters": {"type": "array"}}]},
    "schema without type": {"tools": [{"name": "f", "parameters": {"properties": {}}}]},
    "malformed schema": {"tools": [{"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": 7}}}}]},
    "zero maxTokens": {"maxTokens": 0},
    "negative maxTokens": {"maxTokens": -1},
}


async def test_llm_c20_tools_against_the_rules(anywhere: Shell) -> None:
    before = await anywhere.submitted()
    request = await anywhere.request()
    for case, fields in BAD_TOOLS.items():
        assert (await anywhere.fail(request | fields))["code"] == "invalid-request", case
    assert await anywhere.submitted() == before


MALFORMED_SCHEMAS: dict[str, dict[str, Any]] = {
    "type": {"type": 7},
    "an unknown type": {"type": "text"},
    "properties": {"properties": []},
    "required": {"required": True},
    "a name twice": {"required": ["a", "a"]},
    "a bound": {"exclusiveMinimum": True},
    "a list of items": {"items": []},
    "no alternatives": {"anyOf": []},
    "a count": {"minLength": -1},
    "a title": {"title": 3},
    "a description": {"description": []},
    "a regular expression": {"pattern": "("},
    "a reference": {"$ref": "#/$defs/nowhere"},
}
CHOICES: tuple[Any, ...] = ("auto", "none", "required", {"type": "tool", "name": "get_weather"})


async def test_llm_c20_malformed_schemas_whatever_may_be_called(anywhere: Shell) -> None:
    before = await anywhere.submitted()
    request = await anywhere.request()
    for choice in CHOICES:
        for case, member in MALFORMED_SCHEMAS.items():
            odd = {"name": "odd", "parameters": {"type": "object", "properties": {"x": member}}}
            error = await anywhere.fail(request | {"tools": [WEATHER, odd], "toolChoice": choice})
            assert error["code"] == "invalid-request", (case, choice)
    assert await anywhere.submitted() == before


@CONFIGURED
async def test_llm_c20_malformed_schemas_where_no_tools_are_supported(make: Make) -> None:
    controlled: Controlled = await make(CapabilityLimits(tools=False))
    odd = {"name": "odd", "parameters": {"type": "object", "properties": {"x": {"type": 7}}}}
    for tool, code in ((odd, "invalid-request"), (WEATHER, "unsupported")):
        assert (await controlled.fail(await controlled.request(tools=[tool])))["code"] == code
    assert controlled.engine.runs == []


async def test_llm_c20_no_tools_are_an_empty_list_of_tools(shell: Shell) -> None:
    _, result = await shell.stream("g", await shell.request(tools=[]))
    assert "result" in result


# LLM-C21: misplaced, duplicate and orphaned results; a history without current tools

ASKED = [user("Weather?"), assistant(call("c1", city="Oslo"))]
BAD_HISTORIES: dict[str, list[dict[str, Any]]] = {
    "orphaned": [user("Hi"), answer("c1")],
    "duplicate": [*ASKED, answer("c1"), answer("c1")],
    "misplaced": [*ASKED, user("Well?"), answer("c1")],
    "wrong name": [*ASKED, answer("c1", name="get_time")],
    "missing": [*ASKED, user("Well?")],
    "late": [*ASKED, answer("c1"), assistant({"type": "text", "text": "Cold."}), answer("c1")],
    "id twice": [*ASKED, answer("c1"), assistant(call("c1", city="Oslo")), answer("c1")],
    "call by the user": [{"role": "user", "content": [call("c1", city="Oslo")]}, answer("c1")],
    "thinking by the user": [{"role": "user", "content": [{"type": "thinking", "text": "x"}]}],
    "isError elsewhere": [user("Hi") | {"isError": True}],
    "toolCallId elsewhere": [user("Hi") | {"toolCallId": "c1"}],
    "call in a result": [*ASKED, answer("c1") | {"content": [call("c2", city="Oslo")]}],
    "result without a name": [*ASKED, {k: v for k, v in answer("c1").items() if k != "toolName"}],
}


async def test_llm_c21_histories(anywhere: Shell) -> None:
    before = await anywhere.submitted()
    for case, messages in BAD_HISTORIES.items():
        assert (await anywhere.fail(await anywhere.request(messages=messages)))["code"] == "invalid-request", case
    assert await anywhere.submitted() == before


async def test_llm_c21_a_history_without_tools(shell: Shell) -> None:
    history = [*ASKED, answer("c1"), user("Thank you.")]
    _, result = await shell.stream("g", await shell.request(messages=history))
    assert result["result"]["finish"] in ("stop", "length")
    assert all(part["type"] != "toolCall" for part in result["result"]["content"])


@MISBEHAVES
async def test_llm_c21_no_new_calls_without_tools(controlled: Controlled) -> None:
    history = [*ASKED, answer("c1"), user("Again?")]
    generation = asyncio.create_task(controlled.stream("g", await controlled.request(messages=history)))
    run = await controlled.engine.run()
    text = calls(("get_weather", '{"city": "Oslo"}'))
    run.say(text)
    run.done()
    _, result = await generation
    assert "error" in result or result["result"]["content"] == [{"type": "text", "text": text}]


# LLM-C22: an image as a tool result; an error result without a native flag


async def test_llm_c22_an_image_result(anywhere: Shell) -> None:
    shell = anywhere
    images, before = (await shell.select())["images"], await shell.submitted()
    seen = answer("c1") | {"content": [IMAGE]}
    _, result = await shell.stream("g", await shell.request(messages=[*ASKED, seen]))
    if images and "result" in result:
        return
    assert result["error"]["code"] == "unsupported"
    assert await shell.submitted() == before


@CONFIGURED
async def test_llm_c22_an_image_result_that_the_template_cannot_write(make: Make) -> None:
    controlled: Controlled = await make(sees=True)
    seen = answer("c1") | {"content": [{"type": "text", "text": "x"}, IMAGE]}
    error = await controlled.fail(await controlled.request(messages=[*ASKED, seen]))
    assert error["code"] == "unsupported" and "a tool result" in error["message"]
    assert await controlled.submitted() == (0, 0)


@OBEYED
async def test_llm_c22_an_image_result_where_the_template_writes_it(seeing: Controlled) -> None:
    seen = answer("c1", isError=True) | {"content": [{"type": "text", "text": "before"}, IMAGE]}
    request = await seeing.request(messages=[*ASKED, seen], tools=[WEATHER])
    generation = asyncio.create_task(seeing.stream("g", request))
    run = await seeing.engine.run()
    run.done()
    await generation
    ((offset, _),) = run.job.images
    assert seeing.prompt(tokens=run.job.tokens[:offset]).endswith("Tool execution failed.\nbefore")


async def test_llm_c22_the_error_flag_is_told(shell: Shell) -> None:
    read = []
    for failed in (True, False):
        request = await shell.request(messages=[*ASKED, answer("c1", isError=failed)], maxTokens=1)
        read.append((await shell.call("llm.generate", request=request))["result"]["usage"]["inputTokens"])
    assert read[0] > read[1]


@OBEYED
async def test_llm_c22_the_error_flag_is_written_out(controlled: Controlled) -> None:
    for number, failed in enumerate((True, False)):
        history = [*ASKED, answer("c1", "no such city", isError=failed)]
        generation = asyncio.create_task(controlled.stream("g", await controlled.request(messages=history)))
        (await controlled.engine.run(number)).done()
        await generation
        prompt = controlled.prompt()
        assert ("Tool execution failed." in prompt) == failed
        assert not failed or prompt.index("Tool execution failed.") < prompt.index("no such city")


# LLM-C23: consent declined with sensitive tool definitions and results


async def test_llm_c23_the_disclosure_names_definitions_and_results(anywhere: Shell) -> None:
    headers, before = await anywhere.asking(), await anywhere.submitted()
    history = [*ASKED, answer("c1", SECRET)]
    secret_tool = WEATHER | {"description": SECRET}
    request = await anywhere.request(messages=history, tools=[secret_tool, TIME], headers=headers)
    generation = asyncio.create_task(anywhere.fail(request, **headers))
    decision = await pending(anywhere)
    disclosure = decision["disclosure"]
    assert decision["endpoint"]["identity"] == "notes;hash"
    assert disclosure["model"] and disclosure["route"] and disclosure["charge"]
    assert disclosure["tool_definitions"]["count"] == 2 and disclosure["tool_names"] == ["get_weather", "get_time"]
    assert disclosure["tool_results"] == {"count": 1, "bytes": len(SECRET)}
    assert disclosure["messages"]["user"]["count"] == 1
    content = (await anywhere.owner.get(f"/owner/consents/{decision['id']}")).text
    assert content.count(SECRET) == 2
    await deny(anywhere, decision)
    error = await generation
    assert error["code"] == "user-cancelled" and SECRET not in json.dumps(error)
    assert await anywhere.submitted() == before
