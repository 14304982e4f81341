"""GBNF, llama.cpp's grammar notation, as text of rules."""

from __future__ import annotations

from grammars import limits
from grammars.limits import LimitExceeded
from grammars.memo import memo
from grammars.rules.rules import Chars, Item, Lit, Ref, Repeat, Rule

_ESCAPES = {ord('"'): '\\"', ord("\\"): "\\\\", 10: "\\n", 13: "\\r", 9: "\\t"}
_LITERAL = {n: f"\\x{n:02x}" for n in (*range(32), 127)} | _ESCAPES
_CLASS = _LITERAL | {ord("]"): "\\]", ord("["): "\\[", ord("-"): "\\x2d", ord("^"): "\\x5e"}


def _class_char(code: int) -> str:
    if code in _CLASS:
        return _CLASS[code]
    if code < 127:
        return chr(code)
    if 0xD800 <= code <= 0xDFFF:
        raise ValueError("a surrogate is no character")
    return f"\\U{code:08x}" if code > 0xFFFF else f"\\u{code:04x}"


def _item(item: Item, prefix: str) -> str:
    kind = type(item)
    if kind is Ref:
        return prefix + item.name  # type: ignore[union-attr]
    if kind is Chars:
        return _chars(item.ranges)  # type: ignore[union-attr]
    assert isinstance(item, Repeat)
    body = _item(item.item, prefix) if type(item.item) is not Lit else f'"{item.item.text.translate(_LITERAL)}"'
    if item.max is None:
        return body + ("*" if item.min == 0 else "+" if item.min == 1 else f"{{{item.min},}}")
    if item.min == 0 and item.max == 1:
        return body + "?"
    if item.min == item.max:
        return f"{body}{{{item.min}}}"
    return f"{body}{{{item.min},{item.max}}}"


@memo
def _chars(ranges: tuple[tuple[int, int], ...]) -> str:
    """A class, as what it leaves out where that is shorter: the sampler looks at every part of a class.

    Only ASCII is ever left out: a negated class over other characters refuses the first bytes of their neighbours.
    """
    outside = _outside(ranges)
    if outside and outside[-1][1] < 0x80 and len(outside) < len(_characters(ranges)):
        parts = [_class_char(lo) if lo == hi else f"{_class_char(lo)}-{_class_char(hi)}" for lo, hi in outside]
        return f"[^{''.join(parts)}]"
    parts = [_class_char(lo) if lo == hi else f"{_class_char(lo)}-{_class_char(hi)}" for lo, hi in _characters(ranges)]
    return f"[{''.join(parts)}]"


def _outside(ranges: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    out = []
    start = 0
    for lo, hi in ranges:
        if lo > start:
            out.append((start, lo - 1))
        start = hi + 1
    if start <= 0x10FFFF:
        out.append((start, 0x10FFFF))
    return out


def _characters(ranges: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """The ranges without surrogates, which UTF-8 cannot carry."""
    out = []
    for lo, hi in ranges:
        if hi < 0xD800 or lo > 0xDFFF:
            out.append((lo, hi))
            continue
        if lo < 0xD800:
            out.append((lo, 0xD7FF))
        if hi > 0xDFFF:
            out.append((0xE000, hi))
    return out


def gbnf(rules: dict[str, Rule], prefix: str = "") -> str:
    """The rules as GBNF text, one a line, every name prefixed; neighbouring literals are joined."""
    lines = []
    size = 0
    for name, rule in rules.items():
        alternatives = []
        for sequence in rule:
            parts: list[str] = []
            text = ""
            for item in sequence:
                if type(item) is Lit:
                    text += item.text
                    continue
                if text:
                    parts.append(f'"{text.translate(_LITERAL)}"')
                    text = ""
                parts.append(_item(item, prefix))
            if text or not parts:
                parts.append(f'"{text.translate(_LITERAL)}"')
            alternatives.append(" ".join(parts))
        line = f"{prefix}{name} ::= {' | '.join(alternatives)}\n"
        size += len(line)
        if size > limits.GRAMMAR:
            raise LimitExceeded("grammar")
        lines.append(line)
    return "".join(lines)
