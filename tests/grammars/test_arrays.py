from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from grammars import compile_schema
from tests.grammars.judge import Judge
from tests.grammars.walks import accepts, compact


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"enum": [1, "a"]}, "minItems": 1, "maxItems": 3},
        {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
        {"prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2},
        {"prefixItems": [{"type": "integer"}], "items": {"type": "string"}, "maxItems": 2},
        {"contains": {"type": "integer"}},
        {"contains": {"const": 1}, "minContains": 2},
        {"contains": {"const": 1}, "maxContains": 1},
        {"contains": {"type": "string"}, "minContains": 0, "maxContains": 1, "minItems": 2},
        {"items": {"enum": [1, "a", 2]}, "uniqueItems": True},
        {"items": {"enum": [1, "a", 2]}, "uniqueItems": True, "maxItems": 2, "minItems": 1},
        {"not": {"items": {"type": "integer"}}},
        {"not": {"contains": {"const": 1}}},
        {"not": {"prefixItems": [{"const": 1}, {"const": "a"}]}},
        {"allOf": [{"contains": {"const": 1}}, {"contains": {"const": "a"}}]},
        {"prefixItems": [{"const": 1}], "unevaluatedItems": {"type": "string"}},
    ],
    ids=str,
)
def test_exactly_the_valid_arrays(schema: dict[str, Any]) -> None:
    compiled = compile_schema({"type": "array", **schema})
    assert not compiled.unchecked
    values = [list(items) for size in range(4) for items in product([1, 2, "a"], repeat=size)]
    expected = []
    for value in values:
        try:
            compiled.validate(value)
            expected.append(True)
        except ValueError:
            expected.append(False)
    assert any(expected)
    assert accepts(compiled, *values) == expected


def test_items_as_a_list_are_the_older_drafts() -> None:
    for draft in ({}, {"$schema": "http://json-schema.org/draft-07/schema#"}):
        schema = {**draft, "type": "array", "items": [{"type": "integer"}], "additionalItems": False}
        compiled = compile_schema(schema)
        assert accepts(compiled, [], [1], [1, 2], ["a"]) == [True, True, False, False]
        compiled.validate([1])
        with pytest.raises(ValueError, match="type"):
            compiled.validate(["a"])


def test_unique_items_of_many_values_are_a_check() -> None:
    compiled = compile_schema({"type": "array", "items": {"type": "integer"}, "uniqueItems": True})
    assert [check.keyword for check in compiled.unchecked] == ["uniqueItems"]


def test_unique_items_of_too_many_orders_load_as_a_check(judge: Judge) -> None:
    values = [f"item {n}" for n in range(16)]
    compiled = compile_schema({"type": "array", "items": {"enum": values}, "uniqueItems": True})
    assert [check.keyword for check in compiled.unchecked] == ["uniqueItems"]
    assert judge.accepts(compiled.gbnf, compact(values), compact([*values, "item 16"])) == [True, False]
