"""Every format, on the templates of its models: recognition, history, grammar and parser hold together."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.chat.arguments import JsonArguments, NestedArguments, TaggedArguments, argument_types
from server.chat.formats import FORMATS, matching
from server.chat.formats.render import render_tool_calls
from server.chat.formats.spec import ChatFormat
from server.chat.parser import MalformedOutput, ParserSpec
from server.chat.prompt_builder import PromptBuilder
from server.chat.schemas import validate
from server.chat.template.prompt import PromptWriter
from server.chat.types import PromptRequest
from server.engine import Vocab
from server.wire.records import Message, NamedTool, TextPart, Tool, ToolCallPart, ToolChoice
from tests.chat.blocks import read
from tests.chat.matching import Matcher

RECOGNISED = {
    "Apertus-8B-Instruct": "apertus",
    "Apriel-1.6-15b-Thinker-fixed": "apriel-1.6",
    "Bielik-11B-v3.0-Instruct": "hermes",
    "ByteDance-Seed-OSS": "seed-oss",
    "Cohere2MoE": "command-r7b",
    "CohereForAI-c4ai-command-r-plus-tool_use": "command-r-plus",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "command-r7b",
    "GLM-4.6": "glm-4.5",
    "GLM-4.7-Flash": "glm-4.7",
    "GigaChat3-10B-A1.8B": "gigachat-3",
    "GigaChat3.1-10B-A1.8B": "gigachat-3.1",
    "HuggingFaceTB-SmolLM3-3B": "hermes",
    "Kimi-K2-Instruct": "kimi-k2",
    "Kimi-K2-Thinking": "kimi-k2",
    "Kimi-K3": "kimi-k3",
    "LFM2-8B-A1B": "lfm-2",
    "LFM2.5-8B-A1B": "lfm-2",
    "LFM2.5-Instruct": "lfm-2",
    "MiMo-VL": "hermes",
    "MiniMax-M1": "minimax-m1",
    "MiniMax-M2": "minimax-m2",
    "MiniMax-M3": "minimax-m3",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral-call-id",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3-coder",
    "NVIDIA-Nemotron-Nano-v2": "nemotron-2",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen3-coder",
    "Qwen3.5-4B": "qwen3-coder",
    "Reka-Edge": "hermes",
    "Spark2.5": "glm-4.7",
    "StepFun3.5-Flash": "qwen3-coder",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek-r1",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek-r1",
    "deepseek-ai-DeepSeek-V3.1": "deepseek-v3.1",
    "deepseek-ai-DeepSeek-V3.2": "deepseek-v3.2",
    "deepseek-ai-DeepSeek-V4": "deepseek-v4",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "deepseek-v4",
    "fireworks-ai-llama-3-firefunction-v2": "firefunction-2",
    "google-gemma-2-2b-it": "generic",
    "google-gemma-4-31B-it": "gemma-4",
    "google-gemma-4-31B-it-interleaved": "gemma-4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite-3",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "inclusionai-ling-3.0-flash": "glm-4.5",
    "llama-cpp-deepseek-r1": "deepseek-r1",
    "llama-cpp-rwkv-world": "generic",
    "meetkai-functionary-medium-v3.1": "functionary-3.1",
    "meetkai-functionary-medium-v3.2": "functionary-3.2",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3",
    "microsoft-Phi-3.5-mini-instruct": "generic",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral-args",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral-nemo",
    "moonshotai-Kimi-K2": "kimi-k2",
    "muse-glimmer": "muse-glimmer",
    "openai-gpt-oss-120b": "gpt-oss",
    "openbmb-MiniCPM5-1B": "minicpm-5",
    "poolside-Laguna-S-2.1": "glm-4.7",
    "poolside-Laguna-XS-2.1": "glm-4.5",
    "poolside-Laguna-XS.2": "glm-4.5",
    "tencent-Hy3": "hunyuan-3",
    "unsloth-Apriel-1.5": "apriel-1.5",
    "unsloth-mistral-Devstral-Small-2507": "mistral-args",
    "upstage-Solar-Open-100B": "solar-open",
}

TOOL = Tool(
    "book_trip",
    "Books a trip",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "cabin": {"enum": ["first", "second"]},
            "days": {"type": "integer"},
            "insured": {"type": "boolean"},
            "stops": {"type": "array", "items": {"type": "string"}},
            "guest": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "vip": {"type": "boolean"}},
                "required": ["name"],
                "additionalProperties": False,
            },
        },
        "required": ["city"],
        "additionalProperties": False,
    },
)
OTHER = Tool("stop", None, {"type": "object", "properties": {}, "additionalProperties": False})
TOOLS = (TOOL, OTHER)
FULL = {
    "city": 'New\nYork "city" <b> \\ 日本',
    "cabin": "second",
    "days": -3,
    "insured": True,
    "stops": ["Paris", "a, b]"],
    "guest": {"name": "O'Neil }", "vip": False},
}


@pytest.fixture(scope="module")
def models(vocab: Vocab, templates: dict[str, str]) -> dict[str, PromptBuilder]:
    return {name: PromptBuilder(vocab, source) for name, source in templates.items()}


def spec(format: ChatFormat, *, lead: str = "", calls: str = "allowed") -> ParserSpec:
    kinds = {tool.name: argument_types(tool.parameters) for tool in TOOLS}
    return ParserSpec(format, calls, kinds if calls == "allowed" else {}, prompt_opening=lead)  # type: ignore[arg-type]


def written(format: ChatFormat, calls: list[tuple[str, Mapping[str, Any]]]) -> str:
    """What a model of the format writes for these calls."""
    numbered = [(name, id_of(format, index), given) for index, (name, given) in enumerate(calls)]
    return str.__str__(render_tool_calls(format.calls[0], numbered))


def id_of(format: ChatFormat, index: int) -> str:
    return str(index) if format.calls[0].id.startswith("[0-9]") else f"{index}abcdefgh"


def fits(format: ChatFormat, calls: list[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, Mapping[str, Any]]]:
    return calls[: format.calls[0].max_calls]


@pytest.mark.parametrize("name", sorted(RECOGNISED))
def test_recognition(templates: dict[str, str], models: dict[str, PromptBuilder], name: str) -> None:
    assert models[name].format.name == RECOGNISED[name]
    assert len(matching(templates[name] + models[name].template_capabilities.sample)) <= 1


def test_every_template_is_pinned(templates: dict[str, str]) -> None:
    assert templates.keys() == RECOGNISED.keys()


def conversation(choice: ToolChoice) -> PromptRequest:
    def user(text: str) -> Message:
        return Message("user", (TextPart(text),))

    def called(*parts: ToolCallPart, text: str = "") -> Message:
        return Message("assistant", (*((TextPart(text),) if text else ()), *parts))

    def result(id: str, name: str, text: str, *, error: bool = False) -> Message:
        return Message("toolResult", (TextPart(text),), tool_call_id=id, tool_name=name, is_error=error)

    one, two = ToolCallPart("call_one", "book_trip", {"city": "Oslotown"}), ToolCallPart("call_two", "stop", {})
    three = ToolCallPart("call_three", "book_trip", {"city": "Bergenville"})
    return PromptRequest(
        (
            Message("system", (TextPart("Systemwords."),)),
            user("Userwords."),
            called(one, two, text="Sidewords."),
            result("call_two", "stop", "Stoppedwords."),
            result("call_one", "book_trip", "Bookedwords."),
            Message("assistant", (TextPart("Answerwords."),)),
            user("Morewords."),
            called(three),
            result("call_three", "book_trip", "Fullwords.", error=True),
            user("Lastwords."),
        ),
        TOOLS,
        choice,
    )


@pytest.mark.parametrize("name", sorted(RECOGNISED))
def test_a_whole_conversation_reaches_the_prompt(models: dict[str, PromptBuilder], name: str) -> None:
    model = models[name]
    prepared = model.prepare(conversation("auto"))
    prompt = b"".join(model.vocab.piece(token) for token in prepared.tokens).decode()
    said = (
        "Systemwords",
        "Userwords",
        "Sidewords",
        "Answerwords",
        "Morewords",
        "Lastwords",
        "book_trip",
        "Books a trip",
    )
    done = ("Oslotown", "Stoppedwords", "Bookedwords", "Bergenville", "Fullwords", "Tool execution failed.")
    for word in (*said, *done):
        assert word in prompt, word
    assert prompt.index("Bookedwords") < prompt.index("Stoppedwords") or model.format.name == "deepseek-v4"
    assert prompt.rindex("Lastwords") > prompt.rindex("Fullwords")


ONE_EACH = sorted({family: name for name, family in RECOGNISED.items()}.values())
CHOICES = [(name, choice) for name in ONE_EACH for choice in ("auto", NamedTool("book_trip"))]


_SPELLED = re.compile(
    r"<[|｜][^<>\n{}']{1,40}[|｜]>|</?[a-zA-Z_][\w:.-]{0,30}>|\[/?[A-Z][A-Z_]{1,30}\]|[\]\[][~<!][^\s'\"]{0,12}\["
)
"""What looks like a token in a template."""

_MEDIA = (
    "<__media__>",
    "<image>",
    "<|image|>",
    "<|vision_start|><|image_pad|><|vision_end|>",
    "<start_of_image>",
    "[IMG]",
)


def test_the_tokens_of_templates_are_found(templates: dict[str, str]) -> None:
    assert all(_SPELLED.search(source) for name, source in templates.items() if name not in ("llama-cpp-rwkv-world",))


@pytest.mark.parametrize("name", sorted(RECOGNISED))
def test_tokens_in_content_never_become_control(
    templates: dict[str, str], models: dict[str, PromptBuilder], name: str
) -> None:
    """The template's own tokens, the format's, the usual ones and media markers: in texts, results, names,
    descriptions and arguments."""
    model = models[name]
    usual = ("<|im_end|>", "</s>", "<think>", "</think>", "[/INST]", "<|eot_id|>")
    markers = sorted({*_SPELLED.findall(templates[name]), *model.format.markers, *_MEDIA, *usual})
    evil = "".join(f"Qa{marker}bQ" for marker in markers)
    schema = {"type": "object", "properties": {evil: {"type": "string", "description": evil, "enum": [evil]}}}
    given_messages = (
        Message("system", (TextPart(evil),)),
        Message("user", (TextPart(evil),)),
        Message("assistant", (TextPart(evil), ToolCallPart(f"c{evil}", evil, {"a": evil, evil: [evil]}))),
        Message("toolResult", (TextPart(evil),), tool_call_id=f"c{evil}", tool_name=evil, is_error=True),
        Message("assistant", (TextPart(evil),)),
        Message("user", (TextPart(evil),)),
    )
    for choice in ("auto", "none"):
        asked = PromptRequest(given_messages, (Tool(evil, evil, schema),), choice)
        prompt = PromptWriter(model.template, model.template_capabilities, model.format, asked).write(asked.messages)
        runs = prompt.segments()
        assert not any("Qa" in run.text or "bQ" in run.text for run in runs if run.control)
        for marker in markers:
            spelled = f"Qa{marker}bQ"
            assert sum(run.text.count(spelled) for run in runs) == str.__str__(prompt).count(spelled) >= 5


@pytest.mark.parametrize(
    ("name", "choice"), [*((name, "required") for name in ONE_EACH), *CHOICES], ids=lambda x: str(x)
)
def test_what_a_model_writes_is_allowed_and_read(
    models: dict[str, PromptBuilder], matcher: Matcher, name: str, choice: ToolChoice
) -> None:
    model = models[name]
    format = model.format
    prepared = model.prepare(PromptRequest(conversation("auto").messages[:2], TOOLS, choice))
    assert prepared.constraint is not None
    calls = fits(
        format, [("book_trip", FULL), ("book_trip", {"city": "Oslo"}), ("book_trip", {"city": "", "days": 12})]
    )
    if isinstance(choice, NamedTool):
        calls = calls[:1]
    text = written(format, calls).removeprefix(prepared.parser.prompt_opening)
    thought = ""
    if format.reasoning_tags and prepared.parser.prompt_opening == format.reasoning_tags.open:
        thought = f"Let me see.{format.reasoning_tags.close.strip()}{format.separator}"
    if prepared.constraint.triggers:
        assert prepared.constraint.triggers[0] in text
        text = text[text.index(prepared.constraint.triggers[0]) :]
        assert matcher.accepts(prepared.constraint.grammar, text)
    else:
        assert matcher.accepts(prepared.constraint.grammar, thought + text)
    reading = read(prepared.parser, list(thought + text))
    assert reading.calls == calls
    assert reading.of("text") == ""
    assert reading.of("thinking") == ("Let me see." if thought else "")
    assert read(prepared.parser, [thought + text]) == reading


@pytest.mark.parametrize("name", ONE_EACH)
def test_every_spelling_may_follow_its_marker(models: dict[str, PromptBuilder], matcher: Matcher, name: str) -> None:
    format = models[name].format
    prepared = models[name].prepare(PromptRequest(conversation("auto").messages[:2], TOOLS, "auto"))
    assert prepared.constraint is not None
    for calls in format.calls if prepared.constraint.triggers else ():
        text = str.__str__(render_tool_calls(calls, [("book_trip", id_of(format, 0), FULL)]))
        assert calls.marker in prepared.constraint.triggers
        assert matcher.accepts(prepared.constraint.grammar, text[text.index(calls.marker) :])
        assert read(spec(format), list(text)).calls == [("book_trip", FULL)]


@pytest.mark.parametrize("name", ONE_EACH)
def test_wrong_calls_are_refused_by_the_grammar(models: dict[str, PromptBuilder], matcher: Matcher, name: str) -> None:
    model = models[name]
    prepared = model.prepare(PromptRequest(conversation("auto").messages[:2], TOOLS, NamedTool("book_trip")))
    assert prepared.constraint is not None
    lead = prepared.parser.prompt_opening
    thinking = model.format.reasoning_tags
    thought = f"{thinking.close.strip()}{model.format.separator}" if thinking and lead == thinking.open else ""
    good = {"city": "Oslo"}
    for wrong in (
        {"city": "Oslo", "cabin": "third"},
        {"days": 3},
        {"city": "Oslo", "days": "x"},
        {"city": "Oslo", "x": 1},
    ):
        text = written(model.format, [("book_trip", wrong)]).removeprefix(lead)
        assert not matcher.accepts(prepared.constraint.grammar, thought + text), wrong
    assert not matcher.accepts(
        prepared.constraint.grammar, thought + written(model.format, [("stop", {})]).removeprefix(lead)
    )
    assert matcher.accepts(
        prepared.constraint.grammar, thought + written(model.format, [("book_trip", good)]).removeprefix(lead)
    )


SMALL = Tool(
    "book_trip",
    "Books a trip",
    {
        "type": "object",
        "properties": {
            "cabin": {"enum": ["first", "second"]},
            "insured": {"type": "boolean"},
            "count": {"enum": [1, 2, 30]},
        },
        "required": ["cabin"],
        "additionalProperties": False,
    },
)


@pytest.mark.parametrize("name", ONE_EACH)
def test_random_outputs_are_valid_calls(models: dict[str, PromptBuilder], matcher: Matcher, name: str) -> None:
    model = models[name]
    prepared = model.prepare(PromptRequest(conversation("auto").messages[:2], (SMALL,), "required"))
    assert prepared.constraint is not None
    tokens = [token for byte, token in matcher.vocab.byte_tokens.items() if 32 <= byte < 127 or byte == 10]
    tokens += [t for text in "｜▁" for t in model.vocab._model.tokenize(text, parse_special=False)]
    choose = random.Random(3)
    thinking = model.format.reasoning_tags
    lead = prepared.parser.prompt_opening
    for _ in range(2):
        walk = matcher.start(prepared.constraint.grammar)
        thought = f"{thinking.close.strip()}{model.format.separator}" if thinking and lead == thinking.open else ""
        for token in model.vocab._model.tokenize(thought, parse_special=False):
            assert walk.step(token)
        output = walk.random(choose, tokens, most=700)
        if output is None or (thinking and thinking.open.strip() in output):
            continue  # thinking, at random, seldom ends
        calls = read(prepared.parser, [thought + output]).calls
        assert calls
        for _, given_arguments in calls:
            validate(SMALL, given_arguments)


def test_markers_in_thinking_and_text() -> None:
    format = FORMATS["hermes"]
    text = '<think>Use <tool_call>{"name": "stop"}</tool_call>?</think>\n\nNo: I just say so.'
    reading = read(spec(format), list(text))
    assert reading.of("thinking") == 'Use <tool_call>{"name": "stop"}</tool_call>?'
    assert reading.of("text") == "No: I just say so."


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_calls_where_none_are_allowed(name: str) -> None:
    format = FORMATS[name]
    text = written(format, [("book_trip", {"city": "Oslo"})])
    with pytest.raises(MalformedOutput, match="none is allowed"):
        read(spec(format, calls="refused"), list(text))
    marker = format.calls[0].marker.removesuffix("call:")
    reading = read(spec(format, calls="refused"), list(f"The marker {marker} is mere text."))
    assert reading.of("text") == f"The marker {marker} is mere text."


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_truncated_calls_leave_the_text(name: str) -> None:
    format = FORMATS[name]
    text = written(format, [("book_trip", FULL)])
    if format.calls[0].only_at_start or format.always_tagged:
        before, said = "", ""
    else:
        before, said = "I will book. ", "I will book."
    for size in range(len(text)):
        reading = read(spec(format), [before + text[:size]], "length")
        assert reading.of("text").startswith(said)
        assert all(block.name == "book_trip" for block in reading.blocks if block.kind == "toolCall")


words = st.text(alphabet="ab <>/{}[]\"'\\\n,:=|&;(é日😀", max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | st.floats(-5, 5).map(lambda x: round(x, 3)) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
FREE = {"s": ("string",), "v": ("null", "boolean", "number", "array", "object"), "t": ("string",)}


@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(
        st.fixed_dictionaries(
            {}, optional={"s": words, "v": values.filter(lambda v: not isinstance(v, str)), "t": words}
        ),
        min_size=1,
        max_size=3,
    ),
    st.lists(st.integers(0, 10_000), max_size=10),
    st.sampled_from(["", "I will do that."]),
    st.booleans(),
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
def test_round_trip(
    name: str, given_arguments: list[dict[str, Any]], places: list[int], text: str, thoughtful: bool
) -> None:
    format = FORMATS[name]
    calls = fits(format, [("tool", arguments) for arguments in given_arguments])
    syntax = format.calls[0].syntax
    if isinstance(syntax, TaggedArguments):
        close = syntax.close.strip()
        calls = [(n, {k: v for k, v in a.items() if close[:2] not in str(v)}) for n, a in calls]
        calls = [
            (n, {k: v for k, v in a.items() if k == "v" or not syntax.close.startswith("\n") or not v.startswith("\n")})
            for n, a in calls
        ]
    elif isinstance(
        syntax, NestedArguments
    ):  # nothing but a schema tells what stands in an element, and null is left out
        calls = [
            (n, {k: v for k, v in a.items() if v is not None and not isinstance(v, list | dict)}) for n, a in calls
        ]
    elif not isinstance(syntax, JsonArguments) and syntax.quote != '"':
        calls = [(n, {k: v for k, v in a.items() if "<" not in str(v)}) for n, a in calls]
    if format.calls[0].only_at_start or format.always_tagged:
        text = ""
    output = text + written(format, calls)
    if thoughtful and format.reasoning_tags:
        output = f"{format.reasoning_tags.open}Hm.{format.reasoning_tags.close}{format.separator}{output}"
    whole = read(ParserSpec(format, "allowed", {"tool": FREE}), [output])
    assert whole.calls == calls
    assert whole.of("text") == text
    assert whole.of("thinking") == ("Hm." if thoughtful and format.reasoning_tags else "")
    edges = sorted({0, len(output), *(place % (len(output) + 1) for place in places)})
    assert read(ParserSpec(format, "allowed", {"tool": FREE}), [output[a:b] for a, b in pairwise(edges)]) == whole
    assert read(ParserSpec(format, "allowed", {"tool": FREE}), list(output)) == whole
