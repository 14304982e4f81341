"""Sets of JSON numbers as formulas over bounds, divisors, integrality and finite lists.

A formula is a plain tuple: ("all",), ("none",), ("finite", values), ("range", integer, low, low_open, high, high_open,
divisors), ("not", range with one condition), ("and", parts), ("or", parts). Values are int or Decimal: exact.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, TypeAlias

NumberSet: TypeAlias = tuple[Any, ...]

ALL: NumberSet = ("all",)
NONE: NumberSet = ("none",)
INTEGER: NumberSet = ("range", True, None, False, None, False, ())


def finite(values: tuple[Any, ...]) -> NumberSet:
    return ("finite", tuple(dict.fromkeys(values))) if values else NONE


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


def accepts(s: NumberSet, value: Any) -> bool:
    kind = s[0]
    if kind == "all":
        return True
    if kind == "none":
        return False
    if kind == "finite":
        return value in s[1]
    if kind == "and":
        return all(accepts(part, value) for part in s[1])
    if kind == "or":
        return any(accepts(part, value) for part in s[1])
    if kind == "not":
        return not accepts(s[1], value)
    _, integer, low, low_open, high, high_open, divisors = s
    if integer and value != int(value):
        return False
    if low is not None and (value <= low if low_open else value < low):
        return False
    if high is not None and (value >= high if high_open else value > high):
        return False
    return all((Fraction(value) / Fraction(d)).denominator == 1 for d in divisors)


def meet(a: NumberSet, b: NumberSet) -> NumberSet:
    if a in (b, NONE) or b == ALL:
        return a
    if a == ALL or b == NONE:
        return b
    if a[0] == "finite":
        return finite(tuple(v for v in a[1] if accepts(b, v)))
    if b[0] == "finite":
        return finite(tuple(v for v in b[1] if accepts(a, v)))
    if a[0] == "or" and b[0] != "or":
        return _join_all([meet(part, b) for part in a[1]])
    if b[0] == "or":
        return _join_all([meet(a, part) for part in b[1]])
    parts: list[NumberSet] = list(a[1] if a[0] == "and" else (a,))
    for part in b[1] if b[0] == "and" else (b,):
        if part in parts:
            continue
        for i, known in enumerate(parts):
            if part[0] == "range" and known[0] == "range":
                parts[i] = _overlap(known, part)
                if parts[i] == NONE:
                    return NONE
                break
        else:
            parts.append(part)
    for part in parts:
        if part[0] == "not" and any(_within(other, part[1]) for other in parts if other[0] == "range"):
            return NONE
    return parts[0] if len(parts) == 1 else ("and", tuple(parts))


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


def _join_all(parts: list[NumberSet]) -> NumberSet:
    out = NONE
    for part in parts:
        out = join(out, part)
    return out


def join(a: NumberSet, b: NumberSet) -> NumberSet:
    if a in (b, ALL) or b == NONE:
        return a
    if a == NONE or b == ALL:
        return b
    if a[0] == "finite" and b[0] == "finite":
        return finite(a[1] + b[1])
    parts: list[NumberSet] = list(a[1] if a[0] == "or" else (a,))
    for part in b[1] if b[0] == "or" else (b,):
        if part in parts:
            continue
        if (part[0] == "not" and part[1] in parts) or ("not", part) in parts:
            return ALL
        parts.append(part)
    return ("or", tuple(parts))


def negate(a: NumberSet) -> NumberSet:
    kind = a[0]
    if kind == "all":
        return NONE
    if kind == "none":
        return ALL
    if kind == "not":
        inner: NumberSet = a[1]
        return inner
    if kind == "finite":
        out = ALL
        for value in a[1]:
            out = meet(out, join(span(high=value, high_open=True), span(low=value, low_open=True)))
        return out
    if kind == "or":
        out = ALL
        for part in a[1]:
            out = meet(out, negate(part))
        return out
    if kind == "and":
        return _join_all([negate(part) for part in a[1]])
    _, integer, low, low_open, high, high_open, divisors = a
    out = ("not", INTEGER) if integer else NONE
    if low is not None:
        out = join(out, span(high=low, high_open=not low_open))
    if high is not None:
        out = join(out, span(low=high, low_open=not high_open))
    for divisor in divisors:
        out = join(out, ("not", span(divisors=(divisor,))))
    return out


def is_integral(s: NumberSet) -> bool:
    """Whether the set plainly holds integers alone."""
    if s[0] == "range":
        return bool(s[1])
    if s[0] == "and":
        return any(is_integral(part) for part in s[1])
    return s[0] == "or" and all(is_integral(part) for part in s[1])
