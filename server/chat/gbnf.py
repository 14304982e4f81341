"""GBNF text: rules, literals, and any text up to a marker (llama.cpp's `grammars/README.md`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping


class Gbnf:
    """The rules of one grammar. `tokens`: the vocabulary's control tokens by their text.

    A control token in a literal is written as a token (`<[id]>`): text that merely reads like it is refused there.
    """

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = tokens
        special = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))
        self._special = re.compile(f"({special})") if special else None
        self._rules: list[str] = []

    def text(self, root: str) -> str:
        """The whole grammar."""
        return "\n".join([f"root ::= {root}", *self._rules, ""])

    def add(self, rules: str) -> None:
        """Add whole rules."""
        self._rules.append(rules.rstrip("\n"))

    def add_rule(self, name: str, body: str) -> str:
        """Add one rule. Returns its name."""
        self._rules.append(f"{name} ::= {body}")
        return name

    def literal(self, text: str) -> str:
        """A literal in which control tokens stand as such."""
        parts = self._special.split(text) if self._special else [text]
        return " ".join(f"<[{self._tokens[p]}]>" if p in self._tokens else quote(p) for p in parts if p)

    def name_tokens(self, literals: Iterable[str]) -> None:
        """Name the control tokens of literals that other rules hold as text: the engine bans those a grammar does not
        name. No rule leads here."""
        found = sorted({self._tokens[text] for literal in literals for text in self._found(literal)})
        if found:
            self.add_rule(f"tokens{len(self._rules)}", " | ".join(f"<[{token}]>" for token in found))

    def _found(self, literal: str) -> list[str]:
        return self._special.findall(literal) if self._special else []

    def until(self, name: str, marker: str, then: str = "") -> str:
        """Rules for any text up to and with the first `marker`, then `then`.

        The automaton that looks for a string (Knuth, Morris and Pratt, 1977), a state a rule, so that one stack
        walks it. Where the marker begins with a control token, the text ends at that token or where it is written.
        """
        body = marker.rstrip()
        rest = sequence([self.literal(marker[len(body) :]), then])
        token = ""
        head = self._special.match(body) if self._special else None
        if head:
            token = sequence([f"<[{self._tokens[head.group()]}]>", self.literal(body[head.end() :]), rest])
        rules = []
        for state in range(len(body)):
            ways = [f"{others_than(body)} {name}-0"]
            for char in sorted(set(body)):
                to = _next(body, state, char)
                ways.append(sequence([quote(char), rest if to == len(body) else f"{name}-{to}"]))
            rules.append(f"{name}-{state} ::= {' | '.join([*ways, *([token] if token else [])])}")
        self._rules += rules
        return f"{name}-0"


def sequence(parts: Iterable[str]) -> str:
    """The parts one after the other, but for empty ones."""
    return " ".join(part for part in parts if part)


def choice(ways: Iterable[str]) -> str:
    """One of the parts."""
    listed = list(ways)
    return listed[0] if len(listed) == 1 else f"({' | '.join(listed)})"


def quote(text: str) -> str:
    """A GBNF literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"' if text else ""


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


def any_of(chars: str) -> str:
    """The class of these characters."""
    return "[" + "".join(sorted({_code(ord(char)) for char in chars})) + "]"


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
