"""The page beside this file names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def test_every_test_of_the_table_exists() -> None:
    page = (HERE / "README.md").read_text()
    named = re.findall(r"`(?:(tests/[\w/]+\.py)::)?(test_\w+)`", page)
    assert len(named) > 60
    for file, name in named:
        source = (ROOT / (file or "tests/conformance/test_llm.py")).read_text()
        assert re.search(rf"^(?:async )?def {name}\(", source, re.MULTILINE), (file, name)


def test_every_case_has_its_id() -> None:
    source = (HERE / "test_llm.py").read_text()
    assert {int(each) for each in re.findall(r"def test_llm_c(\d\d)_", source)} == set(range(1, 24))
