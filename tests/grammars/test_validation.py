from __future__ import annotations

import time
from typing import Any

import pytest

from grammars import InvalidInstance, UnsupportedSchema, compile_schema


@pytest.mark.parametrize(
    ("schema", "good", "bad", "path", "keyword"),
    [
        ({"properties": {"a/b": {"type": "integer"}}}, {"a/b": 1}, {"a/b": "x"}, "/a~1b", "type"),
        ({"items": {"multipleOf": 0.01}}, [19.99, 1e-2], [19.999], "/0", "multipleOf"),
        ({"multipleOf": 0.1}, 1e20, 0.15, "", "multipleOf"),
        ({"enum": [0, "a", [1]]}, [1.0], False, "", "enum"),
        ({"const": 1}, 1.0, True, "", "const"),
        ({"uniqueItems": True}, [1, True, "1"], [{"a": 1}, {"a": 1.0}], "", "uniqueItems"),
        ({"pattern": "^(?!a)"}, "b", "ab", "", "pattern"),
        ({"pattern": "é$"}, "é", "é\n", "", "pattern"),
        ({"format": "date"}, "2024-02-29", "2023-02-29", "", "format"),
        ({"format": "unheard-of"}, "x", None, "", None),
        (
            {"patternProperties": {"^a": {"type": "null"}}, "additionalProperties": False},
            {"a1": None},
            {"b": 1},
            "",
            None,
        ),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 3, "exclusiveMaximum": True},
            2,
            3,
            "",
            "maximum",
        ),
    ],
    ids=str,
)
def test_values_are_judged_exactly(schema: Any, good: Any, bad: Any, path: str, keyword: str | None) -> None:
    compiled = compile_schema(schema)
    compiled.validate(good)
    if bad is not None:
        with pytest.raises(InvalidInstance) as error:
            compiled.validate(bad)
        assert error.value.path == path
        assert keyword is None or error.value.keyword == keyword


def test_errors_carry_nothing_of_the_value() -> None:
    with pytest.raises(InvalidInstance) as error:
        compile_schema({"type": "integer"}).validate("secret")
    assert "secret" not in str(error.value)


def test_formats_may_be_annotations() -> None:
    compiled = compile_schema({"format": "date"}, formats="annotate")
    compiled.validate("never")
    assert not compiled.unchecked


@pytest.mark.slow
def test_exponential_validation_ends_in_time() -> None:
    again = {"$ref": "#"}
    compiled = compile_schema({"type": "array", "items": {"anyOf": [again, {"allOf": [again]}, {"allOf": [again]}]}})
    value: Any = "not an array"
    for _ in range(40):
        value = [value]
    start = time.thread_time()
    with pytest.raises(UnsupportedSchema) as error:
        compiled.validate(value)
    assert error.value.limit == "seconds"
    assert time.thread_time() - start < 4


def test_deep_values_end_in_an_error() -> None:
    value: Any = 1
    for _ in range(20_000):
        value = [value]
    with pytest.raises(InvalidInstance):
        compile_schema({"type": "array", "items": {"$ref": "#"}}).validate(value)
