"""Sets of strings as formulas over `pattern`, `format`, lengths and finite lists; automata are built only on demand.

A formula is a plain tuple, so that equal formulas are equal keys: ("all",), ("none",), ("finite", values),
("length", least, most), ("pattern", text), ("format", name), ("not", atom), ("and", parts), ("or", parts).
"""

from __future__ import annotations

from typing import Any, TypeAlias

TextSet: TypeAlias = tuple[Any, ...]

ALL: TextSet = ("all",)
NONE: TextSet = ("none",)


def finite(values: tuple[str, ...]) -> TextSet:
    return ("finite", tuple(dict.fromkeys(values))) if values else NONE


def length(least: int, most: int | None) -> TextSet:
    if most is not None and most < least:
        return NONE
    return ALL if least == 0 and most is None else ("length", least, most)


class Texts:
    """Algebra over string sets for one compilation.

    `judge(atom, text)` tells whether a pattern or format atom holds for a text; it widens (True) what it cannot judge,
    having noted that the keyword is left to validation.
    """

    def __init__(self, judge: Any) -> None:
        self.judge = judge

    def accepts(self, s: TextSet, text: str, widen: bool = True) -> bool:
        kind = s[0]
        if kind == "all":
            return True
        if kind == "none":
            return False
        if kind == "finite":
            return text in s[1]
        if kind == "length":
            return s[1] <= len(text) and (s[2] is None or len(text) <= s[2])
        if kind == "and":
            return all(self.accepts(part, text, widen) for part in s[1])
        if kind == "or":
            return any(self.accepts(part, text, widen) for part in s[1])
        if kind == "not":
            return not self.accepts(s[1], text, not widen)
        return bool(self.judge(s, text, widen))

    def meet(self, a: TextSet, b: TextSet) -> TextSet:
        if a in (b, NONE) or b == ALL:
            return a
        if a == ALL or b == NONE:
            return b
        if a[0] == "finite":
            return finite(tuple(v for v in a[1] if self.accepts(b, v)))
        if b[0] == "finite":
            return finite(tuple(v for v in b[1] if self.accepts(a, v)))
        if a[0] == "length" and b[0] == "length":
            least, most = max(a[1], b[1]), a[2] if b[2] is None else b[2] if a[2] is None else min(a[2], b[2])
            return length(least, most)
        parts: list[TextSet] = list(a[1] if a[0] == "and" else (a,))
        for part in b[1] if b[0] == "and" else (b,):
            if part in parts:
                continue
            if self.negate(part) in parts:
                return NONE
            for i, known in enumerate(parts):
                if part[0] == "length" and known[0] == "length":
                    parts[i] = self.meet(known, part)
                    if parts[i] == NONE:
                        return NONE
                    break
            else:
                parts.append(part)
        return parts[0] if len(parts) == 1 else ("and", tuple(parts))

    def join(self, a: TextSet, b: TextSet) -> TextSet:
        if a in (b, ALL) or b == NONE:
            return a
        if a == NONE or b == ALL:
            return b
        if a[0] == "finite" and b[0] == "finite":
            return finite(a[1] + b[1])
        parts: list[TextSet] = list(a[1] if a[0] == "or" else (a,))
        for part in b[1] if b[0] == "or" else (b,):
            if part in parts:
                continue
            if self.negate(part) in parts:
                return ALL
            parts.append(part)
        return ("or", tuple(parts))

    def negate(self, a: TextSet) -> TextSet:
        kind = a[0]
        if kind == "all":
            return NONE
        if kind == "none":
            return ALL
        if kind == "not":
            inner: TextSet = a[1]
            return inner
        if kind == "length":
            below = length(0, a[1] - 1) if a[1] else NONE
            return self.join(below, length(a[2] + 1, None) if a[2] is not None else NONE)
        if kind in ("and", "or"):
            parts = [self.negate(part) for part in a[1]]
            out = parts[0]
            for part in parts[1:]:
                out = self.join(out, part) if kind == "and" else self.meet(out, part)
            return out
        return ("not", a)
