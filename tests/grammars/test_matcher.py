"""The reader of GBNF and the matcher."""

from __future__ import annotations

from statistics import median

import pytest

from grammars import compile_schema
from grammars.gbnf import InvalidGrammar, read
from grammars.matcher import Matcher
from grammars.rules import gbnf

from .judge import Judge
from .walks import compact

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
