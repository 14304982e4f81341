"""Arguments in the syntaxes of tool-call formats."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from grammars import TaggedSyntax, UnsupportedSchema, compile_schema
from grammars.testing import Matcher, read
from tests.grammars.judge import Judge
from tests.grammars.walks import matcher, random_text

_TOOL = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Z]"},
        "days": {"type": "integer", "minimum": 1},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}},
        "exact": {"type": "boolean"},
        "note": {"type": ["string", "null"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
_ELEMENTS = TaggedSyntax("<parameter=", ">\n", "\n</parameter>\n")


def _element(name: str, text: str) -> str:
    return f"<parameter={name}>\n{text}\n</parameter>\n"


@pytest.mark.parametrize(
    ("spelling", "good", "bad"),
    [
        (
            "python",
            ['{"city": "Oslo", "days": 2}', '{"city": "O\\"\\x01é", "days": 2, "exact": True, "note": None}'],
            ['{"city": "oslo", "days": 2}', '{"city": "Oslo", "days": 2, "exact": true}'],
        ),
        (
            "keywords",
            ['city="Oslo", days=2', 'city="Oslo", days=12, tags=["a", "b"], exact=False'],
            ['city="Oslo"', 'city="Oslo", days=0', '{"city": "Oslo", "days": 2}', 'city="Oslo", days=2,'],
        ),
        (
            "gemma",
            ['{city:<|"|>Oslo "x"<|"|>,days:2}', '{city:<|"|>Oslo<|"|>,days:2,tags:[<|"|>a<|"|>]}'],
            ['{city:"Oslo",days:2}', '{city:<|"|>oslo<|"|>,days:2}', '{"city":<|"|>Oslo<|"|>,days:2}'],
        ),
        (
            _ELEMENTS,
            [
                _element("city", "Oslo") + _element("days", "2"),
                _element("city", 'O\n"</parameter') + _element("days", "2") + _element("tags", '["a"]'),
                _element("city", "O") + _element("days", "2") + _element("note", "null"),
            ],
            [
                _element("city", '"Oslo"') + _element("days", "2"),
                _element("city", "Oslo") + _element("days", "0"),
                _element("city", "Oslo") + _element("days", "2") + _element("tags", '["abcd"]'),
            ],
        ),
    ],
    ids=["python", "keywords", "gemma", "elements"],
)
def test_arguments(spelling: Any, good: list[str], bad: list[str], judge: Judge) -> None:
    compiled = compile_schema(_TOOL, spelling=spelling, style="spaced")
    assert judge.accepts(compiled.gbnf, *good, *bad) == [True] * len(good) + [False] * len(bad)


@pytest.mark.parametrize("schema", [_TOOL, {}, {"type": "object", "properties": {"a": {}, "b": {"enum": ["x", 1]}}}])
def test_python_texts_read_back(schema: Any) -> None:
    compiled = compile_schema(schema, spelling="python", style="spaced")
    start = matcher(compiled)
    texts = [text for seed in range(30) if (text := random_text(start, seed)) is not None]
    assert len(texts) > 5
    for text in texts:
        compiled.validate(ast.literal_eval(text))


def test_keyword_arguments_read_back() -> None:
    compiled = compile_schema(_TOOL, spelling="keywords", style="spaced")
    start = matcher(compiled)
    read_back = 0
    for seed in range(30):
        text = random_text(start, seed)
        if text is not None:
            call = ast.parse(f"f({text})", mode="eval").body
            assert isinstance(call, ast.Call)
            compiled.validate({str(k.arg): ast.literal_eval(k.value) for k in call.keywords})
            read_back += 1
    assert read_back > 5


def test_raw_text_never_holds_its_closing_marker() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    compiled = compile_schema(schema, spelling=_ELEMENTS)
    here = Matcher(read(compiled.gbnf))
    assert here.accept("<parameter=a>\nx\n</parameter>\n")
    assert here.accepting and here.next_chars() == ()


def test_elements_may_tell_the_type() -> None:
    typed = TaggedSyntax("<p n=", ">", "</p>", (("string", " s=1>"), ("other", " s=0>")))
    compiled = compile_schema({"properties": {"a": {"type": ["string", "integer"]}}, "required": ["a"]}, spelling=typed)
    start = Matcher(read(compiled.gbnf))
    assert not compiled.unchecked
    for text, expected in (("<p n=a s=1>x</p>", True), ("<p n=a s=0>5</p>", True), ("<p n=a s=0>x</p>", False)):
        here = start.copy()
        assert (here.accept(text) and here.accepting) is expected


def test_what_looks_alike_is_a_check() -> None:
    compiled = compile_schema({"properties": {"a": {"type": ["string", "integer"]}}}, spelling=_ELEMENTS)
    assert [check.keyword for check in compiled.unchecked] == ["type"]


def test_a_name_that_the_syntax_cannot_spell_is_refused() -> None:
    schema = {"type": "object", "properties": {"a b": {"type": "integer"}}, "required": ["a b"]}
    with pytest.raises(UnsupportedSchema) as error:
        compile_schema(schema, spelling="keywords")
    assert error.value.keyword == "required"
    del schema["required"]
    compile_schema(schema, spelling="keywords")
