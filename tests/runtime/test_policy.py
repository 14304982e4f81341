"""Generation policy: wishes brought to what a model takes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from server.chat import Capabilities
from server.config import ModelConfig, ModelLimitsConfig, ModelSource
from server.runtime.policy import LADDER, GenerationDefaults, ModelLimits, nearest, resolve, supported
from server.wire.records import ReasoningEffort

EVERYTHING = ModelLimits(LADDER, thinking=True)


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
        assert resolve(GenerationDefaults(wished), ModelLimits(efforts)).reasoning_effort == taken


@pytest.mark.parametrize("effort", LADDER)
def test_an_effort_is_left_out_without_support_alone(effort: ReasoningEffort) -> None:
    assert resolve(GenerationDefaults(effort), ModelLimits()).reasoning_effort is None
    assert resolve(GenerationDefaults(effort, thinking=False), EVERYTHING) == GenerationDefaults(effort, False)
    # Where it cannot be switched off, it is not off.
    assert resolve(GenerationDefaults(effort, thinking=False), ModelLimits(LADDER)) == GenerationDefaults(effort)


def test_no_effort_is_invented() -> None:
    assert resolve(GenerationDefaults(), EVERYTHING).reasoning_effort is None


@pytest.mark.parametrize(
    ("wished", "switch", "taken"),
    [(None, True, True), (True, True, True), (False, True, False), (None, False, None), (True, False, None)],
)
def test_thinking_is_switched_only_where_it_can_be_and_on_there(
    wished: bool | None, switch: bool, taken: bool | None
) -> None:
    assert resolve(GenerationDefaults(thinking=wished), ModelLimits(thinking=switch)).thinking is taken


def test_temperature() -> None:
    warm = GenerationDefaults(temperature=1.5)
    assert resolve(warm, ModelLimits()).temperature == 1.5
    assert resolve(warm, ModelLimits(temperature_max=1.0)).temperature == 1.0
    assert resolve(warm, ModelLimits(temperature=False)).temperature is None
    apart = ModelLimits(("low",), thinking=True, temperature_with_reasoning=False)
    assert resolve(warm, apart).temperature is None
    assert resolve(replace(warm, thinking=False), apart).temperature == 1.5
    # With thinking off nothing reasons, whatever effort it would make.
    assert resolve(replace(warm, thinking=False, reasoning_effort="low"), apart).temperature == 1.5
    assert resolve(replace(warm, reasoning_effort="max"), replace(apart, thinking=False)).temperature is None
    assert resolve(warm, replace(apart, thinking=False)).temperature == 1.5


def test_resolving_the_resolved_changes_nothing_and_no_wish_is_rewritten() -> None:
    wishes = [
        GenerationDefaults(effort, thinking, temperature)
        for effort in (None, *LADDER)
        for thinking in (None, True, False)
        for temperature in (None, 0.0, 0.7, 2.0)
    ]
    models = [
        ModelLimits(efforts, *rest)
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
    def found(said: ModelLimitsConfig, thinking: bool, *efforts: ReasoningEffort) -> ModelLimits:
        config = ModelConfig("a", "A", "a", ModelSource(path=tmp_path), supports=said)
        return supported(config, Capabilities(False, True, True, (), thinking, efforts))

    assert found(ModelLimitsConfig(), True, "low", "high") == ModelLimits(("low", "high"), True)
    assert found(ModelLimitsConfig(("high", "max"), False), True, "low", "high") == ModelLimits(("high",), False)
    assert found(ModelLimitsConfig((), True), False, "low") == ModelLimits((), False)
    limits = ModelLimitsConfig(None, None, False, 1.0, False, 7)
    assert found(limits, False) == ModelLimits((), False, False, 1.0, False, 7)
