"""Results and deltas of the NAP-LLM wire, as JSON-ready dictionaries and as bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from server.wire.records import (
    Delta,
    Generation,
    ImagePart,
    Model,
    Part,
    TextPart,
    ThinkingPart,
    Usage,
    WireError,
)

quoted: Callable[[str], str] = json.JSONEncoder(ensure_ascii=False).encode
"""A text as a JSON string. (`json.dumps` makes an encoder at each call that is not all defaults.)"""


def encode(envelope: dict[str, Any]) -> bytes:
    """Compact UTF-8 JSON."""
    return json.dumps(envelope, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")


def write_part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, ThinkingPart):
        return {"type": "thinking", "text": part.text}
    if isinstance(part, ImagePart):
        return {"type": "image", "mimeType": part.mime_type, "data": part.data}
    return {"type": "toolCall", "toolCallId": part.tool_call_id, "name": part.name, "arguments": dict(part.arguments)}


def write_model(model: Model) -> dict[str, Any]:
    return {
        "handle": model.handle,
        "name": model.name,
        "model": model.model,
        "route": model.route,
        "images": model.images,
        "json": model.json,
        "tools": model.tools,
        "toolChoiceModes": list(model.tool_choice_modes),
    }


def write_usage(usage: Usage) -> dict[str, int]:
    counts = {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "cacheReadTokens": usage.cache_read_tokens,
        "cacheWriteTokens": usage.cache_write_tokens,
        "reasoningTokens": usage.reasoning_tokens,
    }
    return {name: count for name, count in counts.items() if count is not None}


def write_generation(generation: Generation) -> dict[str, Any]:
    value: dict[str, Any] = {"content": [write_part(p) for p in generation.content], "finish": generation.finish}
    if generation.usage is not None:
        value["usage"] = write_usage(generation.usage)
    return value


def write_error(error: WireError) -> dict[str, str]:
    return {"code": error.code, "message": error.message, **error.extra}


def write_delta(delta: Delta) -> dict[str, Any]:
    value: dict[str, Any] = {
        "type": "llm.delta",
        "requestId": delta.request_id,
        "sequence": delta.sequence,
        "event": delta.event,
        "block": delta.block,
        "blockIndex": delta.block_index,
    }
    if delta.text is not None:
        value["text"] = delta.text
    if delta.tool_call_id is not None:
        value["toolCallId"] = delta.tool_call_id
        value["name"] = delta.name
    return value


def select_result(id: str, model: Model) -> dict[str, Any]:
    return {"type": "llm.select.result", "id": id, "model": write_model(model)}


def describe_result(id: str, model: Model) -> dict[str, Any]:
    return {"type": "llm.describe.result", "id": id, "model": write_model(model)}


def generate_result(id: str, generation: Generation) -> dict[str, Any]:
    return {"type": "llm.generate.result", "id": id, "result": write_generation(generation)}


def cancel_result(id: str, cancelled: bool) -> dict[str, Any]:
    return {"type": "llm.cancel.result", "id": id, "cancelled": cancelled}


def error_result(result_type: str, id: str, error: WireError) -> dict[str, Any]:
    return {"type": result_type, "id": id, "error": write_error(error)}
