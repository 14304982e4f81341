"""The example of the package's README, as it stands."""

from __future__ import annotations

from typing import Any

import pytest

from grammars import Compiled, InvalidInstance
from tests.grammars.judge import Judge
from tests.readme import Block, printed, runs


@runs("grammars: JSON Schema in, GBNF out", 1, file="grammars/README.md")
def test_the_example_runs(examples: tuple[Block, ...], judge: Judge) -> None:
    (example,) = examples
    names: dict[str, Any] = {"__name__": "example"}
    assert printed(example.text, names) == ""
    compiled = names["compiled"]
    assert isinstance(compiled, Compiled) and compiled.unchecked == ()
    assert judge.accepts(compiled.gbnf, '{"day":"2024-02-29"}', '{"day":"2023-02-29"}') == [True, False]
    with pytest.raises(InvalidInstance):
        compiled.validate({"day": "2023-02-29"})
    larger = 'root ::= "call " arguments-root\n' + compiled.rules("arguments-")
    assert judge.accepts(larger, 'call {"day":"2024-02-29"}', "call {}", "call") == [True, True, False]
