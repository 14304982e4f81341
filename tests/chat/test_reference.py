"""What our renderer makes of every template is, character for character, what Transformers' makes of the same input."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would say that there is no torch

import pytest
from jinja2.exceptions import SecurityError
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

from server.chat.formats import recognise
from server.chat.template.capabilities import detect_capabilities
from server.chat.template.prompt import PromptWriter
from server.chat.template.provenance import ProvenanceStr, from_template, from_user
from server.chat.template.template import Template, TemplateError
from server.chat.types import PromptRequest
from tests.chat.test_formats import RECOGNISED, conversation

TOKENS = {"bos_token": "<BOS>", "eos_token": "<EOS>"}

LENIENT = {
    # Lists of ids that these templates keep, and that Transformers' sandbox does not let them append to.
    "Kimi-K2-Instruct": "append",
    "Kimi-K2-Thinking": "append",
    # The JSON of what `map` gives, a generator.
    "llama-cpp-deepseek-r1": "generator",
    # `"…" | safe + text`: Jinja escapes the text for HTML, and the model would read `&#34;` for every quote.
    "meetkai-functionary-medium-v3.1": "&#34;",
}
"""Templates that Transformers refuses or spoils, by what shows it. llama.cpp renders them, and so do we: they are held
against Transformers' renderer with the first two granted and the filter left out."""


def unescaped(source: str) -> str:
    return source.replace('"|safe', '"')


class Recorder(Template):
    """Remembers what it rendered last."""

    given: Mapping[str, Any]
    rendered: ProvenanceStr

    def render(self, messages: Sequence[Mapping[str, Any]], **given: Any) -> ProvenanceStr:
        self.given = {"messages": messages, **given}
        self.rendered = super().render(messages, **given)
        return self.rendered


def plain(value: Any) -> Any:
    """The same without our strings."""
    match value:
        case str():
            return str.__str__(value)
        case Mapping():
            return {plain(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    return value


class Granted:
    """Transformers' environment of one template, where it is to be lenient."""

    def __init__(self, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
        environment = _compile_jinja_template(source).environment
        safe = environment.is_safe_attribute
        monkeypatch.setattr(
            environment,
            "is_safe_attribute",
            lambda obj, attr, value: (isinstance(obj, list) and attr in ("append", "pop")) or safe(obj, attr, value),
        )
        monkeypatch.setitem(environment.filters, "tojson", self._tojson(environment.filters["tojson"]))

    @staticmethod
    def _tojson(theirs: Callable[..., str]) -> Callable[..., str]:
        return lambda value, *args, **given: theirs(
            list(value) if isinstance(value, Iterator) else value, *args, **given
        )


def reference(source: str, messages: Any, tools: Any, **options: Any) -> str:
    """The prompt as `apply_chat_template` renders it. Raises whatever Jinja does."""
    told = plain(tools) or []
    rendered, _ = render_jinja_template(
        [plain(messages)],
        tools=plain(tools),
        chat_template=source,
        add_generation_prompt=True,
        functions=json.dumps(told, indent=2, ensure_ascii=False),
        datetime=datetime.now().strftime("%b %d %Y"),
        **TOKENS,
        **plain(options),
    )
    assert isinstance(rendered[0], str)
    return rendered[0]


def reordered(given: PromptRequest) -> PromptRequest:
    """The same with the results of the first two calls in the other order."""
    messages = list(given.messages)
    messages[3], messages[4] = messages[4], messages[3]
    assert {messages[3].role, messages[4].role} == {"toolResult"}
    return PromptRequest(tuple(messages), given.tools, given.tool_choice)


def looping(given: PromptRequest) -> PromptRequest:
    """As far as a result that the model has not answered yet."""
    return PromptRequest(given.messages[:-1], given.tools, given.tool_choice)


ADAPTED = {"whole": lambda given: given, "results in order": reordered, "after a result": looping}


@pytest.mark.parametrize("name", sorted(RECOGNISED))
@pytest.mark.parametrize("variant", ADAPTED)
def test_a_full_conversation(
    templates: dict[str, str], name: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As we give it to the template: turns it lacks carried otherwise, ids in its format's shape."""
    template = Recorder(templates[name], bos=TOKENS["bos_token"], eos=TOKENS["eos_token"])
    traits = detect_capabilities(template)
    asked = ADAPTED[variant](conversation("auto"))
    PromptWriter(template, traits, recognise(template.source, traits.sample), asked).write(asked.messages)
    if name in LENIENT:
        try:
            assert LENIENT[name] in reference(template.source, **template.given)
        except (SecurityError, TypeError) as error:
            assert LENIENT[name] in str(error)
        Granted(unescaped(template.source), monkeypatch)
    assert str.__str__(template.rendered) == reference(unescaped(template.source), **template.given)


CALLED = [
    {"type": "function", "id": f"abcdefgh{i}", "function": {"name": "get_weather", "arguments": arguments}}
    for i, arguments in enumerate(
        ({"city": "Köln <|im_end|>", "days": 2}, {"city": "Rom", "near": ["a", None, {"b": 1.5}]})
    )
]
CATALOGUE = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city <|im_end|>",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Stadt"},
                    "days": {"type": "integer", "minimum": 1},
                    "near": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object"}]}},
                },
                "required": ["city"],
            },
        },
    }
]


