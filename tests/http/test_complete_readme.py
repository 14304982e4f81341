"""The examples of `/llm/complete` in docs/api.md run as they stand, over real HTTP, against a model with a script."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from server.chat.events import BlockDelta, BlockEnd, BlockStart
from server.config import ModelConfig, ModelSource, load_config
from server.http.api import STATUS
from server.http.openai import errors
from tests.conftest import ROOT
from tests.http.conftest import site_of
from tests.http.test_complete import answer
from tests.readme import ADDRESS, Block, printed, runs

PAGE = (ROOT / "docs/api.md").read_text(encoding="utf-8")
ERRORS = PAGE.split("\n## Errors\n")[1]


SCRIPT = [[["Hello."]], [["call"], ["22 degrees."]], [['{"name":"Ann"}']]]
PRINTED = ["Hello. stop\n", "22 degrees.\n1\n", '{"name":"Ann"}\n']


@runs("/llm/complete", 1, 2, 3, file="docs/api.md")
async def test_the_examples_run(examples: tuple[Block, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = ModelConfig("smollm2", "SmolLM2", "SmolLM2", ModelSource(path=tmp_path / "model.gguf"))
    async with site_of(tmp_path, connections=(connection,)) as site:
        monkeypatch.setenv("TOKEN", site.client.headers["authorization"].removeprefix("Bearer "))
        site.world.chat.script["call"] = [
            BlockStart(0, "toolCall", name="get_weather"),
            BlockDelta(0, '{"city":"Seoul"}'),
            BlockEnd(0),
        ]
        names: dict[str, Any] = {"__name__": "example"}

        engine = site.world.engine
        for example, turns, expected in zip(examples, SCRIPT, PRINTED, strict=True):
            here = example.text.replace(ADDRESS, f"http://127.0.0.1:{site.port}")
            task = asyncio.create_task(asyncio.to_thread(printed, here, names))
            for texts in turns:
                started = asyncio.create_task(engine.run(len(engine.runs)))
                await asyncio.wait((task, started), return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    started.cancel()
                    break
                (await started).say(*texts)
                (await started).done(tokens=(1, 2, 3))
            assert await task == expected
        second = site.world.chat.conversations[2]
        assert [*second.kept_tokens] == [1] and second.messages[2].tool_name == "get_weather"
        assert site.world.chat.conversations[3].response_schema == names["schema"]


@runs("/llm/complete", 4, file="docs/api.md")
async def test_the_routes_lead_where_they_say(examples: tuple[Block, ...], tmp_path: Path) -> None:
    """Of two connections the example names the second, which nothing else would choose."""
    (example,) = examples
    tables = "".join(f'[models.{key}]\nmodel = "{key}-1"\nsource.path = "model.gguf"\n' for key in ("first", "smollm2"))
    file = tmp_path / "models.toml"
    file.write_text(tables + example.text, encoding="utf-8")
    config = load_config(file)
    wanted = [json.loads(each) for each in re.findall(r"# (\{.+\})$", example.text, re.MULTILINE)]
    assert len(wanted) == len(config.routes) == 3
    async with site_of(tmp_path, connections=config.connections, routes=config.routes) as site:
        assert (await answer(site))["route"]["model"] == "first-1"
        for members in wanted:
            route = (await answer(site, **members))["route"]
            assert (route["model"], route["mode"]) == ("smollm2-1", members.get("mode", "default"))


def test_every_failure_has_its_status_there() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d{3}|–) \| (\d{3}) \|", ERRORS, re.MULTILINE)
    assert {code: int(complete) for code, complete, _ in rows if complete != "–"} == STATUS
    assert {code: int(openai) for code, _, openai in rows} == errors._STATUS
