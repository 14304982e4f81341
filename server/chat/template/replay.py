"""Replay of earlier turns as the very tokens that the model gave, with the thinking that the wire's messages lack.

A prompt is then parts of text with such turns between them. Before the first stands the prompt of that turn. Behind
each stands the text that the template writes after it: found by rendering the conversation with a sentinel for the
turn, whose words nobody else can know, and taking the text behind those.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from server.chat.arguments import ANY_TYPE, Types
from server.chat.formats.spec import ID, ChatFormat
from server.chat.parser import MalformedOutput, ParserSpec, make_parser
from server.chat.template.provenance import ProvenanceStr
from server.chat.template.template import TemplateError
from server.wire.records import Message, ToolCallPart

PromptPart: TypeAlias = "ProvenanceStr | array[int]"
"""A part of a prompt: text to be tokenized, or tokens."""


@dataclass(frozen=True, slots=True)
class Sentinel:
    """Takes the place of the turn at `index`: `text` that of its words, `argument` that of its calls' arguments."""

    index: int
    text: str = field(default_factory=lambda: f"turn{secrets.token_hex(16)}")
    argument: str = field(default_factory=lambda: f"call{secrets.token_hex(16)}")


Write = Callable[[Sequence[Message], Mapping[str, str], Sentinel | None], ProvenanceStr]
"""Writes the prompt of these messages, with the calls' ids as the model wrote them where that is known."""


class _Lost(Exception):
    """The place of a turn cannot be found in what the template writes."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


@dataclass(frozen=True, slots=True)
class TurnReplay:
    """Prompts with replayed turns, for one model.

    `eog_texts`: the texts of the tokens that end a generation, by one of which its template ends a turn of calls; none
    where it does not. `detokenize`: the text of tokens. `prompt_opening`: the part of a prompt's end that belongs to
    the output.
    """

    format: ChatFormat
    eog_texts: Sequence[str]
    detokenize: Callable[[array[int]], str]
    prompt_opening: Callable[[ProvenanceStr], str]

    def write(
        self, write: Write, messages: Sequence[Message], turns: Mapping[int, array[int]]
    ) -> tuple[list[PromptPart], frozenset[int]]:
        """The prompt, and the turns that stand in it as tokens: those whose place is found.

        The others are written as the template writes them. Raises `TemplateError` where it refuses the conversation.
        """
        kept = dict(turns)
        while kept:
            try:
                return self._write(write, messages, kept), frozenset(kept)
            except _Lost as lost:
                del kept[lost.index]
        return [write(messages, {}, None)], frozenset()

    def _write(self, write: Write, messages: Sequence[Message], turns: Mapping[int, array[int]]) -> list[PromptPart]:
        first, *others = sorted(turns)
        ids: dict[str, str] = {}
        try:
            before = write(messages[:first], ids, None)
        except TemplateError:
            raise _Lost(first) from None
        parts: list[PromptPart] = [before]
        for index, end in zip((first, *others), (*others, len(messages)), strict=True):
            text = self.detokenize(turns[index])
            ids |= self._ids(messages[index], text, self.prompt_opening(before))
            sentinel = Sentinel(index)
            try:
                prompt = write(messages[:end], ids, sentinel)
            except TemplateError:
                raise _Lost(index) from None
            rest = self._following(prompt, sentinel, text)
            if rest is None:
                raise _Lost(index)
            parts += [turns[index], rest]
            before = rest
        return parts

    def _following(self, prompt: ProvenanceStr, sentinel: Sentinel, text: str) -> ProvenanceStr | None:
        """The text that the template writes after the sentinel's turn; None where that cannot be told."""
        if prompt.count(sentinel.text) == 1:
            rest = prompt[prompt.find(sentinel.text) + len(sentinel.text) :]
            return self._without_close(rest, text)
        at = prompt.rfind(sentinel.argument)
        if at < 0:
            return None
        # What follows the arguments is still the calls' own, up to the token that ends the turn.
        ends = [end for text in self.eog_texts if (end := _find_control(prompt, text, at)) >= 0]
        return prompt[min(ends) :] if ends else None

    def _without_close(self, rest: ProvenanceStr, text: str) -> ProvenanceStr:
        """The text without a closing tag that the model has written itself."""
        for tags in self.format.answer_tags:
            close = tags.close.strip()
            if close and text.rstrip().endswith(close) and rest.lstrip().startswith(close):
                return rest.lstrip()[len(close) :]
        return rest

    def _ids(self, message: Message, text: str, opening: str) -> dict[str, str]:
        """The ids that the model itself gave to the calls of this turn, by those of the message."""
        given = [part for part in message.content if isinstance(part, ToolCallPart)]
        if not given or not any(ID in calls.call for calls in self.format.calls):
            return {}
        tools: dict[str, Types] = {part.name: {None: ANY_TYPE} for part in given}
        parser = make_parser(ParserSpec(self.format, "allowed", tools, prompt_opening=opening))
        try:
            parser.feed(text)
            parser.finish("stop")
        except MalformedOutput:
            return {}
        if len(parser.ids) != len(given):
            return {}
        return {part.tool_call_id: id for part, id in zip(given, parser.ids, strict=True) if id}


def last_text(parts: Iterable[PromptPart]) -> ProvenanceStr:
    """The prompt's end, which is always text."""
    return [part for part in parts if isinstance(part, ProvenanceStr)][-1]


def _find_control(prompt: ProvenanceStr, text: str, at: int) -> int:
    """The position, from `at` on, at which the template itself writes this text; -1: nowhere."""
    while (at := prompt.find(text, at)) >= 0:
        if prompt[at : at + len(text)].is_from_template():
            return at
        at += 1
    return -1
