"""Answers of a server, read into records of the wire."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from server.wire.records import Delta, Generation, Model, Part, TextPart, ThinkingPart, ToolCallPart, Usage, WireError


class TransportError(Exception):
    """The server did not answer in the wire's terms: not reachable, or refused before the wire was reached.

    `status` is the HTTP status, None where no answer came.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


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


def checked(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer itself, unless it reports a failure: that is raised as WireError."""
    if error := answer.get("error"):
        extra = {name: value for name, value in error.items() if name not in ("code", "message")}
        raise WireError(error["code"], error["message"], **extra)
    return answer


def refused(status: int, body: bytes) -> TransportError:
    """The error for an answer outside the wire."""
    if status == 401:
        return TransportError("the server does not know this token", status)
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = "no message"
    return TransportError(f"the server answered {status}: {message}", status)


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
