from __future__ import annotations

import importlib
import json
import os
import pickle
import pkgutil
import subprocess
import sys
import time
from typing import Any

import pytest

import grammars
from grammars import InvalidInstance, InvalidSchema, UnsupportedSchema, compile_schema, scoped
from grammars.automata.regex_nfa import pattern_dfa
from grammars.testing import Matcher, read
from tests.grammars.judge import Judge
from tests.grammars.walks import accepts, compact, spaced


@pytest.mark.parametrize(
    ("schema", "path", "keyword"),
    [
        ({"type": "strin"}, "", "type"),
        ({"properties": {"a": {"minLength": -1}}}, "/properties/a", "minLength"),
        ({"properties": {"a/b": 3}}, "/properties", "a~1b"),
        ({"properties": []}, "", "properties"),
        ({"items": {"required": "a"}}, "/items", "required"),
        ({"anyOf": []}, "", "anyOf"),
        ({"enum": "a"}, "", "enum"),
        ({"multipleOf": 0}, "", "multipleOf"),
        ({"$ref": "#/$defs/missing"}, "", "$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#"}}}, "", "$ref"),
        ({"type": "string", "pattern": "("}, "", "pattern"),
        ({"enum": ["\ud800"]}, "", ""),
        ({"const": float("nan")}, "", ""),
    ],
)
def test_malformed_schemas_name_path_and_keyword(schema: Any, path: str, keyword: str) -> None:
    with pytest.raises(InvalidSchema) as error:
        compile_schema(schema)
    assert (error.value.path, error.value.keyword) == (path, keyword) or error.value.keyword == keyword


def test_remote_references_are_never_fetched() -> None:
    with pytest.raises(UnsupportedSchema) as error:
        compile_schema({"properties": {"a": {"$ref": "https://example.org/a.json"}}})
    assert (error.value.path, error.value.keyword) == ("/properties/a", "$ref")
    resources = {"https://example.org/a.json": {"type": "integer"}}
    compiled = compile_schema({"properties": {"a": {"$ref": "https://example.org/a.json"}}}, resources=resources)
    assert accepts(compiled, {"a": 1}, {"a": "x"}) == [True, False]
    compiled.validate({"a": 1})
    with pytest.raises(InvalidInstance):
        compiled.validate({"a": "x"})


