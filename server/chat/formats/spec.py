"""The description of a model family's chat format, from which recognition, grammar, parser and history come.

An output is free text in which *blocks* stand: thinking, tagged text, and calls. A `ChatFormat` names their literal
markers and the fields between them; `server.chat.grammar` writes GBNF from it, `server.chat.parser` reads output by it
and `server.chat.formats.render` writes history by it, so that they cannot drift apart. White space in a literal is
written as it stands and read leniently.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from server.chat.arguments import ArgumentSyntax, JsonArguments

MOST_CALLS = 8
"""Calls in one turn at most, whatever the format: small models repeat themselves without end."""


class CallField(Enum):
    """A place in a call that the model fills."""

    NAME = "name"
    ID = "id"
    ARGUMENTS = "arguments"
    AGAIN = "again"
    """The name once more."""


NAME, ID, ARGUMENTS, NAME_AGAIN = CallField

JSON = JsonArguments()


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """`begin` call (`between` call)* `end`; `call` is one call as literals and slots.

    `anchored`: the first literal is common text (a brace), so calls are recognised only where the output starts with
    one. `bare`: a call without its markers; outside of them such a call, whole and to an offered tool, is a call, and
    text otherwise. `most` bounds how many calls the grammar lets a model write in one turn, which ends behind the last.
    """

    call: tuple[str | CallField, ...]
    begin: str = ""
    between: str = ""
    end: str = ""
    syntax: ArgumentSyntax = JSON
    id: str = "[a-zA-Z0-9]{9}"
    """What fills the `ID` slot, in GBNF."""
    untagged_call: tuple[str | CallField, ...] = ()
    only_at_start: bool = False
    max_calls: int = MOST_CALLS

    @property
    def opening(self) -> tuple[str | CallField, ...]:
        """What a turn's first call looks like, from its marker on."""
        return (self.begin, *self.call) if self.begin else self.call

    @property
    def marker(self) -> str:
        """The text that announces a call."""
        return str(self.opening[0]).strip()


@dataclass(frozen=True, slots=True)
class Tags:
    """Text between two markers. `json`: written as a JSON string (or as the JSON object that was asked for)."""

    open: str
    close: str
    json: bool = False


THINK = Tags("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """One family's way to write.

    A template is of this format where it, together with a sample of what it renders, contains all strings of one of
    the `signs` and none of `unlike`. `calls` are spellings of the calls: the first is the one we ask for, the others
    are what the family's models also write.

    `forced`: models do not know this format; only the grammar makes them write it, framed from the first character
    on, and where nothing constrains them they write plain text. `framed`: its models do, too, of themselves. `noise`
    are markers that carry nothing. `next`: what stands between a finished block and the following one. `lead`: where
    the prompt ends in this text, the output is read as if it began with it. `own_space`: white space between visible
    text and the markers of frames and calls is the text's own; in other formats it is there for the markers' sake.

    `wants_thinking`: within a loop of tool calls its models expect their own reasoning back, which the wire cannot
    carry. `ids`: the shape of call ids in a history, with `{name}`, `{index}` (within the conversation) and `{short}`
    (nine letters and digits); empty: any id will do.
    """

    name: str
    calls: tuple[ToolCallFormat, ...]
    template_markers: tuple[tuple[str, ...], ...] = ()
    excluded_markers: tuple[str, ...] = ()
    reasoning_tags: Tags | None = None
    answer_tags: tuple[Tags, ...] = ()
    grammar_only: bool = False
    always_tagged: bool = False
    ignored_markers: tuple[str, ...] = ()
    separator: str = ""
    prompt_opening: str = ""
    own_space: bool = False
    needs_reasoning_history: bool = False
    id_template: str = ""

    @property
    def markers(self) -> frozenset[str]:
        """Every literal by which the format may need a control token."""
        frames = [*self.answer_tags, *([self.reasoning_tags] if self.reasoning_tags else [])]
        texts = [text for frame in frames for text in (frame.open, frame.close)] + [
            *self.ignored_markers,
            self.separator,
            self.prompt_opening,
        ]
        for calls in self.calls:
            texts += [calls.begin, calls.between, calls.end, *(part for part in calls.call if isinstance(part, str))]
            texts += calls.syntax.literals
        return frozenset(filter(None, map(str.strip, texts)))
