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
from server.chat.formats import FORMATS, recognise
from server.chat.parser import MalformedOutput, ParserSpec
from server.chat.probe import probe
from server.chat.spell import spell
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


def test_every_format_has_a_case(templates: dict[str, str]) -> None:
    shown = {case["template"] for case in CASES if not case.get("malformed")}
    found = {recognise(templates[name], probe(Template(templates[name])).sample).name for name in shown}
    assert found >= FORMATS.keys()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_broken_outputs_of_every_format_fail_and_tell_nothing(name: str) -> None:
    """Unknown tools, and calls that end by themselves anywhere behind their name; the reason holds none of it."""
    format = FORMATS[name]
    kinds = {tool["name"]: member_types(tool["parameters"]) for tool in TOOLS}
    reader = ParserSpec(format, "allowed", kinds)
    for calls in format.calls:
        id = "0" if calls.id.startswith("[0-9]") else "abcdefgh1"
        whole = str.__str__(spell(calls, [("save_note", id, {"text": "Secret words"})]))
        unknown = whole.replace("save_note", "secret_tool")
        begin = whole.index("Secret")
        closed = len(whole.rstrip()) - (len(calls.end.strip()) or len(str(calls.call[-1]).strip()) or 1)
        broken = [whole[:size] for size in range(begin, closed)]
        for output in broken if calls.anchored or format.framed else [unknown, *broken]:
            with pytest.raises(MalformedOutput) as caught:
                read(reader, [output])
            assert "ecret" not in caught.value.reason
