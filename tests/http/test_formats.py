"""Native tool calls end to end: SmolLM2, whose tokens are ChatML, with the template of another family."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from server.config import ModelConfig, ModelSource
from tests.conftest import ROOT
from tests.http.test_real import TOOL, House, housing

FORMATS = ("hermes", "llama3", "lfm2")
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=FORMATS)
async def house(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, smollm2: Path
) -> AsyncIterator[House]:
    template = (ROOT / f"benchmarks/templates/{request.param}.jinja").read_text(encoding="utf-8")
    connection = ModelConfig(
        "native", "Native", "native", ModelSource(path=smollm2), context_length=2048, threads=1, template=template
    )
    async with housing(tmp_path_factory.mktemp("state"), connection) as house:
        yield house


@pytest.mark.parametrize("choice", ["required", {"type": "tool", "name": "book_table"}], ids=["required", "named"])
async def test_forced_calls(house: House, choice: Any) -> None:
    asked = {"tools": [TOOL], "toolChoice": choice, "temperature": 0.8, "maxTokens": 800}
    deltas, result = await house.generate("call", "A table for two, please.", **asked)
    assert result["result"]["finish"] == "toolUse", result
    assert all(part["type"] == "toolCall" for part in result["result"]["content"])
    for index, part in enumerate(result["result"]["content"]):
        jsonschema.validate(part["arguments"], TOOL["parameters"])
        told = "".join(each.get("text", "") for each in deltas if each["blockIndex"] == index)
        assert json.loads(told) == part["arguments"]


async def test_a_call_goes_back_in_and_an_answer_comes(house: House) -> None:
    asked = {"tools": [TOOL], "toolChoice": {"type": "tool", "name": "book_table"}, "maxTokens": 800}
    _, first = await house.generate("one", "A table?", **asked)
    (call,) = first["result"]["content"]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "A table?"}]},
        {"role": "assistant", "content": [call]},
        {
            "role": "toolResult",
            "toolCallId": call["toolCallId"],
            "toolName": call["name"],
            "content": [{"type": "text", "text": "booked"}],
        },
    ]
    _, second = await house.generate("two", "", messages=messages, tools=[TOOL], toolChoice="none")
    assert second["result"]["finish"] in ("stop", "length"), second
    assert [part["type"] for part in second["result"]["content"]] == ["text"]


async def test_auto_leaves_text_alone(house: House) -> None:
    _, result = await house.generate("auto", "What is the capital of France?", tools=[TOOL], toolChoice="auto")
    assert result["result"]["finish"] in ("stop", "length"), result
    assert [part["type"] for part in result["result"]["content"]] == ["text"]
