"""The table of templates is what the code says, and the example of docs/dev.md is a format."""

from __future__ import annotations

import pytest

from scripts.formats_table import README, table
from server.chat.formats import FORMATS, elements
from tests.readme import Block, runs


@pytest.mark.slow
def test_the_table_is_current(templates: dict[str, str]) -> None:
    assert table(templates) in README.read_text()


@runs("Adding a chat format", 1, file="docs/dev.md")
def test_the_example_is_the_format_that_all_tests_run_over(examples: tuple[Block, ...]) -> None:
    (example,) = examples
    (made,) = eval(example.text, vars(elements))
    assert FORMATS["minicpm-5"] == made
    assert len(example.text.splitlines()) == 12 + 2, "twelve lines, and the tuple around them"
