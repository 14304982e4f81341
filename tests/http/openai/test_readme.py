"""The README's examples of OpenAI clients run as they stand, against a model with a script."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from server.config import ConnectionConfig, Source
from server.http.openai import chat, responses
from server.wire.records import TextPart
from tests.conftest import ROOT
from tests.http.openai.conftest import Api, api_of

ADDRESS = "http://127.0.0.1:8033"
SECTION = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## OpenAI clients\n")[1].split("\n## ")[0]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)


@pytest_asyncio.fixture
async def local(tmp_path: Path) -> AsyncIterator[Api]:
    """As the repository's `models.toml` names it."""
    connection = ConnectionConfig(key="smollm2", name="", model="SmolLM2", source=Source(path=tmp_path / "model.gguf"))
    async with api_of(tmp_path, connections=(connection,)) as api:
        yield api


def here(api: Api, example: str) -> str:
    return example.replace(ADDRESS, f"http://127.0.0.1:{api.site.port}")


async def test_the_examples_run(local: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", local.client.api_key)
    names: dict[str, Any] = {"__name__": "example"}

    def run(example: str) -> str:
        """What it prints."""
        code = compile(here(local, example), "README.md", "exec", dont_inherit=True)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, names)
        return out.getvalue()

    local.call("call", city="Seoul", name="get_weather")
    script = [[["Hel", "lo."]], [["call"], ["Warm."]], [['{"name": "Ann", "age": 32}']], [["call"], ["Mild."]], []]
    printed = []
    for example, turns in zip(blocks("python"), script, strict=True):
        task = asyncio.create_task(asyncio.to_thread(run, example))
        for texts in turns:
            await local.says(*texts)
        printed.append(await task)
    assert printed == [
        "Hello.",
        "Warm.\n",
        "name='Ann' age=32\n",
        "Mild.\n",
        "frequency_penalty unsupported_parameter\n",
    ]
    given = [conversation.messages[-1].content for conversation in local.world.chat.conversations]
    assert given[2] == (TextPart("22 degrees in Seoul"),) and given[5] == (TextPart("22 degrees"),)


async def test_the_llm_command_line_runs(local: Api, tmp_path: Path) -> None:
    (configuration,), (command,) = blocks("yaml"), blocks("sh")
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
        command, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
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
    assert named[1] == set().union(*(policy.inert for policy in policies))
