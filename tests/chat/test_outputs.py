"""What models of each family write, and its right reading: `outputs.jsonl`, tools first, then a case a line.

`thinking_open`: the prompt ends inside thinking; `lead`: in this text. `malformed`: a completed output like this is a
failure. White space at the ends of text and thinking does not count.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from server.chat.arguments import member_types
from server.chat.format import Format
from server.chat.formats import recognise
from server.chat.parser import MalformedOutput, ParserSpec
from server.chat.probe import probe
from server.chat.template import Template
from tests.chat.blocks import read

_LINES = [json.loads(line) for line in (Path(__file__).parent / "outputs.jsonl").read_text().splitlines()]
TOOLS, CASES = _LINES[0]["tools"], _LINES[1:]


def spec(format: Format, case: dict[str, Any]) -> ParserSpec:
    kinds = {tool["name"]: member_types(tool["parameters"]) for tool in TOOLS}
    lead = format.thinking.open if format.thinking and case.get("thinking_open") else case.get("lead", "")
    free = format.forced and not case["expect"]["calls"]
    return ParserSpec(format, "ignored" if free else "allowed", kinds, lead=lead)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['family']}-{case['id']}")
def test_reading(templates: dict[str, str], case: dict[str, Any]) -> None:
    source = templates[case["template"]]
    reader = spec(recognise(source, probe(Template(source)).sample), case)
    if case.get("malformed"):
        for pieces in ([case["raw"]], list(case["raw"])):
            with pytest.raises(MalformedOutput):
                read(reader, pieces)
        return
    expected = case["expect"]
    reading = read(reader, [case["raw"]])
    assert reading.calls == [(call["name"], call["arguments"]) for call in expected["calls"]]
    assert reading.of("text").strip() == expected["text"]
    assert reading.of("thinking").strip() == expected["thinking"]
    assert read(reader, list(case["raw"])) == reading
