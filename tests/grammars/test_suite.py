"""The JSON Schema Test Suite (draft 2020-12), by the grammar alone and together with validation.

`data/json-schema-test-suite.json.gz` holds the suite's tests and remote documents (its licence inside);
`data/suite-departures.json` lists where the grammar alone departs from the standard: a case that is not in the list and
fails is a regression, one that is in the list and passes must be taken out.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from grammars import compile_schema
from grammars.testing import Matcher, read
from tests.grammars.walks import compact, validates

_DATA = Path(__file__).parent / "data"
_SUITE = json.loads(gzip.decompress((_DATA / "json-schema-test-suite.json.gz").read_bytes()))
_DEPARTURES: dict[str, str] = json.loads((_DATA / "suite-departures.json").read_text())


def departures(name: str) -> tuple[dict[str, str], list[str]]:
    """What the grammar alone gets wrong in a file (rejected or accepted), and what is wrong with checks."""
    found: dict[str, str] = {}
    wrong: list[str] = []
    for group in _SUITE["tests"][name]:
        formats: Any = "assert" if "format/" in name else "annotate"
        compiled = compile_schema(group["schema"], formats=formats, resources=_SUITE["remotes"])
        start = Matcher(read(compiled.gbnf))
        for test in group["tests"]:
            key = f"{name}: {group['description']}: {test['description']}"
            here = start.copy()
            accepted = here.accept(compact(test["data"])) and here.accepting
            if accepted != test["valid"]:
                found[key] = "accepted" if accepted else "rejected"
            if validates(compiled, test["data"]) != test["valid"]:
                wrong.append(key)
            elif accepted and not test["valid"] and not compiled.unchecked:
                wrong.append(f"{key}: not in checks")
    return found, wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", _SUITE["tests"])
def test_grammar_departs_only_where_stated(name: str) -> None:
    found, wrong = departures(name)
    assert found == {key: verdict for key, verdict in _DEPARTURES.items() if key.startswith(f"{name}: ")}
    assert not wrong
