"""The table of sampler parameters: all that is made from it agrees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.config import ConfigError, load_config
from server.engine import Sampling, llama
from server.engine.sampling.params import PARAMS, Param
from server.engine.sampling.sampler import TokenSampler
from server.http.openai import chat, responses
from server.http.openai.errors import ApiError
from tests.conftest import ROOT

EXAMPLES = {"seed": "42"}
"""Shown in `models.toml` in place of a default that is none."""


def configured(directory: Path, name: str, value: float) -> float:
    file = directory / "models.toml"
    file.write_text(f'[models.m]\nmodel = "m"\nsource.path = "m.gguf"\nsampling.{name} = {value!r}\n')
    return getattr(load_config(file).connections[0].sampling, name)  # type: ignore[no-any-return]


def asked(projection: Any, name: str, value: float) -> float:
    prompt = {"messages": [{"role": "user", "content": "x"}]} if projection is chat else {"input": "x"}
    read = projection.read({"model": "m", **prompt, name: value})
    return read.temperature if name == "temperature" else read.sampling[name]  # type: ignore[no-any-return]


@pytest.mark.parametrize("param", PARAMS.values(), ids=PARAMS)
def test_configuration_and_requests_take_the_same_values(param: Param, tmp_path: Path) -> None:
    for value in (param.low, param.high):
        assert configured(tmp_path, param.name, value) == value
        assert [asked(projection, param.name, value) for projection in (chat, responses)] == [value, value]
    step = 1 if param.whole else 0.001
    for value in (param.low - step, param.high + step):
        with pytest.raises(ConfigError, match=param.name):
            configured(tmp_path, param.name, value)
        for projection in (chat, responses):
            with pytest.raises(ApiError, match=param.name):
                asked(projection, param.name, value)


def test_the_shipped_configuration_shows_the_table() -> None:
    text = (ROOT / "models.toml").read_text(encoding="utf-8")
    section = text.partition(".sampling]")[2].partition("\n")[2].partition("\n\n")[0]
    assert section.splitlines() == [
        f"# {name} = {EXAMPLES.get(name, param.default)}".ljust(36) + f"# {param.help}"
        for name, param in PARAMS.items()
    ]


def test_the_console_bounds_the_temperature_alike() -> None:
    html = (ROOT / "server/console/index.html").read_text(encoding="utf-8")
    param = PARAMS["temperature"]
    assert f'id="request-temperature" type="number" min="{param.low:g}" max="{param.high:g}"' in html


OFF: dict[str, Any] = {name: param.off for name, param in PARAMS.items() if param.off is not None}


@pytest.mark.parametrize(("name", "value"), [("top_k", 1), ("top_p", 0.01), ("min_p", 1), ("temperature", 0.001)])
def test_a_parameter_bends_the_draw_by_itself(name: str, value: float) -> None:
    logits = np.linspace(1, 0, 50).astype(np.float32)

    def drawn(**given: Any) -> set[int]:
        sampler = TokenSampler(Sampling(**{**OFF, "temperature": 1, "seed": 1, **given}), (), llama.CandidateArray(50))
        return {sampler.choose(logits.copy(), None) for _ in range(50)}

    assert len(drawn()) > 10
    assert len(drawn(**{name: value})) < 3


@pytest.mark.parametrize("temperature", [0, 0.01])
def test_a_penalty_holds_under_greedy_decoding_too(temperature: float) -> None:
    sampler = TokenSampler(
        Sampling(**{**OFF, "temperature": temperature, "repeat_penalty": 2.0}), (), llama.CandidateArray(3)
    )
    logits = np.array([1.0, 0.9, 0.1], np.float32)
    assert sampler.choose(logits.copy(), None) == 0
    sampler.accept(0)
    assert sampler.choose(logits.copy(), None) == 1
