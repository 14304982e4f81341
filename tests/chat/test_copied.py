"""A tool's only argument as small models copy it into LFM2's calls: what the grammar allows is read, as one text."""

from __future__ import annotations

import pickle
import random
import re
from typing import Any

import pytest

from server.chat.arguments import ToolArguments, argument_types
from server.chat.formats import FORMATS
from server.chat.formats.render import render_tool_calls
from server.chat.grammar import build_constraint
from server.chat.parser import MalformedOutput, ParserSpec
from tests.chat.blocks import read
from tests.chat.matching import Matcher

FORMAT = FORMATS["lfm-2"]
OPEN, CLOSE = "<|tool_call_start|>[", "]<|tool_call_end|>"
TEXT = {"type": "string", "description": "What to keep"}
CLOSED: dict[str, Any] = {
    "type": "object",
    "properties": {"text": TEXT},
    "required": ["text"],
    "additionalProperties": False,
}
UNDECLARED: dict[str, Any] = {"type": "object", "properties": {"text": TEXT}, "required": ["text"]}
SCHEMAS = {"closed": CLOSED, "undeclared": UNDECLARED}

VALUES = [
    # Literals.
    ('text=""', ""),
    ('text="x"', "x"),
    ('text="Q: it\'s (a) [b] {c} = d, <e>"', "Q: it's (a) [b] {c} = d, <e>"),
    ('text="a \\"b\\"\\n\\\\ \\x41\\\'"', 'a "b"\n\\ A\''),
    ('text="<|tool_call_end|>"', "<|tool_call_end|>"),
    ('text="ends with ]<|tool_call_end|> </function_call>"', "ends with ]<|tool_call_end|> </function_call>"),
    ('text="False"', "False"),
    # A drive that is none.
    ('text="C:\\\\new\\\\table"', "C:\\new\\table"),
    ('text="Q:\\"What?\\""', 'Q:"What?"'),
    ('text="see C:\\\\x"', "see C:\\x"),
    ('text="C:"', "C:"),
    # Paths.
    ('text="C:\\data\\new\\table.txt"', "C:\\data\\new\\table.txt"),
    ('text="C:\\users\\me\\"', "C:\\users\\me\\"),
    ('text="D:\\Program Files (x86)\\a, b\\"', "D:\\Program Files (x86)\\a, b\\"),
    ('text="c:\\xyz"', "c:\\xyz"),
    # Bare text.
    ("text=Oslo", "Oslo"),
    ("text=New York, see f(x, y=[1])", "New York, see f(x, y=[1])"),
    ("text=it's done", "it's done"),
    ("text=False", "False"),
    ("text=None", "None"),
    ("text=12", "12"),
    ("text=C:\\new\\", "C:\\new\\"),
    ('text=["a", "b)]", "\\""]', '["a", "b)]", "\\""]'),
    ('text={"a": {"b": [1, null]}}', '{"a": {"b": [1, null]}}'),
    # Whatever the text.
    ('arguments={"text":"C:\\\\a\\")]<|tool_call_end|> \\u00e9\\n"}', 'C:\\a")]<|tool_call_end|> é\n'),
    ('arguments={"text": "x"}', "x"),
]

UNREADABLE = [
    'text="C:\\new"',
    'text="c:\\xa0"',
    'text="C:\\data is > 3"',
    'text="He said "hi" to me"',
    'text="a" "b"',
    "text=",
    "text=a,",
    "text=a=b",
    "text=a]",
    "text=f(]",
    "text=x</function_call>",
    'text="x',
    'arguments={"note": "x"}',
    'arguments={"text": 3}',
    'arguments={"text": "x", "more": 1}',
    'arguments={"text": "x"}, text="y"',
]


def turn(*calls: str) -> str:
    return f"{OPEN}{', '.join(f'save_note({call})' for call in calls)}{CLOSE}"


def grammar(schema: dict[str, Any], *, name: str = "save_note") -> str:
    tools = {name: ToolArguments(schema, [calls.syntax for calls in FORMAT.calls])}
    made = build_constraint(FORMAT, tools=tools, tokens={})
    assert made is not None
    return made.grammar


def spec(schema: dict[str, Any]) -> ParserSpec:
    return ParserSpec(FORMAT, "allowed", {"save_note": argument_types(schema)})


def calls_of(schema: dict[str, Any], output: str) -> list[tuple[str | None, Any]]:
    """The calls, however the output is cut. Raises MalformedOutput."""
    whole = read(spec(schema), [output])
    assert read(spec(schema), list(output)) == whole
    return whole.calls


@pytest.mark.parametrize("kind", SCHEMAS)
@pytest.mark.parametrize(("written", "value"), VALUES)
def test_what_is_copied_is_allowed_and_kept(matcher: Matcher, kind: str, written: str, value: str) -> None:
    schema = SCHEMAS[kind]
    for output, count in ((turn(written), 1), (turn(written, written), 2)):
        assert matcher.accepts(grammar(schema), output)
        assert calls_of(schema, output) == [("save_note", {"text": value})] * count


