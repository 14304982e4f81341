"""Generation policy: wishes brought to what a model takes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from server.chat import Capabilities
from server.config import ConnectionConfig, Source, Support
from server.runtime.policy import LADDER, Parameters, Supports, nearest, resolve, supported
from server.wire.records import ReasoningEffort

EVERYTHING = Supports(LADDER, thinking=True)


@pytest.mark.parametrize(
    ("wished", "taken"),
    [
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "low"),
        ("high", "high"),
        ("xhigh", "high"),
        ("max", "max"),
        ("ultra", "max"),
    ],
)
def test_an_effort_goes_to_the_nearest_of_two_the_lower(wished: ReasoningEffort, taken: str) -> None:
    for efforts in itertools.permutations(("low", "high", "max")):
        assert nearest(wished, efforts) == taken
        assert resolve(Parameters(wished), Supports(efforts)).reasoning_effort == taken


@pytest.mark.parametrize("effort", LADDER)
def test_an_effort_is_left_out_without_support_alone(effort: ReasoningEffort) -> None:
    assert resolve(Parameters(effort), Supports()).reasoning_effort is None
    assert resolve(Parameters(effort, thinking=False), EVERYTHING) == Parameters(effort, False)
    # Where it cannot be switched off, it is not off.
    assert resolve(Parameters(effort, thinking=False), Supports(LADDER)) == Parameters(effort)


def test_no_effort_is_invented() -> None:
    assert resolve(Parameters(), EVERYTHING).reasoning_effort is None


@pytest.mark.parametrize(
    ("wished", "switch", "taken"),
    [(None, True, True), (True, True, True), (False, True, False), (None, False, None), (True, False, None)],
)
def test_thinking_is_switched_only_where_it_can_be_and_on_there(
    wished: bool | None, switch: bool, taken: bool | None
) -> None:
    assert resolve(Parameters(thinking=wished), Supports(thinking=switch)).thinking is taken


def test_temperature() -> None:
    warm = Parameters(temperature=1.5)
    assert resolve(warm, Supports()).temperature == 1.5
    assert resolve(warm, Supports(temperature_max=1.0)).temperature == 1.0
    assert resolve(warm, Supports(temperature=False)).temperature is None
    apart = Supports(("low",), thinking=True, temperature_with_reasoning=False)
    assert resolve(warm, apart).temperature is None
    assert resolve(replace(warm, thinking=False), apart).temperature == 1.5
    # With thinking off nothing reasons, whatever effort it would make.
    assert resolve(replace(warm, thinking=False, reasoning_effort="low"), apart).temperature == 1.5
    assert resolve(replace(warm, reasoning_effort="max"), replace(apart, thinking=False)).temperature is None
    assert resolve(warm, replace(apart, thinking=False)).temperature == 1.5


def test_resolving_the_resolved_changes_nothing_and_no_wish_is_rewritten() -> None:
    wishes = [
        Parameters(effort, thinking, temperature)
        for effort in (None, *LADDER)
        for thinking in (None, True, False)
        for temperature in (None, 0.0, 0.7, 2.0)
    ]
    models = [
        Supports(efforts, *rest)
        for efforts in ((), ("low",), ("medium", "max"), LADDER)
        for rest in itertools.product((True, False), (True, False), (0.0, 1.0, 2.0), (True, False))
    ]
    for wished, supports in itertools.product(wishes, models):
        kept = replace(wished)
        resolved = resolve(wished, supports)
        assert resolve(resolved, supports) == resolved
        assert wished == kept
        assert resolved.reasoning_effort in (None, *supports.reasoning_efforts)
        assert resolved.temperature is None or resolved.temperature <= supports.temperature_max


def test_what_the_owner_says_never_widens_what_the_template_can_be_told(tmp_path: Path) -> None:
    def found(said: Support, thinking: bool, *efforts: ReasoningEffort) -> Supports:
        config = ConnectionConfig("a", "A", "a", Source(path=tmp_path), supports=said)
        return supported(config, Capabilities(False, True, True, (), thinking, efforts))

    assert found(Support(), True, "low", "high") == Supports(("low", "high"), True)
    assert found(Support(("high", "max"), False), True, "low", "high") == Supports(("high",), False)
    assert found(Support((), True), False, "low") == Supports((), False)
    limits = Support(None, None, False, 1.0, False, 7)
    assert found(limits, False) == Supports((), False, False, 1.0, False, 7)
