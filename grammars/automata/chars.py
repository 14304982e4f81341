"""Sets of characters as ranges of Unicode scalar values.

U+D7FF and U+E000 count as neighbours, so a range may span the surrogates, which never occur.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""A set of characters: inclusive ranges, ascending, disjoint, not adjacent."""

LAST = 0x10FFFF
ANY: Ranges = ((0, LAST),)


def after(code: int) -> int:
    """The next code point of the alphabet."""
    return 0xE000 if code == 0xD7FF else code + 1


def before(code: int) -> int:
    """The previous code point of the alphabet."""
    return 0xD7FF if code == 0xE000 else code - 1


def char_set(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sorts and merges ranges; surrogates are dropped."""
    out: list[tuple[int, int]] = []
    for lo, hi in sorted(ranges):
        if 0xD800 <= lo <= 0xDFFF:
            lo = 0xE000
        if 0xD800 <= hi <= 0xDFFF:
            hi = 0xD7FF
        if lo > hi:
            continue
        if out and lo <= after(out[-1][1]):
            if hi > out[-1][1]:
                out[-1] = (out[-1][0], hi)
        else:
            out.append((lo, hi))
    return tuple(out)


def invert(ranges: Ranges) -> Ranges:
    """Every character outside the set."""
    out: list[tuple[int, int]] = []
    low = 0
    for lo, hi in ranges:
        if lo > low:
            out.append((low, before(lo)))
        low = after(hi)
    if low <= LAST:
        out.append((low, LAST))
    return tuple(out)
