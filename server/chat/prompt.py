"""From a conversation to the prompt: every message to the template's turns, and what a template lacks carried anyway.

Nothing is dropped but `thinking` parts, which the wire keeps from the model (NAP-LLM, "Schemas"). Text parts of a
message are joined with nothing between them. Results stand in the order of their calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from server.chat.conversation import Conversation
from server.chat.format import Format
from server.chat.probe import Traits, turn
from server.chat.template import Template
from server.chat.text import Text
from server.wire.records import Message, NamedTool, TextPart, Tool, ToolCallPart, ToolChoice

_Role = Literal["system", "user", "assistant"]
_Turn = tuple[_Role, str]

FAILED = "Tool execution failed.\n"
"""Stands before the content of a failed tool's result where a format has no flag for it (NAP-LLM, "Schemas")."""


def write_prompt(template: Template, traits: Traits, format: Format, conversation: Conversation) -> Text:
    """The prompt of this conversation. Raises `TemplateError` where the template refuses it."""
    turns = list(_turns(conversation.messages))
    if conversation.tools:
        turns = _with_system(_catalogue(conversation), turns)
    turns = _placed(turns, traits)
    return template.render([turn(role, text, typed=traits.typed) for role, text in turns])


def text_of(message: Message) -> str:
    return "".join(part.text for part in message.content if isinstance(part, TextPart))


def _turns(messages: Sequence[Message]) -> Iterable[_Turn]:
    """Plain turns: calls as JSON in the assistant's; results as JSON, and a user message after them, in one user's."""
    calls: list[ToolCallPart] = []
    results: dict[str, str] = {}
    for message in messages:
        if message.role == "toolResult":
            results[message.tool_call_id or ""] = (FAILED if message.is_error else "") + text_of(message)
            continue
        if results:
            told = _results(calls, results)
            results = {}
            if message.role == "user":
                yield "user", f"{told}\n{text_of(message)}"
                continue
            yield "user", told
        if message.role != "assistant":
            yield message.role, text_of(message)
            continue
        calls = [part for part in message.content if isinstance(part, ToolCallPart)]
        text = text_of(message)
        if calls:
            told = _json({"tool_calls": [{"name": call.name, "arguments": call.arguments} for call in calls]})
            text = f"{text}\n{told}" if text else told
        yield "assistant", text
    if results:
        yield "user", _results(calls, results)


def _results(calls: Sequence[ToolCallPart], results: dict[str, str]) -> str:
    told = [{"name": call.name, "content": results[call.tool_call_id]} for call in calls]
    return _json({"tool_results": told})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _with_system(text: str, turns: list[_Turn]) -> list[_Turn]:
    if turns and turns[0][0] == "system":
        return [("system", f"{turns[0][1]}\n\n{text}"), *turns[1:]]
    return [("system", text), *turns]


def _placed(turns: list[_Turn], traits: Traits) -> list[_Turn]:
    """The turns where the template can take them: a system turn it refuses opens the next user turn."""
    placed: list[_Turn] = []
    waiting: list[str] = []
    for index, (role, text) in enumerate(turns):
        if role == "system" and not (traits.system if index == 0 else traits.later_system):
            waiting.append(text)
            continue
        if waiting:
            if role == "user":
                text = "\n\n".join([*waiting, text])
            else:
                placed.append(("user", "\n\n".join(waiting)))
            waiting = []
        placed.append((role, text))
    if waiting:
        placed.append(("user", "\n\n".join(waiting)))
    return placed if traits.adjacent else _alternating(placed)


def _alternating(turns: list[_Turn]) -> list[_Turn]:
    """Neighbours of one role as one turn."""
    joined: list[_Turn] = []
    for role, text in turns:
        if joined and joined[-1][0] == role:
            joined[-1] = (role, f"{joined[-1][1]}\n\n{text}")
        else:
            joined.append((role, text))
    return joined


def _catalogue(conversation: Conversation) -> str:
    """The tools and the way to call them, for a model whose template does not tell it."""
    lines = ["You have these tools, described as JSON:", *map(_tool, conversation.tools), ""]
    call = 'To call tools, reply with {"tool_calls": [{"name": "the tool", "arguments": {the arguments}}]}.'
    answer = '{"response": {the answer as a JSON object}}' if conversation.format == "json" else '{"response": "text"}'
    lines += _instructions(conversation.tool_choice, call, f"To answer without a tool, reply with {answer}.")
    return "\n".join(lines)


def _instructions(choice: ToolChoice | None, call: str, answer: str) -> list[str]:
    if choice == "none":
        return ["Do not call any tool now. Answer yourself."]
    reply = "Your whole reply is one JSON object."
    if choice == "required":
        return [reply, call, "Call at least one tool now."]
    if isinstance(choice, NamedTool):
        return [reply, call, f"Call the tool {choice.name} now."]
    return [reply, call, answer]


def _tool(tool: Tool) -> str:
    described = {"description": tool.description} if tool.description is not None else {}
    return _json({"name": tool.name, **described, "parameters": tool.parameters})
