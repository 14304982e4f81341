"""The texts of JSON numbers (RFC 8259, section 6) whose values satisfy bounds and divisors, as automata.

Two languages for one set of numbers. The exact one holds every text without an exponent whose value is in the set, so
that unions, intersections and complements within `PLAIN` are exact too. The offered one is what a grammar should let a
model write: integers as plain digits, no minus before zero unless negative numbers follow, and exponents only in the
forms that stay inside the set whatever their digits (`1e-07`, `2.5e+20`). Bounds of more than 40 digits are meant as no
bounds: 25 digits are offered.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from math import gcd, lcm
from typing import TypeAlias

from grammars.automata.dfa import DFA, EMPTY, Row
from grammars.automata.minimize import minimize
from grammars.automata.operations import concat, difference, intersect, literal, union
from grammars.automata.regex_nfa import pattern_dfa
from grammars.memo import memo

Number: TypeAlias = int | Decimal | Fraction | float
"""A float stands for the decimal number that it is written as."""

DIGITS = 1_000
"""Digits of a bound, before or after its point, beyond which it is not made into an automaton."""
REMAINDERS = 4_000
"""States of a remainder automaton, beyond which a divisor is left to validation."""

_UNSIGNED = pattern_dfa(r"^(?:0|[1-9][0-9]*)(?:\.[0-9]+)?$")
_MINUS = literal("-")
PLAIN = union(_UNSIGNED, concat(_MINUS, _UNSIGNED))
"""Every number without an exponent."""
_NATURAL = pattern_dfa("^(?:0|[1-9][0-9]*)$")
_WHOLE = pattern_dfa(r"^(?:0|[1-9][0-9]*)(?:\.0+)?$")
_ZERO = pattern_dfa(r"^0(?:\.0+)?$")
# exponents that no double overflows or underflows at
_EXPONENT = "(?:0?[0-9]|[1-9][0-9]|[12][0-9]{2})"
_SMALL = pattern_dfa(r"^[1-9](?:\.[0-9]+)?[eE]-(?:0?[1-9]|[1-9][0-9]|[12][0-9]{2}|30[0-7])$")
"""Above 0 and below 1."""
_LARGE = pattern_dfa(r"^[1-9](?:\.[0-9]+)?[eE]\+?(?:1[6-9]|[2-9][0-9]|[12][0-9]{2}|30[0-7])$")
"""At least 10 to the power of 16, and less than 10 to the power of 308."""
_ANY_EXPONENT = union(pattern_dfa(rf"^(?:0|[1-9][0-9]*)(?:\.[0-9]+)?[eE][+-]?{_EXPONENT}$"), union(_SMALL, _LARGE))
_LARGE_FROM, _LARGE_TO = Fraction(10**16), Fraction(10**308)
_HUGE, _MANY = Fraction(10**40), Fraction(10**25)


def exact(value: Number) -> Fraction:
    """The value of a number as it is written."""
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def number_dfa(
    *,
    integer: bool = False,
    minimum: Number | None = None,
    exclusive_minimum: Number | None = None,
    maximum: Number | None = None,
    exclusive_maximum: Number | None = None,
    multiple_of: tuple[Number, ...] = (),
    not_values: tuple[Number, ...] = (),
    offered: bool = False,
) -> DFA | None:
    """The texts of the numbers that satisfy everything; exact ones, or the `offered` ones.

    None where a bound or divisor is too large for an automaton. Raises `LimitExceeded("states")` where only their
    combination is. Divisors must be positive.
    """
    low, low_open = _tighter(minimum, exclusive_minimum, 1)
    high, high_open = _tighter(maximum, exclusive_maximum, -1)
    divisor = _common(multiple_of)
    if divisor is not None and divisor <= 0:
        raise ValueError("a divisor must be positive")
    return _numbers(
        integer, low, low_open, high, high_open, divisor, tuple([exact(value) for value in not_values]), offered
    )


def _tighter(closed: Number | None, opened: Number | None, sign: int) -> tuple[Fraction | None, bool]:
    """The stronger of an inclusive and an exclusive bound; whether it is the exclusive one."""
    if opened is None:
        return (None, False) if closed is None else (exact(closed), False)
    if closed is None or exact(opened) * sign >= exact(closed) * sign:
        return exact(opened), True
    return exact(closed), False


def _common(divisors: tuple[Number, ...]) -> Fraction | None:
    """The number whose multiples are the common multiples."""
    out: Fraction | None = None
    for value in divisors:
        one = exact(value)
        out = one if out is None else Fraction(lcm(out.numerator, one.numerator), gcd(out.denominator, one.denominator))
    return out


@memo
def _numbers(
    integer: bool,
    low: Fraction | None,
    low_open: bool,
    high: Fraction | None,
    high_open: bool,
    divisor: Fraction | None,
    not_values: tuple[Fraction, ...],
    offered: bool,
) -> DFA | None:
    if offered:
        above, below = _clamped(low, high), _clamped(_minus(high), _minus(low))
    else:
        above, below = (low, high), (_minus(high), _minus(low))
    positive = _between(above[0], low_open, above[1], high_open)
    negative = _between(below[0], high_open, below[1], low_open)
    if positive is None or negative is None:
        return None
    if integer:
        form = _NATURAL if offered else _WHOLE
        positive, negative = intersect(positive, form), intersect(negative, form)
    if divisor is not None:
        multiples = _multiples(divisor)
        if multiples is None:
            return None
        positive, negative = intersect(positive, multiples), intersect(negative, multiples)
    if offered:
        below_zero = difference(negative, _ZERO)
        if integer or below_zero.is_empty():
            negative = below_zero
        if not integer and divisor is None and not not_values:
            positive = union(positive, _exponents(low, low_open, high))
            negative = union(negative, _exponents(_minus(high), high_open, _minus(low)))
    out = union(positive, EMPTY if negative.is_empty() else concat(_MINUS, negative))
    for value in not_values:
        same = _numbers(False, value, False, value, False, None, (), False)
        if same is None:
            return None
        out = difference(out, same)
    return out


def _minus(value: Fraction | None) -> Fraction | None:
    return None if value is None else -value


def _clamped(low: Fraction | None, high: Fraction | None) -> tuple[Fraction | None, Fraction | None]:
    """Bounds of a magnitude without hundreds of digits: the limits of doubles, say, which are meant as no bounds."""
    if high is not None and high > _HUGE and (low is None or low < _MANY):
        high = _MANY
    if low is not None and 0 < low < 1 / _HUGE and (high is None or high > 1 / _MANY):
        low = 1 / _MANY
    return low, high


def _exponents(low: Fraction | None, low_open: bool, high: Fraction | None) -> DFA:
    """Texts with an exponent, without a sign, that are inside the bounds whatever their digits."""
    if high is None and (low is None or low < 0 or (low == 0 and not low_open)):
        return _ANY_EXPONENT
    out = EMPTY
    if (low is None or low <= 0) and (high is None or high >= 1):
        out = _SMALL
    if (high is None or high >= _LARGE_TO) and (low is None or low < _LARGE_FROM):
        out = union(out, _LARGE)
    return out


def _between(low: Fraction | None, low_open: bool, high: Fraction | None, high_open: bool) -> DFA | None:
    """Unsigned texts whose value is between two bounds."""
    out = _UNSIGNED
    if low is not None and (low > 0 or (low == 0 and low_open)):
        side = _compared(low, ">" if low_open else ">=")
        if side is None:
            return None
        out = intersect(out, side)
    if high is not None:
        if high < 0 or (high == 0 and high_open):
            return EMPTY
        side = _compared(high, "<" if high_open else "<=")
        if side is None:
            return None
        out = intersect(out, side)
    return out


@memo
def _compared(bound: Fraction, relation: str) -> DFA | None:
    """Unsigned texts whose value is `relation` (`<`, `<=`, `>` or `>=`) a bound of at least 0."""
    digits = _decimal(bound)
    if digits is None:
        return None
    whole, fraction = digits
    n = len(whole)
    # one function: every part of the automaton leads into states of the part behind it
    rows: list[Row] = [()]  # the start, filled in below
    labels = [""]  # per state: how the number read so far compares; "" where the text is not a number

    def state(label: str) -> int:
        rows.append(())
        labels.append(label)
        return len(rows) - 1

    def digit_row(limit: int, less: int, equal: int, greater: int, first: int = 0) -> list[tuple[int, int, int]]:
        """Edges of a digit compared with a digit of the bound."""
        row = []
        if limit > first:
            row.append((48 + first, 48 + limit - 1, less))
        if limit >= first:
            row.append((48 + limit, 48 + limit, equal))
        if limit < 9:
            row.append((48 + max(limit + 1, first), 57, greater))
        return row

    point = 46
    # once decided in the fraction, any digits
    settled = {label: state(label) for label in "<>"}
    for end in settled.values():
        rows[end] = ((48, 57, end),)
    opened = {}  # the point was read and the comparison is decided
    for label, end in settled.items():
        opened[label] = state("")
        rows[opened[label]] = ((48, 57, end),)
    # the fraction while it equals the bound's
    rest = state("=")
    rows[rest] = tuple(digit_row(0, rest, rest, settled[">"]))
    after = rest
    for at in range(len(fraction) - 1, -1, -1):
        digit = fraction[at]
        before = state("" if at == 0 else "<" if any(fraction[at:]) else "=")
        rows[before] = tuple(digit_row(digit, settled["<"], after, settled[">"]))
        after = before
    if fraction:
        first_fraction = after
    else:
        first_fraction = state("")
        rows[first_fraction] = rows[rest]
    # the whole part: (digits read, comparison); fewer digits than the bound are less, more are greater
    longer = state(">")
    rows[longer] = ((point, point, opened[">"]), (48, 57, longer))
    full_less, full_more = state("<"), state(">")
    full_same = state("<" if any(fraction) else "=")
    rows[full_less] = ((point, point, opened["<"]), (48, 57, longer))
    rows[full_more] = ((point, point, opened[">"]), (48, 57, longer))
    rows[full_same] = ((point, point, first_fraction), (48, 57, longer))
    less, same, more = full_less, full_same, full_more
    for at in range(n - 1, 0, -1):
        less2, same2, more2 = state("<"), state("<"), state("<")
        rows[less2] = ((point, point, opened["<"]), (48, 57, less))
        rows[more2] = ((point, point, opened["<"]), (48, 57, more))
        rows[same2] = ((point, point, opened["<"]), *digit_row(whole[at], less, same, more))
        less, same, more = less2, same2, more2
    zero = state("")
    if whole == [0]:
        labels[zero] = labels[full_same]
        rows[zero] = ((point, point, first_fraction),)
        rows[0] = ((48, 48, zero), (49, 57, longer if n > 1 else full_more))
    else:
        labels[zero] = "<"
        rows[zero] = ((point, point, opened["<"]),)
        rows[0] = ((48, 48, zero), *digit_row(whole[0], less, same, more, first=1))
    wanted = {"<": "<", "<=": "<=", ">": ">", ">=": ">="}[relation]
    return minimize(0, lambda number: labels[number] != "" and labels[number] in wanted, rows)


def _decimal(value: Fraction) -> tuple[list[int], list[int]] | None:
    """The digits of a non-negative number before and after its point; None where there are too many, or no end."""
    rest = value.denominator
    places = 0
    while rest % 10 == 0:
        rest //= 10
        places += 1
    while rest % 2 == 0:
        rest //= 2
        places += 1
    while rest % 5 == 0:
        rest //= 5
        places += 1
    if rest != 1 or places > DIGITS or value.numerator.bit_length() > 4 * DIGITS:
        return None
    scaled = value * 10**places
    text = str(scaled.numerator).rjust(places + 1, "0")
    whole, fraction = (text[:-places], text[-places:]) if places else (text, "")
    return [int(char) for char in whole], [int(char) for char in fraction.rstrip("0")]


@memo
def _multiples(divisor: Fraction) -> DFA | None:
    """Unsigned texts whose value is a multiple of a positive number."""
    places = 0
    while divisor.denominator != 1:
        if places > 400 or Fraction(divisor * 10).denominator == divisor.denominator:
            return None
        divisor *= 10
        places += 1
    modulus = divisor.numerator
    if modulus * (places + 2) > REMAINDERS:
        return None
    shift = [pow(10, places - at, modulus) for at in range(places + 1)]
    whole, point = 1, 1 + modulus  # states: the start, remainders before the point, after it, and behind each digit
    behind = [point + modulus * (at + 1) for at in range(places + 1)]
    # behind[at] + r: at + 1 digits follow the point, up to `places` of them; beyond, only zeros
    rows: list[Row] = [tuple([(48 + d, 48 + d, whole + d % modulus) for d in range(10)])]
    accepting: set[int] = set()
    for r in range(modulus):
        digits = [(48 + d, 48 + d, whole + (10 * r + d) % modulus) for d in range(10)]
        rows.append(((46, 46, point + r), *digits))
        if r * shift[0] % modulus == 0:
            accepting.add(whole + r)
    zeros = behind[places]
    for at in range(places + 1):  # after the point and `at` digits
        base = point if at == 0 else behind[at - 1]
        for r in range(modulus):
            if at < places:
                rows.append(tuple([(48 + d, 48 + d, behind[at] + (10 * r + d) % modulus) for d in range(10)]))
            else:
                rows.append(((48, 48, zeros + r),))
            if at and r * shift[at] % modulus == 0:
                accepting.add(base + r)
    for r in range(modulus):
        rows.append(((48, 48, zeros + r),))
        if r == 0:
            accepting.add(zeros)
    return intersect(minimize(0, accepting.__contains__, rows), _UNSIGNED)
