"""The client against a scripted transport: what it sends, and what it makes of the answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from server.client import Client, TransportError
from server.client.transport import events
from server.wire.records import (
    Delta,
    Generation,
    GenerationRequest,
    Message,
    NamedTool,
    Requirements,
    TextPart,
    Tool,
    ToolCallPart,
    Usage,
    WireError,
)

MODEL = {
    "handle": "h1",
    "name": "Label",
    "model": "exact",
    "route": "this machine",
    "images": False,
    "json": True,
    "tools": True,
    "toolChoiceModes": ["auto", "none"],
}


def client(answer: Callable[[httpx.Request], httpx.Response]) -> Client:
    made = Client("http://server", "secret", identity="napplet;hash", consent=True)
    made._http = httpx.AsyncClient(
        base_url="http://server", headers=made._http.headers, transport=httpx.MockTransport(answer)
    )
    return made


async def test_select_sends_only_what_is_required_and_says_who_asks() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["Authorization"] == "Bearer secret"
        assert request.headers["Napplet-Identity"] == "napplet;hash"
        assert request.headers["Napplet-Consent"] == "granted"
        assert "Napplet-Endpoint" not in request.headers
        envelope = json.loads(request.content)
        assert envelope["requirements"] == {"tools": True, "model": "exact"}
        return httpx.Response(200, json={"type": "llm.select.result", "id": envelope["id"], "model": MODEL})

    async with client(answer) as nap:
        model = await nap.select(Requirements(model="exact", tools=True))
    assert model.handle == "h1"
    assert model.tool_choice_modes == ("auto", "none")


async def test_generate_yields_deltas_then_the_generation() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        envelope = json.loads(request.content)
        assert envelope["id"] == "g1"
        assert envelope["request"] == {
            "handle": "h1",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
            "maxTokens": 8,
            "temperature": 0.0,
            "tools": [{"name": "t", "parameters": {"type": "object"}}],
            "toolChoice": {"type": "tool", "name": "t"},
        }
        delta = {"type": "llm.delta", "requestId": "g1", "sequence": 0, "event": "start", "block": "toolCall"}
        delta |= {"blockIndex": 0, "toolCallId": "c1", "name": "t"}
        call = {"type": "toolCall", "toolCallId": "c1", "name": "t", "arguments": {}}
        usage = {"inputTokens": 3, "outputTokens": 2, "cacheReadTokens": 1}
        result = {"content": [call], "finish": "toolUse", "usage": usage}
        body = "".join(
            f"data: {json.dumps(each)}\n\n"
            for each in (delta, {"type": "llm.generate.result", "id": "g1", "result": result})
        )
        return httpx.Response(200, text=": waiting\n\n" + body)

    request = GenerationRequest(
        handle="h1",
        messages=(Message("user", (TextPart("hello"),)),),
        max_tokens=8,
        temperature=0.0,
        tools=(Tool("t", None, {"type": "object"}),),
        tool_choice=NamedTool("t"),
    )
    async with client(answer) as nap:
        got = [each async for each in nap.generate(request, id="g1")]
    assert got == [
        Delta("g1", 0, "start", "toolCall", 0, tool_call_id="c1", name="t"),
        Generation((ToolCallPart("c1", "t", {}),), "toolUse", Usage(3, 2, 1)),
    ]


async def test_an_error_result_is_raised_with_its_code_and_reason() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        error = {"code": "quota-exceeded", "message": "too long", "reason": "context"}
        return httpx.Response(200, json={"type": "llm.cancel.result", "id": "x", "error": error})

    async with client(answer) as nap:
        with pytest.raises(WireError) as raised:
            await nap.cancel("g1")
    assert raised.value.code == "quota-exceeded"
    assert raised.value.extra == {"reason": "context"}


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, "", "token"),
        (413, '{"error":{"code":"quota-exceeded","message":"too large"}}', "too large"),
        (502, "<html>", "502"),
    ],
)
async def test_a_refusal_before_the_wire_is_a_transport_error(status: int, body: str, words: str) -> None:
    async with client(lambda request: httpx.Response(status, text=body)) as nap:
        with pytest.raises(TransportError, match=words) as raised:
            await nap.select()
    assert raised.value.status == status


async def test_no_server_is_a_transport_error() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with client(refuse) as nap:
        with pytest.raises(TransportError) as raised:
            await nap.select()
    assert raised.value.status is None


async def test_every_request_has_a_fresh_id_and_none_is_sent_again() -> None:
    ids: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        envelope = json.loads(request.content)
        ids.append(envelope["id"])
        error = {"code": "timeout", "message": "too late"}
        result = {"type": f"{envelope['type']}.result", "id": envelope["id"], "error": error}
        if envelope["type"] == "llm.generate":
            return httpx.Response(200, text=f"data: {json.dumps(result)}\n\n")
        return httpx.Response(200, json=result)

    async with client(answer) as nap:
        for _ in range(2):
            request = GenerationRequest(handle="h1", messages=(Message("user", (TextPart("hello"),)),))
            for operation in (nap.select(), nap.describe("h1"), nap.cancel("g1"), anext(nap.generate(request))):
                with pytest.raises(WireError):
                    await operation
    assert len(ids) == len(set(ids)) == 8


async def test_a_stream_without_a_result_is_a_transport_error() -> None:
    async with client(lambda request: httpx.Response(200, text=": waiting\n\n")) as nap:
        with pytest.raises(TransportError, match="without a result"):
            _ = [each async for each in nap.generate(GenerationRequest("h", (Message("user", (TextPart("x"),)),)))]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_events_end_at_line_feeds_only_however_the_bytes_arrive(size: int) -> None:
    body = ': hi\n\ndata: {"text":"a\u2028b\u0085c"}\r\n\r\ndata:{"n":1}\n\n'.encode()

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    assert [each async for each in events(chunks())] == [{"text": "a\u2028b\u0085c"}, {"n": 1}]
