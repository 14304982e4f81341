"""Grammar rules as data, and their printout as GBNF (the grammar notation of llama.cpp).

A rule is a tuple of alternatives, an alternative is a tuple of items. An item is a literal, a reference to another
rule, a set of characters, or a repetition of one item.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from . import limits
from .limits import LimitExceeded


class Lit(NamedTuple):
    """A fixed text."""

    text: str


class Ref(NamedTuple):
    """The rule of this name."""

    name: str


class Chars(NamedTuple):
    """One character out of inclusive code point ranges, in ascending order and apart from each other."""

    ranges: tuple[tuple[int, int], ...]


class Repeat(NamedTuple):
    """`min` to `max` times an item; `max` None: any number. Counts stay within `limits.REPEAT`."""

    item: Item
    min: int
    max: int | None


Item: TypeAlias = Lit | Ref | Chars | Repeat
Sequence: TypeAlias = tuple[Item, ...]
Rule: TypeAlias = tuple[Sequence, ...]

EMPTY: Sequence = ()


class Grammar:
    """Rules under construction. Names are `[a-z0-9-]+`; `fresh` never returns a name twice."""

    def __init__(self) -> None:
        self.rules: dict[str, Rule] = {}
        self._count = 0

    def fresh(self, hint: str = "r") -> str:
        self._count += 1
        if self._count > limits.RULES:
            raise LimitExceeded("rules")
        return f"{hint}{self._count}"

    def define(self, name: str, rule: Rule) -> Ref:
        self.rules[name] = rule
        return Ref(name)

    def add(self, rule: Rule, hint: str = "r") -> Ref:
        """Defines a rule under a fresh name."""
        return self.define(self.fresh(hint), rule)


def repeat(grammar: Grammar, item: Item, least: int, most: int | None) -> Sequence:
    """`least` to `most` times `item`, whatever the counts: those above `limits.REPEAT` are composed of blocks.

    A block is a rule of REPEAT copies, so the number of rules grows with count / REPEAT. Derivations stay unambiguous.
    """
    size = limits.REPEAT
    if most is not None and most < least:
        raise ValueError("most < least")
    if most == least == 1:
        return (item,)
    out: list[Item] = []
    if least > size or (most is not None and most - least > size):
        block = grammar.add(((Repeat(item, size, size),),), "b")
        blocks, rest = divmod(least, size)
        while blocks > size:  # counts of a million and more: blocks of blocks
            block_of_blocks = grammar.add(((Repeat(block, size, size),),), "b")
            many, blocks = divmod(blocks, size)
            out.append(Repeat(block_of_blocks, many, many))
        if blocks:
            out.append(Repeat(block, blocks, blocks))
        if rest:
            out.append(Repeat(item, rest, rest))
        if most is None:
            out.append(Repeat(item, 0, None))
        elif most > least:
            out.append(_up_to(grammar, item, block, most - least))
        return tuple(out)
    if most == 0:
        return ()
    return (Repeat(item, least, most),)


def _up_to(grammar: Grammar, item: Item, block: Ref, most: int) -> Item:
    """0 to `most` times `item`: as many whole blocks as there are, then less than a block."""
    size = limits.REPEAT
    blocks, rest = divmod(most, size)
    if blocks > 100 * size:
        raise LimitExceeded("repeat")
    tail: Item = Repeat(item, 0, rest) if rest else Lit("")
    for _ in range(blocks):
        tail = grammar.add(((block, tail) if tail != Lit("") else (block,), (Repeat(item, 0, size - 1),)), "u")
    return tail


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
    if isinstance(item, Lit):
        return f'"{item.text.translate(_LITERAL)}"'
    if isinstance(item, Ref):
        return prefix + item.name
    if isinstance(item, Chars):
        parts = [
            _class_char(lo) if lo == hi else f"{_class_char(lo)}-{_class_char(hi)}" for lo, hi in _characters(item.ranges)
        ]
        return f"[{''.join(parts)}]"
    body = _item(item.item, prefix)
    if item.max is None:
        return body + ("*" if item.min == 0 else "+" if item.min == 1 else f"{{{item.min},}}")
    if item.min == 0 and item.max == 1:
        return body + "?"
    if item.min == item.max:
        return f"{body}{{{item.min}}}"
    return f"{body}{{{item.min},{item.max}}}"


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
    """The rules as GBNF text, one a line, every name prefixed."""
    lines = []
    for name, rule in rules.items():
        alternatives = [" ".join([_item(item, prefix) for item in sequence]) or '""' for sequence in rule]
        lines.append(f"{prefix}{name} ::= {' | '.join(alternatives)}\n")
    text = "".join(lines)
    if len(text) > limits.GRAMMAR:
        raise LimitExceeded("grammar")
    return text
