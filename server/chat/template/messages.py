"""Messages as turns of a chat template: what it lacks is carried anyway, and its prompt written.

Nothing is dropped but `thinking` parts, which the wire keeps from the model (NAP-LLM, "Schemas"). Text parts of a
message are joined with nothing between them. Results stand in the order of their calls.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from server.chat.arguments.json import to_json
from server.chat.formats.render import render_tool_calls
from server.chat.formats.spec import ChatFormat
from server.chat.template.capabilities import TemplateCapabilities, call, turn
from server.chat.template.provenance import ProvenanceStr, from_user, join
from server.chat.template.replay import Sentinel
from server.chat.template.template import Template, TemplateError
from server.chat.types import PromptRequest
from server.wire.records import Message, NamedTool, TextPart, Tool, ToolCallPart, ToolChoice

FAILED = "Tool execution failed.\n"
"""Stands before the content of a failed tool's result where a format has no flag for it (NAP-LLM, "Schemas")."""


_NONE: Mapping[str, Any] = {}

_NONCHARACTERS = 0xFDD0
"""The first of 32 code points that never stand for text (Unicode, section 23.7)."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn of the template's. `members` are its message's further members; with them it stays by itself, as it does
    where it is to be `alone`."""

    role: str
    text: str
    members: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False


def write_prompt(
    template: Template,
    capabilities: TemplateCapabilities,
    format: ChatFormat,
    conversation: PromptRequest,
    options: Mapping[str, Any] = _NONE,
    *,
    joined: Sequence[ProvenanceStr] = (),
    ids: Mapping[str, str] = _NONE,
    sentinel: Sentinel | None = None,
) -> ProvenanceStr:
    """The prompt of this conversation; `options` are further variables of the template. Raises `TemplateError` where
    the template refuses it.

    `joined`: the texts that join the first system message, in place of the system messages behind it. `ids`: the
    model's own ids of calls, by those of the conversation. With a `sentinel`, its words take the place of the turn at
    its index.
    """
    native = capabilities.tools and not format.grammar_only
    writer = _Writer(capabilities, format, ids, sentinel)
    write = partial(_write, template, conversation, options, capabilities, format, writer, joined)
    try:
        return write(native=native)
    except TemplateError:
        if not (native and conversation.tools):
            raise
        # Some templates read no more of a schema than the simplest; ours is told as it is.
        return write(native=False)


def _write(
    template: Template,
    conversation: PromptRequest,
    options: Mapping[str, Any],
    capabilities: TemplateCapabilities,
    format: ChatFormat,
    writer: _Writer,
    joined: Sequence[ProvenanceStr],
    *,
    native: bool,
) -> ProvenanceStr:
    turns = list(writer.turns(conversation.messages))
    if joined:
        turns = _joined(joined, turns, capabilities)
    if conversation.tools and not native:
        turns = _with_system(_catalogue(format, conversation), turns)
    tools: Any = [] if capabilities.no_tools == "empty" else None
    if conversation.tools and native:
        tools = from_user([_described(tool) for tool in conversation.tools])
    hidden = _hidden(format)
    messages = []
    for given in _placed(turns, capabilities):
        text = given.text
        if given.role == "assistant":
            for marker, character in hidden.items():
                text = text.replace(marker, character)
        messages.append(turn(given.role, text, typed=capabilities.needs_content_parts, **given.members))
    prompt: str = template.render(messages, tools=tools, **options)
    for marker, character in hidden.items():
        prompt = prompt.replace(character, ProvenanceStr(marker))
    return join([prompt])


def _hidden(format: ChatFormat) -> dict[str, str]:
    """Markers that templates look for in earlier answers, to drop the thinking or to refuse, and the character that
    stands for each while the template runs. Answers given here hold no thinking: a marker in one is its own words."""
    tags = [*format.answer_tags, *([format.reasoning_tags] if format.reasoning_tags else [])]
    markers = {"<think>", "</think>", *(text.strip() for each in tags for text in (each.open, each.close))}
    found = sorted(filter(None, markers), key=len, reverse=True)
    return {marker: chr(_NONCHARACTERS + index) for index, marker in enumerate(found)}


def text_of(message: Message) -> ProvenanceStr:
    """A message's text parts, joined."""
    return join(part.text for part in message.content if isinstance(part, TextPart))


def _described(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters}
    return {"type": "function", "function": function}


