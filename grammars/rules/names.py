"""Property names as trees of characters, so that a grammar decides between names one character at a time."""

from __future__ import annotations

from typing import TypeAlias, Union

from grammars import limits
from grammars.automata.chars import ANY
from grammars.memo import memo
from grammars.rules.rules import Chars, Grammar, Lit, Ref, Sequence
from grammars.rules.strings import StringRules
from grammars.rules.syntax import JSON_ESCAPES, JSON_PLAIN

Node: TypeAlias = dict[str, Union["Node", Sequence]]
"""A character leads to a node; `END` leads to the sequence that follows the name."""

END = ""


def insert(node: Node | None, name: str, leaf: Sequence) -> Node:
    """The tree with one more name, or with another leaf for it. Only the path is copied: trees share the rest."""
    root: Node = dict(node) if node else {}
    here = root
    for char in name:
        below = here.get(char)
        copy: Node = dict(below) if isinstance(below, dict) else {}
        here[char] = copy
        here = copy
    here[END] = leaf
    return root


class TrieWriter:
    """Writes trees into a grammar; what two trees share is written once."""

    def __init__(self, grammar: Grammar, end: str) -> None:
        self.grammar, self.end = grammar, end
        self._done: dict[int, Sequence] = {}
        self._keep: list[Node] = []

    def write(self, node: Node) -> Sequence:
        known = self._done.get(id(node))
        if known is None:
            known = self._done[id(node)] = self._write(node)
            self._keep.append(node)
            limits.check()
        return known

    def _write(self, node: Node) -> Sequence:
        text = ""
        while len(node) == 1:
            char, below = next(iter(node.items()))
            if char == END:
                assert not isinstance(below, dict)
                return (Lit(text + self.end), *below)
            assert isinstance(below, dict)
            text += char
            node = below
        rule: list[Sequence] = []
        for char, below in node.items():
            if isinstance(below, dict):
                rule.append((Lit(char), *self.write(below)))
            else:
                rule.append((Lit(self.end), *below))
        ref = self.grammar.add(tuple(rule), "k")
        return (Lit(text), ref) if text else (ref,)


class OtherNames:
    """Rules for the inside of a JSON string, closing quote included, that spells none of some names.

    A rule depends only on what may not follow, so objects share the rules of the ends of their names.
    """

    def __init__(self, grammar: Grammar, strings: StringRules) -> None:
        self.grammar, self.strings = grammar, strings
        self._done: dict[frozenset[str], Ref] = {}

    def write(self, names: frozenset[str]) -> Ref:
        """`names` as they are spelled between the quotes, of which there is at least one."""
        rest = self.strings.ending(ANY)
        known = self._done.get(names)
        if known is not None:
            return known
        ref = self._done[names] = Ref(self.grammar.fresh("n"))
        todo = [(ref, names)]
        while todo:
            limits.check()
            here, suffixes = todo.pop()
            below: dict[str, list[str]] = {}
            for suffix in sorted(suffixes):
                piece = suffix[:1] if suffix[:1] != "\\" else suffix[: 6 if suffix[1] == "u" else 2]
                below.setdefault(piece, []).append(suffix[len(piece) :])
            rule: list[Sequence] = []
            for piece, rests in below.items():
                if piece:
                    key = frozenset(rests)
                    found = self._done.get(key)
                    if found is None:
                        found = self._done[key] = Ref(self.grammar.fresh("n"))
                        todo.append((found, key))
                    rule.append((Lit(piece), found))
            if "" not in below:
                rule.append((Lit('"'),))
            if any(len(piece) > 1 for piece in below):
                rule.extend((Lit(spelled), *rest) for spelled in JSON_ESCAPES.values() if spelled not in below)
            else:
                rule.append((*string_escape(self.grammar), *rest))
            rule.append((without("".join(sorted([p for p in below if len(p) == 1]))), *rest))
            self.grammar.define(here.name, tuple(rule))
        return ref


def string_escape(grammar: Grammar) -> Sequence:
    """A character that JSON strings must escape, in its one short spelling."""
    if "escape" not in grammar.rules:
        short = Chars(tuple((ord(c), ord(c)) for c in sorted('"\\bfnrt')))
        digit = Chars(((0x30, 0x39), (0x61, 0x66)))
        low = Chars(((0x30, 0x37), (0x62, 0x62), (0x65, 0x66)))
        unit = grammar.define("escape-unit", ((Lit("0"), low), (Lit("1"), digit)))
        grammar.define("escape", ((short,), (Lit("u00"), unit)))
    return (Lit("\\"), Ref("escape"))


@memo
def without(taken: str) -> Chars:
    """The characters that stand for themselves in a string, without some of them (in ascending order)."""
    out: list[tuple[int, int]] = []
    for lo, hi in JSON_PLAIN.ranges:
        for char in taken:
            code = ord(char)
            if lo <= code <= hi:
                if lo < code:
                    out.append((lo, code - 1))
                lo = code + 1
        if lo <= hi:
            out.append((lo, hi))
    return Chars(tuple(out))
