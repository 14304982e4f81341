"""What the owner sets for a connection's conversations reaches the chat."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.chat import ChatSettings
from server.config import ModelConfig, ModelLimitsConfig, ModelSource
from server.engine.sampling.params import Sampling
from server.wire.records import WireError
from tests.runtime.doubles import ChatDouble, World
from tests.runtime.test_generation import begin


async def test_settings_reach_the_chat(tmp_path: Path) -> None:
    chat = ChatDouble()
    chat.capabilities = replace(chat.capabilities, thinking=True, reasoning_efforts=("low", "high"))
    connection = ModelConfig(
        "a",
        "A",
        "a",
        ModelSource(path=tmp_path / "m"),
        template="{{ x }}",
        reasoning_effort="medium",
        reasoning_continuation="required",
    )
    world = World(tmp_path / "m", connections=(connection,), chat=chat)
    await begin(world, "Hello")
    await chat.preparing.wait()
    asked, prepared = chat.settings
    assert (asked.template, asked.reasoning_continuation) == ("{{ x }}", "required")
    assert prepared == ChatSettings("{{ x }}", True, "low", "required")
    await world.runtime.close()


def world_of(directory: Path, **fields: Any) -> World:
    chat = ChatDouble()
    chat.capabilities = replace(chat.capabilities, thinking=True)
    connection = ModelConfig("a", "A", "a", ModelSource(path=directory / "m"), **fields)
    return World(directory / "m", connections=(connection,), chat=chat)


async def test_the_connections_temperature_samples_up_to_its_maximum(tmp_path: Path) -> None:
    hot = world_of(
        tmp_path,
        temperature=1.5,
        supports=ModelLimitsConfig(temperature_max=1.2),
        sampling=Sampling(temperature=0.3, top_k=7),
    )
    await begin(hot, "Hello")
    assert (await hot.engine.run()).job.sampling == Sampling(temperature=1.2, top_k=7)
    await hot.runtime.close()
    apart = world_of(
        tmp_path,
        temperature=1.5,
        supports=ModelLimitsConfig(temperature_with_reasoning=False),
        sampling=Sampling(temperature=0.3, top_k=7),
    )
    await begin(apart, "Hello")
    assert (await apart.engine.run()).job.sampling == Sampling(temperature=0.3, top_k=7), "dropped beside reasoning"
    await apart.runtime.close()


async def test_the_models_own_limit_of_output_holds(tmp_path: Path) -> None:
    world = world_of(tmp_path, supports=ModelLimitsConfig(max_output_tokens=9))
    for number, (asked, given) in enumerate([(None, 9), (20, 9), (5, 5)]):
        await begin(world, "Hello", id=str(number), max_tokens=asked)
        assert (await world.engine.run(number)).job.max_tokens == given
    await world.runtime.close()


@pytest.mark.parametrize(
    ("supports", "temperature"),
    [
        (ModelLimitsConfig(temperature=False), 0.5),
        (ModelLimitsConfig(temperature_max=1.0), 1.1),
        (ModelLimitsConfig(temperature_with_reasoning=False), 0.5),
        (ModelLimitsConfig(), 2.1),
        (ModelLimitsConfig(), -0.1),
    ],
)
async def test_a_requests_temperature_that_the_model_does_not_take_is_unsupported(
    tmp_path: Path, supports: ModelLimitsConfig, temperature: float
) -> None:
    world = world_of(tmp_path, supports=supports)
    outcome = await (await begin(world, "Hello", temperature=temperature)).result()
    assert isinstance(outcome, WireError) and outcome.code == "unsupported" and "temperature" in outcome.message
    await world.runtime.close()
