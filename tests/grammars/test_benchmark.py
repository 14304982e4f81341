"""The arithmetic of benchmarks/schemas.py, without engines."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import schemas

from grammars import compile_schema


def test_keywords_stand_only_where_keywords_may_stand() -> None:
    schema = {
        "properties": {"pattern": {"minLength": 1}, "x": {"items": [{"multipleOf": 2}]}},
        "enum": [{"maximum": 3}],
        "not": {"$ref": "#"},
        "description": "format",
    }
    assert schemas.keywords(schema) == {"properties", "minLength", "items", "multipleOf", "enum", "not", "$ref"}


def test_places_in_a_text() -> None:
    text = '{"name":"example","n":-12.5,"m":7}'
    found = schemas.places(text)
    assert text[: found["string"]] == '{"name":"exa'
    assert text[: found["members"]] == '{"name":"example",'
    assert text[: found["number"]] == '{"name":"example","n":-'
    assert found["start"] == 0
    assert schemas.places("[]") == {"start": 0}


class Scripted:
    """Accepts the values it was told to by its grammar, and by its checks."""

    def compile(self, schema: Any) -> Any:
        if schema is None:
            raise ValueError("no schema")
        return Namespace(**schema)

    def accepts(self, compiled: Any, text: str) -> bool:
        return json.loads(text) in compiled.grammar

    def violated(self, compiled: Any, value: Any) -> str | None:
        return None if value in compiled.checks else "enum"

    def reason(self, compiled: Any, value: Any) -> str:
        return "order"


def judged(grammar: list[int], checks: list[int]) -> dict[str, Any]:
    tests = [{"data": 1, "valid": True}, {"data": 2, "valid": False}, {"data": 3, "valid": False}]
    record = {"id": "r", "split": "s", "schema": {"grammar": grammar, "checks": checks}, "tests": tests}
    return schemas.judge(Scripted(), record) | {"keywords": ["type"]}


def test_wrong_answers_are_counted_with_and_without_checks() -> None:
    exact, wide, narrow = judged([1], [1]), judged([1, 2], [1]), judged([], [1])
    assert [exact[key] for key in schemas.COUNTS] == [0, 0, 0, 0]
    assert [wide[key] for key in schemas.COUNTS] == [0, 1, 0, 0]
    assert [narrow[key] for key in schemas.COUNTS] == [1, 0, 1, 0]
    assert [wide["causes"], narrow["causes"]] == [
        {"rejected": [], "accepted": ["enum"]},
        {"rejected": ["order"], "accepted": []},
    ]
    refused = schemas.judge(Scripted(), {"id": "r", "split": "s", "schema": None, "tests": []}) | {"keywords": []}
    summary = schemas.summary([exact, wide, narrow, refused])
    assert (summary["passing"], summary["passing_checked"], summary["refused"]) == (25.0, 50.0, 25.0)
    assert (summary["wrongly_rejecting"], summary["wrongly_accepting"]) == (25.0, 25.0)
    assert summary["wrongly_accepting_checked"] == 0.0


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ({"e": 5, "d": [{"y": 1, "x": 2}], "c": 3, "b": 2, "a": 1}, "order"),
        ({"a": 1.0}, "numbers"),
        ({"e": 5.0, "a": 1}, "order"),
        ({"a": "1"}, "label: type"),
    ],
)
def test_why_a_grammar_rejects(value: Any, cause: str) -> None:
    items = {"properties": {"x": True, "y": True}, "required": ["x", "y"], "additionalProperties": False}
    properties = {"a": {"type": "integer"}, "b": True, "c": True, "d": {"items": items}, "e": {"type": "integer"}}
    compiled = compile_schema({"type": "object", "properties": properties, "additionalProperties": False})
    assert schemas.reason(compiled, value) == cause


def test_each_table_goes_between_its_marks_of_the_readme(tmp_path: Path) -> None:
    results = [judged([1], [1]) | {"id": "one"}, judged([1, 2], [1]) | {"id": "two"}]
    first, second, readme = tmp_path / "first.json", tmp_path / "second.json", tmp_path / "README.md"
    for path, found in ((first, results[:1]), (second, results[1:])):
        path.write_text(json.dumps({"ours": {"summary": {}, "results": found}}))
    marks = "".join(f"<!-- {name}:begin -->\nold {name}\n<!-- {name}:end -->\n" for name in ("schemas", "times"))
    readme.write_text(f"before\n{marks}after\n")
    arguments = Namespace(results=[first, second], times=None, suite=None, masks=None, readme=readme)
    schemas.report(arguments)
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("after\n")
    assert "old schemas" not in text and "old times" in text
    assert "| `type` | 2 | 50.0 | 100.0 | 0.0 |" in text
    assert "| an invalid value is accepted, and refused by the check of `enum` | 1 | 50.00 |" in text
    schemas.report(Namespace(**vars(arguments) | {"results": [], "times": [second]}))
    assert "old times" not in readme.read_text() and "| `type` | 2 |" in readme.read_text()


def test_percentiles() -> None:
    assert schemas.percentiles([]) == {}
    assert schemas.percentiles([3.0, 1.0, 2.0, 4.0]) == {"p50": 3.0, "p90": 4.0, "p99": 4.0, "max": 4.0}
