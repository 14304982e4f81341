"""How a connection's model generates: what its owner wishes, brought to what the model takes (complete-binding).

The wishes stay as they are written. What comes of them is settled once, with the connection's capabilities, and no
request changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from server.chat import Capabilities
from server.config import ModelConfig
from server.engine.sampling.params import PARAMS
from server.wire.records import ReasoningEffort

LADDER: tuple[ReasoningEffort, ...] = get_args(ReasoningEffort)


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Parameters of generation. None: nothing is asked of the model, it does as its file and template have it."""

    reasoning_effort: ReasoningEffort | None = None
    thinking: bool | None = None
    temperature: float | None = None

    @property
    def reasons(self) -> bool:
        """True where the model is told to reason: a switch is on, or an effort is set and none is off."""
        return self.thinking is True or (self.thinking is None and self.reasoning_effort is not None)


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Limits of a model's parameters. `temperature_max` is inclusive; `max_output_tokens` 0: no limit."""

    reasoning_efforts: Sequence[ReasoningEffort] = ()
    thinking: bool = False
    temperature: bool = True
    temperature_max: float = float(PARAMS["temperature"].high)
    temperature_with_reasoning: bool = True
    max_output_tokens: int = 0


def supported(config: ModelConfig, capabilities: Capabilities) -> ModelLimits:
    """Limits that the owner states and the template can express: never more than either."""
    said = config.supports
    efforts = capabilities.reasoning_efforts
    if said.reasoning_efforts is not None:
        efforts = tuple(effort for effort in efforts if effort in said.reasoning_efforts)
    return ModelLimits(
        reasoning_efforts=efforts,
        thinking=capabilities.thinking and said.thinking is not False,
        temperature=said.temperature,
        temperature_max=said.temperature_max,
        temperature_with_reasoning=said.temperature_with_reasoning,
        max_output_tokens=said.max_output_tokens,
    )


def resolve(wished: GenerationDefaults, supports: ModelLimits) -> GenerationDefaults:
    """The parameters to generate with. Resolving what has been resolved changes nothing.

    An effort goes to the nearest that is supported, of two as near to the lower, and is left out only where there is
    none: thinking that is off leaves it as it is (mhome LLM contract, "Invocation policy"). Thinking can be switched
    only where that is supported, and is on there unless it is switched off. A temperature is kept where it is
    supported, up to its maximum, and beside reasoning only where both go together.
    """
    thinking = (wished.thinking is not False) if supports.thinking else None
    effort = None
    if wished.reasoning_effort is not None and supports.reasoning_efforts:
        effort = nearest(wished.reasoning_effort, supports.reasoning_efforts)
    temperature = None
    if wished.temperature is not None and supports.temperature:
        temperature = min(wished.temperature, supports.temperature_max)
    resolved = GenerationDefaults(effort, thinking, temperature)
    if resolved.reasons and not supports.temperature_with_reasoning:
        return GenerationDefaults(effort, thinking)
    return resolved


def nearest(wished: ReasoningEffort, efforts: Sequence[ReasoningEffort]) -> ReasoningEffort:
    """The one of these efforts that is nearest on the ladder, of two the lower."""
    at = LADDER.index(wished)
    return min(efforts, key=lambda effort: (abs(LADDER.index(effort) - at), LADDER.index(effort)))
