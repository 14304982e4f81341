"""The constraint of one output: the grammar that the sampler obeys, from a format, tools and a choice."""

from __future__ import annotations

from collections.abc import Mapping

from grammars import Compiled
from server.chat.arguments import ToolArguments
from server.chat.formats.spec import ARGUMENTS, NAME, NAME_AGAIN, CallField, ChatFormat, ToolCallFormat
from server.chat.gbnf import ANY, Gbnf, choice, quote, sequence, unlike
from server.engine.types import Constraint

_STRING = r"""string ::= "\"" char* "\""
char ::= [^"\\\x00-\x1f\x7f] | "\\" (["\\/bfnrt] | "u" unit)
unit ::= [0-9a-cA-CefEF] hex hex hex | [dD] [0-7] hex hex
hex ::= [0-9a-fA-F]"""
"""A JSON string of any text; no schema is compiled for it."""


def build_constraint(
    format: ChatFormat,
    *,
    tools: Mapping[str, ToolArguments],
    required: bool = False,
    single: bool = False,
    answer: Compiled | None = None,
    tokens: Mapping[str, int],
    prompt_opening: str = "",
) -> Constraint | None:
    """The constraint of one output. None: the model may write anything.

    `tools` are those that may be called; `required`: at least one is, `single`: at most one. `answer` are the rules
    of a JSON answer; without them an answer is free text. `tokens` are the vocabulary's control tokens by their
    text, `prompt_opening` the part of the prompt's end that belongs to the output.
    """
    if not tools and answer is None:
        return None
    write = _Writer(format, Gbnf(tokens), prompt_opening, single)
    if (
        tools
        and not required
        and answer is None
        and not (format.grammar_only or format.always_tagged or format.calls[0].only_at_start)
    ):
        return write.triggered(tools)
    return write.from_start(tools, required, answer)


