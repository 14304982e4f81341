"""Objects: which members may come, in which order, how often."""

from __future__ import annotations

from itertools import combinations, permutations
from typing import Any

import pytest

from grammars import compile_schema
from tests.grammars.judge import Judge
from tests.grammars.walks import accepts, compact, matcher


def _object(count: int, required: tuple[int, ...] = (), **keywords: Any) -> dict[str, Any]:
    properties = {f"p{i}": {"type": "integer"} for i in range(count)}
    return {"type": "object", "properties": properties, "required": [f"p{i}" for i in required], **keywords}


@pytest.mark.parametrize("required", [(), (0,), (2, 4), (5,)])
def test_any_subset_in_the_order_of_the_schema(required: tuple[int, ...]) -> None:
    start = matcher(_object(6, required, additionalProperties=False))
    for size in range(7):
        for chosen in combinations(range(6), size):
            here = start.copy()
            whole = here.accept(compact({f"p{i}": i for i in chosen})) and here.accepting
            assert whole == set(required).issubset(chosen)


def test_few_properties_take_any_order() -> None:
    start = matcher(_object(3, (1,), additionalProperties=False))
    for size in range(4):
        for chosen in permutations(range(3), size):
            here = start.copy()
            assert (here.accept(compact({f"p{i}": i for i in chosen})) and here.accepting) == (1 in chosen)


@pytest.mark.parametrize("count", [3, 8])
def test_a_declared_name_comes_once_however_it_is_spelled(count: int, judge: Judge) -> None:
    compiled = compile_schema(_object(count, (0,)))
    texts = ['{"p0":1}', '{"p0":1,"x":"y"}', '{"p0":1,"p00":"y","p":"z"}', '{"p0":1,"x":"y","\\u0001":2}']
    wrong = [
        '{"p0":1,"p0":2}',
        '{"p0":1,"p1":"x"}',
        '{"p0":1,"\\u0070\\u0031":"x"}',
        '{"x":1}',
        '{"p0":1,"x":1,"p0":2}',
    ]
    assert judge.accepts(compiled.gbnf, *texts, *wrong) == [True] * len(texts) + [False] * len(wrong)


def test_names_that_need_escapes(judge: Judge) -> None:
    names = ['a"b', "back\\slash", "new\nline", "é", "\u0001", "", "a"]
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}, "required": names}
    compiled = compile_schema(schema)
    good = compact(dict.fromkeys(names, 1))
    assert judge.accepts(compiled.gbnf, good, good[:-1] + ',"other":null}', good[:-1] + ',"a\\"b":"x"}') == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("count", [4, 7])
def test_member_counts(count: int) -> None:
    start = matcher(_object(count, (1,), minProperties=2, maxProperties=3, additionalProperties=False))
    for size in range(count + 1):
        for chosen in combinations(range(count), size):
            here = start.copy()
            whole = here.accept(compact({f"p{i}": i for i in chosen})) and here.accepting
            assert whole == (1 in chosen and 2 <= size <= 3)


def test_member_counts_of_open_objects() -> None:
    schema = {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "null"}}
    assert accepts(schema, {}, {"a": None}, {"a": None, "b": None}, {"a": None, "b": None, "c": None}) == [
        False,
        True,
        True,
        False,
    ]


def test_dependent_names() -> None:
    schema = _object(6, dependentRequired={"p1": ["p3"], "p4": ["p0"]}, additionalProperties=False)
    start = matcher(schema)
    for size in range(7):
        for chosen in combinations(range(6), size):
            here = start.copy()
            whole = here.accept(compact({f"p{i}": i for i in chosen})) and here.accepting
            assert whole == ((1 not in chosen or 3 in chosen) and (4 not in chosen or 0 in chosen))


def test_overlapping_patterns_of_names() -> None:
    schema = {
        "type": "object",
        "properties": {"ab": {"maximum": 9}},
        "patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 5}},
        "additionalProperties": {"type": "string"},
    }
    assert accepts(schema, {"ab": 7}, {"ab": 10}, {"ab": 4}, {"ab": "x"}) == [True, False, False, False]
    assert accepts(schema, {"ax": 1}, {"ax": 1.5}, {"xb": 5.5}, {"xb": 4}, {"xb": "s"}) == [
        True,
        False,
        True,
        False,
        True,
    ]
    assert accepts(schema, {"axb": 5}, {"axb": 5.5}, {"x": "s"}, {"x": 1}) == [True, False, True, False]


def test_names_by_schema() -> None:
    schema = {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 3},
        "properties": {"B": {}, "c": {}},
    }
    assert accepts(schema, {"c": 1, "abc": 1}, {"abcd": 1}, {"B": 1}, {}) == [True, False, False, True]


def test_hundreds_of_properties_stay_linear() -> None:
    small, large = (len(compile_schema(_object(n, additionalProperties=False)).gbnf) for n in (100, 400))
    assert large < 8 * small
    assert accepts(_object(400), {"p3": 1, "p399": 2, "other": "x"}, {"p3": "x"}) == [True, False]


def test_unions_of_objects_told_apart_by_a_constant() -> None:
    def branch(kind: str, name: str) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"kind": {"const": kind}, name: {"type": "integer"}},
            "required": ["kind", name],
            "additionalProperties": False,
        }

    compiled = compile_schema({"oneOf": [branch("a", "x"), branch("b", "y")]})
    assert not compiled.unchecked
    assert accepts(compiled, {"kind": "a", "x": 1}, {"kind": "b", "y": 1}, {"kind": "a", "y": 1}) == [True, True, False]


def test_one_of_excludes_what_two_branches_share() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    compiled = compile_schema(schema)
    assert not compiled.unchecked
    assert accepts(compiled, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {}) == [True, True, False, False]


def test_conditions() -> None:
    schema = {
        "type": "object",
        "properties": {"country": {"enum": ["US", "NL"]}, "code": {"type": "string"}},
        "required": ["country", "code"],
        "if": {"properties": {"country": {"const": "US"}}},
        "then": {"properties": {"code": {"pattern": "^[0-9]{5}$"}}},
        "else": {"properties": {"code": {"pattern": "^[0-9]{4}[A-Z]{2}$"}}},
    }
    compiled = compile_schema(schema)
    assert not compiled.unchecked
    values = [("US", "12345"), ("US", "1234AB"), ("NL", "1234AB"), ("NL", "12345")]
    assert accepts(compiled, *({"country": c, "code": p} for c, p in values)) == [True, False, True, False]


def test_too_many_states_load_as_a_check(judge: Judge) -> None:
    names = [f"name{n}" for n in range(40)]
    needs = {name: [names[n - 20]] for n, name in enumerate(names) if n >= 20}
    properties = {name: {"type": "integer"} for name in names}
    compiled = compile_schema({"type": "object", "properties": properties, "dependentRequired": needs})
    assert "dependentRequired" in [check.keyword for check in compiled.unchecked]
    whole = dict.fromkeys(names, 1)
    assert judge.accepts(compiled.gbnf, compact(whole), compact(whole | {"name0": "1"})) == [True, False]
