"""The streaming parser on the generic format and on plain text; its own rules for every format."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.chat.arguments import Types
from server.chat.events import BlockDelta, BlockEnd, BlockStart
from server.chat.formats import FORMATS
from server.chat.formats.generic import FORMAT
from server.chat.formats.render import render_tool_calls
from server.chat.parser import MalformedOutput, OutputParser, ParserSpec
from tests.chat.blocks import Block, read

TOOLS: dict[str, Types] = {"get_weather": {}, "save_note": {}}
CALLS = ParserSpec(FORMAT, "allowed", TOOLS)
PLAIN = ParserSpec(FORMAT)
REFUSED = ParserSpec(FORMAT, "refused")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(st.text(max_size=6), json_values, max_size=4)


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(edges)]


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.sampled_from(sorted(TOOLS)), arguments), min_size=1, max_size=3),
    st.sampled_from([None, 2]),
    st.booleans(),
    st.lists(st.integers(0, 10_000), max_size=12),
)
def test_calls_are_read_alike_however_they_are_cut(
    calls: list[tuple[str, Any]], indent: int | None, ascii_only: bool, places: list[int]
) -> None:
    envelope = {"tool_calls": [{"name": name, "arguments": given} for name, given in calls]}
    text = json.dumps(envelope, indent=indent, ensure_ascii=ascii_only)
    whole = read(CALLS, [text])
    assert whole.calls == calls
    assert whole == read(CALLS, cut(text, places)) == read(CALLS, list(text))


@given(st.text(), st.booleans(), st.lists(st.integers(0, 10_000), max_size=12))
def test_an_answer_is_decoded_as_it_comes(answer: str, ascii_only: bool, places: list[int]) -> None:
    text = json.dumps({"response": answer}, ensure_ascii=ascii_only)
    expected = [Block("text", answer, ended=True)]
    assert read(CALLS, [text]).blocks == expected
    assert read(CALLS, cut(text, places)).blocks == expected
    assert read(CALLS, list(text)).blocks == expected


@given(st.text(), st.lists(st.integers(0, 10_000), max_size=12))
def test_plain_text_is_kept_whole(text: str, places: list[int]) -> None:
    assert read(PLAIN, cut(text, places)).blocks == [Block("text", text, ended=True)]


def test_text_streams_while_it_comes() -> None:
    parser = OutputParser(CALLS)
    assert parser.feed('{"response": "Hel') == [BlockStart(0, "text"), BlockDelta(0, "Hel")]
    assert parser.feed("lo \\") == [BlockDelta(0, "lo ")]
    assert parser.feed("u00") == []
    assert parser.feed('e9"') == [BlockDelta(0, "é")]
    assert parser.feed("}") == [BlockEnd(0)]
    assert parser.finish("stop") == []


def test_a_call_starts_as_soon_as_its_name_is_known() -> None:
    parser = OutputParser(CALLS)
    assert parser.feed('{"tool_calls": [{"name": "get_weather') == []
    assert parser.feed('", "arg') == [BlockStart(0, "toolCall", "get_weather")]
    assert parser.feed('uments": {"city": "Par') == [BlockDelta(0, '{"city": "Par')]
    assert parser.feed('is"}') == [BlockDelta(0, 'is"}')]
    assert parser.feed('}, {"name": "save_note", ') == [BlockEnd(0), BlockStart(1, "toolCall", "save_note")]


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        ("\\ud83d\\ude00", "😀"),
        ("\\ud83d", "\ufffd"),
        ("\\ud83dx", "\ufffdx"),
        ("\\ud83d\\n", "\ufffd\n"),
        ("\\ud83d\\ud83d\\ude00", "\ufffd😀"),
        ("\\ude00", "\ufffd"),
        ('\\\\\\"\\/\\b\\f\\n\\r\\t', '\\"/\b\f\n\r\t'),
    ],
)
def test_escapes(escaped: str, text: str) -> None:
    output = f'{{"response": "{escaped}"}}'
    assert read(CALLS, [output]).of("text") == text
    assert read(CALLS, list(output)).of("text") == text


def test_markers_inside_arguments_are_data() -> None:
    given_arguments = {"text": '"}]} {"response": "x"} \\ \\"', "b": "]}"}
    text = json.dumps({"tool_calls": [{"name": "save_note", "arguments": given_arguments}]})
    assert read(CALLS, list(text)).calls == [("save_note", given_arguments)]


def test_an_immediate_end_is_one_empty_text() -> None:
    assert read(PLAIN, []).blocks == [Block("text", ended=True)]
    assert read(PLAIN, [], "length").blocks == []


@pytest.mark.parametrize(
    "output",
    [
        "Hello",
        '{"answer": "x"}',
        '{"response": "x"',
        '{"response": "x"} and more',
        '{"response": 3}',
        '{"response": "\\x"}',
        '{"response": "\\u12G4"}',
        '{"tool_calls": []}',
        '{"tool_calls": [{"name": "unknown", "arguments": {}}]}',
        '{"tool_calls": [{"name": "get_weather", "arguments": []}]}',
        '{"tool_calls": [{"name": "get_weather", "arguments": {"a": 1]}]}',
        '{"tool_calls": [{"name": "get_weather", "arguments": {}}',
        '{"tool_calls": [{"name": "get_weather", "arguments": {}}]',
        '{"tool_calls": [{"name": "get_weather"}]}',
        '{"tool_calls": [{"name": "get_weather", "arguments": {}} {}]}',
        "",
    ],
)
def test_a_completed_output_that_breaks_the_format(output: str) -> None:
    for pieces in ([output], list(output)):
        with pytest.raises(MalformedOutput) as caught:
            read(CALLS, pieces)
        assert "unknown" not in caught.value.reason or "unknown escape" in caught.value.reason


@pytest.mark.parametrize(
    ("output", "certain"),
    [
        ('{"response": "x"} and more', '{"response": "x"} a'),
        ('{"response": "\\x"}', '{"response": "\\x'),
        ('{"tool_calls": [{"name": "unknown", "arguments": {}}]}', '{"tool_calls": [{"name": "unknown"'),
        (
            '{"tool_calls": [{"name": "get_weather", "arguments": []',
            '{"tool_calls": [{"name": "get_weather", "arguments": [',
        ),
        ('{"response": "x"', None),
    ],
)
def test_what_breaks_the_format_is_known_as_soon_as_it_is_certain(output: str, certain: str | None) -> None:
    parser = OutputParser(CALLS)
    for at, char in enumerate(output):
        parser.feed(char)
        assert parser.broken == (certain is not None and output[: at + 1].startswith(certain)), output[: at + 1]
    with pytest.raises(MalformedOutput):
        parser.finish("stop")


def test_truncation_keeps_text_and_ends_no_call() -> None:
    assert read(CALLS, ['{"response": "half'], "length").blocks == [Block("text", "half", ended=True)]
    blocks = read(CALLS, ['{"tool_calls": [{"name": "save_note", "arguments": {"te'], "length").blocks
    assert blocks == [Block("toolCall", '{"te', "save_note")]
    assert read(CALLS, ['{"tool_ca'], "length").blocks == []


def test_a_call_where_none_is_allowed() -> None:
    output = '{"tool_calls": [{"name": "get_weather", "arguments": {}}]}'
    with pytest.raises(MalformedOutput, match="none is allowed"):
        read(REFUSED, list(output))
    for text in ('{"tool_calls": []}', '{"tool_calls": ', '{"tool', 'See {"tool_calls": [{"name": "x"', ""):
        assert read(REFUSED, list(text)).of("text") == text
    assert read(PLAIN, list(output)).of("text") == output


def test_a_call_where_none_is_allowed_fails_no_turn_that_is_cut_short() -> None:
    for output in (
        'Well: {"tool_calls": [{"name": "get_weather", "arguments": {',
        '{"tool_calls": [{"name": "get_weather", "arguments": {}}]}',
    ):
        parser = OutputParser(REFUSED)
        for char in output:
            parser.feed(char)
            assert not parser.broken
        assert isinstance(parser.finish("length"), list)


def test_a_json_answer_is_kept_as_it_stands() -> None:
    assert read(ParserSpec(FORMAT, json=True), ['{"a": ', "1}"]).of("text") == '{"a": 1}'
    framed = ParserSpec(FORMAT, "allowed", TOOLS, json=True)
    assert read(framed, list('{"response": {"a": "}\\""}}')).of("text") == '{"a": "}\\""}'


def test_a_json_answer_that_looks_like_a_call_is_an_answer() -> None:
    answer = '{"name": "save_note", "arguments": {"text": "x"}}'
    reading = read(ParserSpec(FORMATS["hermes"], "allowed", TOOLS, json=True), list(answer))
    assert reading.of("text") == answer and not reading.calls


def test_a_bare_call_where_none_is_allowed_is_text() -> None:
    answer = '{"name": "save_note", "arguments": {"text": "x"}}'
    assert read(ParserSpec(FORMATS["hermes"], "refused"), list(answer)).of("text") == answer


@given(
    st.lists(
        st.sampled_from(['{"name": "save_note", "arguments": ', "{", "}", '{"a": 1}', " ", "<tool_call>", '"', "x"])
    ),
    st.lists(st.integers(0, 10_000), max_size=12),
)
def test_braces_in_text_are_read_alike_however_they_are_cut(parts: list[str], places: list[int]) -> None:
    spec = ParserSpec(FORMATS["hermes"], "allowed", TOOLS)
    text = "".join(parts)
    whole = read(spec, [text], "length")
    assert whole == read(spec, cut(text, places), "length") == read(spec, list(text), "length")
    if "<tool_call>" not in text and not whole.calls:
        assert whole.of("text") == text


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_what_waits_stays_small_however_long_the_output(name: str) -> None:
    """Each step looks at what is not certain yet: while that is short, a step costs the same at any length."""
    format = FORMATS[name]
    spec = ParserSpec(format, "allowed", {"save_note": {"text": ("string",)}})
    prose = "Here < is { some [ prose: a=b, and\n\n more. " * 40
    call = str.__str__(render_tool_calls(format.calls[0], [("save_note", "1", {"text": "some words " * 200})]))
    thought = (
        f"{format.reasoning_tags.open}{prose}{format.reasoning_tags.close}{format.separator}"
        if format.reasoning_tags
        else ""
    )
    text = "" if format.calls[0].only_at_start or format.always_tagged else prose
    parser = OutputParser(spec)
    longest = 0
    for char in thought + text + call:
        parser.feed(char)
        longest = max(longest, parser.waiting)
    assert longest <= 120
    assert parser.finish("stop") is not None
