"""From a format, tools and a choice to the grammar the sampler obeys.

GBNF with the root rule `root` (llama.cpp's `grammars/README.md`). Control tokens in a format's literals are written as
tokens (`<[id]>`): text that merely spells one is refused there. The marker that starts a constraint in the middle of
an output is text, as the engine feeds it to the grammar by its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, Protocol

from server.chat.format import ARGUMENTS, NAME, Format, Frame, Slot
from server.engine.messages import Constraint

_STRING = r"""string ::= "\"" char* "\""
char ::= [^"\\\x00-\x1f\x7f] | "\\" (["\\/bfnrt] | "u" unit)
unit ::= [0-9a-cA-CefEF] hex hex hex | [dD] [0-7] hex hex
hex ::= [0-9a-fA-F]"""


class Rules(Protocol):
    """A compiled schema (`grammars.Compiled`)."""

    def rules(self, prefix: str) -> str:
        """Its rules, each name with the prefix, the entry rule `<prefix>root`."""


def constraint(
    format: Format,
    *,
    tools: Mapping[str, Rules],
    choice: Literal["auto", "required"] = "auto",
    answer: Rules | None = None,
    tokens: Mapping[str, int],
    thinking_open: bool = False,
) -> Constraint | None:
    """What the model may write. None: anything.

    `tools` are those that may be called, each with its arguments' rules. `answer` are the rules of a JSON answer;
    without them an answer is free text. `tokens` are the vocabulary's control tokens by their text.
    """
    if not tools and answer is None:
        return None
    write = _Writer(format, tokens)
    calls, thinking = format.calls, format.thinking[0] if format.thinking else None
    if tools and choice == "auto" and answer is None and not format.forced and not calls.anchored:
        write.calls(tools, marker=calls.marker)
        outside = (thinking.open.strip(), thinking.close.strip()) if thinking else None
        return Constraint(write.grammar("calls"), (calls.marker,), outside, thinking_open)
    choices = []
    if tools:
        write.calls(tools)
        choices.append("calls")
    if choice == "auto" or not tools:
        choices.append(write.answer(answer, framed=bool(tools) and format.forced))
    before = write.thought(thinking, thinking_open) if thinking else ""
    return Constraint(write.grammar(f"{before}({' | '.join(choices)})"))


class _Writer:
    """Writes the rules of one grammar."""

    def __init__(self, format: Format, tokens: Mapping[str, int]) -> None:
        self._format = format
        self._tokens = tokens
        spelled = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))
        self._special = re.compile(f"({spelled})") if spelled else None
        self._rules: list[str] = []

    def grammar(self, root: str) -> str:
        return "\n".join([f"root ::= {root}", *self._rules, ""])

    def literal(self, text: str) -> str:
        """A literal of the format, its control tokens as tokens."""
        parts = self._special.split(text) if self._special else [text]
        return " ".join(f"<[{self._tokens[p]}]>" if p in self._tokens else quote(p) for p in parts if p)

    def opening(self, text: str, marker: str | None) -> str:
        """The literal a call or the calls begin with; models differ in the white space behind it."""
        body = text.rstrip()
        space = f" ({quote(text[len(body) :])})?" if body != text else ""
        return (quote(body) if marker == body else self.literal(body)) + space

    def calls(self, tools: Mapping[str, Rules], marker: str | None = None) -> None:
        """`calls`: the turn's calls, from the first marker to the end."""
        calls = self._format.calls
        many = f" ({self.sequence([self.literal(calls.between), 'call'])}){{0,{calls.most - 1}}}"
        begin = self.opening(calls.begin, marker) if calls.begin else ""
        self._rules.append(f"calls ::= {begin} call{many} {self.literal(calls.end)}")
        at = calls.call.index(NAME)
        first, *rest = calls.call[:at] or ("",)
        before = self.sequence([self.opening(str(first), marker), *map(self.part, rest)] if first else [])
        named = []
        for index, (name, arguments) in enumerate(tools.items()):
            prefix = f"tool{index}-"
            after = [f"{prefix}root" if part is ARGUMENTS else self.part(part) for part in calls.call[at + 1 :]]
            named.append(self.sequence([quote(name), *after]))
            self._rules.append(arguments.rules(prefix))
        self._rules.append(f"call ::= {before} ({' | '.join(named)})")
        if calls.id:
            self._rules.append(f"call-id ::= {calls.id}")

    def part(self, part: str | Slot) -> str:
        return "call-id" if isinstance(part, Slot) else self.literal(part)

    def answer(self, answer: Rules | None, *, framed: bool) -> str:
        """A rule for the answer: JSON or text, in the format's frame or bare."""
        if answer is not None:
            self._rules.append(answer.rules("answer-"))
        if framed:
            frame = self._format.text[0]
            if answer is None:
                self._rules.append(_STRING)
            body = "string" if answer is None else "answer-root"
            return self.sequence([self.literal(frame.open), body, self.literal(frame.close)])
        if answer is not None:
            return "answer-root"
        self._rules.append(unlike("answer", str(self._format.calls.opening[0])))
        return "answer"

    def thought(self, frame: Frame, open: bool) -> str:
        """Thinking before everything else: open already, or as the model likes."""
        close = frame.close.strip()
        token = f"<[{self._tokens[close]}]>" if close in self._tokens else None
        self._rules.append(until("thought", close, token, then="[ \\n]{0,2}"))
        return "thought " if open else f"({self.literal(frame.open.rstrip())} thought)? "

    @staticmethod
    def sequence(parts: Iterable[str]) -> str:
        return " ".join(part for part in parts if part)