@pytest.mark.parametrize("kind", SCHEMAS)
@pytest.mark.parametrize("written", UNREADABLE)
def test_what_could_mean_two_texts_is_no_call(matcher: Matcher, kind: str, written: str) -> None:
    schema = SCHEMAS[kind]
    assert not matcher.accepts(grammar(schema), turn(written))
    for pieces in ([turn(written)], list(turn(written))):
        with pytest.raises(MalformedOutput) as caught:
            read(spec(schema), pieces)
        assert not re.search(r"hi|note|data|new|<", caught.value.reason)


def test_a_path_without_its_closing_quote_ends_the_only_call(matcher: Matcher) -> None:
    path = 'text="C:\\users\\me (old)\\'
    value = '"C:\\users\\me (old)\\'
    for schema in SCHEMAS.values():
        assert matcher.accepts(grammar(schema), turn(path))
        assert calls_of(schema, turn(path)) == [("save_note", {"text": value})]
        for output in (
            turn(path, path),
            turn('text="x"', path),
            turn(path, 'text="x"'),
            turn(path + ","),
            turn('text="C:\\new'),
            turn('text="users\\me'),
            turn(path).replace("]<|tool_call_end|>", ",]<|tool_call_end|>"),
        ):
            assert not matcher.accepts(grammar(schema), output)
            for pieces in ([output], list(output)):
                with pytest.raises(MalformedOutput):
                    read(spec(schema), pieces)


def test_what_a_parser_must_know_passes_between_processes() -> None:
    output = turn("text=New York")
    assert read(pickle.loads(pickle.dumps(spec(CLOSED))), [output]).calls == calls_of(CLOSED, output)


def test_an_argument_that_is_called_as_the_wrapper(matcher: Matcher) -> None:
    schema = {"type": "object", "properties": {"arguments": TEXT}, "required": ["arguments"]}
    for written, value in (
        ('parameters={"arguments": "x"}', "x"),
        ('arguments="x"', "x"),
        ('arguments={"arguments": "x"}', '{"arguments": "x"}'),
    ):
        assert matcher.accepts(grammar(schema), turn(written))
        assert calls_of(schema, turn(written)) == [("save_note", {"arguments": value})]


def test_undeclared_arguments_follow_a_literal(matcher: Matcher) -> None:
    written = 'text="C:\\data\\", tags=["a"], deep={"text": True}'
    assert matcher.accepts(grammar(UNDECLARED), turn(written))
    assert not matcher.accepts(grammar(CLOSED), turn(written))
    expected = {"text": "C:\\data\\", "tags": ["a"], "deep": {"text": True}}
    assert calls_of(UNDECLARED, turn(written)) == [("save_note", expected)]
    assert not matcher.accepts(grammar(UNDECLARED), turn('text=bare, tags=["a"]'))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"text": TEXT}},
        {"type": "object", "properties": {"text": {"type": "string", "minLength": 1}}, "required": ["text"]},
        {"type": "object", "properties": {"text": {"type": ["string", "null"]}}, "required": ["text"]},
        {"type": "object", "properties": {"text": TEXT}, "required": ["text"], "maxProperties": 1},
        {"type": "object", "properties": {"text": TEXT, "tag": TEXT}, "required": ["text"]},
    ],
)
def test_other_declarations_keep_strict_quotes(matcher: Matcher, schema: dict[str, Any]) -> None:
    assert matcher.accepts(grammar(schema), turn('text="x"'))
    assert matcher.accepts(grammar(schema), turn('text="C:\\new"'))
    assert calls_of(schema, turn('text="C:\\new"')) == [("save_note", {"text": "C:\new"})]
    for written in ("text=x", 'text=["x"]', 'text="C:\\data"', 'arguments={"text": "x"}'):
        if "additionalProperties" in schema or not written.startswith("arguments"):
            assert not matcher.accepts(grammar(schema), turn(written))


@pytest.mark.parametrize("kind", SCHEMAS)
def test_whatever_the_grammar_writes_is_read_as_it_stands(matcher: Matcher, kind: str) -> None:
    """Random walks, by characters that mean something. Bare text is kept to the letter."""
    schema, made = SCHEMAS[kind], grammar(SCHEMAS[kind])
    byte_tokens = matcher.vocab.byte_tokens
    alphabet = "aCnxu4:\\\"'()[]{}, =<|>" + 8 * ')]"' + "".join(sorted(set(f"{CLOSE}save_note(text arguments")))
    tokens = [byte_tokens[ord(char)] for char in alphabet]
    ended = 0
    for seed in range(60):
        choose = random.Random(seed)
        start = f"{OPEN}save_note(text={choose.choice(['', chr(34), chr(34) + 'C:' + chr(92)])}"
        walk = matcher.start(made)
        assert all(walk.step(byte_tokens[byte]) for byte in start.encode())
        rest = walk.random(choose, tokens, most=1000)
        if rest is None:
            continue
        ended += 1
        calls = calls_of(schema, start + rest)
        assert calls and all(isinstance(given["text"], str) for _, given in calls)
        bare = re.match(r"text=([^\"'(){}\[\],]*)\)", (start + rest).removeprefix(f"{OPEN}save_note("))
        assert bare is None or calls[0][1] == {"text": bare[1]}
    assert ended >= 20


