"""The README's examples of `/llm/complete` run as they stand, over real HTTP, against a model with a script."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from server.chat.events import BlockDelta, BlockEnd, BlockStart
from server.config import ConnectionConfig, Route, Source, load_config
from server.http.complete import STATUS
from tests.conftest import ROOT
from tests.http.conftest import site_of

ADDRESS = "http://127.0.0.1:8033"
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = PAGE.split("\n## One request, one response\n")[1].split("\n## ")[0]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)


SCRIPT = [[["Hello."]], [["call"], ["22 degrees."]], [['{"name":"Ann"}']]]
PRINTED = ["Hello. stop\n", "22 degrees.\n1\n", '{"name":"Ann"}\n']


async def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = ConnectionConfig("smollm2", "SmolLM2", "SmolLM2", Source(path=tmp_path / "model.gguf"))
    async with site_of(tmp_path, connections=(connection,)) as site:
        monkeypatch.setenv("TOKEN", site.client.headers["authorization"].removeprefix("Bearer "))
        site.world.chat.script["call"] = [
            BlockStart(0, "toolCall", name="get_weather"),
            BlockDelta(0, '{"city":"Seoul"}'),
            BlockEnd(0),
        ]
        names: dict[str, Any] = {"__name__": "example"}

        def run(example: str) -> str:
            """What it prints."""
            here = example.replace(ADDRESS, f"http://127.0.0.1:{site.port}")
            code = compile(here, "README.md", "exec", dont_inherit=True)
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, names)
            return out.getvalue()

        engine = site.world.engine
        for example, turns, printed in zip(blocks("python"), SCRIPT, PRINTED, strict=True):
            task = asyncio.create_task(asyncio.to_thread(run, example))
            for texts in turns:
                started = asyncio.create_task(engine.run(len(engine.runs)))
                await asyncio.wait((task, started), return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    started.cancel()
                    break
                (await started).say(*texts)
                (await started).done(tokens=(1, 2, 3))
            assert await task == printed
        second = site.world.chat.conversations[2]
        assert [*second.turns] == [1] and second.messages[2].tool_name == "get_weather"
        assert site.world.chat.conversations[3].schema == names["schema"]


def test_the_routes_are_configuration(tmp_path: Path) -> None:
    (example,) = blocks("toml")
    file = tmp_path / "models.toml"
    file.write_text(f'[models.smollm2]\nmodel = "m"\nsource.path = "m.gguf"\n{example}', encoding="utf-8")
    routes = {Route("chat", None), Route("chat", "quick"), Route(None, "quick")}
    assert load_config(file).routes == dict.fromkeys(routes, "smollm2")


def test_every_failure_has_its_status_there() -> None:
    said = re.findall(r"(\d{3})\s+`([a-z-]+)`", SECTION)
    assert {code: int(status) for status, code in said} == STATUS
