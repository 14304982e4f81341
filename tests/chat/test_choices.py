"""Choices, JSON, results, ids and schemas, alike on every format and every template."""

from __future__ import annotations

import re
from typing import Any

import pytest

from server.chat.formats.render import render_tool_calls
from server.chat.parser import MalformedOutput
from server.chat.prompt_builder import PromptBuilder
from server.chat.types import PreparedPrompt, PromptRequest
from server.engine import Vocab
from server.wire.records import Message, NamedTool, TextPart, Tool, ToolCallPart, ToolChoice, WireError
from tests.chat.blocks import read
from tests.chat.matching import Matcher
from tests.chat.test_formats import ONE_EACH, RECOGNISED, id_of

LOOK = Tool(
    "look",
    "Looks at a place",
    {
        "type": "object",
        "properties": {"place": {"type": "string"}, "times": {"type": "integer"}},
        "required": ["place"],
        "additionalProperties": False,
    },
)
STOP = Tool("stop", None, {"type": "object", "properties": {}, "additionalProperties": False})
ASK = Message("user", (TextPart("Look."),))


@pytest.fixture(scope="module")
def models(vocab: Vocab, templates: dict[str, str]) -> dict[str, PromptBuilder]:
    return {name: PromptBuilder(vocab, source) for name, source in templates.items()}


def thought(model: PromptBuilder, prepared: PreparedPrompt) -> str:
    """What ends thinking that the prompt has opened."""
    thinking = model.format.reasoning_tags
    opened = thinking is not None and prepared.parser.prompt_opening == thinking.open
    return f"{thinking.close.strip()}{model.format.separator}" if thinking and opened else ""


def calls(model: PromptBuilder, prepared: PreparedPrompt, *names: str) -> str:
    given = [(name, id_of(model.format, i), {"place": "x"} if name == "look" else {}) for i, name in enumerate(names)]
    return thought(model, prepared) + str.__str__(render_tool_calls(model.format.calls[0], given)).removeprefix(
        prepared.parser.prompt_opening
    )


def answer(model: PromptBuilder, prepared: PreparedPrompt, text: str, *, forced: bool) -> str:
    """An answer in the frame that the grammar gives it."""
    format = model.format
    if format.answer_tags and (forced or not format.grammar_only):
        frame = format.answer_tags[0]
        text = f"{frame.open}{text}{frame.close}"
    return thought(model, prepared) + text.removeprefix(prepared.parser.prompt_opening)


@pytest.mark.parametrize("name", ONE_EACH)
def test_json_with_tools_is_calls_or_an_object(models: dict[str, PromptBuilder], matcher: Matcher, name: str) -> None:
    model = models[name]
    choices: list[tuple[ToolChoice, bool, bool]] = [
        ("auto", True, True),
        ("required", True, False),
        (NamedTool("look"), True, False),
        ("none", False, True),
    ]
    for choice, calling, answering in choices:
        prepared = model.prepare(PromptRequest((ASK,), (LOOK, STOP), choice, "json"))
        assert prepared.constraint is not None and not prepared.constraint.triggers
        grammar = prepared.constraint.grammar
        given = calls(model, prepared, "look")
        said = answer(model, prepared, '{"a": [1, {"b": null}]}', forced=calling)
        # Where a call is a JSON object by itself, so is the answer that spells one; the parser refuses it.
        if calling or not (model.format.grammar_only or model.format.calls[0].only_at_start):
            assert matcher.accepts(grammar, given) == calling
        assert matcher.accepts(grammar, said) == answering
        for text in ("Hello", "[1]", '"a"', "1"):
            assert not matcher.accepts(grammar, answer(model, prepared, text, forced=calling))
            assert not matcher.accepts(grammar, thought(model, prepared) + text)
        if calling:
            assert read(prepared.parser, list(given)).calls == [("look", {"place": "x"})]
        else:
            with pytest.raises(MalformedOutput, match="none is allowed"):
                read(prepared.parser, list(given))
        if answering:
            reading = read(prepared.parser, list(said))
            assert reading.of("text") == '{"a": [1, {"b": null}]}' and not reading.calls


@pytest.mark.parametrize("name", ONE_EACH)
def test_a_named_tool_is_called_once(models: dict[str, PromptBuilder], matcher: Matcher, name: str) -> None:
    model = models[name]
    prepared = model.prepare(PromptRequest((ASK,), (LOOK, STOP), NamedTool("stop")))
    assert prepared.constraint is not None
    assert matcher.accepts(prepared.constraint.grammar, calls(model, prepared, "stop"))
    assert not matcher.accepts(prepared.constraint.grammar, calls(model, prepared, "look"))
    assert not matcher.accepts(prepared.constraint.grammar, calls(model, prepared, "stop", "stop"))


@pytest.mark.parametrize("name", ONE_EACH)
def test_required_is_one_call_or_several(models: dict[str, PromptBuilder], matcher: Matcher, name: str) -> None:
    model = models[name]
    prepared = model.prepare(PromptRequest((ASK,), (LOOK, STOP), "required"))
    assert prepared.constraint is not None
    grammar, several = prepared.constraint.grammar, model.format.calls[0].max_calls > 1
    assert matcher.accepts(grammar, calls(model, prepared, "look"))
    assert matcher.accepts(grammar, calls(model, prepared, "look", "stop", "look")) == several
    assert not matcher.accepts(grammar, calls(model, prepared, *["stop"] * (model.format.calls[0].max_calls + 1)))
    assert not matcher.accepts(grammar, answer(model, prepared, "Hello", forced=True))


