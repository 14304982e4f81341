"""Random blocks, and what a model of a format writes for them: the other direction of the parser."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from server.chat.arguments import ANY_TYPE, JsonArguments, LiteralArguments, NestedArguments, TaggedArguments, Types
from server.chat.arguments.json import to_json
from server.chat.arguments.schema_types import json_type
from server.chat.formats.spec import ARGUMENTS, ID, CallField, ChatFormat, Tags, ToolCallFormat
from server.chat.parser import ParserSpec

TOOLS: dict[str, Types] = {
    "get": {
        "s": ("string",),
        "city-name": ("string",),
        "n": ("number",),
        "b": ("boolean",),
        "z": ("null",),
        "l": ("array",),
        "o": ("object",),
        "maybe": ("null", "string"),
        "either": ("boolean", "number", "array", "object"),
    },
    "get_weather-2": {None: ("string",)},
    "Any": {},
}
"""Tools by the types of their arguments: declared, one for all that are not declared, any. One name begins another."""

_KEYS = ["key", "_x1", "a.b", "$ref", "größe", "two words", "k:1", "s/t"]
_BARE_KEYS = ["key", "_x1", "a.b", "$ref", "s/t", "Z-9"]
_NUMBERS = [0, -1, 7, 10**20, 1.5, -0.25, 1e-07, 1e300]
_WORDS = [
    "",
    " ",
    "\n",
    "\t",
    "\r\n",
    "\u00a0",
    "\u2028",
    "\x01",
    "\x7f",
    "a",
    "I say so.",
    "Grüße",
    "日本",
    "👩‍🚀",
    "é",
]
_WORDS += ["0", "-1.5", "null", "True", '"', "'", '"""', "\\", "\\n", "\\u00e9", "{", "}", "[", "]", "{}", "(", ")"]
_WORDS += [",", ": ", "=", "<", "</", "<|", "|>", ">", ">>", "```", "[TOOL", "<tool_call>", "</think", "<｜tool"]
_WORDS += ['{"name": "get", "arguments": {}}', '{"name": "nothing", "parameters": {}}', "get(s='x')"]


@dataclass(frozen=True)
class Output:
    """An output with its right reading: the kind and the text of each block; of a call, its name and arguments."""

    spec: ParserSpec
    text: str
    blocks: list[tuple[str, Any]]


