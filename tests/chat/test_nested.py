"""Elements within elements (MiniMax M3): the schema's types decide, in the grammar and in the parser."""

from __future__ import annotations

import pickle
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.chat.arguments.schema_types import SchemaTypes, argument_types
from server.chat.formats import FORMATS
from server.chat.formats.render import render_tool_calls
from server.chat.parser import OutputParser, ParserSpec
from server.chat.prompt_builder import PromptBuilder
from server.chat.schemas import validate
from server.chat.types import PromptRequest
from server.engine import Vocab
from server.wire.records import Message, NamedTool, TextPart, Tool, WireError
from tests.chat.blocks import read
from tests.chat.matching import Matcher

FORMAT = FORMATS["minimax-m3"]
PLAN = Tool(
    "plan",
    None,
    {
        "type": "object",
        "$defs": {
            "place": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "at": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
                    "near": {"$ref": "#/$defs/place"},
                },
                "required": ["name"],
                "additionalProperties": False,
            }
        },
        "properties": {
            "title": {"type": "string", "pattern": "^[A-Z]"},
            "stops": {"type": "array", "items": {"$ref": "#/$defs/place"}},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "by": {"enum": ["train", "bus"]},
            "tags": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
            "quiet": {"type": "boolean"},
        },
        "required": ["title"],
        "additionalProperties": False,
    },
)
FULL: dict[str, Any] = {
    "title": "To <Oslo> & \n back",
    "stops": [{"name": "", "at": [1, -2.5]}, {"name": "5", "near": {"name": "true", "near": {"name": "x"}}}],
    "days": 3,
    "by": "bus",
    "tags": ["a", "1"],
    "quiet": False,
}


@pytest.fixture(scope="module")
def model(vocab: Vocab, templates: dict[str, str]) -> PromptBuilder:
    return PromptBuilder(vocab, templates["MiniMax-M3"])


def written(arguments: dict[str, Any]) -> str:
    return str.__str__(render_tool_calls(FORMAT.calls[0], [("plan", "", arguments)]))


def grammar(model: PromptBuilder, tool: Tool = PLAN) -> str:
    asked = PromptRequest((Message("user", (TextPart("Go."),)),), (tool,), NamedTool(tool.name))
    prepared = model.prepare(asked)
    assert prepared.constraint is not None and prepared.tools_to_validate == {tool.name}
    return prepared.constraint.grammar


def test_the_grammar_follows_the_schema(model: PromptBuilder, matcher: Matcher) -> None:
    rules = grammar(model)
    for good in (FULL, {"title": "T"}, {"title": "T", "tags": "x"}, {"title": "T", "stops": []}):
        assert matcher.accepts(rules, written(good)), good
    for wrong in (
        {},
        {"title": "t"},
        {"title": "T", "days": 10},
        {"title": "T", "by": "car"},
        {"title": "T", "x": 1},
        {"title": "T", "stops": [{}]},
        {"title": "T", "stops": [{"name": "x", "at": [1]}]},
        {"title": "T", "stops": [{"name": "x", "near": {"at": [1, 2]}}]},
        {"title": "T", "quiet": "yes"},
        {"title": "T", "tags": [["x"]]},
    ):
        assert not matcher.accepts(rules, written(wrong)), wrong


def test_what_the_grammar_allows_is_read_and_valid(model: PromptBuilder, matcher: Matcher) -> None:
    tool = Tool(
        "plan",
        None,
        {
            "type": "object",
            "properties": {
                "by": {"enum": ["train", "bus"]},
                "stops": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"n": {"enum": [1, 2]}, "b": {"type": "boolean"}},
                        "required": ["n"],
                        "additionalProperties": False,
                    },
                    "minItems": 1,
                    "maxItems": 2,
                },
            },
            "required": ["stops"],
            "additionalProperties": False,
        },
    )
    rules = grammar(model, tool)
    spec = ParserSpec(FORMAT, "allowed", {"plan": argument_types(tool.parameters)})
    tokens = [token for byte, token in matcher.vocab.byte_tokens.items() if 32 <= byte < 127 or byte == 10]
    choose = random.Random(5)
    complete = 0
    for _ in range(12):
        output = matcher.start(rules).random(choose, tokens, most=900)
        if output is None or "<mm:think>" in output:
            continue  # thinking, at random, seldom ends
        complete += 1
        ((_, arguments),) = read(spec, [output]).calls
        validate(tool, arguments)
    assert complete >= 3


texts = st.text(alphabet="ab <>/[]{}\"'\\\n,:0t(é日", max_size=8)
places = st.recursive(
    st.fixed_dictionaries({"name": texts}, optional={"at": st.lists(st.integers(-9, 9), min_size=2, max_size=2)}),
    lambda inner: st.fixed_dictionaries({"name": texts, "near": inner}),
    max_leaves=4,
)
plans = st.fixed_dictionaries(
    {"title": texts},
    optional={
        "stops": st.lists(places, max_size=3),
        "days": st.integers(1, 9),
        "tags": st.lists(texts, min_size=1, max_size=3),
        "quiet": st.booleans(),
    },
)


@given(plans, st.lists(st.integers(0, 10_000), max_size=10))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_arguments_come_back(arguments: dict[str, Any], places: list[int]) -> None:
    spec = pickle.loads(pickle.dumps(ParserSpec(FORMAT, "allowed", {"plan": argument_types(PLAN.parameters)})))
    output = written(arguments)
    whole = read(spec, [output])
    assert whole.calls == [("plan", arguments)]
    edges = sorted({0, len(output), *(place % (len(output) + 1) for place in places)})
    assert read(spec, [output[a:b] for a, b in pairwise(edges)]) == whole
    assert read(spec, list(output)) == whole


def test_texts_stream() -> None:
    spec = ParserSpec(FORMAT, "allowed", {"plan": argument_types(PLAN.parameters)})
    output = written({"title": "words " * 400, "stops": [{"name": "words " * 400}]})
    parser = OutputParser(spec)
    longest = 0
    for char in output:
        parser.feed(char)
        longest = max(longest, parser.waiting)
    assert longest < 60
    assert parser.finish("stop") is not None


def test_kinds_of_what_values_hold() -> None:
    kinds = argument_types(PLAN.parameters)
    stops = kinds["stops"]
    assert isinstance(stops, SchemaTypes) and stops == ("array",)
    assert stops.item() == ("object",) and stops.item().member("at").item() == ("number",)
    assert stops.item().member("near").member("near").member("name") == ("string",)
    assert kinds["tags"] == ("string", "array")
    assert pickle.loads(pickle.dumps(stops)).item() == ("object",)


def test_a_refused_schema_names_its_tool(model: PromptBuilder) -> None:
    tool = Tool("odd", None, {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}})
    with pytest.raises(WireError, match="tool odd: /properties/a"):
        grammar(model, tool)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "properties": {"a": {"type": "null"}, "b": {"$ref": "#/properties/a"}}},
        {"type": "object", "properties": {"a": {"type": "array", "prefixItems": [{"type": "string"}], "items": False}}},
        {"type": "object", "properties": {"a": {"type": "array", "minItems": 100, "maxItems": 5000}}},
        {"type": "object", "required": ["z"], "additionalProperties": {"type": "integer"}},
    ],
)
def test_any_schema_makes_a_grammar_that_loads(model: PromptBuilder, matcher: Matcher, schema: dict[str, Any]) -> None:
    matcher.start(grammar(model, Tool("plan", None, schema)))
