"""Whatever is cached, shared or decoded together: greedy outputs are what each job gives alone.

On F32 weights, whose results hardly depend on what else is in a batch; quantized ones differ by llama.cpp's numerics.
"""

from __future__ import annotations

from array import array
from itertools import count
from pathlib import Path

import pytest

from server.engine import EngineRequest, Finished, Sampling
from server.engine.protocol import AddRequest
from server.engine.worker import loader
from tests.chat.standin import write_model
from tests.engine.bench import Bench
from tests.engine.planned import sized

_numbers = count(1)


@pytest.fixture(scope="module")
def models(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By architecture: what is seen of the past is all of it, a window, or a running state."""
    directory = tmp_path_factory.mktemp("exact")
    vocabulary = sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf"
    found = {name: directory / f"{name}.gguf" for name in ("llama", "gemma3", "mamba")}
    for name, path in found.items():
        write_model(path, vocabulary, [], size=600, architecture=name, layers=6 if name == "gemma3" else 2)
    return found


def conversations() -> list[array[int]]:
    """Eight prompts: a common opening, two groups within it, and tails of many lengths."""
    opening = [(7 * n) % 500 for n in range(60)]
    groups = [[(11 * n + group) % 500 for n in range(40)] for group in range(2)]
    return [
        array("i", [*opening, *groups[number % 2], *[(number * 37 + 5 * n) % 500 for n in range(3 + 9 * number)]])
        for number in range(8)
    ]


class Runs:
    """One worker, asked again and again."""

    def __init__(self, path: Path, slots: int = 8, length: int = 400) -> None:
        self.bench = Bench(path, context_length=length, slots=slots)

    def together(self, prompts: list[array[int]], scopes: list[str]) -> tuple[list[bytes], list[int]]:
        """What jobs that arrive at once give, and how many tokens of each prompt were cached."""
        bench = self.bench
        numbers = [next(_numbers) for _ in prompts]
        for number, prompt, scope in zip(numbers, prompts, scopes, strict=True):
            bench.worker.channel.put(
                AddRequest(EngineRequest(number, prompt, Sampling(temperature=0), scope, 0, max_tokens=24))
            )
        bench.worker.step()
        while bench.worker.scheduler.running or bench.worker.scheduler.queue:
            bench.worker.step()
        bench.await_ends(numbers)
        ends = [bench.ends[number] for number in numbers]
        assert all(isinstance(end, Finished) for end in ends), ends
        return [bench.outputs.get(number, b"") for number in numbers], [
            end.cache_read_tokens for end in ends if isinstance(end, Finished)
        ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "cells"), [("llama", None), ("llama", 1600), ("gemma3", None), ("gemma3", 1600), ("mamba", None)]
)
def test_cache_and_company_change_no_output(
    models: dict[str, Path], architecture: str, cells: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In cells of each sequence's own, and in a pool."""
    if cells is not None:
        monkeypatch.setattr(loader, "best_plan", sized(400, cells))
    runs = Runs(models[architecture])
    prompts = conversations()
    alone = []
    for number, prompt in enumerate(prompts):
        [output], [cached] = runs.together([prompt], [f"alone {number}"])
        assert cached == 0
        alone.append(output)
    assert len(set(alone)) == 8, "prompts tell"
    apart, cached = runs.together(prompts, [f"apart {number}" for number in range(8)])
    assert apart == alone and not any(cached), "eight in a batch"
    shared, cached = runs.together(prompts, ["shared"] * 8)
    assert shared == alone, "eight that share their beginning while it is prefilled"
    cuts = architecture == "llama" or (architecture == "gemma3" and cells is not None)
    assert not cuts or sum(cached) >= 7 * 60
    again, cached = runs.together(prompts, ["shared"] * 8)
    assert again == alone, "all cached"
    assert not cuts or all(each >= 60 for each in cached)
    longer = [array("i", [*prompt, 17, 18, 19]) for prompt in prompts]
    grown, _ = runs.together(longer, ["shared"] * 8)
    fresh, _ = runs.together(longer, [f"fresh {number}" for number in range(8)])
    assert grown == fresh, "conversations that go on"
    runs.bench.close()


@pytest.mark.parametrize("architecture", ["gemma3", "mamba"])
def test_a_long_conversation_goes_on_from_what_is_left_of_it(models: dict[str, Path], architecture: str) -> None:
    """A prompt that is the whole of an earlier conversation and more: longer than a window of 512."""
    runs = Runs(models[architecture], slots=2, length=1000)
    prompt = array("i", [(13 * n) % 577 for n in range(700)])
    [said], _ = runs.together([prompt], ["one"])
    held = next(slot.tokens for slot in runs.bench.worker.scheduler.slots if len(slot.tokens) > len(prompt))
    longer = array("i", [*held, 21, 22, 23])
    [warm], [cached] = runs.together([longer], ["one"])
    [cold], [none] = runs.together([longer], ["two"])
    assert (cached, none) == (len(held), 0)
    assert warm == cold
    [warm], _ = runs.together([prompt], ["one"])  # far behind what the window has seen since
    assert warm == said
    runs.bench.close()
