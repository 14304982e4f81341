"""Sets as formulas over atoms: what union, intersection and complement have in common, whatever the atoms are.

A formula is a plain tuple, so that equal formulas are equal keys: ("all",), ("none",), ("finite", values),
("not", atom), ("and", parts), ("or", parts); every other kind is an atom.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any, TypeAlias

Formula: TypeAlias = tuple[Any, ...]

ALL: Formula = ("all",)
NONE: Formula = ("none",)


def finite(values: tuple[Any, ...]) -> Formula:
    return ("finite", tuple(dict.fromkeys(values))) if values else NONE


class SetAlgebra:
    """Union, intersection and complement. A subclass says what atoms mean: `holds`, `overlap`, `complement`."""

    def atom_contains(self, atom: Formula, value: Any, widen: bool) -> bool:
        """Whether an atom's set has a value; what cannot be judged is widened (True) or narrowed."""
        raise NotImplementedError

    def intersect_atoms(self, a: Formula, b: Formula) -> Formula | None:
        """The intersection of two parts as one atom, or as nothing; None where it takes both."""
        raise NotImplementedError

    def complement_atom(self, atom: Formula) -> Formula:
        return ("not", atom)

    def accepts(self, s: Formula, value: Any, widen: bool = True) -> bool:
        kind = s[0]
        if kind == "all":
            return True
        if kind == "none":
            return False
        if kind == "finite":
            return value in s[1]
        if kind == "and":
            return all(self.accepts(part, value, widen) for part in s[1])
        if kind == "or":
            return any(self.accepts(part, value, widen) for part in s[1])
        if kind == "not":
            return not self.accepts(s[1], value, not widen)
        return self.atom_contains(s, value, widen)

    def intersect(self, a: Formula, b: Formula) -> Formula:
        if a in (b, NONE) or b == ALL:
            return a
        if a == ALL or b == NONE:
            return b
        if a[0] == "finite":
            return finite(tuple(v for v in a[1] if self.accepts(b, v)))
        if b[0] == "finite":
            return finite(tuple(v for v in b[1] if self.accepts(a, v)))
        parts = _parts(a, "and")
        for part in _parts(b, "and"):
            if part in parts:
                continue
            for i, known in enumerate(parts):
                both = self.intersect_atoms(known, part)
                if both == NONE:
                    return NONE
                if both is not None:
                    parts[i] = both
                    break
            else:
                parts.append(part)
        return parts[0] if len(parts) == 1 else ("and", tuple(parts))

    def union(self, a: Formula, b: Formula) -> Formula:
        if a in (b, ALL) or b == NONE:
            return a
        if a == NONE or b == ALL:
            return b
        if a[0] == "finite" and b[0] == "finite":
            return finite(a[1] + b[1])
        parts = _parts(a, "or")
        for part in _parts(b, "or"):
            if part in parts:
                continue
            if ("not", part) in parts or (part[0] == "not" and part[1] in parts):
                return ALL
            parts.append(part)
        return ("or", tuple(parts))

    def complement(self, a: Formula) -> Formula:
        kind = a[0]
        if kind == "all":
            return NONE
        if kind == "none":
            return ALL
        if kind == "not":
            inner: Formula = a[1]
            return inner
        if kind in ("and", "or"):
            return reduce(self.union if kind == "and" else self.intersect, map(self.complement, a[1]))
        return self.complement_atom(a)

    def union_all(self, sets: Iterable[Formula]) -> Formula:
        return reduce(self.union, sets, NONE)


def _parts(s: Formula, kind: str) -> list[Formula]:
    return list(s[1]) if s[0] == kind else [s]