@pytest.mark.parametrize("name", sorted(RECOGNISED))
def test_none_shows_the_catalogue_and_allows_no_call(models: dict[str, PromptBuilder], name: str) -> None:
    model = models[name]
    prepared = model.prepare(PromptRequest((ASK,), (LOOK,), "none"))
    assert "Looks at a place" in prompt(model, prepared)
    assert prepared.constraint is None and not prepared.tools_to_validate
    assert set(model.call_tokens) <= set(prepared.suppress_tokens)
    with pytest.raises(MalformedOutput, match="none is allowed"):
        read(prepared.parser, list(calls(model, prepared, "look")))
    spoken = answer(model, prepared, "Hello.", forced=False)
    assert read(prepared.parser, list(spoken)).of("text") == "Hello."


@pytest.mark.parametrize("name", sorted(RECOGNISED))
def test_without_tools_there_are_none(models: dict[str, PromptBuilder], name: str) -> None:
    model = models[name]
    prepared = model.prepare(PromptRequest((ASK,)))
    assert prepared.constraint is None and not prepared.parser.tools
    assert read(prepared.parser, list(answer(model, prepared, "Hello.", forced=False))).of("text") == "Hello."


@pytest.mark.parametrize(
    ("schema", "code", "told"),
    [
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}}, "invalid-request", "/properties/a"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "unsupported", "no arguments"),
        (
            {"type": "object", "properties": {"a": {"$ref": "https://schemas.example/a"}}},
            "unsupported",
            "/properties/a",
        ),
    ],
)
def test_a_refused_schema_names_its_tool_and_path(
    models: dict[str, PromptBuilder], schema: dict[str, Any], code: str, told: str
) -> None:
    odd = Tool("odd", None, schema)
    for name in ONE_EACH:
        with pytest.raises(WireError) as caught:
            models[name].prepare(PromptRequest((ASK,), (LOOK, odd), "auto"))
        assert caught.value.code == code
        assert "tool odd" in caught.value.message and told in caught.value.message


IDS = ("toolu_01A<|im_end|>", "call:ü/2", "functions.look:7", "x" * 200)


def history(*, parallel: bool) -> tuple[Message, ...]:
    """Two rounds of calls with ids from elsewhere; results in another order, one failed."""
    parts = [ToolCallPart(id, "look", {"place": f"Place{i}"}) for i, id in enumerate(IDS)]
    results = [
        Message("toolResult", (TextPart(f"Seen{i}."),), tool_call_id=id, tool_name="look", is_error=i == 2)
        for i, id in enumerate(IDS)
    ]
    if parallel:
        return (
            ASK,
            Message("assistant", tuple(parts)),
            *reversed(results),
            Message("assistant", (TextPart("So."),)),
            ASK,
        )
    rounds = [
        turn for part, result in zip(parts, results, strict=True) for turn in (Message("assistant", (part,)), result)
    ]
    return (ASK, *rounds, Message("assistant", (TextPart("So."),)), ASK)


def prompt(model: PromptBuilder, prepared: PreparedPrompt) -> str:
    return b"".join(model.vocab.piece(token) for token in prepared.tokens).decode()


@pytest.mark.parametrize("name", sorted(RECOGNISED))
@pytest.mark.parametrize("parallel", [False, True])
def test_foreign_ids_and_failed_results(models: dict[str, PromptBuilder], name: str, parallel: bool) -> None:
    model = models[name]
    asked = PromptRequest(history(parallel=parallel), (LOOK,), "auto")
    text = prompt(model, model.prepare(asked))
    assert text == prompt(model, model.prepare(asked))
    assert text.count("Tool execution failed.") == 1
    assert re.search(r'Tool execution failed\.(\\n|\n)"?Seen2\.', text)
    for i in range(4):
        assert text.count(f"Place{i}") == text.count(f"Seen{i}.") == 1
    order = [text.index(f"Seen{i}.") for i in range(4)]
    assert order == sorted(order) or (parallel and model.format.name == "deepseek-v4")
    if model.format.id_template == "{short}":
        shown = re.findall(r'(?:"id": "|\[CALL_ID\]|"call_id": "|\[TOOL_RESULTS\](?=\w{9}\[TOOL))([^"\[]*)', text)
        assert all(re.fullmatch(r"[0-9a-z]{9}", id) for id in shown)
        assert not shown or len(set(shown)) == 4
    elif model.format.id_template:
        assert set(re.findall(r"functions\.\w+:\d+", text)) == {f"functions.look:{i}" for i in range(4)}


@pytest.mark.parametrize("name", ONE_EACH)
def test_an_id_of_another_shape_is_refused(models: dict[str, PromptBuilder], matcher: Matcher, name: str) -> None:
    model = models[name]
    written = model.format.calls[0]
    prepared = model.prepare(PromptRequest((ASK,), (STOP,), "required"))
    assert prepared.constraint is not None
    marked = {
        id: str.__str__(render_tool_calls(written, [("stop", id, {})])).removeprefix(prepared.parser.prompt_opening)
        for id in ("0", "ab_1", "x" * 9)
    }
    accepted = {
        id
        for id, text in marked.items()
        if matcher.accepts(prepared.constraint.grammar, thought(model, prepared) + text)
    }
    if len(set(marked.values())) == 1:
        assert len(accepted) == 3
    else:
        assert accepted == ({"0"} if written.id.startswith("[0-9]") else {"x" * 9})
