"""Sets of JSON numbers as formulas over bounds, divisors and integrality.

Atoms: ("range", integer, low, low_open, high, high_open, divisors); under ("not", …) a range has one condition.
Values are int or Decimal: exact.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, TypeAlias

from grammars.sets.algebra import ALL, NONE, Formula, SetAlgebra, finite

__all__ = ["ALL", "INTEGER", "NONE", "NumberSet", "finite", "is_integral", "join", "meet", "negate", "span"]

NumberSet: TypeAlias = Formula

INTEGER: NumberSet = ("range", True, None, False, None, False, ())


def span(
    integer: bool = False,
    low: Any = None,
    low_open: bool = False,
    high: Any = None,
    high_open: bool = False,
    divisors: tuple[Any, ...] = (),
) -> NumberSet:
    """The numbers between two bounds that are multiples of all divisors, integers alone where `integer`."""
    if low is not None and high is not None and (low > high or (low == high and (low_open or high_open))):
        return NONE
    if integer and low is not None and high is not None:
        first = math.floor(low) + 1 if low_open else math.ceil(low)
        last = math.ceil(high) - 1 if high_open else math.floor(high)
        if first > last:
            return NONE
    if not integer and low is None and high is None and not divisors:
        return ALL
    return ("range", integer, low, low_open, high, high_open, divisors)


class _Numbers(SetAlgebra):
    def atom_contains(self, atom: NumberSet, value: Any, widen: bool) -> bool:
        _, integer, low, low_open, high, high_open, divisors = atom
        if integer and value != int(value):
            return False
        if low is not None and (value <= low if low_open else value < low):
            return False
        if high is not None and (value >= high if high_open else value > high):
            return False
        return all((Fraction(value) / Fraction(d)).denominator == 1 for d in divisors)

    def intersect_atoms(self, a: NumberSet, b: NumberSet) -> NumberSet | None:
        if a[0] == "range" and b[0] == "range":
            return _overlap(a, b)
        return None

    def intersect(self, a: NumberSet, b: NumberSet) -> NumberSet:
        if a[0] == "or" and b[0] not in ("or", "all", "none", "finite"):
            a, b = b, a
        if b[0] == "or" and a[0] not in ("all", "none", "finite") and a != b:
            return self.union_all(self.intersect(a, part) for part in b[1])
        out = super().intersect(a, b)
        parts = out[1] if out[0] == "and" else ()
        for part in parts:
            if part[0] == "not" and any(_within(other, part[1]) for other in parts if other[0] == "range"):
                return NONE
        return out

    def complement_atom(self, atom: NumberSet) -> NumberSet:
        if atom[0] == "finite":
            out = ALL
            for value in atom[1]:
                out = self.intersect(out, self.union(span(high=value, high_open=True), span(low=value, low_open=True)))
            return out
        _, integer, low, low_open, high, high_open, divisors = atom
        out = ("not", INTEGER) if integer else NONE
        if low is not None:
            out = self.union(out, span(high=low, high_open=not low_open))
        if high is not None:
            out = self.union(out, span(low=high, low_open=not high_open))
        return self.union_all([out, *(("not", span(divisors=(divisor,))) for divisor in divisors)])


def _overlap(a: NumberSet, b: NumberSet) -> NumberSet:
    _, integer, low, low_open, high, high_open, divisors = a
    if b[2] is not None and (low is None or b[2] > low or (b[2] == low and b[3])):
        low, low_open = b[2], b[3]
    if b[4] is not None and (high is None or b[4] < high or (b[4] == high and b[5])):
        high, high_open = b[4], b[5]
    return span(integer or b[1], low, low_open, high, high_open, tuple(dict.fromkeys(divisors + b[6])))


def _within(a: NumberSet, condition: NumberSet) -> bool:
    """Whether range `a` plainly satisfies a condition of integrality or one divisor."""
    return (
        (not condition[1] or a[1]) and set(condition[6]) <= set(a[6]) and condition[2] is None and condition[4] is None
    )


_NUMBERS = _Numbers()
meet, join, negate = _NUMBERS.intersect, _NUMBERS.union, _NUMBERS.complement


def is_integral(s: NumberSet) -> bool:
    """Whether the set plainly holds integers alone."""
    if s[0] == "range":
        return bool(s[1])
    if s[0] == "and":
        return any(is_integral(part) for part in s[1])
    return s[0] == "or" and all(is_integral(part) for part in s[1])
