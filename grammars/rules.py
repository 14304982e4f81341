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
    if most is not None and most < least:
        raise ValueError("most < least")
    if most == least == 1:
        return (item,)
    if most == 0:
        return ()
    if least <= limits.REPEAT and (most is None or most <= limits.REPEAT):
        return (Repeat(item, least, most),)
    block = grammar.add(((Repeat(item, _BLOCK, _BLOCK),),), "b")
    out: list[Item] = []
    blocks, rest = divmod(least, _BLOCK)
    whole = block
    while blocks > limits.REPEAT:  # blocks of blocks
        blocks, less = divmod(blocks, _BLOCK)
        if less:
            out.append(Repeat(whole, less, less))
        whole = grammar.add(((Repeat(whole, _BLOCK, _BLOCK),),), "b")
    if blocks:
        out.append(Repeat(whole, blocks, blocks))
    if rest:
        out.append(Repeat(item, rest, rest))
    if most is None:
        out.append(Repeat(item, 0, None))
    elif most - least <= limits.REPEAT:
        out.append(Repeat(item, 0, most - least))
    else:
        out.append(_up_to(grammar, item, block, most - least))
    return tuple(out)


_BLOCK = 256


def _up_to(grammar: Grammar, item: Item, block: Ref, most: int) -> Item:
    """0 to `most` times `item`: as many whole blocks as there are, then less than a block."""
    blocks, rest = divmod(most, _BLOCK)
    if blocks > _LADDER:
        raise LimitExceeded("repeat")
    less = grammar.add(((Repeat(item, 0, _BLOCK - 1),),), "t")
    below: Sequence = (Repeat(item, 0, rest),) if rest else ()
    for _ in range(blocks):
        below = (grammar.add(((block, *below), (less,)), "u"),)
    return below[0]


_LADDER = 4_096
"""Blocks of one upper bound: counts up to about a million."""

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


NOTHING: Sequence = (Chars(()),)
"""Accepts no text: a set without characters."""


def cleaned(rules: dict[str, Rule], root: str = "root") -> tuple[dict[str, Rule], bool]:
    """Without alternatives that can never be completed and rules that are never reached; neighbouring literals joined.

    Second: whether the root accepts anything. A root that does not becomes `NOTHING`.
    """
    missing: dict[str, list[int]] = {}  # rule -> alternatives (by number) that wait for it
    waiting: list[int] = []
    owner: list[str] = []
    alternatives: list[Sequence] = []
    productive: set[str] = set()
    ready: list[str] = []
    dead_count = 0
    for name, rule in rules.items():
        for sequence in rule:
            names = {found for item in sequence if (found := _needed(item)) is not None}
            number = len(waiting)
            waiting.append(len(names))
            owner.append(name)
            alternatives.append(sequence)
            for needed in names:
                missing.setdefault(needed, []).append(number)
            if not names and name not in productive:
                productive.add(name)
                ready.append(name)
    while ready:
        for number in missing.get(ready.pop(), ()):
            waiting[number] -= 1
            if not waiting[number] and owner[number] not in productive:
                productive.add(owner[number])
                ready.append(owner[number])
    if root not in productive:
        return {root: (NOTHING,)}, False
    kept: dict[str, list[Sequence]] = {}
    for number, sequence in enumerate(alternatives):
        if waiting[number] == 0:
            kept.setdefault(owner[number], []).append(sequence)
        else:
            dead_count += 1
    out: dict[str, Rule] = {}
    todo = [root]
    seen = {root}
    while todo:
        name = todo.pop()
        rule = tuple(dict.fromkeys([_joined(sequence) for sequence in kept[name]]))
        out[name] = rule
        for sequence in rule:
            for item in sequence:
                found = _referred(item)
                if found is not None and found not in seen:
                    seen.add(found)
                    todo.append(found)
    return out, True


def _referred(item: Item) -> str | None:
    while isinstance(item, Repeat):
        item = item.item
    return item.name if isinstance(item, Ref) else None


def _needed(item: Item) -> str | None:
    """The rule that must accept something for the item to."""
    while isinstance(item, Repeat):
        if item.min == 0:
            return None
        item = item.item
    return item.name if isinstance(item, Ref) else None


def _joined(sequence: Sequence) -> Sequence:
    if len(sequence) < 2:
        return sequence
    out: list[Item] = []
    for item in sequence:
        if isinstance(item, Lit):
            if not item.text:
                continue
            if out and isinstance(out[-1], Lit):
                out[-1] = Lit(out[-1].text + item.text)
                continue
        out.append(item)
    return tuple(out)
