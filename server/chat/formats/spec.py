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
    """A field in a call that the model fills."""

    NAME = "name"
    ID = "id"
    ARGUMENTS = "arguments"
    AGAIN = "again"
    """The name once more."""


NAME, ID, ARGUMENTS, NAME_AGAIN = CallField

_JSON = JsonArguments()


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """One way to write calls: `begin` call (`between` call)* `end`; `call` is one call as literals and fields.

    `only_at_start`: the first literal is common text (a brace), so calls are recognised only where the output starts
    with one. `untagged_call`: a call without its markers; outside of them such a call, whole and to an offered tool, is
    a call, and text otherwise. `max_calls` bounds the calls that the grammar lets a model write in one turn, which ends
    behind the last.
    """

    call: tuple[str | CallField, ...]
    begin: str = ""
    between: str = ""
    end: str = ""
    syntax: ArgumentSyntax = _JSON
    id: str = "[a-zA-Z0-9]{9}"
    """The `ID` field, in GBNF."""
    untagged_call: tuple[str | CallField, ...] = ()
    only_at_start: bool = False
    max_calls: int = MOST_CALLS

    @property
    def opening(self) -> tuple[str | CallField, ...]:
        """A turn's first call, from its marker on."""
        return (self.begin, *self.call) if self.begin else self.call

    @property
    def marker(self) -> str:
        """The text that announces a call."""
        return str(self.opening[0]).strip()


@dataclass(frozen=True, slots=True)
class Tags:
    """Text between two markers."""

    open: str
    close: str


THINK = Tags("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The format in which one family of models writes.

    A template is of this format where it, together with a sample of its prompts, contains all strings of one of the
    `template_markers` and none of `excluded_markers`. The first of `calls` is the way that is asked for; the family's
    models also write the others.

    `grammar_only`: models do not know this format; only the grammar makes them write it, tagged from the first
    character on, and where nothing constrains them they write plain text. `always_tagged`: its models tag all output of
    themselves. `ignored_markers` carry nothing. `separator` stands between a finished block and the following one.
    `prompt_opening`: where the prompt ends in this text, the output is read as if it began with it. `own_space`: white
    space between visible text and the markers of tags and calls is the text's own; in other formats it is the markers'.

    `needs_reasoning_history`: within a loop of tool calls its models expect their own reasoning back, which the wire
    cannot carry. `id_template`: the shape of call ids in a history, with `{name}`, `{index}` (within the conversation)
    and `{short}` (nine letters and digits); empty: any id will do.
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
        tags = [*self.answer_tags, *([self.reasoning_tags] if self.reasoning_tags else [])]
        texts = [text for each in tags for text in (each.open, each.close)] + [
            *self.ignored_markers,
            self.separator,
            self.prompt_opening,
        ]
        for calls in self.calls:
            texts += [calls.begin, calls.between, calls.end, *(part for part in calls.call if isinstance(part, str))]
            texts += calls.syntax.literals
        return frozenset(filter(None, map(str.strip, texts)))
