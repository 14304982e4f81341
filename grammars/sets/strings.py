"""Sets of strings as formulas over `pattern`, `format` and lengths; automata are built only on demand.

Atoms: ("length", least, most), ("pattern", text), ("format", name).
"""

from __future__ import annotations

from typing import Any, TypeAlias

from grammars.sets.algebra import ALL, NONE, Formula, SetAlgebra, finite

__all__ = ["ALL", "NONE", "TextSet", "Texts", "finite", "length"]

TextSet: TypeAlias = Formula


def length(least: int, most: int | None) -> TextSet:
    if most is not None and most < least:
        return NONE
    return ALL if least == 0 and most is None else ("length", least, most)


class Texts(SetAlgebra):
    """Algebra over string sets for one compilation.

    `judge(atom, text)` tells whether a pattern or format atom holds for a text; it widens (True) what it cannot judge,
    having noted that the keyword is left to validation.
    """

    def __init__(self, judge: Any) -> None:
        self.judge = judge

    def atom_contains(self, atom: TextSet, value: str, widen: bool) -> bool:
        if atom[0] == "length":
            return bool(atom[1] <= len(value) and (atom[2] is None or len(value) <= atom[2]))
        return bool(self.judge(atom, value, widen))

    def intersect_atoms(self, a: TextSet, b: TextSet) -> TextSet | None:
        if a[0] == "length" and b[0] == "length":
            return length(max(a[1], b[1]), a[2] if b[2] is None else b[2] if a[2] is None else min(a[2], b[2]))
        return NONE if ("not", a) == b or a == ("not", b) else None

    def complement_atom(self, atom: TextSet) -> TextSet:
        if atom[0] != "length":
            return ("not", atom)
        below = length(0, atom[1] - 1) if atom[1] else NONE
        return self.union(below, length(atom[2] + 1, None) if atom[2] is not None else NONE)
