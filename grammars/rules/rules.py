"""Grammar rules as data, and their printout as GBNF (the grammar notation of llama.cpp).

A rule is a tuple of alternatives, an alternative is a tuple of items. An item is a literal, a reference to another
rule, a set of characters, or a repetition of one item.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from grammars import limits
from grammars.limits import LimitExceeded
from grammars.memo import memo


class Lit(NamedTuple):
    """A fixed text."""

    text: str


class Ref(NamedTuple):
    """The rule of this name. `kind` keeps it apart from a literal of the same text: tuples are equal by content."""

    name: str
    kind: str = "rule"


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
        self._rests: dict[Rule, Ref] = {}

    def fresh(self, hint: str = "r") -> str:
        self._count += 1
        if self._count > limits.RULES:
            raise LimitExceeded("rules")
        return f"{hint}{self._count}"

    def define(self, name: str, rule: Rule) -> Ref:
        known = self.rules.get(name)
        if known and known != rule:
            raise AssertionError(f"two rules named {name}")
        self.rules[name] = rule
        return Ref(name)

    def include(self, rules: dict[str, Rule]) -> None:
        """Adds rules that have the same names in every grammar."""
        self._count += len(rules)
        if self._count > limits.RULES:
            raise LimitExceeded("rules")
        self.rules.update(rules)

    def add(self, rule: Rule, hint: str = "r") -> Ref:
        """Defines a rule under a fresh name."""
        return self.define(self.fresh(hint), rule)

    def factor(self) -> None:
        """Writes what alternatives of a rule begin with in common once, so that one stack stands for all of them."""
        for name, rule in list(self.rules.items()):
            if len(rule) > 1 and _alike(rule):
                self.rules[name] = self._factored(rule)

    def _factored(self, rule: Rule) -> Rule:
        groups: dict[Item | str | None, list[Sequence]] = {}
        for sequence in rule:
            joined = _literals_joined(sequence)
            groups.setdefault(_head(joined), []).append(joined)
        return tuple([self._merged(group) for group in groups.values()])

    def _merged(self, group: list[Sequence]) -> Sequence:
        """One sequence for some that begin alike: what they have in common, then a rule of what follows."""
        group = list(dict.fromkeys(group))
        common: list[Item] = []
        while len(group) > 1:
            first = group[0][0] if group[0] else None
            if first is None or any(not sequence for sequence in group):
                break
            if type(first) is Lit:
                length = _common_length([sequence[0] for sequence in group])
                if not length:
                    break
                common.append(Lit(first.text[:length]))
                group = [_without_text(sequence, length) for sequence in group]
            elif all(sequence[0] == first for sequence in group):
                common.append(first)
                group = [sequence[1:] for sequence in group]
            else:
                break
        if len(group) == 1:
            return (*common, *group[0])
        rest = tuple(group)
        ref = self._rests.get(rest)
        if ref is None:
            ref = self._rests[rest] = self.add(self._factored(rest) if _alike(rest) else rest, "f")
        return (*common, ref)


def _head(sequence: Sequence) -> Item | str | None:
    """What a sequence is recognised by: the first character of a literal, or the first item."""
    first = sequence[0] if sequence else None
    return first.text[0] if type(first) is Lit else first


def _alike(rule: Rule) -> bool:
    """Whether two alternatives begin alike."""
    seen = set()
    for sequence in rule:
        first = sequence[0] if sequence else None
        head = first.text[:1] if type(first) is Lit else first
        if head == "":
            head = _head(_literals_joined(sequence))
        if head in seen:
            return True
        seen.add(head)
    return False


def _common_length(heads: list[Item]) -> int:
    """Characters that literals begin with in common; none where one of the items is no literal."""
    texts = [head.text for head in heads if type(head) is Lit]
    if len(texts) < len(heads):
        return 0
    low, high = min(texts), max(texts)
    return next((at for at, char in enumerate(low) if char != high[at]), len(low))


def _without_text(sequence: Sequence, length: int) -> Sequence:
    text = sequence[0].text[length:]  # type: ignore[union-attr]
    return (Lit(text), *sequence[1:]) if text else sequence[1:]


def _literals_joined(sequence: Sequence) -> Sequence:
    """Neighbouring literals as one, empty ones left out."""
    out: list[Item] = []
    for item in sequence:
        if type(item) is Lit:
            if not item.text:
                continue
            if out and type(out[-1]) is Lit:
                out[-1] = Lit(out[-1].text + item.text)
                continue
        out.append(item)
    return tuple(out)


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
    if blocks > BLOCKS:
        raise LimitExceeded("repeat")
    less = grammar.add(((Repeat(item, 0, _BLOCK - 1),),), "t")
    below: Sequence = (Repeat(item, 0, rest),) if rest else ()
    for _ in range(blocks):
        below = (grammar.add(((block, *below), (less,)), "u"),)
    return below[0]


BLOCKS = 4_096
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


NOTHING: Sequence = (Chars(()),)
"""Accepts no text: a set without characters."""


def prune(rules: dict[str, Rule], root: str = "root") -> tuple[dict[str, Rule], bool]:
    """Without alternatives that can never be completed, and then without rules that are never reached.

    Second: whether the root accepts anything. A root that does not becomes `NOTHING`.
    """
    productive = _productive(rules)
    if len(productive) == len(rules):
        return rules, True
    if root not in productive:
        return {root: (NOTHING,)}, False
    out: dict[str, Rule] = {}
    todo = [root]
    seen = {root}
    while todo:
        name = todo.pop()
        out[name] = rule = tuple([sequence for sequence in rules[name] if _completes(sequence, productive)])
        for sequence in rule:
            for item in sequence:
                while type(item) is Repeat:
                    item = item.item
                if type(item) is Ref and item.name in productive and item.name not in seen:
                    seen.add(item.name)
                    todo.append(item.name)
    return {
        name: tuple([tuple([i for i in sequence if not _idle(i, productive)]) for sequence in rule])
        for name, rule in out.items()
    }, True


def _productive(rules: dict[str, Rule]) -> set[str]:
    """The rules that accept some text. Rules are mostly defined before those that refer to them, or end soon."""
    productive: set[str] = set()
    waiting = list(rules)
    waiting.reverse()
    while waiting:
        limits.check()
        left = []
        for name in waiting:
            for sequence in rules[name]:
                if _completes(sequence, productive):
                    productive.add(name)
                    break
            else:
                left.append(name)
        if len(left) == len(waiting):
            break
        left.reverse()
        waiting = left
    return productive


def _completes(sequence: Sequence, productive: set[str]) -> bool:
    for item in sequence:
        kind = type(item)
        if kind is Ref:
            if item.name not in productive:  # type: ignore[union-attr]
                return False
        elif kind is Repeat and item.min and not _completes((item.item,), productive):  # type: ignore[union-attr]
            return False
    return True


def _idle(item: Item, productive: set[str]) -> bool:
    """A repetition of something that can never come: only none of it can."""
    return type(item) is Repeat and not item.min and not _completes((item.item,), productive)
