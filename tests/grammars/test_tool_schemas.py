"""Schemas of real tools that other servers fail on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grammars import InvalidInstance, compile_schema
from tests.grammars.judge import Judge
from tests.grammars.walks import accepts, compact

_CASES = [json.loads(line) for line in (Path(__file__).parent / "data/tool-schemas.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case["id"])
def test_grammar_alone_tells_valid_from_invalid(case: dict[str, Any], judge: Judge) -> None:
    compiled = compile_schema(case["schema"])
    values, expected = [test["data"] for test in case["tests"]], [test["valid"] for test in case["tests"]]
    assert accepts(compiled, *values) == expected
    assert judge.accepts(compiled.gbnf, *map(compact, values)) == expected


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case["id"])
def test_validation_agrees(case: dict[str, Any]) -> None:
    compiled = compile_schema(case["schema"])
    for test in case["tests"]:
        if test["valid"]:
            compiled.validate(test["data"])
        else:
            with pytest.raises(InvalidInstance):
                compiled.validate(test["data"])
