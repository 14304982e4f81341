"""The catalogue of tools, and the way to call them, for models whose template tells neither."""

from __future__ import annotations

import json

from server.chat.formats.render import render_tool_calls
from server.chat.formats.spec import ChatFormat
from server.chat.template.provenance import ProvenanceStr, join
from server.chat.types import PromptRequest
from server.wire.records import NamedTool, Tool, ToolChoice


def catalogue(format: ChatFormat, conversation: PromptRequest) -> ProvenanceStr:
    """The tools and the way to call them, for a model whose template does not tell it."""
    lines = ["You have these tools, described as JSON:", *map(_tool, conversation.tools), ""]
    return join([ProvenanceStr("\n".join(lines)), "\n", _instructions(format, conversation)])


def _instructions(format: ChatFormat, conversation: PromptRequest) -> ProvenanceStr:
    choice: ToolChoice | None = conversation.tool_choice
    if choice == "none":
        return ProvenanceStr("Do not call any tool now. Answer yourself.")
    lines: list[str] = []
    if format.grammar_only:
        lines.append("Your whole reply is one JSON object.")
        lines.append('To call tools, reply with {"tool_calls": [{"name": "the tool", "arguments": {the arguments}}]}.')
    else:
        example = render_tool_calls(format.calls[0], [("tool", "0", {"argument": "value"})])
        lines.append(join([ProvenanceStr("To call a tool, write it like this:\n"), example]))
    if choice == "required":
        lines.append("Call at least one tool now.")
    elif isinstance(choice, NamedTool):
        lines.append(f"Call the tool {choice.name} now.")
    elif format.grammar_only:
        answer = "{the answer as a JSON object}" if conversation.format == "json" else '"text"'
        lines.append(f'To answer without a tool, reply with {{"response": {answer}}}.')
    return ProvenanceStr("\n").join(lines)


def _tool(tool: Tool) -> str:
    described = {"description": tool.description} if tool.description is not None else {}
    return json.dumps({"name": tool.name, **described, "parameters": tool.parameters}, ensure_ascii=False)