class _Writer:
    """Writes one conversation's messages as turns."""

    def __init__(
        self,
        capabilities: TemplateCapabilities,
        format: ChatFormat,
        ids: Mapping[str, str] = _NONE,
        sentinel: Sentinel | None = None,
    ) -> None:
        self._capabilities = capabilities
        self._format = format
        self._native = capabilities.arguments is not None and not format.grammar_only
        self._ids = ids
        self._sentinel = sentinel
        self._calls = 0

    def turns(self, messages: Sequence[Message]) -> Iterator[_Turn]:
        self._calls = 0
        at = 0
        while at < len(messages):
            message = messages[at]
            sentinel = self._sentinel if self._sentinel is not None and self._sentinel.index == at else None
            at += 1
            calls = [part for part in message.content if isinstance(part, ToolCallPart)]
            if sentinel is not None:
                message = replace(message, content=(TextPart("" if calls else sentinel.text),))
            if not calls:
                yield _Turn(message.role, text_of(message), alone=sentinel is not None)
                continue
            results = {result.tool_call_id or "": _result_text(result) for result in messages[at : at + len(calls)]}
            at += len(calls) if results else 0
            after = messages[at] if at < len(messages) else None
            native = self._native and self._carries(text_of(message))
            answers = self._capabilities.results and native == self._native and not self._format.grammar_only
            if answers and (self._capabilities.answered or not _is_user(after)):
                yield from self._exchange(text_of(message), calls, results, sentinel, native=native)
                continue
            yield from self._exchange(text_of(message), calls, {}, sentinel, native=native and not results)
            if not results:
                continue
            told: str = to_json(
                {"tool_results": [{"name": part.name, "content": results[part.tool_call_id]} for part in calls]}
            )
            if after is not None and _is_user(after):
                told = join([told, "\n", text_of(after)])
                at += 1
            yield _Turn("user", told)

    def _carries(self, text: str) -> bool:
        """True where text can stand with calls."""
        return not text or self._capabilities.text_with_calls or self._capabilities.apart

    def _exchange(
        self,
        text: str,
        calls: Sequence[ToolCallPart],
        results: Mapping[str, str],
        sentinel: Sentinel | None,
        *,
        native: bool,
    ) -> Iterator[_Turn]:
        """An assistant's turn with calls, and the turns of their results where the template has such."""
        ids = [self._id(part) for part in calls]
        if sentinel is not None:
            # One turn, as the model gave it: where a template takes no more than one call, one stands for all.
            called = list(zip(calls, ids, strict=True))
            given = self._given({"value": sentinel.argument})
            shown = called if self._capabilities.parallel else called[:1]
            members = {"tool_calls": [call(id, part.name, given) for part, id in shown]} if native else {}
            yield _Turn("assistant", "" if native else sentinel.text, members, alone=True)
            yield from self._results(called, results)
            return
        if not native:
            given = [(part.name, id, part.arguments) for part, id in zip(calls, ids, strict=True)]
            written = render_tool_calls(self._format.calls[0], given)
            yield _Turn("assistant", join([ProvenanceStr(f"{text}\n"), written]) if text else written)
            yield from self._results(zip(calls, ids, strict=True), results)
            return
        if text and not self._capabilities.text_with_calls:
            yield _Turn("assistant", text)
            text = ""
        size = len(calls) if self._capabilities.parallel else 1
        for start in range(0, len(calls), size):
            group = list(zip(calls, ids, strict=True))[start : start + size]
            yield _Turn(
                "assistant",
                text,
                {"tool_calls": [call(id, part.name, self._given(part.arguments)) for part, id in group]},
            )
            text = ""
            yield from self._results(group, results)

    def _results(self, called: Iterable[tuple[ToolCallPart, str]], results: Mapping[str, str]) -> Iterator[_Turn]:
        for part, id in called:
            if part.tool_call_id in results:
                yield _Turn("tool", results[part.tool_call_id], {"tool_call_id": id, "name": part.name})

    def _given(self, arguments: Mapping[str, Any]) -> Any:
        return arguments if self._capabilities.arguments == "object" else to_json(arguments)

    def _id(self, part: ToolCallPart) -> str:
        """The call's id in the shape of the format: the same on every replay, and another for every call."""
        index, self._calls = self._calls, self._calls + 1
        own = self._ids.get(part.tool_call_id)
        if not self._format.id_template:
            return own or part.tool_call_id
        digest = hashlib.sha256(part.tool_call_id.encode()).hexdigest()
        return self._format.id_template.format(name=part.name, index=own or index, short=own or digest[:9])


def _is_user(message: Message | None) -> bool:
    return message is not None and message.role == "user"


def _result_text(message: Message) -> str:
    return (FAILED if message.is_error else "") + text_of(message)


def _with_system(text: str, turns: list[_Turn]) -> list[_Turn]:
    if turns and turns[0].role == "system":
        return [replace(turns[0], text=join([ProvenanceStr(f"{turns[0].text}\n\n"), text])), *turns[1:]]
    return [_Turn("system", text), *turns]


def _joined(texts: Sequence[ProvenanceStr], turns: Iterable[_Turn], capabilities: TemplateCapabilities) -> list[_Turn]:
    """The turns with these texts at their beginning, and no further system turn."""
    kept = [turn for index, turn in enumerate(turns) if turn.role != "system" or index == 0]
    if capabilities.later_system == "none":
        return _with_system(_paragraphs(texts), kept)
    # The template joins them in its own way.
    first = [turn for turn in kept[:1] if turn.role == "system"]
    return [*first, *(_Turn("system", text) for text in texts), *kept[len(first) :]]


def _placed(turns: Iterable[_Turn], capabilities: TemplateCapabilities) -> list[_Turn]:
    """The turns where the template can take them: a system turn it refuses opens the next user turn."""
    placed: list[_Turn] = []
    waiting: list[str] = []
    for index, given in enumerate(turns):
        if given.role == "system" and not (capabilities.system if index == 0 else capabilities.later_system != "none"):
            waiting.append(given.text)
            continue
        if waiting and given.role == "user":
            given = replace(given, text=_paragraphs([*waiting, given.text]))
        elif waiting:
            placed.append(_Turn("user", _paragraphs(waiting)))
        waiting = []
        placed.append(given)
    if waiting:
        placed.append(_Turn("user", _paragraphs(waiting)))
    return placed if capabilities.consecutive_users else _alternating(placed)


def _alternating(turns: Iterable[_Turn]) -> list[_Turn]:
    """Neighbours of one role as one turn."""
    joined: list[_Turn] = []
    for given in turns:
        if joined and joined[-1].role == given.role and not any(t.members or t.alone for t in (joined[-1], given)):
            joined[-1] = replace(given, text=_paragraphs([joined[-1].text, given.text]))
        else:
            joined.append(given)
    return joined


def _paragraphs(texts: Iterable[str]) -> ProvenanceStr:
    return ProvenanceStr("\n\n").join(texts)


def _catalogue(format: ChatFormat, conversation: PromptRequest) -> ProvenanceStr:
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
