"""The streaming parser: a model's text in, block events out.

It reads by a `ChatFormat`, in one direction, as a coroutine that pauses wherever the next step needs text that has not
come yet. Its events are certain, never taken back, and do not depend on how the text was cut into pieces.
Pure Python, for the web process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from server.chat.arguments.json import NOTHING, read_json, read_string, value
from server.chat.arguments.schema_types import Types
from server.chat.event_builder import EventBuilder
from server.chat.events import BlockEvent
from server.chat.formats.spec import (
    ARGUMENTS,
    NAME,
    NAME_AGAIN,
    CallField,
    ChatFormat,
    Tags,
    ToolCallFormat,
)
from server.chat.reader import SPACE, WORD, MalformedOutput, OutputEnded, Reader, Steps, walk

__all__ = ["MalformedOutput", "OutputParser", "ParserSpec", "make_parser"]


class _ForbiddenCall(MalformedOutput):
    """A call that is written well, where none is allowed: it fails a turn that completes, while one that is cut short
    stays a partial outcome (NAP-LLM, "Tool"). So this is not certain before the end."""

    def __init__(self) -> None:
        super().__init__("a call where none is allowed")


@dataclass(frozen=True, slots=True)
class ParserSpec:
    """The description by which one output is parsed; picklable.

    `calls`: "allowed" (the constraint lets the model call), "refused" (a recognised call is a failure) or "ignored"
    (the output is text whatever it says). `tools`: those that may be called, with the types of their arguments.
    `json`: the answer is JSON. `prompt_opening`: the part of the prompt's end that belongs to the output, as an open
    reasoning tag.
    """

    format: ChatFormat
    calls: Literal["allowed", "refused", "ignored"] = "ignored"
    tools: Mapping[str, Types] = field(default_factory=dict)
    json: bool = False
    prompt_opening: str = ""


def make_parser(spec: ParserSpec) -> OutputParser:
    return OutputParser(spec)


class OutputParser:
    """Reads one output. `feed` it every piece of text, then tell it once how the output ended."""

    def __init__(self, spec: ParserSpec) -> None:
        self._spec = spec
        self._blocks = EventBuilder(own_space=spec.format.own_space)
        self._reader = Reader(spec.prompt_opening)
        self._failure: str | None = None
        self.broken = False
        """The output breaks its format already, whatever may still come."""
        self.ids: list[str] = []
        """For each call so far the id that the model gave it; empty where its format has none."""
        self.thoughts: list[tuple[int, int | None]] = []
        """Where thinking stands in the output: the characters before it and those to its end, without its brackets.
        None: it has not been closed."""
        self._steps = self._output()

    @property
    def waiting(self) -> int:
        """Characters that have come and are not certain yet."""
        return self._reader.waiting

    def feed(self, text: str) -> list[BlockEvent]:
        """The events that this much more text makes certain. Never raises: a failure is told by `broken` at once, and
        by `finish`."""
        self._reader.feed(text)
        return self._step()

    def finish(self, finish: Literal["stop", "length"]) -> list[BlockEvent]:
        """The last events. Raises `MalformedOutput` where an output that ended by itself breaks its format.

        A truncated output breaks nothing: its open text ends here, its unfinished call stays without an end.
        """
        self._reader.ended = True
        events = self._step()
        if finish == "stop" and self._failure is not None:
            raise MalformedOutput(self._failure)
        self._blocks.finish(whole=finish == "stop")
        return events + self._blocks.take()

    def _step(self) -> list[BlockEvent]:
        if self._failure is None:
            try:
                next(self._steps, None)
            except MalformedOutput as error:
                self._failure = error.reason
                self.broken = not isinstance(error, _ForbiddenCall)
            except OutputEnded:
                self._failure = "the output ends inside a block"
        return self._blocks.take()

    def _output(self) -> Steps[None]:
        spec, format = self._spec, self._spec.format
        if format.reasoning_tags and (yield from self._reader.choose([format.reasoning_tags.open])) is not None:
            yield from self._thinking(format.reasoning_tags)
        if format.grammar_only and spec.calls == "allowed":
            yield from self._tagged_only(format)
            return
        for calls in format.calls if spec.calls != "ignored" else ():
            if (format.grammar_only or calls.only_at_start) and (yield from self._recognised(calls)):
                if spec.calls == "refused":
                    raise _ForbiddenCall
                yield from self._expect(str(calls.opening[0]))
                yield from self._section(calls)
        yield from self._free(format)

    def _tagged_only(self, format: ChatFormat) -> Steps[None]:
        """Calls or one tagged answer, and nothing else."""
        reader, calls = self._reader, format.calls[0]
        choice = yield from reader.choose([calls.begin, *(tags.open for tags in format.answer_tags)])
        if choice is None:
            yield from reader.wrong("the output is neither a call nor an answer of its format")
        elif choice == 0:
            yield from self._section(calls)
        else:
            self._blocks.start("text")
            yield from (read_json if self._spec.json else read_string)(reader, self._blocks.add)
            yield from self._expect(format.answer_tags[choice - 1].close)
            self._blocks.close()
        yield from reader.skip_space()
        if reader.waiting:
            raise MalformedOutput("text follows the end of the format")

    def _free(self, format: ChatFormat) -> Steps[None]:
        """Text, with blocks in it wherever their markers stand."""
        spec, blocks, until = self._spec, self._blocks, self._reader.until
        thinking = {format.reasoning_tags.open.strip(): format.reasoning_tags} if format.reasoning_tags else {}
        text = {} if format.grammar_only else {tags.open: tags for tags in format.answer_tags}
        calls: dict[str, list[ToolCallFormat]] = {}
        for each in format.calls if spec.calls != "ignored" and not format.grammar_only else ():
            if not each.only_at_start:
                calls.setdefault(each.marker, []).append(each)
        # A JSON answer may look like a call without being one.
        untagged = (
            [each for each in format.calls if each.untagged_call] if spec.calls == "allowed" and not spec.json else []
        )
        braces = ["{"] if untagged else []
        markers = [*thinking, *text, *calls, *format.ignored_markers, *braces]
        while (marker := (yield from until(markers, blocks.say_text))) is not None:
            if marker in braces:
                yield from self._untagged(untagged[0], marker)
            elif marker in thinking:
                yield from self._thinking(thinking[marker])
            elif marker in text:
                blocks.cut(leads=True)
                if text[marker].close:
                    yield from until([text[marker].close], blocks.say_text)
                    blocks.cut(leads=True)
            elif marker in format.ignored_markers:
                blocks.cut(leads=blocks.last == "text")
            elif spec.calls == "allowed" and not format.always_tagged and len(calls[marker]) == 1:
                yield from self._section(calls[marker][0])
            else:
                yield from self._marked(calls[marker], marker)
        blocks.end_text()

    def _marked(self, formats: Sequence[ToolCallFormat], marker: str) -> Steps[None]:
        """Calls in one of the formats that begin with this marker, which has been read; or the marker is text."""
        for calls in formats:
            if (yield from self._recognised(calls, marker)):
                if self._spec.calls != "allowed":
                    raise _ForbiddenCall
                yield from self._section(calls)
                return
        if self._spec.calls == "allowed" and not self._spec.format.always_tagged:
            yield from self._section(formats[0])  # which will say what is wrong
        else:
            self._blocks.say_text(marker)

    def _untagged(self, calls: ToolCallFormat, marker: str) -> Steps[None]:
        """A call without its markers where a whole one to an offered tool stands, else text; `marker` has been read."""
        self._reader.at -= len(marker)
        call = yield from self._reader.tried(self._whole_call(calls))
        if call is None:
            self._reader.at += len(marker)
            self._blocks.say_text(marker)
            return
        name, arguments = call
        self.ids.append("")
        self._blocks.cut()
        self._blocks.start("toolCall", name)
        self._blocks.add(arguments)
        self._blocks.cut()

    def _whole_call(self, calls: ToolCallFormat) -> Steps[tuple[str, str]]:
        """Name and arguments of a call without its markers."""
        name: list[str] = []
        arguments: list[str] = []
        yield from self._call(calls, calls.untagged_call, name.append, arguments.append)
        text = "".join(arguments)
        if value(text) is NOTHING:
            raise MalformedOutput("the arguments of a call are not JSON")
        return name[0], text

    def _thinking(self, tags: Tags) -> Steps[None]:
        self._blocks.cut()
        begin, close = self._reader.place, tags.close.strip()
        self.thoughts.append((begin, None))
        if (yield from self._reader.until([close], self._blocks.say_thinking)) is not None:
            self.thoughts[-1] = begin, self._reader.place - len(close)
        self._blocks.cut()

    def _section(self, calls: ToolCallFormat) -> Steps[None]:
        """One call or several; the marker has been read."""
        self._blocks.cut()
        parts = calls.call if calls.begin else calls.call[1:]
        between, end = calls.between.strip(), calls.end
        while True:
            begin = partial(self._blocks.start, "toolCall")
            self.ids.append((yield from self._call(calls, parts, begin, self._blocks.add, end)))
            self._blocks.cut(leads=True)
            if not calls.begin:
                return  # the next call, if any, has a marker of its own
            following = between or str(calls.call[0])
            choice = yield from self._reader.choose([following, *filter(None, [calls.end])])
            if choice is None and calls.end:
                yield from self._reader.choose([calls.end.partition("<")[0] or calls.end])
                yield from self._reader.not_closed("a call is not followed by another or by the end of the calls")
            if choice != 0:
                return
            end = ""
            parts = calls.call if between else calls.call[1:]

    def _call(
        self,
        calls: ToolCallFormat,
        parts: Sequence[str | CallField],
        begin: Callable[[str], None],
        emit: Callable[[str], None],
        end: str = "",
    ) -> Steps[str]:
        """One call: `begin` takes its name, `emit` its arguments as JSON; `end` is the literal behind it where it is
        the only one. Returns its id, where it has one."""
        reader = self._reader
        types: Types = {}
        name = id = ""
        rest = iter((*parts, ""))
        for part in rest:
            if part is NAME:
                name = yield from reader.word()
                if name not in self._spec.tools:
                    raise MalformedOutput("a call to a tool that was not offered")
                types = self._spec.tools[name]
                begin(name)
            elif part is ARGUMENTS:
                after = yield from calls.syntax.read(reader, emit, types, str(next(rest)), end)
                yield from self._expect(after)
            elif part is NAME_AGAIN:
                if (yield from reader.word()) != name:
                    raise MalformedOutput("a call names two tools")
            elif isinstance(part, CallField):
                id = yield from reader.word()
            else:
                yield from self._expect(part)
        return id

    def _expect(self, literal: str) -> Steps[None]:
        yield from self._reader.expect(literal, "a call is not written as its format has it")

    def _recognised(self, calls: ToolCallFormat, behind: str = "") -> Steps[bool]:
        """True where a call begins here, to an offered tool where there are any. Reads nothing.

        `behind`: the part of it that has been read. Text cut short before the arguments is no call.
        """
        reader = self._reader
        while True:
            seen = _call_stands(behind + reader.buffer[reader.at :], calls, self._spec.tools)
            if seen is not None or reader.ended:
                return bool(seen)
            yield


def _call_stands(text: str, calls: ToolCallFormat, tools: Mapping[str, Types]) -> bool | None:
    """True where the text begins with a call, as far as the beginning of its arguments. None: more text must tell."""
    at = 0
    for index, part in enumerate(calls.opening):
        if part is ARGUMENTS:
            after = str(calls.opening[index + 1]) if index + 1 < len(calls.opening) else ""
            return _arguments_stand(text, at, calls.syntax.openings(after))
        if isinstance(part, CallField):
            space = SPACE.match(text, at)
            word = WORD.match(text, space.end() if space else at)
            if word is None or word.end() == len(text):
                return None
            if not word.group() or (part is NAME and tools and word.group() not in tools):
                return False
            at = word.end()
        else:
            whole, at = walk(text, at, part)
            if not whole:
                return None if at == len(text) else False
    return True


def _arguments_stand(text: str, at: int, openings: Sequence[str]) -> bool | None:
    """True where arguments begin at `at`, with one of the literals if there are any. None: more text must tell."""
    walked = [walk(text, at, opening) for opening in openings]
    if not walked or any(whole for whole, _ in walked):
        return True
    return None if any(end == len(text) for _, end in walked) else False
