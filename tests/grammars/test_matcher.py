"""The reader of GBNF and the matcher."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from grammars import compile_schema
from grammars.rules.gbnf import gbnf
from grammars.rules.rules import Chars
from grammars.testing import InvalidGrammar, Matcher, read
from tests.grammars.judge import Judge
from tests.grammars.walks import compact

_GRAMMAR = r"""
# a comment
root ::= "begin " (word ("," word)* | "none"){1,2} end?
word ::= [a-c\]^] [^a-z"] .    # three characters
end ::= "\x21" | "\u00e9\n"
"""


def test_matcher_and_llama_agree(judge: Judge) -> None:
    texts = [
        "begin aXy",
        "begin none",
        "begin nonenone",
        "begin noneaXy,]1é!",
        "begin ^1xé\n",
        "begin aay",
        "begin ",
        "b",
    ]
    expected = [True, True, True, True, True, False, False, False]
    start = Matcher(read(_GRAMMAR))
    found = []
    for text in texts:
        here = start.copy()
        found.append(here.accept(text) and here.accepting)
    assert found == expected
    assert judge.accepts(_GRAMMAR, *texts) == expected


def test_what_is_written_reads_back() -> None:
    schema = {
        "type": "object",
        "properties": {"a\n": {"type": "string", "pattern": '^["\\\\é-ü\\]]*$'}, "b": {"type": "number"}},
    }
    compiled = compile_schema(schema)
    rules = read(compiled.gbnf)
    assert gbnf(rules) == compiled.gbnf


@pytest.mark.parametrize("text", ['root ::= "a', "root ::= b", "root = a", 'root ::= "\\q"', "root ::= ("])
def test_faulty_grammars_are_refused(text: str) -> None:
    with pytest.raises(InvalidGrammar):
        read(text)


def test_forced_text() -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "kind": {"const": "fixed"}, "last": {"type": "boolean"}},
        "required": ["name", "kind", "last"],
        "additionalProperties": False,
    }
    matcher = Matcher(read(compile_schema(schema).gbnf))
    assert matcher.forced_text() == '{"name":"'
    assert matcher.accept('{"name":"')
    assert matcher.forced_text() == ""
    assert matcher.accept('x"')
    assert matcher.forced_text() == ',"kind":"fixed","last":'
    assert matcher.accept(matcher.forced_text() + "t")
    assert matcher.forced_text() == "rue}"
    assert matcher.forced_text(limit=2) == "ru"
    assert matcher.accept("rue}")
    assert matcher.accepting and matcher.forced_text() == ""


def test_a_refused_text_changes_nothing() -> None:
    matcher = Matcher(read(compile_schema({"const": [1]}).gbnf))
    assert matcher.accept("[") and not matcher.accept("2]") and not matcher.allowed("]")
    copy = matcher.copy()
    assert matcher.accept("1]") and matcher.accepting
    assert not copy.accepting and copy.accept("1]")


def test_a_text_runs_with_few_stacks() -> None:
    schema = {"type": "object", "properties": {f"field_{i}": {"type": "string"} for i in range(30)}}
    matcher = Matcher(read(compile_schema(schema).gbnf))
    counts = []
    for char in compact({f"field_{i}": "some text" for i in range(0, 30, 3)}):
        assert matcher.accept(char)
        counts.append(matcher.stacks)
    assert median(counts) <= 5
    assert max(counts) < 30


@pytest.mark.parametrize(
    ("schema", "text", "stacks"),
    [
        (
            {"anyOf": [{"properties": {"a": {"const": n}}, "required": ["a"], "type": "object"} for n in range(9)]},
            "",
            1,
        ),
        ({"enum": ["apple", "apricot", "banana"]}, "", 1),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, "", 1),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, '{"b":1,', 1),
        ({"type": "array", "items": {"type": "integer"}}, "[1,", 3),  # a minus, zero, or another digit
        ({"type": "string"}, '"ab', 3),  # a character, a backslash, the end: what follows them differs
        ({"type": "string", "maxLength": 255}, '"ab', 3),
        ({"type": "string", "pattern": "^[a-z]*$"}, '"ab', 2),
        ({"type": "integer"}, "12", 2),
        ({"type": "number"}, "1", 4),  # a digit, a fraction, an exponent, the end
    ],
)
def test_as_few_stacks_live_as_continuations_differ(schema: Any, text: str, stacks: int) -> None:
    matcher = Matcher(read(compile_schema(schema).gbnf))
    assert matcher.accept(text)
    assert matcher.stacks == stacks


def test_what_most_tokens_pass_is_the_last_alternative() -> None:
    """llama.cpp's sampler tries it first, and the others only on what it refuses."""
    for schema in ({"type": "string"}, {"type": "string", "maxLength": 9}, {"type": "string", "pattern": "^[^x]*$"}):
        rules = read(compile_schema(schema).gbnf)
        matcher = Matcher(rules)
        assert matcher.accept('"a')
        wide = [name for name, rule in rules.items() if any(_begins_wide(sequence) for sequence in rule)]
        assert wide
        for name in wide:
            assert [_begins_wide(sequence) for sequence in rules[name]].index(True) == len(rules[name]) - 1


def _begins_wide(sequence: Any) -> bool:
    return bool(sequence) and isinstance(sequence[0], Chars) and sequence[0].ranges[-1][1] == 0x10FFFF


@pytest.mark.parametrize("most", [255, 256, 257, 600])
def test_long_bounds_are_exact_across_blocks(most: int, judge: Judge) -> None:
    compiled = compile_schema({"type": "string", "minLength": 2, "maxLength": most})
    lengths = [0, 1, 2, 254, 255, 256, 257, 258, 511, 512, 513, 514, 599, 600, 601]
    texts = [compact("é" * (length // 2) + '"' * (length - length // 2)) for length in lengths]
    assert judge.accepts(compiled.gbnf, *texts) == [2 <= length <= most for length in lengths]