class Author:
    """Writes outputs of one format, the same for the same seed."""

    def __init__(self, format: ChatFormat, seed: int) -> None:
        self._random = Random(f"{format.name} {seed}")
        self._format = format
        self._words = [*_WORDS, *sorted(format.markers)]
        calls = [calls.marker for calls in format.calls if not calls.only_at_start]
        starts = [
            str(calls.call[0]).strip() for calls in format.calls if calls.begin and isinstance(calls.call[0], str)
        ]
        thinking = [format.reasoning_tags.open.strip()] if format.reasoning_tags else []
        # What free text cannot hold: whatever begins a block where calls are allowed.
        self._markers = [
            *thinking,
            *(frame.open for frame in format.answer_tags),
            *calls,
            *starts,
            *format.ignored_markers,
        ]
        if format.prompt_opening:
            self._markers.append(format.prompt_opening)
        if any(calls.untagged_call for calls in format.calls):
            self._markers.append('{"name": "get"')

    def output(self) -> Output:
        """Thinking, text, calls, text, each where chance and the format have it."""
        format, lead = self._format, ""
        written, blocks = "", []
        if format.reasoning_tags and self._chance(0.5):
            thought = self._words_before(format.reasoning_tags.close.strip())
            space = self._space()
            lead = format.reasoning_tags.open if self._chance(0.3) else ""
            tags = format.reasoning_tags
            written = f"{'' if lead else tags.open}{self._space()}{thought}{space}{tags.close}"
            written += format.separator
            blocks = [("thinking", thought)] if thought else []
        answer = format.grammar_only and self._chance(0.2)
        for text, found in [self._forced(answer)] if format.grammar_only else self._free(first=not written):
            written += text
            blocks += found
        if not any(kind != "thinking" for kind, _ in blocks):
            blocks.append(("text", ""))
        if not lead and format.prompt_opening and written.startswith(format.prompt_opening) and self._chance(0.5):
            lead, written = format.prompt_opening, written.removeprefix(format.prompt_opening)
        return Output(ParserSpec(format, "allowed", TOOLS, json=answer, prompt_opening=lead), written, blocks)

    def pieces(self, text: str) -> list[str]:
        """The text cut at random, sometimes into empty pieces."""
        places = sorted(self._random.randint(0, len(text)) for _ in range(self._random.randint(0, 12)))
        return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]

    # Blocks

    def _forced(self, json_answer: bool) -> tuple[str, list[tuple[str, Any]]]:
        """The calls, or one answer in its frame."""
        frame = self._format.answer_tags[0]
        if json_answer:
            text = json.dumps(self._object(2), ensure_ascii=False)
            return f"{frame.open}{text}{frame.close}", [("text", text)]
        if self._chance(0.3):
            text = self._any_words()
            return f"{frame.open}{json.dumps(text, ensure_ascii=self._chance(0.5))}{frame.close}", [("text", text)]
        return self._calls(self._format.calls[0])

    def _free(self, *, first: bool) -> list[tuple[str, list[tuple[str, Any]]]]:
        format = self._format
        # An anchored call stands at the beginning; a framed format has no text but in frames.
        spelling = self._random.choice([calls for calls in format.calls if first or not calls.only_at_start])
        groups = self._random.choice([0, 1, 1, 1, 1, 2]) if not spelling.only_at_start else 1
        parts: list[tuple[str, list[tuple[str, Any]]]] = []
        if self._chance(0.5) and not (groups and spelling.only_at_start):
            parts.append(
                self._text(first=first, anchored=not groups and any(calls.only_at_start for calls in format.calls))
            )
        for _ in range(groups):
            parts.append(self._calls(spelling))
            if self._chance(0.4):
                parts.append(self._text(first=False))
        written: list[tuple[str, list[tuple[str, Any]]]] = []
        own = False
        for text, blocks in parts:
            # Beside markers white space is nobody's, or that of a free text, where the format has it so.
            space = self._space() if written and not own else ""
            own = format.own_space and bool(text) and blocks == [("text", text)]
            text = f"{space}{text}{self._space() if own else ''}"
            written.append((text, [("text", text)] if own else blocks))
        return written

    def _text(self, *, first: bool, anchored: bool = False) -> tuple[str, list[tuple[str, Any]]]:
        format = self._format
        frame: Tags | None = self._random.choice(format.answer_tags) if format.answer_tags else None
        if frame and (format.always_tagged or self._chance(0.5)):
            text = self._words_before(frame.close) if frame.close else self._words_before(*self._markers)
            return (
                f"{format.separator if not first else ''}{frame.open}{text}{frame.close}{self._after(frame)}",
                self._said(text),
            )
        text = self._words_before(*self._markers)
        return text, self._said(text)

    def _after(self, frame: Tags) -> str:
        return self._format.separator if frame.close and self._chance(0.5) else ""

    @staticmethod
    def _said(text: str) -> list[tuple[str, Any]]:
        return [("text", text)] if text else []

    def _calls(self, calls: ToolCallFormat) -> tuple[str, list[tuple[str, Any]]]:
        given = []
        for _ in range(self._random.randint(1, min(3, calls.max_calls))):
            name = self._random.choice(list(TOOLS))
            given.append((name, self._arguments(calls, TOOLS[name])))
        blocks: list[tuple[str, Any]] = [("toolCall", call) for call in given]
        if calls.untagged_call and self._chance(0.2):
            return "\n".join(self._call(calls, calls.untagged_call, *call) for call in given), blocks
        written = [self._call(calls, calls.call, *call) for call in given]
        return f"{calls.begin}{calls.between.join(written)}{calls.end}", blocks

    def _call(
        self, calls: ToolCallFormat, call: Sequence[str | CallField], name: str, arguments: Mapping[str, Any]
    ) -> str:
        parts = []
        for part in call:
            if part is ARGUMENTS and isinstance(calls.syntax, JsonArguments):
                parts.append(self._json(arguments))
            elif part is ARGUMENTS:
                parts.append(str.__str__(calls.syntax.render(arguments)))
            elif part is ID:
                parts.append(str(self._random.randint(0, 99)) if calls.id.startswith("[0-9]") else "a1B2c3D4e")
            else:
                parts.append(name if isinstance(part, CallField) else part)
        return "".join(parts)

    def _json(self, value: Any) -> str:
        style = self._random.choice([{}, {"separators": (",", ":")}, {"indent": 2}])
        return json.dumps(value, ensure_ascii=self._chance(0.3), **style)

    # Arguments

    def _arguments(self, calls: ToolCallFormat, types: Types) -> dict[str, Any]:
        declared = [key for key in types if key is not None]
        keys = declared or [key for key in _KEYS if self._possible(calls, key)]
        if isinstance(calls.syntax, NestedArguments):  # what these are, only a schema tells
            keys = [key for key in keys if not {"null", "array", "object"}.issuperset(self._types(types, key))]
        chosen = self._random.sample(keys, self._random.randint(0, min(4, len(keys))))
        return {key: self._argument(calls, self._types(types, key)) for key in chosen}

    @staticmethod
    def _types(types: Types, key: str) -> Sequence[str]:
        return types.get(key, types.get(None, ANY_TYPE))

    def _possible(self, calls: ToolCallFormat, key: str) -> bool:
        match calls.syntax:
            case LiteralArguments(pair=pair):
                return pair not in key
            case TaggedArguments(named=named):
                return named[0] not in key
        return True

    def _argument(self, calls: ToolCallFormat, types: Sequence[str]) -> Any:
        """A value of one of these types that the syntax can spell, and spells in one way only."""
        nested = isinstance(calls.syntax, NestedArguments)
        kinds = [kind for kind in types if not nested or kind not in ("null", "array", "object")]
        while True:
            value = self._value(calls, self._random.choice(kinds), 2)
            if not isinstance(calls.syntax, TaggedArguments | NestedArguments) or self._certain(
                calls.syntax, value, types
            ):
                return value

    def _certain(self, tags: TaggedArguments | NestedArguments, value: Any, types: Sequence[str]) -> bool:
        raw = value if isinstance(value, str) else to_json(value)
        close, typed = (tags.mark, ()) if isinstance(tags, NestedArguments) else (tags.close.strip(), tags.typed)
        if (raw + close).index(close) < len(raw):
            return False
        if not isinstance(value, str) or typed or types == ("string",):
            return True
        try:  # raw text that is JSON of another type is read as that
            return json_type(json.loads(raw)) not in types or isinstance(json.loads(raw), str)
        except ValueError:
            return True

    def _value(self, calls: ToolCallFormat, kind: str, depth: int) -> Any:
        marked = isinstance(calls.syntax, LiteralArguments) and calls.syntax.quote != '"'
        match kind:
            case "string":
                return self._any_words(*([calls.syntax.quote] if marked else []))  # type: ignore[union-attr]
            case "number":
                return self._random.choice(_NUMBERS)
            case "boolean":
                return self._chance(0.5)
            case "null":
                return None
        kinds = ANY_TYPE if depth else ANY_TYPE[:4]
        values = [
            self._value(calls, self._random.choice(kinds), depth - 1 if depth else 0)
            for _ in range(self._random.randint(0, 3))
        ]
        if kind == "array":
            return values
        return {self._random.choice(_BARE_KEYS) if marked else self._any_words(): value for value in values}

    def _object(self, depth: int) -> dict[str, Any]:
        value = self._value(self._format.calls[0], "object", depth)
        assert isinstance(value, dict)
        return value

    # Words

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _space(self) -> str:
        return self._random.choice(["", "", " ", "\n", "\n\n", " \r\n\t"])

    def _any_words(self, *without: str) -> str:
        """Any text in which none of these stand, nor begin where the text ends."""
        while True:
            text = "".join(self._random.choice(self._words) for _ in range(self._random.randint(0, 6)))
            if all((text + marker).index(marker) == len(text) for marker in without):
                return text

    def _words_before(self, *markers: str) -> str:
        """The text of a block, without the white space at its ends, which belongs to no block."""
        while True:
            text = self._any_words(*markers).strip()
            if all((text + marker).index(marker) == len(text) for marker in markers):
                return text
