"""What models of each family write, and its right reading: `outputs.jsonl`, tools first, then a case a line.

`thinking_open`: the prompt ends inside thinking; `lead`: in this text. `malformed`: a completed output like this is a
failure; `id`: the call's, as its model gave it. White space at the ends of text and thinking does not count.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from server.chat.arguments import argument_types
from server.chat.formats import FORMATS, recognise
from server.chat.formats.render import render_tool_calls
from server.chat.formats.spec import ChatFormat
from server.chat.parser import MalformedOutput, OutputParser, ParserSpec
from server.chat.template.capabilities import detect_capabilities
from server.chat.template.template import Template
from tests.chat.blocks import read

_LINES = [json.loads(line) for line in (Path(__file__).parent / "outputs.jsonl").read_text().splitlines()]
TOOLS, CASES = _LINES[0]["tools"], _LINES[1:]


def spec(format: ChatFormat, case: dict[str, Any]) -> ParserSpec:
    kinds = {tool["name"]: argument_types(tool["parameters"]) for tool in TOOLS}
    lead = format.reasoning_tags.open if format.reasoning_tags and case.get("thinking_open") else case.get("lead", "")
    free = format.grammar_only and not case["expect"]["calls"]
    return ParserSpec(format, "ignored" if free else "allowed", kinds, prompt_opening=lead)


@pytest.fixture(scope="module")
def formats(templates: dict[str, str]) -> dict[str, ChatFormat]:
    """The format of each template, as it is recognised."""
    return {name: recognise(source, detect_capabilities(Template(source)).sample) for name, source in templates.items()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['family']}-{case['id']}")
def test_reading(formats: dict[str, ChatFormat], case: dict[str, Any]) -> None:
    """Under the template of the case, and under every other of its format."""
    format = formats[case["template"]]
    others = [other for other in formats.values() if other.name == format.name]
    # Some models of a family do not think; what theirs would write is no case of them.
    for each in [format, *(other for other in others if other.reasoning_tags == format.reasoning_tags)]:
        reads(each, case)


def reads(format: ChatFormat, case: dict[str, Any]) -> None:
    reader = spec(format, case)
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
    parser = OutputParser(reader)
    parser.feed(case["raw"])
    parser.finish("stop")
    for call, id in zip(expected["calls"], parser.ids, strict=True):
        whole = format.id_template.format(name=call["name"], index=id, short=id) if format.id_template else id
        assert call.get("id", whole) == whole


def test_every_format_has_a_case(formats: dict[str, ChatFormat]) -> None:
    shown = {case["template"] for case in CASES if not case.get("malformed")}
    assert {formats[name].name for name in shown} >= FORMATS.keys()


@pytest.mark.parametrize(
    ("name", "output", "blocks"),
    [
        ("gemma-4", "@ And so on.", ["toolCall", " And so on."]),
        ("gemma-4", "@\n\nSo:\n@", ["toolCall", "\n\nSo:\n", "toolCall"]),
        ("gemma-4", "I look. @\n@ \n", ["I look. ", "toolCall", "toolCall"]),
        ("gemma-4", "<|channel>thought\nHm.\n<channel|>\nYes. @", ["thinking", "Yes. ", "toolCall"]),
        ("gemma-4", " \n", [" \n"]),
        (
            "solar-open",
            "<|content|>One. <|end|><|begin|>assistant<|content|>\n Two.<|end|>\n",
            ["One. ", "\n Two."],
        ),
        ("solar-open", "<|content|>One<|end|>\n<|begin|>assistant\n<|content|>Two<|end|>", ["One", "\n\nTwo"]),
        (
            "solar-open",
            "<|think|>Hm.\n<|end|>\n<|begin|>assistant<|content|> I look.\n<|end|>\n@\n",
            ["thinking", " I look.\n", "toolCall"],
        ),
        ("hermes", "I look. @\n And so on.", ["I look.", "toolCall", "And so on."]),
    ],
)
def test_white_space_beside_markers(name: str, output: str, blocks: list[str]) -> None:
    """That of visible text is kept where the format leaves it to the text (http-binding: none between call markers)."""
    format = FORMATS[name]
    kinds = {tool["name"]: argument_types(tool["parameters"]) for tool in TOOLS}
    call = str.__str__(render_tool_calls(format.calls[0], [("save_note", "abcdefgh1", {"text": "x"})]))
    for pieces in ([output.replace("@", call)], list(output.replace("@", call))):
        reading = read(ParserSpec(format, "allowed", kinds), pieces)
        assert [block.text if block.kind == "text" else block.kind for block in reading.blocks] == blocks


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_broken_outputs_of_every_format_fail_and_tell_nothing(name: str) -> None:
    """Unknown tools, and calls that end by themselves anywhere behind their name; the reason holds none of it."""
    format = FORMATS[name]
    kinds = {tool["name"]: argument_types(tool["parameters"]) for tool in TOOLS}
    reader = ParserSpec(format, "allowed", kinds)
    for calls in format.calls:
        id = "0" if calls.id.startswith("[0-9]") else "abcdefgh1"
        whole = str.__str__(render_tool_calls(calls, [("save_note", id, {"text": "Secret words"})]))
        unknown = whole.replace("save_note", "secret_tool")
        begin = whole.index("Secret")
        closed = len(whole.rstrip()) - (len(calls.end.strip()) or len(str(calls.call[-1]).strip()) or 1)
        broken = [whole[:size] for size in range(begin, closed)]
        for output in broken if calls.only_at_start or format.always_tagged else [unknown, *broken]:
            with pytest.raises(MalformedOutput) as caught:
                read(reader, [output])
            assert "ecret" not in caught.value.reason
