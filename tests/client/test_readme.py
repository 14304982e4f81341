"""The Python client's examples in docs/clients.md run as they stand, over real HTTP, against a scripted model."""

from __future__ import annotations

import asyncio
import re
from typing import Any, get_args

import pytest

from server.client import StopReason
from server.wire.records import NamedTool, TextPart
from tests.client.scripted import Fragment, Server, call, calls, held, says
from tests.conftest import ROOT
from tests.http.conftest import listening
from tests.readme import ADDRESS, Block, printed, runs

SECTION = (ROOT / "docs/clients.md").read_text(encoding="utf-8").split("\n## Python client\n")[1].split("\n## ")[0]


def test_the_table_lists_every_stop() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", SECTION, re.MULTILINE)) - {"stop_reason"} == set(get_args(StopReason))


@runs("Python client", 1, 2, 3, 4, 5, file="docs/clients.md")
async def test_the_examples_run(examples: tuple[Block, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    names: dict[str, Any] = {"__name__": "example"}
    server = Server(
        says("Hello."),
        calls(call("get_weather", city="Seoul")),
        says("22 degrees."),
        calls(call("ask_owner")),
        says("You may."),
        calls(call("read_secret")),
        says("I cannot."),
        held(Fragment("text", "Once"), Fragment("text", " upon"), Fragment("text", " a time")),
    )

    async with listening(server.application()) as port:
        here = [each.text.replace(ADDRESS, f"http://127.0.0.1:{port}") for each in examples]
        said = [await asyncio.to_thread(printed, each, names) for each in here]
    assert said == ["Hello.stop\n", "22 degrees.\n", "completed\n", "completed\n", "cancelled 16\n"]
    _, asked, told, _, by_hand, _, failed, _ = server.requests
    assert asked.tool_choice == NamedTool("get_weather") and asked.tools[0].parameters["required"] == ["city"]
    assert told.messages[-1].content == (TextPart('{"city": "Seoul", "temperature": 22, "unit": "celsius"}'),)
    assert by_hand.messages[-1].content == (TextPart("Yes."),)
    assert failed.messages[-1].content == (TextPart("failed: OSError"),) and failed.messages[-1].is_error
