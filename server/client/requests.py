"""The records a caller sends, as the wire writes them (NAP-LLM, "Schemas")."""

from __future__ import annotations

from typing import Any

from server.wire import write_part
from server.wire.records import GenerationRequest, Message, NamedTool, Requirements, Tool


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
