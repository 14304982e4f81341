"""Earlier turns put back as the very tokens that the model gave, with the thinking that the wire's messages lack.

A prompt is then runs of text with such turns between them. Before the first stands what was the prompt of that turn.
Behind each stands what the template writes after it: found by rendering the conversation with a stand-in for the turn,
whose words nobody else can know, and taking what follows those.
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
    """Writes prompts for one model. `ends`: the texts of the tokens that end a generation, by one of which its template
    ends a turn of calls, or none where it does not; `said`: the text of tokens; `lead`: what of a prompt's end belongs
    to the output."""

    format: ChatFormat
    eog_texts: Sequence[str]
    detokenize: Callable[[array[int]], str]
    prompt_opening: Callable[[ProvenanceStr], str]

    def write(
        self, write: Write, messages: Sequence[Message], turns: Mapping[int, array[int]]
    ) -> tuple[list[PromptPart], frozenset[int]]:
        """The prompt, and which of the turns stand in it as tokens: those whose place is found. The others are written
        as the template writes them. Raises `TemplateError` where it refuses the conversation."""
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
        runs: list[PromptPart] = [before]
        for index, end in zip((first, *others), (*others, len(messages)), strict=True):
            said = self.detokenize(turns[index])
            ids |= self._ids(messages[index], said, self.prompt_opening(before))
            stand_in = Sentinel(index)
            try:
                prompt = write(messages[:end], ids, stand_in)
            except TemplateError:
                raise _Lost(index) from None
            rest = self._following(prompt, stand_in, said)
            if rest is None:
                raise _Lost(index)
            runs += [turns[index], rest]
            before = rest
        return runs

    def _following(self, prompt: ProvenanceStr, stand_in: Sentinel, said: str) -> ProvenanceStr | None:
        """What the template writes after the stand-in's turn; None where that cannot be told."""
        if prompt.count(stand_in.text) == 1:
            rest = prompt[prompt.find(stand_in.text) + len(stand_in.text) :]
            return self._without_close(rest, said)
        at = prompt.rfind(stand_in.argument)
        if at < 0:
            return None
        # What follows the arguments is still the calls' own, up to the token that ends the turn.
        ends = [end for text in self.eog_texts if (end := _find_control(prompt, text, at)) >= 0]
        return prompt[min(ends) :] if ends else None

    def _without_close(self, rest: ProvenanceStr, said: str) -> ProvenanceStr:
        """A model that frames its answer has closed the frame itself."""
        for frame in self.format.answer_tags:
            close = frame.close.strip()
            if close and said.rstrip().endswith(close) and rest.lstrip().startswith(close):
                return rest.lstrip()[len(close) :]
        return rest

    def _ids(self, message: Message, said: str, lead: str) -> dict[str, str]:
        """The ids that the model itself gave to the calls of this turn, by those of the message."""
        given = [part for part in message.content if isinstance(part, ToolCallPart)]
        if not given or not any(ID in calls.call for calls in self.format.calls):
            return {}
        tools: dict[str, Types] = {part.name: {None: ANY_TYPE} for part in given}
        parser = make_parser(ParserSpec(self.format, "allowed", tools, prompt_opening=lead))
        try:
            parser.feed(said)
            parser.finish("stop")
        except MalformedOutput:
            return {}
        if len(parser.ids) != len(given):
            return {}
        return {part.tool_call_id: id for part, id in zip(given, parser.ids, strict=True) if id}


def last_text(runs: Iterable[PromptPart]) -> ProvenanceStr:
    """The prompt's end, which is always text."""
    return [run for run in runs if isinstance(run, ProvenanceStr)][-1]


def _find_control(prompt: ProvenanceStr, text: str, at: int) -> int:
    """Where the template itself writes this text, from `at` on; -1: nowhere."""
    while (at := prompt.find(text, at)) >= 0:
        if prompt[at : at + len(text)].is_from_template():
            return at
        at += 1
    return -1
