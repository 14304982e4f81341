"""The table of sampler parameters: the fields of `Sampling`, in the order of the sampler chain.

The chain itself (`server.engine.sampling.sampler`), the `[models.KEY.sampling]` table of the configuration, the OpenAI
API's readers and the comments in `models.toml` follow from it: a new parameter is a field here and a line there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

PENALTY_WINDOW = 64
"""Tokens the repetition penalty looks back on; llama.cpp's own default."""

Build = Callable[[Any, Any, int], Any]
"""Makes the parameter's step of the chain, from llama.cpp's functions, the value, and the size of the vocabulary."""


@dataclass(frozen=True, slots=True)
class Param:
    """One sampler parameter."""

    name: str
    default: float | None
    low: float
    high: float
    help: str
    """What stands beside it in `models.toml`."""
    build: Build | None
    """None: no step of its own (the seed)."""
    whole: bool
    """An integer."""
    off: float | None
    """The value at which its step changes nothing, and is left out; None: there is none."""
    penalty: bool
    """Its step depends on the tokens so far and can change which one is likeliest: greedy decoding has it too."""


def _param(
    default: float | None,
    low: float,
    high: float,
    help: str,
    build: Build | None = None,
    *,
    whole: bool = False,
    off: float | None = None,
    penalty: bool = False,
) -> Any:
    told = {"low": low, "high": high, "help": help, "build": build, "whole": whole, "off": off, "penalty": penalty}
    return field(default=default, metadata=told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters of one generation, in the order in which they are applied. Temperature 0 is greedy."""

    repeat_penalty: float = _param(
        1.0,
        0.01,
        100,
        "1: off",
        lambda c, value, size: c.llama_sampler_init_penalties(size, PENALTY_WINDOW, value, 0.0, 0.0),
        off=1,
        penalty=True,
    )
    top_k: int = _param(
        40, 0, 2**20, "0: off", lambda c, value, _: c.llama_sampler_init_top_k(value), off=0, whole=True
    )
    top_p: float = _param(0.95, 0, 1, "1: off", lambda c, value, _: c.llama_sampler_init_top_p(value, 1), off=1)
    min_p: float = _param(0.05, 0, 1, "0: off", lambda c, value, _: c.llama_sampler_init_min_p(value, 1), off=0)
    temperature: float = _param(0.8, 0, 2, "0: greedy", lambda c, value, _: c.llama_sampler_init_temp(value))
    seed: int | None = _param(None, -(2**63), 2**64 - 1, "default: a new one for every generation", whole=True)


PARAMS: Mapping[str, Param] = MappingProxyType(
    {each.name: Param(each.name, getattr(Sampling(), each.name), **each.metadata) for each in fields(Sampling)}
)
"""By name, in the order of the chain."""
