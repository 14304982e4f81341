from __future__ import annotations

import json
import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from grammars.automata.numbers import PLAIN, number_dfa
from grammars.automata.operations import difference

BOUNDS: list[Any] = [
    None,
    None,
    0,
    1,
    -1,
    Decimal("0.5"),
    Decimal("-0.25"),
    100,
    Decimal("99.99"),
    1e3,
    Decimal("-1e-5"),
]
BOUNDS += [10**18, -17, 255, 12345, Decimal("10.10"), Decimal("-180"), 360, 2**63, -(2**63)]
DIVISORS: list[Any] = [(), (), (), (1,), (2,), (7,), (Decimal("0.01"),), (0.25, 2), (Decimal("1.5"),), (100,), (1e-4,)]


def random_text(rnd: random.Random, near: list[Any]) -> str:
    if near and rnd.random() < 0.3:
        value = Decimal(str(rnd.choice(near))) + rnd.choice([0, 0, 1, -1, Decimal("0.1"), Decimal("-0.001")])
        return format(value, "f")
    whole = rnd.choice(
        ["0", str(rnd.randrange(1, 10)), str(rnd.randrange(2000)), str(rnd.randrange(10 ** rnd.randrange(1, 20)))]
    )
    text = rnd.choice(["", "", "-"]) + whole
    if rnd.random() < 0.5:
        text += "." + rnd.choice(["0", "00", "5", "25", str(rnd.randrange(1000)), "05", "9999999", "010"])
    if rnd.random() < 0.15:
        text += rnd.choice(["e5", "E-3", "e+20", "e-07", "e0", "e16"])
    return text


@pytest.mark.parametrize("seed", range(15))
def test_texts_whose_value_satisfies_everything(seed: int) -> None:
    rnd = random.Random(seed)
    for _ in range(40):
        integer, divisors, excluded = rnd.random() < 0.3, rnd.choice(DIVISORS), rnd.choice([(), (), (5,), (0, 0.5)])
        low, low2, high, high2 = (rnd.choice(BOUNDS) for _ in range(4))
        low2, high2 = rnd.choice([None, low2]), rnd.choice([None, high2])
        keywords: dict[str, Any] = {"integer": integer, "multiple_of": divisors, "not_values": excluded}
        keywords |= {"minimum": low, "exclusive_minimum": low2, "maximum": high, "exclusive_maximum": high2}
        exact, offered = number_dfa(**keywords), number_dfa(**keywords, offered=True)
        assert exact is not None and offered is not None
        near = [bound for bound in (low, low2, high, high2) if bound is not None]

        def value_of(number: Any) -> Fraction:
            return Fraction(str(number))

        for _ in range(60):
            text = random_text(rnd, near)
            value = Fraction(text)
            good = (
                (not integer or value.denominator == 1)
                and (low is None or value >= value_of(low))
                and (low2 is None or value > value_of(low2))
                and (high is None or value <= value_of(high))
                and (high2 is None or value < value_of(high2))
                and all((value / value_of(d)).denominator == 1 for d in divisors)
                and all(value != value_of(v) for v in excluded)
            )
            exponent = "e" in text.lower()
            assert exact.accepts(text) == (good and not exponent), (keywords, text)
            if offered.accepts(text):
                assert good, (keywords, text)
            elif good and not exponent:
                assert (integer and "." in text) or text.startswith("-0"), (keywords, text)


def test_complements_are_taken_among_all_spellings() -> None:
    integers = number_dfa(integer=True)
    assert integers is not None
    others = difference(PLAIN, integers)
    assert others.accepts("1.5") and not others.accepts("1.0") and not others.accepts("1")


@pytest.mark.parametrize(
    "value", [1e-7, 5e-324, 1.5e-5, 1e16, 1e22, 2.5e300 / 10, 1e300, 9.99e307, 1e-300, 0.1, 123456.789, 0.0, 3.0]
)
def test_what_json_writes_for_a_float_is_offered(value: float) -> None:
    text = json.dumps(value)
    for bounds in ({"minimum": 0}, {"minimum": 0, "maximum": 1}, {"maximum": 1e308}, {"minimum": 1}, {"minimum": -1}):
        low, high = bounds.get("minimum"), bounds.get("maximum")
        dfa = number_dfa(**bounds, offered=True)  # type: ignore[arg-type]
        assert dfa is not None
        inside = (low is None or value >= low) and (high is None or value <= high)
        if not inside or abs(value) > 1e-290 or value == 0:
            assert dfa.accepts(text) == inside, (bounds, text)


def test_no_exponent_can_break_a_bound() -> None:
    for keywords in ({"minimum": 0}, {"exclusive_minimum": 0}, {"minimum": -1, "maximum": 1}, {"minimum": 0.5}):
        dfa = number_dfa(**keywords, offered=True)  # type: ignore[arg-type]
        assert dfa is not None
        for mantissa in ("0", "1", "9.99", "5.0", "12.5"):
            for exponent in ("e0", "e1", "e-1", "E+2", "e-299", "e299", "e15", "e16", "e400", "e-400"):
                for sign in ("", "-"):
                    text = sign + mantissa + exponent
                    if dfa.accepts(text):
                        value = float(text)
                        assert value >= keywords.get("minimum", 0) and value <= keywords.get("maximum", float("inf"))
                        assert "exclusive_minimum" not in keywords or value > 0
                        assert value != float("inf")


def test_a_minus_is_offered_only_where_negative_numbers_are() -> None:
    positive, integers = number_dfa(minimum=0, offered=True), number_dfa(integer=True, minimum=-5, offered=True)
    assert positive is not None and integers is not None
    assert positive.step(0, ord("-")) == -1
    assert integers.accepts("-5") and not integers.accepts("-0") and integers.accepts("0")


def test_limits_of_doubles_cost_few_states() -> None:
    dfa = number_dfa(minimum=-1.7976931348623157e308, maximum=1.7976931348623157e308, offered=True)
    assert dfa is not None and len(dfa) < 100
    assert dfa.accepts("-12345678901234567890.5") and dfa.accepts("1e+299") and not dfa.accepts("1e309")
    exact = number_dfa(maximum=10**300)
    assert exact is not None and exact.accepts("1" + "0" * 300) and not exact.accepts("1" + "0" * 299 + "1")


def test_what_is_too_large_for_an_automaton_is_none() -> None:
    assert number_dfa(multiple_of=(65537,)) is None
    assert number_dfa(maximum=10**2000) is None
    assert number_dfa(minimum=Fraction(1, 3)) is None
    with pytest.raises(ValueError, match="positive"):
        number_dfa(multiple_of=(0,))
