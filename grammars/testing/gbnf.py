"""Reads GBNF, llama.cpp's grammar notation (its grammars/README.md), into rules."""

from __future__ import annotations

from functools import cache

from lark import Lark, Token, Transformer, UnexpectedInput
from lark.exceptions import VisitError

from grammars.rules.rules import Chars, Item, Lit, Ref, Repeat, Rule, Sequence

_LAST = 0x10FFFF

_GRAMMAR = r"""
start: _NEWLINE* (rule (_NEWLINE+ rule)* _NEWLINE*)?
rule: NAME "::=" _NEWLINE* alternatives
alternatives: sequence ("|" _NEWLINE* sequence)*
sequence: repeated*
repeated: item REPEAT?
?item: literal | chars | any | ref | group
literal: LITERAL
chars: CHARS
any: "."
ref: NAME
group: "(" _NEWLINE* inner_alternatives ")"
inner_alternatives: inner_sequence ("|" _NEWLINE* inner_sequence)*
inner_sequence: (repeated _NEWLINE*)*

NAME: /[A-Za-z0-9-]+/
LITERAL: /"(?:[^"\\\n]|\\.)*"/
CHARS: /\[(?:[^\]\\\n]|\\.)*\]/
REPEAT: /[*+?]|\{\s*\d+\s*(?:,\s*\d*\s*)?\}/
_NEWLINE: /(?:[ \t]*(?:#[^\n]*)?\r?\n)+/
COMMENT: /#[^\n]*/
%ignore /[ \t]+/
%ignore COMMENT
"""


class InvalidGrammar(ValueError):
    """A text that is not GBNF; `line` is where."""

    def __init__(self, line: int, reason: str) -> None:
        self.line, self.reason = line, reason
        super().__init__(f"line {line}: {reason}")


_SIMPLE = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_HEX = {"x": 2, "u": 4, "U": 8}


def _characters(text: str) -> list[tuple[str, bool]]:
    """Each character of a literal or a class, and whether it was written as an escape."""
    out = []
    at = 0
    while at < len(text):
        if text[at] != "\\":
            out.append((text[at], False))
            at += 1
            continue
        kind = text[at + 1]
        if kind in _HEX:
            digits = text[at + 2 : at + 2 + _HEX[kind]]
            if len(digits) != _HEX[kind]:
                raise ValueError("incomplete escape")
            out.append((chr(int(digits, 16)), True))
            at += 2 + len(digits)
        elif kind in _SIMPLE:
            out.append((_SIMPLE[kind], True))
            at += 2
        else:
            raise ValueError("unknown escape")
    return out


def _ranges(text: str) -> tuple[tuple[int, int], ...]:
    negated = text.startswith("^")
    chars = _characters(text[1:] if negated else text)
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(chars):
        low = ord(chars[at][0])
        if at + 2 < len(chars) and chars[at + 1] == ("-", False):
            found.append((low, ord(chars[at + 2][0])))
            at += 3
        else:
            found.append((low, low))
            at += 1
    found.sort()
    merged: list[tuple[int, int]] = []
    for low, high in found:
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    if not negated:
        return tuple(merged)
    out: list[tuple[int, int]] = []
    start = 0
    for low, high in merged:
        if low > start:
            out.append((start, low - 1))
        start = high + 1
    if start <= _LAST:
        out.append((start, _LAST))
    return tuple(out)


class _Reader(Transformer[Token, dict[str, Rule]]):
    def __init__(self) -> None:
        super().__init__()
        self.rules: dict[str, Rule] = {}
        self.groups = 0

    def literal(self, tokens: list[Token]) -> Item:
        return Lit("".join(char for char, _ in _characters(tokens[0][1:-1])))

    def chars(self, tokens: list[Token]) -> Item:
        return Chars(_ranges(tokens[0][1:-1]))

    def any(self, _: list[Token]) -> Item:
        return Chars(((0, _LAST),))

    def ref(self, tokens: list[Token]) -> Item:
        return Ref(str(tokens[0]))

    def group(self, parts: list[Rule]) -> Item:
        self.groups += 1
        name = f"group {self.groups}"  # a blank keeps it apart from every name of the text
        self.rules[name] = parts[0]
        return Ref(name)

    def repeated(self, parts: list[Item | Token]) -> Item:
        item = parts[0]
        assert not isinstance(item, Token)
        if len(parts) == 1:
            return item
        count = str(parts[1])
        if count in "*+?":
            return Repeat(item, int(count == "+"), 1 if count == "?" else None)
        low, comma, high = (part.strip() for part in count[1:-1].partition(","))
        return Repeat(item, int(low), int(high) if high else None if comma else int(low))

    def sequence(self, items: list[Item]) -> Sequence:
        return tuple(items)

    def alternatives(self, sequences: list[Sequence]) -> Rule:
        return tuple(sequences)

    inner_sequence = sequence
    inner_alternatives = alternatives

    def rule(self, parts: list[Token | Rule]) -> None:
        rule = parts[1]
        assert not isinstance(rule, Token)
        self.rules[str(parts[0])] = rule


@cache
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", maybe_placeholders=False)


def read(text: str) -> dict[str, Rule]:
    """The rules of a GBNF text. Groups become rules of their own, whose names hold a blank. Raises `InvalidGrammar`."""
    reader = _Reader()
    try:
        reader.transform(_parser().parse(text))
    except UnexpectedInput as error:
        raise InvalidGrammar(getattr(error, "line", 0), "unexpected input") from None
    except VisitError as error:
        raise InvalidGrammar(getattr(getattr(error.obj, "meta", None), "line", 0), str(error.orig_exc)) from None
    for rule in reader.rules.values():
        for sequence in rule:
            for item in sequence:
                while isinstance(item, Repeat):
                    item = item.item
                if isinstance(item, Ref) and item.name not in reader.rules:
                    raise InvalidGrammar(0, f"no rule {item.name}")
    return reader.rules