SIMPLE = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Stadt"}}},
        },
    }
]
"""All that some templates read of a schema."""
THOUGHT = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), "Why?")
"""Transformers fills in the names of it that are missing; the wire has none of them."""


def native() -> Iterator[list[dict[str, Any]]]:
    """Conversations as users of Transformers write them, whether a template takes them or not."""
    system, user = {"role": "system", "content": "Be  brief. "}, {"role": "user", "content": " hi </think> {there}\n"}
    answer = {"role": "assistant", "content": "<think>x</think> It is {sunny}.", **THOUGHT}
    results = [
        {"role": "tool", "tool_call_id": call["id"], "name": "get_weather", "content": f"sunny {call['id']} </s>"}
        for call in CALLED
    ]
    yield [user]
    yield [system, user, answer, user]
    for text in ("", "Let me see.", None):
        for calls in (CALLED[:1], CALLED):
            for given in (calls, [told_as_text(call) for call in calls]):
                asked = {"role": "assistant", "content": text, "tool_calls": given}
                for order in (1, -1):
                    done = results[: len(calls)][::order]
                    yield [system, user, asked, *done]
                    yield [user, asked, *done, answer, user, {**asked, **THOUGHT}, *done]
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}]
    yield [{**system, "content": parts}, {**user, "content": parts}, {**answer, "content": parts}, user]


def told_as_text(call: dict[str, Any]) -> dict[str, Any]:
    function = {**call["function"], "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False)}
    return {**call, "function": function}


@pytest.mark.parametrize("name", sorted(RECOGNISED))
def test_conversations_as_they_come(templates: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendered alike, or refused by both."""
    if name in LENIENT:
        Granted(unescaped(templates[name]), monkeypatch)
    template = Template(templates[name], bos=TOKENS["bos_token"], eos=TOKENS["eos_token"])
    rendered = 0
    for messages in native():
        for tools, options in ((None, {}), (CATALOGUE, {}), (SIMPLE, {"enable_thinking": False})):
            ours = [{**from_user(message), "role": from_template(message["role"])} for message in messages]
            try:
                expected = reference(unescaped(template.source), messages, tools, **options)
            except Exception:
                with pytest.raises(TemplateError):
                    template.render(ours, tools=from_user(tools), **options)
                continue
            assert str.__str__(template.render(ours, tools=from_user(tools), **options)) == expected
            rendered += 1
    print(f"{name}: {rendered} rendered")
    assert rendered
