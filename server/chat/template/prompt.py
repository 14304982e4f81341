"""Prompts of one conversation, by its model's template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.chat.formats.spec import ChatFormat
from server.chat.template.capabilities import TemplateCapabilities, turn
from server.chat.template.catalogue import catalogue
from server.chat.template.messages import Turn, TurnWriter, join_system, place_turns, with_system
from server.chat.template.provenance import ProvenanceStr, from_user, join
from server.chat.template.replay import Sentinel
from server.chat.template.template import Template, TemplateError
from server.chat.types import PromptRequest
from server.wire.records import Message, Tool

_NONE: Mapping[str, str] = {}
_NONCHARACTERS = 0xFDD0
"""The first of 32 code points that never stand for text (Unicode, section 23.7)."""


@dataclass(frozen=True, slots=True)
class PromptWriter:
    """A template and the conversation that it writes.

    `options` are further variables of the template. `joined`: the texts that join the first system message, in place
    of the system messages behind it.
    """

    template: Template
    capabilities: TemplateCapabilities
    format: ChatFormat
    conversation: PromptRequest
    options: Mapping[str, Any] = field(default_factory=dict)
    joined: Sequence[ProvenanceStr] = ()

    def write(
        self, messages: Sequence[Message], ids: Mapping[str, str] = _NONE, sentinel: Sentinel | None = None
    ) -> ProvenanceStr:
        """The prompt of these messages of the conversation. Raises `TemplateError` where the template refuses them.

        `ids`: the model's own ids of calls, by those of the conversation. With a `sentinel`, its words take the place
        of the turn at its index.
        """
        turns = list(TurnWriter(self.capabilities, self.format, ids, sentinel).turns(messages))
        if self.joined:
            turns = join_system(self.joined, turns, self.capabilities)
        native = self.capabilities.tools and not self.format.grammar_only
        try:
            return self._render(turns, native=native)
        except TemplateError:
            if not (native and self.conversation.tools):
                raise
            # Some templates read no more of a schema than the simplest; ours is told as it is.
            return self._render(turns, native=False)

    def _render(self, turns: list[Turn], *, native: bool) -> ProvenanceStr:
        """The template's prompt of these turns; `native`: it writes the catalogue of tools itself."""
        given = self.conversation.tools
        if given and not native:
            turns = with_system(catalogue(self.format, self.conversation), turns)
        tools: Any = [] if self.capabilities.no_tools == "empty" else None
        if given and native:
            tools = from_user([_described(tool) for tool in given])
        hidden = _hidden(self.format)
        messages = [self._message(each, hidden) for each in place_turns(turns, self.capabilities)]
        prompt: str = self.template.render(messages, tools=tools, **self.options)
        for marker, character in hidden.items():
            prompt = prompt.replace(character, ProvenanceStr(marker))
        return join([prompt])

    def _message(self, given: Turn, hidden: Mapping[str, str]) -> dict[str, Any]:
        text = given.text
        if given.role == "assistant":
            for marker, character in hidden.items():
                text = text.replace(marker, character)
        return turn(given.role, text, typed=self.capabilities.needs_content_parts, **given.members)


def _hidden(format: ChatFormat) -> dict[str, str]:
    """Markers that templates look for in earlier answers, to drop the thinking or to refuse, and the character that
    stands for each while the template runs. Answers given here hold no thinking: a marker in one is its own words."""
    tags = [*format.answer_tags, *([format.reasoning_tags] if format.reasoning_tags else [])]
    markers = {"<think>", "</think>", *(text.strip() for each in tags for text in (each.open, each.close))}
    found = sorted(filter(None, markers), key=len, reverse=True)
    return {marker: chr(_NONCHARACTERS + index) for index, marker in enumerate(found)}


def _described(tool: Tool) -> dict[str, Any]:
    """A tool as templates take it."""
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters}
    return {"type": "function", "function": function}
