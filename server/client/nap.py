"""The NAP-LLM wire from the caller's side, over HTTP and SSE (http-binding)."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from types import TracebackType
from typing import Any

import httpx

from server.wire import encode, write_part
from server.wire.records import (
    Delta,
    Generation,
    GenerationRequest,
    Message,
    Model,
    NamedTool,
    Part,
    Requirements,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCallPart,
    Usage,
    WireError,
)

PATH = "/nap/llm"


class TransportError(Exception):
    """The server did not answer in the wire's terms: not reachable, or refused before the wire was reached.

    `status` is the HTTP status, None where no answer came.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """One endpoint of a server. Failures that the wire reports are raised as WireError, others as TransportError.

    `consent` says that the authorization for each generation has been obtained (tokens of policy `shell`).
    """

    def __init__(
        self, url: str, token: str, *, identity: str = "", endpoint: str = "", account: str = "", consent: bool = False
    ) -> None:
        headers = {
            "Authorization": f"Bearer {token}",
            "Napplet-Identity": identity,
            "Napplet-Endpoint": endpoint,
            "Napplet-Account": account,
            "Napplet-Consent": "granted" if consent else "",
        }
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={name: value for name, value in headers.items() if value},
            # A prefill may take minutes without a byte; the server sends a comment every 15 s under SSE.
            timeout=httpx.Timeout(60.0, read=None),
            # A proxy set for the internet is no way to a server on this machine.
            trust_env=False,
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def select(self, requirements: Requirements | None = None) -> Model:
        envelope: dict[str, Any] = {"type": "llm.select", "id": _id()}
        if requirements is not None:
            envelope["requirements"] = write_requirements(requirements)
        return read_model((await self._call(envelope))["model"])

    async def describe(self, handle: str) -> Model:
        return read_model((await self._call({"type": "llm.describe", "id": _id(), "handle": handle}))["model"])

    async def cancel(self, request_id: str) -> bool:
        answer = await self._call({"type": "llm.cancel", "id": _id(), "requestId": request_id})
        return bool(answer["cancelled"])

    async def generate(
        self, request: GenerationRequest, *, id: str | None = None
    ) -> AsyncGenerator[Delta | Generation, None]:
        """Deltas as they arrive, then the authoritative Generation. Closing the iterator gives the generation up."""
        envelope = {"type": "llm.generate", "id": id or _id(), "request": write_request(request)}
        with _transport_errors():
            async with self._http.stream(
                "POST",
                PATH,
                content=encode(envelope),
                headers={"Content-Type": "application/json", "Accept": "text/event-stream"},
            ) as response:
                if response.status_code != 200:
                    raise _refused(response.status_code, await response.aread())
                async for event in events(response.aiter_bytes()):
                    if event["type"] == "llm.delta":
                        yield read_delta(event)
                    else:
                        yield read_generation(_checked(event)["result"])
                        return
        raise TransportError("the stream ended without a result")

    async def _call(self, envelope: dict[str, Any]) -> Mapping[str, Any]:
        with _transport_errors():
            response = await self._http.post(
                PATH, content=encode(envelope), headers={"Content-Type": "application/json"}
            )
        if response.status_code != 200:
            raise _refused(response.status_code, response.content)
        return _checked(response.json())


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The envelopes of a stream: one `data:` line each (WHATWG HTML, "Server-sent events").

    Lines end at line feeds alone: what else Unicode counts as a line's end may stand inside a JSON string.
    """
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield json.loads(line[5:])


def read_model(value: Mapping[str, Any]) -> Model:
    return Model(
        handle=value["handle"],
        name=value["name"],
        model=value["model"],
        route=value["route"],
        images=value["images"],
        json=value["json"],
        tools=value["tools"],
        tool_choice_modes=tuple(value["toolChoiceModes"]),
    )


def read_delta(value: Mapping[str, Any]) -> Delta:
    return Delta(
        request_id=value["requestId"],
        sequence=value["sequence"],
        event=value["event"],
        block=value["block"],
        block_index=value["blockIndex"],
        text=value.get("text"),
        tool_call_id=value.get("toolCallId"),
        name=value.get("name"),
    )


def read_generation(value: Mapping[str, Any]) -> Generation:
    usage = value.get("usage")
    return Generation(
        content=tuple(_read_part(part) for part in value["content"]),
        finish=value["finish"],
        usage=usage
        and Usage(
            input_tokens=usage["inputTokens"],
            output_tokens=usage["outputTokens"],
            cache_read_tokens=usage.get("cacheReadTokens"),
            cache_write_tokens=usage.get("cacheWriteTokens"),
            reasoning_tokens=usage.get("reasoningTokens"),
        ),
    )


def _read_part(value: Mapping[str, Any]) -> Part:
    if value["type"] == "text":
        return TextPart(value["text"])
    if value["type"] == "thinking":
        return ThinkingPart(value["text"])
    return ToolCallPart(value["toolCallId"], value["name"], value["arguments"])


def write_requirements(requirements: Requirements) -> dict[str, Any]:
    value: dict[str, Any] = {name: True for name in ("images", "json", "tools") if getattr(requirements, name)}
    if requirements.model is not None:
        value["model"] = requirements.model
    return value


def write_request(request: GenerationRequest) -> dict[str, Any]:
    value: dict[str, Any] = {
        "handle": request.handle,
        "messages": [write_message(message) for message in request.messages],
    }
    if request.format != "text":
        value["format"] = request.format
    if request.max_tokens is not None:
        value["maxTokens"] = request.max_tokens
    if request.temperature is not None:
        value["temperature"] = request.temperature
    if request.tools:
        value["tools"] = [write_tool(tool) for tool in request.tools]
    if isinstance(request.tool_choice, NamedTool):
        value["toolChoice"] = {"type": "tool", "name": request.tool_choice.name}
    elif request.tool_choice is not None:
        value["toolChoice"] = request.tool_choice
    return value


def write_message(message: Message) -> dict[str, Any]:
    value: dict[str, Any] = {"role": message.role, "content": [write_part(part) for part in message.content]}
    if message.role == "toolResult":
        value["toolCallId"] = message.tool_call_id
        value["toolName"] = message.tool_name
        if message.is_error:
            value["isError"] = True
    return value


def write_tool(tool: Tool) -> dict[str, Any]:
    value: dict[str, Any] = {"name": tool.name, "parameters": dict(tool.parameters)}
    if tool.description is not None:
        value["description"] = tool.description
    return value


def _checked(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    if error := answer.get("error"):
        extra = {name: value for name, value in error.items() if name not in ("code", "message")}
        raise WireError(error["code"], error["message"], **extra)
    return answer


def _refused(status: int, body: bytes) -> TransportError:
    if status == 401:
        return TransportError("the server does not know this token", status)
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = "no message"
    return TransportError(f"the server answered {status}: {message}", status)


@contextlib.contextmanager
def _transport_errors() -> Iterator[None]:
    try:
        yield
    except httpx.TransportError as error:
        raise TransportError(str(error) or type(error).__name__) from error


def _id() -> str:
    return secrets.token_hex(8)