def quote(text: str) -> str:
    """A GBNF literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"' if text else ""


def until(name: str, close: str, token: str | None = None, then: str = "") -> str:
    """Rules for any text up to and with `close` (or the token that spells it), then `then`: the automaton that looks
    for a string (Knuth, Morris and Pratt, 1977), a state a rule, so that one stack walks it."""
    rules = []
    for state in range(len(close)):
        steps: dict[int, list[str]] = {}
        for char in sorted(set(close)):
            steps.setdefault(_next(close, state, char), []).append(char)
        others = f"{others_than(close)} {name}-0"
        ways = [
            f"{quote(char)} {then}" if to == len(close) else f"{quote(char)} {name}-{to}"
            for to, chars in steps.items()
            for char in chars
        ]
        rules.append(f"{name}-{state} ::= {' | '.join([others, *ways, *([f'{token} {then}'] if token else [])])}")
    return "\n".join([f"{name} ::= {name}-0", *rules])


def _next(close: str, state: int, char: str) -> int:
    seen = close[:state] + char
    return next(size for size in range(len(seen), -1, -1) if close.startswith(seen[len(seen) - size :]))


def unlike(name: str, start: str) -> str:
    """Rules for any text, the empty one too, that does not begin with `start`, white space aside."""
    chars = "".join(start.split())
    ways = []
    for state, char in enumerate(chars):
        ways.append(
            f'{name}-{state} ::= "" | [ \\t\\r\\n] {name}-{state} | {others_than(char, space=True)} {name}-rest'
        )
        ways[-1] += f" | {quote(char)} {name}-{state + 1}" if state + 1 < len(chars) else ""
    return "\n".join([f"{name} ::= {name}-0", *ways, f"{name}-rest ::= {ANY}*"])


ANY = r"[\x01-\U0010FFFF]"


def others_than(chars: str, *, space: bool = False) -> str:
    """The class of every character but these. Written as ranges: llama.cpp's negated classes refuse partial
    characters near an excluded one."""
    ranges, start = [], 1
    for code in sorted({ord(char) for char in chars} | ({9, 10, 13, 32} if space else set())):
        if code > start:
            ranges.append(_range(start, code - 1))
        start = code + 1
    return "[" + "".join([*ranges, _range(start, 0x10FFFF)]) + "]"


def _range(low: int, high: int) -> str:
    return _code(low) if low == high else f"{_code(low)}-{_code(high)}"


def _code(code: int) -> str:
    return f"\\x{code:02X}" if code < 0x80 else f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
