"""Grammar rules as data.

A rule is a tuple of alternatives, an alternative is a tuple of items. An item is a literal, a reference to another
rule, a set of characters, or a repetition of one item.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from grammars import limits
from grammars.limits import LimitExceeded


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
        """Writes common beginnings of the alternatives of a rule once, so that one stack stands for all of them."""
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
        """One sequence for some that begin alike: their common beginning, then a rule of their ends."""
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
    """The key of a sequence: the first character of a literal, or the first item."""
    first = sequence[0] if sequence else None
    return first.text[0] if type(first) is Lit else first


def _alike(rule: Rule) -> bool:
    """True where two alternatives begin alike."""
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
