"""Messages as turns of a chat template: parts of a conversation that it lacks are carried anyway.

Nothing is dropped but `thinking` parts, which the wire keeps from the model (NAP-LLM, "Schemas"). Text parts of a
message are joined with nothing between them. Results stand in the order of their calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from server.chat.arguments.json import to_json
from server.chat.formats.render import render_tool_calls
from server.chat.formats.spec import ChatFormat
from server.chat.template.capabilities import TemplateCapabilities, call
from server.chat.template.provenance import ProvenanceStr, join
from server.chat.template.replay import Sentinel
from server.wire.records import Message, TextPart, ToolCallPart

FAILED = "Tool execution failed.\n"
"""Stands before the content of a failed tool's result where a format has no flag for it (NAP-LLM, "Schemas")."""


_NONE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the template's. `members` are its message's further members; with them it stays by itself, as it does
    where it is to be `alone`."""

    role: str
    text: str
    members: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False


def text_of(message: Message) -> ProvenanceStr:
    """A message's text parts, joined."""
    return join(part.text for part in message.content if isinstance(part, TextPart))


class TurnWriter:
    """The messages of one conversation as turns."""

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

    def turns(self, messages: Sequence[Message]) -> Iterator[Turn]:
        """The turns of these messages, in order. Ids of calls count from the first."""
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
                yield Turn(message.role, text_of(message), alone=sentinel is not None)
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
            yield Turn("user", told)

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
    ) -> Iterator[Turn]:
        """An assistant's turn with calls, and the turns of their results where the template has such."""
        ids = [self._id(part) for part in calls]
        if sentinel is not None:
            # One turn, as the model gave it: where a template takes no more than one call, one stands for all.
            called = list(zip(calls, ids, strict=True))
            given = self._given({"value": sentinel.argument})
            shown = called if self._capabilities.parallel else called[:1]
            members = {"tool_calls": [call(id, part.name, given) for part, id in shown]} if native else {}
            yield Turn("assistant", "" if native else sentinel.text, members, alone=True)
            yield from self._results(called, results)
            return
        if not native:
            given = [(part.name, id, part.arguments) for part, id in zip(calls, ids, strict=True)]
            written = render_tool_calls(self._format.calls[0], given)
            yield Turn("assistant", join([ProvenanceStr(f"{text}\n"), written]) if text else written)
            yield from self._results(zip(calls, ids, strict=True), results)
            return
        if text and not self._capabilities.text_with_calls:
            yield Turn("assistant", text)
            text = ""
        size = len(calls) if self._capabilities.parallel else 1
        for start in range(0, len(calls), size):
            group = list(zip(calls, ids, strict=True))[start : start + size]
            yield Turn(
                "assistant",
                text,
                {"tool_calls": [call(id, part.name, self._given(part.arguments)) for part, id in group]},
            )
            text = ""
            yield from self._results(group, results)

    def _results(self, called: Iterable[tuple[ToolCallPart, str]], results: Mapping[str, str]) -> Iterator[Turn]:
        for part, id in called:
            if part.tool_call_id in results:
                yield Turn("tool", results[part.tool_call_id], {"tool_call_id": id, "name": part.name})

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


def with_system(text: str, turns: list[Turn]) -> list[Turn]:
    """The turns with this text at the end of the system turn that they begin with."""
    if turns and turns[0].role == "system":
        return [replace(turns[0], text=join([ProvenanceStr(f"{turns[0].text}\n\n"), text])), *turns[1:]]
    return [Turn("system", text), *turns]


def join_system(
    texts: Sequence[ProvenanceStr], turns: Iterable[Turn], capabilities: TemplateCapabilities
) -> list[Turn]:
    """The turns with these texts at their beginning, and no further system turn."""
    kept = [turn for index, turn in enumerate(turns) if turn.role != "system" or index == 0]
    if capabilities.later_system == "none":
        return with_system(_paragraphs(texts), kept)
    # The template joins them in its own way.
    first = [turn for turn in kept[:1] if turn.role == "system"]
    return [*first, *(Turn("system", text) for text in texts), *kept[len(first) :]]


def place_turns(turns: Iterable[Turn], capabilities: TemplateCapabilities) -> list[Turn]:
    """The turns where the template can take them: a system turn it refuses opens the next user turn."""
    placed: list[Turn] = []
    waiting: list[str] = []
    for index, given in enumerate(turns):
        if given.role == "system" and not (capabilities.system if index == 0 else capabilities.later_system != "none"):
            waiting.append(given.text)
            continue
        if waiting and given.role == "user":
            given = replace(given, text=_paragraphs([*waiting, given.text]))
        elif waiting:
            placed.append(Turn("user", _paragraphs(waiting)))
        waiting = []
        placed.append(given)
    if waiting:
        placed.append(Turn("user", _paragraphs(waiting)))
    return placed if capabilities.consecutive_users else _alternating(placed)


def _alternating(turns: Iterable[Turn]) -> list[Turn]:
    """Neighbours of one role as one turn."""
    joined: list[Turn] = []
    for given in turns:
        if joined and joined[-1].role == given.role and not any(t.members or t.alone for t in (joined[-1], given)):
            joined[-1] = replace(given, text=_paragraphs([joined[-1].text, given.text]))
        else:
            joined.append(given)
    return joined


def _paragraphs(texts: Iterable[str]) -> ProvenanceStr:
    return ProvenanceStr("\n\n").join(texts)
