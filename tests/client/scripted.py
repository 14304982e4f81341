"""A NAP server whose model follows a script. The wire's own rules judge every request that reaches it."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from server.client import Client
from server.wire import (
    BadEnvelope,
    Cancel,
    Generate,
    Select,
    cancel_result,
    encode,
    error_result,
    generate_result,
    read_envelope,
    select_result,
    write_delta,
)
from server.wire.records import (
    Delta,
    Generation,
    GenerationRequest,
    Model,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    Usage,
    WireError,
)

MODEL = Model("h1", "Label", "exact", "this machine", False, True, True, ("auto", "none", "required", "tool"))
_numbers = itertools.count()


@dataclass(frozen=True)
class Fragment:
    """A block that begins to stream. Its end never comes where the reply is cut off or cancelled."""

    block: str
    text: str
    name: str | None = None


@dataclass(frozen=True)
class Reply:
    """Fragments, then the end: a result or an error. With `held`, the end waits for a cancel."""

    end: Generation | WireError
    fragments: tuple[Fragment, ...] = ()
    held: bool = False
    known: bool = True
    """Whether a cancel finds it."""


def call(name: str, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(f"call_{next(_numbers)}", name, arguments)


def says(text: str) -> Reply:
    return Reply(Generation((TextPart(text),), "stop", Usage(5, 2)), (Fragment("text", text),))


def calls(*parts: ToolCallPart, text: str = "") -> Reply:
    content = (*((TextPart(text),) if text else ()), *parts)
    return Reply(
        Generation(content, "toolUse", Usage(5, 2)),
        tuple(Fragment("toolCall", json.dumps(part.arguments), part.name) for part in parts),
    )


def cut(*fragments: Fragment, held: bool = False) -> Reply:
    kinds = {"text": TextPart, "thinking": ThinkingPart}
    content = tuple(kinds[each.block](each.text) for each in fragments if each.block in kinds)
    return Reply(Generation(content, "length"), fragments, held)


def held(*fragments: Fragment, known: bool = True) -> Reply:
    return Reply(WireError("cancelled", "cancelled"), fragments, held=True, known=known)


class Server:
    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.requests: list[GenerationRequest] = []
        self.cancels: list[str] = []
        self.streaming = asyncio.Event()
        """The fragments of a held reply are out."""
        self.given_up = asyncio.Event()
        """A stream was closed before its end."""
        self._cancelled = asyncio.Event()

    def client(self) -> Client:
        return Client("http://server", "secret", transport=self.transport())

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._answer)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        try:
            envelope = read_envelope(request.content)
        except BadEnvelope as bad:
            assert bad.result_type is not None and bad.id is not None
            return self._event(error_result(bad.result_type, bad.id, bad.error))
        if isinstance(envelope, Select):
            return httpx.Response(200, json=select_result(envelope.id, MODEL))
        if isinstance(envelope, Cancel):
            self.cancels.append(envelope.request_id)
            known = self.replies[0].known
            if known:
                self._cancelled.set()
            return httpx.Response(200, json=cancel_result(envelope.id, known))
        assert isinstance(envelope, Generate)
        self.requests.append(envelope.request)
        reply = self.replies[0] if self.replies[0].held else self.replies.pop(0)
        return httpx.Response(200, stream=_Stream(self._stream(envelope.id, reply)))

    async def _stream(self, id: str, reply: Reply) -> AsyncIterator[bytes]:
        ended = False
        try:
            numbers = itertools.count()
            for index, each in enumerate(reply.fragments):
                call = {"tool_call_id": f"provisional_{index}", "name": each.name} if each.name else {}
                yield _line(write_delta(Delta(id, next(numbers), "start", each.block, index, **call)))  # type: ignore[arg-type]
                if each.text:
                    yield _line(write_delta(Delta(id, next(numbers), "delta", each.block, index, each.text)))  # type: ignore[arg-type]
            if reply.held:
                # The reader asks for the next bytes once it has dealt with those before.
                self.streaming.set()
                await self._cancelled.wait()
                self.replies.pop(0)
            ended = True
            if isinstance(reply.end, WireError):
                yield _line(error_result("llm.generate.result", id, reply.end))
            else:
                result = generate_result(id, _honest(reply.end))
                for part, written in zip(reply.end.content, result["result"]["content"], strict=True):
                    if isinstance(part, ToolCallPart):
                        written["arguments"] = part.arguments
                yield _line(result)
        finally:
            if not ended:
                self.given_up.set()

    def application(self) -> FastAPI:
        """The same over real HTTP, in the loop that runs the test."""
        app = FastAPI()

        @app.post("/nap/llm")
        async def answer(request: Request) -> StreamingResponse:
            made = await self._answer(httpx.Request("POST", "http://server", content=await request.body()))
            return StreamingResponse(made.stream)

        return app

    @staticmethod
    def _event(value: dict[str, Any]) -> httpx.Response:
        return httpx.Response(200, content=_line(value))


def _honest(generation: Generation) -> Generation:
    """Without arguments, which a script may have broken and the wire's writer would not take."""
    content = (replace(part, arguments={}) if isinstance(part, ToolCallPart) else part for part in generation.content)
    return replace(generation, content=tuple(content))


class _Stream(httpx.AsyncByteStream):
    def __init__(self, chunks: Any) -> None:
        self._chunks = chunks

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def aclose(self) -> None:
        await self._chunks.aclose()


def _line(value: dict[str, Any]) -> bytes:
    return b"data: " + encode(value) + b"\n\n"