def test_random_texts_come_back(matcher: Matcher) -> None:
    """Every text has a spelling that is allowed and means it."""
    choose = random.Random(5)
    for _ in range(60):
        text = "".join(choose.choice("aCn:\\\"'()], \n<|é") for _ in range(choose.randint(0, 12)))
        written = str.__str__(render_tool_calls(FORMAT.calls[1], [("save_note", "", {"text": text})]))
        assert matcher.accepts(grammar(CLOSED), written)
        assert calls_of(CLOSED, written) == [("save_note", {"text": text})]


FLAGS = {
    "type": "object",
    "properties": {
        "enabled": {"type": "boolean"},
        "none": {"type": "null"},
        "count": {"type": "integer"},
        "name": {"type": "string"},
        "list": {"type": "array", "items": {"type": "boolean"}},
        "deep": {"type": "object", "properties": {"on": {"type": "boolean"}}},
    },
}


def test_typed_values_and_a_call_without_arguments(matcher: Matcher) -> None:
    written = 'enabled=True, none=None, count=-3, list=[True, False], deep={"on": False}'
    expected = {"enabled": True, "none": None, "count": -3, "list": [True, False], "deep": {"on": False}}
    assert matcher.accepts(grammar(FLAGS), turn(written))
    assert calls_of(FLAGS, turn(written)) == [("save_note", expected)]
    assert calls_of(FLAGS, turn("name=False, enabled=false")) == [("save_note", {"name": "False", "enabled": False})]
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    assert matcher.accepts(grammar(nothing), turn(""))
    assert calls_of(nothing, turn("", "")) == [("save_note", {})] * 2


@pytest.mark.parametrize("text", ['it\'s "both"', "ends in \\", "\\\\", "a\nb\x01\x7f", "C:\new"])
def test_chosen_texts_and_keys_of_any_kind(matcher: Matcher, text: str) -> None:
    """Both kinds of quotes, backslashes at the end, controls: as an enumerated value and as the key of an object."""
    deep = {"type": "object", "properties": {text: {"enum": [text, 1]}}, "required": [text]}
    schema = {"type": "object", "properties": {"a": {"enum": [text]}, "b": deep}, "required": ["a", "b"]}
    expected = {"a": text, "b": {text: text}}
    written = str.__str__(render_tool_calls(FORMAT.calls[0], [("save_note", "", expected)]))
    assert matcher.accepts(grammar(schema), written)
    assert calls_of(schema, written) == [("save_note", expected)]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("\\x41\\u00e9\\n", "Aé\n"),
        ("\\d\\q\\/", "\\d\\q\\/"),
        ("\\users\\xyz\\u12", "\\users\\xyz\\u12"),
        ("\\ud83d\\ude00 \\ud83d\\users", "😀 \ufffd\\users"),
    ],
)
def test_escapes_of_python_and_backslashes_that_are_none(written: str, value: str) -> None:
    """What is an escape in Python is one, and what is none stands as it was copied."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    assert calls_of(schema, turn(f'a="{written}"')) == [("save_note", {"a": value})]


def test_a_hexadecimal_escape_counts_as_one_character(matcher: Matcher) -> None:
    """As in the grammar, which would otherwise let through what the schema forbids."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 1}}}
    assert matcher.accepts(grammar(schema), turn('a="\\x41"'))
    assert calls_of(schema, turn('a="\\x41"')) == [("save_note", {"a": "A"})]


@pytest.mark.parametrize(
    "tail", ["</function_call>", "]</function_call>", "]</tool_call> and more", ")</function_call>"]
)
def test_the_tag_of_another_format_closes_no_call(tail: str) -> None:
    for written in ('text="x"', "text=x", 'text="x", tag="y"'):
        output = f"{OPEN}save_note({written}{'' if tail.startswith(('<', ')')) else ')'}{tail}"
        for pieces in ([output], list(output)):
            with pytest.raises(MalformedOutput, match="closed by the tag of another format"):
                read(spec(UNDECLARED), pieces)


def test_a_quote_that_is_not_escaped_is_named() -> None:
    for output in (
        turn('text="print("hi")"'),
        turn('text="a", tags=["b "c""]'),
        turn('text="a", deep={"k": "b "c""}'),
    ):
        for pieces in ([output], list(output)):
            with pytest.raises(MalformedOutput, match="a quote that is not escaped"):
                read(spec(UNDECLARED), pieces)