class _Writer:
    """Writes one grammar."""

    def __init__(self, format: ChatFormat, gbnf: Gbnf, prompt_opening: str, single: bool) -> None:
        self._format = format
        self._gbnf = gbnf
        self._prompt_opening = prompt_opening
        self._single = single

    def triggered(self, tools: Mapping[str, ToolArguments]) -> Constraint:
        """Free text until a call begins. Markers are fed to the grammar by their bytes: they stand as text."""
        formats = self._format.calls
        roots = [self._calls(calls, tools, f"calls{i}", calls.marker) for i, calls in enumerate(formats)]
        thinking = self._format.reasoning_tags
        return Constraint(
            self._gbnf.text(" | ".join(roots)),
            tuple(dict.fromkeys(calls.marker for calls in formats)),
            (thinking.open.strip(), thinking.close.strip()) if thinking else None,
            self._thinking_open,
        )

    def from_start(self, tools: Mapping[str, ToolArguments], required: bool, answer: Compiled | None) -> Constraint:
        """The whole output: thinking where the format has it, then calls or an answer."""
        ways = [sequence([self._calls(self._format.calls[0], tools, "calls"), self._behind()])] if tools else []
        if not tools or not required:
            ways.append(self._answer(answer, quoted=bool(tools) and self._format.grammar_only))
        return Constraint(self._gbnf.text(sequence([self._reasoning(), choice(ways)])))

    @property
    def _thinking_open(self) -> bool:
        return self._format.reasoning_tags is not None and self._prompt_opening == self._format.reasoning_tags.open

    def _calls(
        self, calls: ToolCallFormat, tools: Mapping[str, ToolArguments], name: str, marker: str | None = None
    ) -> str:
        """The turn's calls, from the first marker to the end."""
        gbnf = self._gbnf
        opened = self._prompt_opening if calls.call[0] == self._prompt_opening else ""
        many = sequence([gbnf.literal(calls.between + opened), f"{name}-call"])
        repeat = f"({many}){{0,{calls.max_calls - 1}}}" if calls.max_calls > 1 and not self._single else ""
        begin = self._opening(calls.begin, marker) if calls.begin else ""
        at = calls.call.index(NAME)
        before = [self._part(calls, part) for part in calls.call[:at]]
        if before and not calls.begin:
            before[0] = "" if opened else self._opening(str(calls.call[0]), marker)
        gbnf.name_tokens(calls.syntax.literals)
        named, unclosed = [], []
        for index, (tool, arguments) in enumerate(tools.items()):
            prefix = f"{name}-t{index}-"
            after = [self._after(calls, part, tool, arguments, prefix) for part in calls.call[at + 1 :]]
            named.append(sequence([quote(tool), *after]))
            if last := arguments.unclosed(prefix, calls.syntax):
                after[calls.call.index(ARGUMENTS) - at - 1] = last
                unclosed.append(sequence([quote(tool), *after]))
        gbnf.add_rule(f"{name}-call", sequence([*before, choice(named)]))
        turn = sequence([f"{name}-call", repeat])
        if unclosed:
            turn = choice([turn, sequence([*before, choice(unclosed)])])
        gbnf.add_rule(name, sequence([begin, turn, gbnf.literal(calls.end)]))
        return name

    def _part(self, calls: ToolCallFormat, part: str | CallField) -> str:
        return calls.id if isinstance(part, CallField) else self._gbnf.literal(part)

    def _after(
        self, calls: ToolCallFormat, part: str | CallField, tool: str, arguments: ToolArguments, prefix: str
    ) -> str:
        if part is ARGUMENTS:
            return arguments.write(self._gbnf, prefix, calls.syntax)
        return quote(tool) if part is NAME_AGAIN else self._part(calls, part)

    def _first(self, text: str) -> str:
        """The literal an output begins with, without the part that the prompt has written already."""
        return self._gbnf.literal(text.removeprefix(self._prompt_opening))

    def _opening(self, text: str, marker: str | None) -> str:
        """The literal that calls begin with; the marker the engine looks for stands in it as text."""
        if marker is None:
            return self._gbnf.literal(text)
        return sequence([quote(marker), self._gbnf.literal(text[text.index(marker) + len(marker) :])])

    def _answer(self, answer: Compiled | None, *, quoted: bool) -> str:
        """JSON or text, in the format's tags where it has some. `quoted`: text is a JSON string."""
        gbnf, tags = self._gbnf, self._format.answer_tags
        if answer is not None:
            gbnf.add(answer.rules("answer-"))
        if quoted:
            if answer is None:
                gbnf.add(_STRING)
            body = "string" if answer is None else "answer-root"
            return sequence([gbnf.literal(tags[0].open), body, gbnf.literal(tags[0].close)])
        if answer is None and self._format.always_tagged:
            return sequence([self._first(tags[0].open), f"{ANY}*"])
        if answer is None:
            gbnf.add(unlike("answer", str(self._format.calls[0].opening[0])))
            return "answer"
        if tags and not self._format.grammar_only:
            close = gbnf.literal(tags[0].close)
            return sequence([self._first(tags[0].open), "answer-root", f"({close})?" if close else ""])
        return "answer-root"

    def _behind(self) -> str:
        """Text that may follow the calls: where it begins like a further call, a model would be held to that."""
        if not self._format.always_tagged:
            return ""
        opening = self._gbnf.literal(self._format.calls[0].between + self._format.answer_tags[0].open)
        return f"({sequence([opening, f'{ANY}*'])})?"

    def _reasoning(self) -> str:
        """Thinking before everything else: open already, or as the model likes."""
        tags = self._format.reasoning_tags
        if tags is None:
            return ""
        after = self._gbnf.literal(self._format.separator) or "[ \\n]{0,2}"
        thought = self._gbnf.until("thought", tags.close.strip(), after)
        return thought if self._thinking_open else f"({sequence([self._gbnf.literal(tags.open.rstrip()), thought])})?"
