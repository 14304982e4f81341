"""The examples of OpenAI clients in docs/clients.md run as they stand, against a model with a script."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from server.config import ModelConfig, ModelSource
from server.http.openai import chat, responses
from server.wire.records import TextPart
from tests.conftest import ROOT
from tests.http.openai.conftest import Api, api_of
from tests.readme import ADDRESS, Block, printed, runs

SECTION = (ROOT / "docs/api.md").read_text(encoding="utf-8").split("\n## OpenAI API\n")[1].split("\n## ")[0]


@pytest_asyncio.fixture
async def local(tmp_path: Path) -> AsyncIterator[Api]:
    """As the repository's `models.toml` names it."""
    connection = ModelConfig(key="smollm2", name="", model="SmolLM2", source=ModelSource(path=tmp_path / "model.gguf"))
    async with api_of(tmp_path, connections=(connection,)) as api:
        yield api


def here(api: Api, example: Block) -> str:
    return example.text.replace(ADDRESS, f"http://127.0.0.1:{api.site.port}")


@runs("OpenAI clients", 1, 2, 3, 4, 5, file="docs/clients.md")
async def test_the_examples_run(examples: tuple[Block, ...], local: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", local.client.api_key)
    names: dict[str, Any] = {"__name__": "example"}

    local.call("call", city="Seoul", name="get_weather")
    script = [[["Hel", "lo."]], [["call"], ["Warm."]], [['{"name": "Ann", "age": 32}']], [["call"], ["Mild."]], []]
    said = []
    for example, turns in zip(examples, script, strict=True):
        task = asyncio.create_task(asyncio.to_thread(printed, here(local, example), names))
        for texts in turns:
            await local.says(*texts)
        said.append(await task)
    assert said == [
        "Hello.",
        "Warm.\n",
        "name='Ann' age=32\n",
        "Mild.\n",
        "frequency_penalty unsupported_parameter\n",
    ]
    given = [conversation.messages[-1].content for conversation in local.world.chat.conversations]
    assert given[2] == (TextPart("22 degrees in Seoul"),) and given[5] == (TextPart("22 degrees"),)


@pytest.mark.slow
@runs("OpenAI clients", 6, 7, file="docs/clients.md")
async def test_the_llm_command_line_runs(examples: tuple[Block, ...], local: Api, tmp_path: Path) -> None:
    configuration, command = examples
    directory = tmp_path / "llm"
    directory.mkdir()
    (directory / "extra-openai-models.yaml").write_text(here(local, configuration))
    scripts = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "LLM_USER_PATH": str(directory),
        "TOKEN": local.client.api_key,
        "PATH": scripts + os.pathsep + os.environ["PATH"],
    }
    process = await asyncio.create_subprocess_shell(
        command.text, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    await local.says("Hello.")
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert out.decode().strip() == "Hello."


def test_the_table_names_every_parameter() -> None:
    _, honoured, inert, _ = (row for row in SECTION.splitlines() if row.startswith("| ") and not row.startswith("| -"))
    named = [set(re.findall(r"`(\w+)`", row)) for row in (honoured, inert)]
    policies = (chat.PARAMETERS, responses.PARAMETERS)
    # `include` serves log probabilities; `text` is there as `text.format`.
    assert named[0] == set().union(*(policy.honoured for policy in policies)) - {"include", "text"} | {"allowed_tools"}
    assert named[1] == set().union(*(policy.ignored for policy in policies))
