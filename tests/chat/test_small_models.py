"""What small models need: calls without tags, thinking that the template opened, templates without a tool role."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.chat.parser import MalformedOutput
from server.chat.prompt_builder import PromptBuilder
from server.chat.types import ChatSettings, PromptRequest
from server.engine import Vocab
from server.wire.records import Message, NamedTool, TextPart, Tool, ToolCallPart, ToolChoice
from tests.chat.blocks import read
from tests.chat.matching import Matcher

WEATHER = Tool(
    "get_weather",
    "Weather of a city",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
)
ASKED = Message("user", (TextPart("Weather in Paris?"),))
ALTERNATING = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('not by turns') }}{% endif %}"
    "{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]"
    "{% elif message.role == 'assistant' %} {{ message.content }}{{ eos_token }}"
    "{% else %}{{ raise_exception('only user and assistant roles') }}{% endif %}{% endfor %}"
)
"""As old Mistral templates are: no system turn, no tools, no tool role, strictly by turns."""


def asking(choice: ToolChoice) -> PromptRequest:
    return PromptRequest((ASKED,), (WEATHER,), choice)


# --- Hermes and Qwen: a call without its tags


@pytest.fixture(scope="module")
def qwen(vocab: Vocab, templates: dict[str, str]) -> PromptBuilder:
    return PromptBuilder(vocab, templates["Qwen-Qwen2.5-7B-Instruct"])


CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'


@pytest.mark.parametrize("around", [("", ""), ("I look.\n", ""), ("", "\nThat is it."), ('{"a": 1} ', "")])
def test_a_whole_call_to_an_offered_tool_needs_no_tags(qwen: PromptBuilder, around: tuple[str, str]) -> None:
    prepared = qwen.prepare(asking("auto"))
    output = CALL.join(around)
    for pieces in ([output], list(output)):
        reading = read(prepared.parser, pieces)
        assert reading.calls == [("get_weather", {"city": "Paris"})]
        assert reading.of("text") == "".join(around).strip()
    assert prepared.tools_to_validate == {"get_weather"}, "no grammar has seen its arguments, so they are validated"


@pytest.mark.parametrize(
    "output",
    [
        '{"name": "x"}',
        '{"name": "get_weather"}',
        '{"name": "get_weather", "city": "Paris"}',
        '{"name": "get_weather", "arguments": "Paris"}',
        '{"name": "get_weather", "arguments": {"city": Paris}}',
        '{"name": "get_weather", "arguments": {"city": "Paris"}',
        '{"name": "get_weather", "arguments": {"city": "Paris"}, "id": 1}',
        '{"name": "other", "arguments": {"city": "Paris"}}',
        '{"arguments": {"city": "Paris"}, "name": "get_weather"}',
        'It is sunny, {"name": "x"} aside.',
    ],
)
def test_anything_less_is_answer_text(qwen: PromptBuilder, output: str) -> None:
    prepared = qwen.prepare(asking("auto"))
    for pieces in ([output], list(output)):
        reading = read(prepared.parser, pieces)
        assert not reading.calls and reading.of("text") == output


@pytest.mark.parametrize(
    "output", [f"<tool_call>\n{CALL.replace('get_weather', 'other')}\n</tool_call>", "<tool_call>x"]
)
def test_within_its_tags_it_must_be_one(qwen: PromptBuilder, output: str) -> None:
    for pieces in ([output], list(output)):
        with pytest.raises(MalformedOutput):
            read(qwen.prepare(asking("auto")).parser, pieces)


# --- QwQ: the template opens the thinking


@pytest.mark.parametrize("choice", ["required", NamedTool("get_weather")])
def test_required_calls_may_follow_thinking_that_the_template_opened(
    vocab: Vocab, templates: dict[str, str], matcher: Matcher, choice: ToolChoice
) -> None:
    model = PromptBuilder(vocab, templates["Qwen-QwQ-32B"])
    prepared = model.prepare(asking(choice), ChatSettings(thinking=True))
    assert prepared.parser.prompt_opening == "<think>" and prepared.constraint is not None
    call = f"<tool_call>\n{CALL}\n</tool_call>"
    output = f"First <tool_call> {{}}\nthen I call.\n</think>\n\n{call}"
    assert matcher.accepts(prepared.constraint.grammar, output)
    assert matcher.accepts(prepared.constraint.grammar, f"</think>\n\n{call}")
    assert not matcher.accepts(prepared.constraint.grammar, "Hm.\n</think>\n\nIt is sunny.")
    assert not matcher.accepts(prepared.constraint.grammar, call), "thinking is open until it is closed"
    for pieces in ([output], list(output)):
        reading = read(prepared.parser, pieces)
        assert reading.of("thinking").strip() == "First <tool_call> {}\nthen I call."
        assert reading.calls == [("get_weather", {"city": "Paris"})] and not reading.of("text")


# --- Templates without tools, or without a tool role


@pytest.fixture(scope="module", params=["google-gemma-2-2b-it", "alternating"])
def toolless(request: pytest.FixtureRequest, vocab: Vocab, templates: dict[str, str]) -> PromptBuilder:
    return PromptBuilder(vocab, templates.get(request.param, ALTERNATING))


def written(model: PromptBuilder, *messages: Message, choice: ToolChoice = "auto") -> str:
    prepared = model.prepare(PromptRequest((ASKED, *messages), (WEATHER,), choice))
    return b"".join(map(model.vocab.piece, prepared.tokens)).decode()


def result(id: str, text: str) -> Message:
    return Message("toolResult", (TextPart(text),), tool_call_id=id, tool_name="get_weather")


TWO = Message(
    "assistant",
    (ToolCallPart("a", "get_weather", {"city": "Paris"}), ToolCallPart("b", "get_weather", {"city": "Oslo"})),
)


def test_results_are_json_in_one_turn_of_the_user(toolless: PromptBuilder) -> None:
    prompt = written(toolless, TWO, result("b", "cold"), result("a", '{"c": 21}'))
    calls = [{"name": "get_weather", "arguments": {"city": city}} for city in ("Paris", "Oslo")]
    results = [{"name": "get_weather", "content": content} for content in ('{"c": 21}', "cold")]
    called, told = json.dumps({"tool_calls": calls}), json.dumps({"tool_results": results})
    assert prompt.index(called) < prompt.index(told)
    assert prompt.count(told) == 1, "in the order of the calls"


def test_a_users_message_behind_results_stands_in_their_turn(toolless: PromptBuilder) -> None:
    results = (result("a", "warm"), result("b", "cold"))
    with_question = written(toolless, TWO, *results, Message("user", (TextPart("And Rome?"),)))
    told = json.dumps({"tool_results": [{"name": "get_weather", "content": content} for content in ("warm", "cold")]})
    assert f"{told}\nAnd Rome?" in with_question
    # A turn of the assistant separates rounds.
    later = written(toolless, TWO, *results, Message("assistant", (TextPart("Warm, cold."),)), ASKED, TWO, *results)
    assert later.count(told) == 2 and later.count("Warm, cold.") == 1


@pytest.mark.parametrize(
    ("choice", "answer", "call"),
    [("auto", True, True), ("required", False, True), (NamedTool("get_weather"), False, True)],
)
def test_the_fallback_is_json(
    toolless: PromptBuilder, matcher: Matcher, choice: ToolChoice, answer: bool, call: bool
) -> None:
    """The catalogue is told, whether or not the template reads its `tools`."""
    prepared = toolless.prepare(asking(choice))
    prompt = written(toolless, choice=choice)
    assert "Weather of a city" in prompt and '"additionalProperties": false' in prompt
    assert prepared.constraint is not None
    grammar = prepared.constraint.grammar
    said, called = '{"response": "Hello!"}', f'{{"tool_calls": [{CALL}]}}'
    assert matcher.accepts(grammar, said) is answer
    assert matcher.accepts(grammar, called) is call
    assert not matcher.accepts(grammar, called.replace("get_weather", "other"))
    assert not matcher.accepts(grammar, "Hello!")
    assert read(prepared.parser, list(said)).of("text") == "Hello!"
    assert read(prepared.parser, list(called)).calls == [("get_weather", {"city": "Paris"})]


def test_none_disables_the_fallback(toolless: PromptBuilder) -> None:
    prepared = toolless.prepare(asking("none"))
    assert prepared.constraint is None
    assert "Your whole reply" not in written(toolless, choice="none")
    reading: Any = read(prepared.parser, list("Hello!"))
    assert reading.of("text") == "Hello!"
