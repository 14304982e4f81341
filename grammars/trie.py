"""Property names as a tree of characters, so that a grammar decides between names one character at a time.

A node maps a piece (a character as it is spelled) to the next node; the piece `END` leads to a leaf, the sequence that
follows the name, or to None, where the name is taken and must not come again. Insertion copies the path: the trees of
the positions of one object share all that they have in common, which keeps the rules linear in the names.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias, Union

from .rules import Chars, Grammar, Lit, Ref, Rule, Sequence
from .spelling import JSON_ESCAPES, JSON_PLAIN

Node: TypeAlias = dict[str, Union["Node", Sequence, None]]

END = ""


def insert(node: Node | None, pieces: list[str], leaf: Sequence | None) -> Node:
    """The tree with one more name (or another leaf for a name that it has)."""
    root: Node = dict(node) if node else {}
    here = root
    for piece in pieces:
        below = here.get(piece)
        copy: Node = dict(below) if isinstance(below, dict) else {}
        here[piece] = copy
        here = copy
    here[END] = leaf
    return root


class TrieWriter:
    """Writes trees into a grammar. `others`: what follows where a name leaves the tree: a character and the rest of the
    name (`rest` begins after that character), or the end of the name (`close`); None where only the names of the tree may
    come.
    """

    def __init__(self, grammar: Grammar, quote: str, rest: Sequence | None = None, close: Sequence | None = None) -> None:
        self.grammar, self.quote, self.rest, self.close = grammar, quote, rest, close
        self._escape: Sequence | None = None if rest is None else (escape_rule(grammar), *rest)
        self._end: Sequence | None = None if close is None else (Lit(quote), *close)
        self._done: dict[int, Sequence] = {}
        self._keep: list[Node] = []

    def write(self, node: Node) -> Sequence:
        known = self._done.get(id(node))
        if known is None:
            known = self._open(node) if self.rest is not None else self._closed(node)
            self._done[id(node)] = known
            self._keep.append(node)
        return known

    def _closed(self, node: Node) -> Sequence:
        text = ""
        while len(node) == 1:
            piece, below = next(iter(node.items()))
            if piece == END:
                assert below is not None and not isinstance(below, dict)
                return (Lit(text + self.quote), *below)
            assert isinstance(below, dict)
            text += piece
            node = below
        rule: list[Sequence] = []
        for piece, below in node.items():
            if piece == END:
                assert below is not None and not isinstance(below, dict)
                rule.append((Lit(self.quote), *below))
            else:
                assert isinstance(below, dict)
                rule.append((Lit(piece), *self.write(below)))
        ref = self.grammar.add(tuple(rule), "k")
        return (Lit(text), ref) if text else (ref,)

    def _open(self, node: Node) -> Sequence:
        assert self.rest is not None and self._escape is not None and self._end is not None
        rule: list[Sequence] = []
        taken = "".join(sorted([piece for piece in node if len(piece) == 1]))
        plain = without(taken)
        if plain.ranges:
            rule.append((plain, *self.rest))
        escaped = False
        for piece, below in node.items():
            if piece == END:
                if below is not None:
                    assert not isinstance(below, dict)
                    rule.append((Lit(self.quote), *below))
            else:
                assert isinstance(below, dict)
                rule.append((Lit(piece), *self.write(below)))
                escaped = escaped or len(piece) > 1
        if END not in node:
            rule.append(self._end)
        if escaped:
            rule.extend((Lit(spelled), *self.rest) for spelled in JSON_ESCAPES.values() if spelled not in node)
        else:
            rule.append(self._escape)
        return (self.grammar.add(tuple(rule), "k"),)


def escape_rule(grammar: Grammar) -> Ref:
    """A character that JSON strings escape, in its one spelling."""
    if "escape" not in grammar.rules:
        short = Chars(tuple((ord(c), ord(c)) for c in sorted('"\\bfnrt')))
        digit = Chars(((0x30, 0x39), (0x61, 0x66)))
        low = Chars(((0x30, 0x37), (0x62, 0x62), (0x65, 0x66)))
        rule: Rule = ((Lit("\\"), short), (Lit("\\u000"), low), (Lit("\\u001"), digit))
        grammar.define("escape", rule)
    return Ref("escape")


@lru_cache(4096)
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