@pytest.mark.parametrize(
    ("draft", "schema", "value"),
    [
        (4, {"const": 1}, 2),
        (4, {"items": {"const": 1}, "contains": {"const": 1}}, [2]),
        (4, {"propertyNames": {"maxLength": 1}}, {"long": 1}),
        (6, {"if": {"type": "integer"}, "then": {"minimum": 3}, "else": False}, 2),
        (7, {"dependentRequired": {"a": ["b"]}}, {"a": 1}),
        (7, {"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}),
        (7, {"contains": {"const": 1}, "maxContains": 1}, [1, 1]),
        (7, {"properties": {"a": True}, "unevaluatedProperties": False}, {"b": 1}),
        (7, {"prefixItems": [{"const": 1}]}, [2]),
    ],
    ids=str,
)
def test_older_drafts_do_not_know_later_keywords(draft: int, schema: dict[str, Any], value: Any) -> None:
    compiled = compile_schema({"$schema": f"http://json-schema.org/draft-0{draft}/schema#", **schema})
    compiled.validate(value)
    assert accepts(compiled, value) == [True]
    latest = compile_schema(schema)
    assert accepts(latest, value) == [False]
    with pytest.raises(InvalidInstance):
        latest.validate(value)


def test_metaschemas_are_built_in() -> None:
    compiled = compile_schema({"$ref": "https://json-schema.org/draft/2020-12/schema"})
    assert accepts(compiled, {"minLength": 1}, {"minLength": -1}, True) == [True, False, True]


def test_rules_can_be_embedded(judge: Judge) -> None:
    compiled = compile_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    grammar = 'root ::= "call " tool-root\n' + compiled.rules("tool-")
    assert judge.accepts(grammar, 'call {"a":1}', 'call {"a":"1"}') == [True, False]
    assert set(read(grammar)) == {"root"} | {f"tool-{name}" for name in read(compiled.gbnf)}


def test_spaced_style() -> None:
    value = {"a": [1, 2], "b": {"c": None}}
    compiled = compile_schema({"type": "object"}, style="spaced")
    for text, expected in ((spaced(value), True), (compact(value), False)):
        matcher = Matcher(read(compiled.gbnf))
        assert (matcher.accept(text) and matcher.accepting) is expected


def test_what_a_grammar_cannot_say_is_a_check() -> None:
    compiled = compile_schema({"type": "array", "items": {"type": "string"}, "uniqueItems": True})
    assert [tuple(check) for check in compiled.unchecked] == [("", "uniqueItems")]
    assert accepts(compiled, ["a", "a"]) == [True]
    with pytest.raises(InvalidInstance) as error:
        compiled.validate(["a", "a"])
    assert (error.value.path, error.value.keyword) == ("", "uniqueItems")


def test_an_unsatisfiable_schema_loads_and_accepts_nothing(judge: Judge) -> None:
    compiled = compile_schema({"type": "object", "required": ["a"], "properties": {"a": False}})
    assert not compiled.satisfiable
    assert judge.accepts(compiled.gbnf, "{}", '{"a":1}') == [False, False]
    endless = compile_schema({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}})
    assert not endless.satisfiable


def test_results_are_cached_by_content() -> None:
    schema = {"type": "object", "properties": {"only here": {"type": "integer"}}}
    first = compile_schema(schema)
    assert compile_schema(json.loads(json.dumps(schema))) is first
    assert compile_schema(schema, style="spaced") is not first
    schema["properties"] = {}
    assert compile_schema(schema) is not first


def test_what_is_kept_is_found_in_the_same_scope_alone() -> None:
    schema = {"type": "string", "pattern": "^seen by one scope[ab]+$"}
    found = []
    for name in ("one", "other", "one"):
        with scoped(name):
            automaton = pattern_dfa("^seen by one scope[ab]+$")
            found.append((compile_schema(schema), automaton))
    assert found[0][0] is found[2][0] and found[0][1] is found[2][1]
    assert found[0][0] is not found[1][0] and found[0][1] is not found[1][1]
    assert found[0][0].gbnf == found[1][0].gbnf


def test_nothing_of_a_schema_is_kept_but_by_scope() -> None:
    """Caches that know no scope hold tables alone: of formats, Unicode, and parsers."""
    free = {
        f"{module.__name__}.{name}"
        for module in (
            importlib.import_module(each.name) for each in pkgutil.walk_packages(grammars.__path__, "grammars.")
        )
        for name, value in vars(module).items()
        if hasattr(value, "cache_info") and value.__module__ == module.__name__
    }
    assert free == {
        "grammars.automata.formats.format_dfa",
        "grammars.testing.gbnf._parser",
        "grammars.automata.unicode._case_pairs",
        "grammars.automata.unicode._categories",
        "grammars.automata.regex._parser",
        "grammars.automata.unicode._script",
        "grammars.automata.unicode.property_set",
    }


def test_grammars_do_not_depend_on_the_seed_of_hashes() -> None:
    program = (
        "from grammars import compile_schema; n = ['name', 'names', 'nation', 'other', 'order'];"
        "print(compile_schema({'properties': {k: {'enum': n} for k in n}, 'required': n[:2]}).gbnf)"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for seed in "123"
    }
    assert len(texts) == 1


def test_compiled_schemas_travel_between_processes() -> None:
    compiled = compile_schema({"type": "integer", "maximum": 3})
    compiled.validate(1)
    other = pickle.loads(pickle.dumps(compiled))
    assert other.gbnf == compiled.gbnf
    with pytest.raises(InvalidInstance):
        other.validate(4)


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "limit"),
    [
        (_nested(500), "depth"),
        (_nested(100_000), "depth"),
        ({"anyOf": [{"const": n} for n in range(60_000)]}, "subschemas"),
        (
            {
                "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(20_000)}
                | {"d20000": {"type": "string"}},
                "$ref": "#/$defs/d0",
            },
            "depth",
        ),
    ],
    ids=["deep", "very deep", "wide", "chain"],
)
def test_hostile_schemas_name_the_limit(schema: Any, limit: str) -> None:
    start = time.thread_time()
    with pytest.raises(UnsupportedSchema) as error:
        compile_schema(schema)
    assert error.value.limit == limit
    assert time.thread_time() - start < 4


def test_huge_counts_are_composed_or_left_to_validation(judge: Judge) -> None:
    for low, high in ((0, 2001), (3000, 65536), (10**12, None), (0, 10**12)):
        bounds = {"minItems": low} | ({} if high is None else {"maxItems": high})
        compiled = compile_schema({"type": "array", "items": {"const": 1}, **bounds})
        assert bool(compiled.unchecked) == (high == 10**12)
        few = judge.accepts(compiled.gbnf, compact([1] * min(low, 3000)), compact([1] * min(low - 1, 2999)))
        assert few == ([True, False] if low == 3000 else [low == 0, low == 0] if low < 3000 else [False, False])


def test_exponential_schemas_end_in_time() -> None:
    branch = [{"properties": {f"p{i}": {"const": j}}, "required": [f"p{i}"]} for i in range(12) for j in range(3)]
    schema = {"allOf": [{"oneOf": branch[3 * i : 3 * i + 3]} for i in range(12)]}
    start = time.thread_time()
    try:
        compiled = compile_schema(schema)
    except UnsupportedSchema as error:
        assert error.limit
    else:
        value = {f"p{i}": i % 3 for i in range(12)}
        compiled.validate(value)
        assert accepts(compiled, value) == [True]
        assert compiled.unchecked
    assert time.thread_time() - start < 4
