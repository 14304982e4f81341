"""Arguments whose names Python keeps for itself, or cannot spell: the grammar offers them, the parser reads them."""

from __future__ import annotations

import pytest

from grammars import compile_schema
from grammars.testing import Matcher
from grammars.testing import read as read_gbnf
from server.chat.formats import FORMATS
from server.chat.formats.render import render_tool_calls
from server.chat.parser import ParserSpec
from tests.chat.blocks import read

FORMAT = FORMATS["lfm-2"]


@pytest.mark.parametrize("name", ["from", "class", "None", "in", "lambda", "user-id", "x.y", "$ref", "@type"])
@pytest.mark.parametrize("required", [[], ["plain"]])
def test_names_that_are_no_names_in_python(name: str, required: list[str]) -> None:
    schema = {
        "properties": {name: {"type": "string"}, "plain": {"type": "integer"}},
        "required": [*required, *([name] if required else [])],
        "type": "object",
        "additionalProperties": False,
    }
    arguments = {name: "x", "plain": 1}
    (calls, *_) = FORMAT.calls
    text = render_tool_calls(calls, [("f", "", arguments)])
    opening, closing = "<|tool_call_start|>[f(", ")]<|tool_call_end|>"
    assert text.startswith(opening) and text.endswith(closing)
    matcher = Matcher(read_gbnf(compile_schema(schema, spelling="keywords", style="spaced").gbnf))
    assert matcher.accept(text[len(opening) : -len(closing)]) and matcher.accepting
    for pieces in ([text], list(text)):
        assert read(ParserSpec(FORMAT, "allowed", {"f": {}}), pieces).calls == [("f", arguments)]
