"""The README's examples of the Python client run as they stand, against SmolLM2."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from server.app import create_app
from server.client import StopReason
from server.config import Config, ConnectionConfig, ServerConfig, Source
from server.state import TokenStore
from server.wire.records import TextPart
from tests.conftest import ROOT
from tests.http.conftest import listening

ADDRESS = "http://127.0.0.1:8033"
SECTION = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Python client\n")[1].split("\n## ")[0]
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)


def test_the_table_lists_every_stop() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", SECTION, re.MULTILINE)) - {"stop_reason"} == set(get_args(StopReason))


async def test_the_examples_run(tmp_path: Path, smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = ConnectionConfig(
        "smollm2", "SmolLM2", "SmolLM2-135M-Instruct", Source(path=smollm2), context_length=2048, threads=1
    )
    tokens = TokenStore(tmp_path / "state")
    monkeypatch.setenv("TOKEN", tokens.create("readme", consent="always"))
    names: dict[str, Any] = {"__name__": "example"}

    def run(example: str, port: int) -> tuple[str, Any]:
        """What it prints, and its last turn."""
        out = io.StringIO()
        code = compile(example.replace(ADDRESS, f"http://127.0.0.1:{port}"), "README.md", "exec", dont_inherit=True)
        with contextlib.redirect_stdout(out):
            exec(code, names)
        return out.getvalue(), names.get("result")

    async with listening(create_app(Config(ServerConfig(), (connection,)), tokens=tokens)) as port:
        hello, loop, by_hand, error, story = [await asyncio.to_thread(run, each, port) for each in EXAMPLES]
    assert hello[0].endswith("stop\n") and len(hello[0]) > 10
    _, weather = loop
    assert weather.stop_reason in get_args(StopReason) and weather.messages[2].tool_name == "get_weather"
    assert '"temperature": 22' in weather.messages[2].content[0].text
    _, answered = by_hand
    assert [m.role for m in answered.messages[:3]] == ["user", "assistant", "toolResult"]
    assert answered.messages[2].content == (TextPart("Yes."),)
    _, failed = error
    assert failed.messages[2].is_error and failed.messages[2].content == (TextPart("failed: OSError"),)
    assert story[0].startswith("cancelled ")
