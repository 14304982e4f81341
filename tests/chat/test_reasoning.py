"""Thinking and its effort as a connection is set, and tool loops whose reasoning the wire loses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from server.chat.formats import FORMATS, recognise
from server.chat.prompt_builder import PromptBuilder
from server.chat.template.capabilities import detect_capabilities
from server.chat.template.reasoning import EFFORTS, ReasoningSwitches
from server.chat.template.template import Template
from server.chat.types import ChatSettings, PreparedPrompt, PromptRequest
from server.engine import Vocab
from server.wire.records import Message, TextPart, ThinkingPart, Tool, ToolCallPart, WireError

SWITCHES = {
    "Apertus-8B-Instruct": "enable_thinking",
    "Bielik-11B-v3.0-Instruct": "enable_thinking",
    "ByteDance-Seed-OSS": "thinking_budget",
    "Cohere2MoE": "reasoning",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "enable_thinking",
    "GLM-4.6": "enable_thinking",
    "GLM-4.7-Flash": "enable_thinking",
    "HuggingFaceTB-SmolLM3-3B": "enable_thinking",
    "Kimi-K3": "thinking",
    "MiniMax-M3": "thinking_mode",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "enable_thinking",
    "Qwen-QwQ-32B": "enable_thinking",
    "Qwen-Qwen3-0.6B": "enable_thinking",
    "Qwen3.5-4B": "enable_thinking",
    "Reka-Edge": "enable_thinking",
    "Spark2.5": "enable_thinking",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "enable_thinking",
    "deepseek-ai-DeepSeek-V3.1": "enable_thinking",
    "deepseek-ai-DeepSeek-V3.2": "enable_thinking",
    "deepseek-ai-DeepSeek-V4": "enable_thinking",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "enable_thinking",
    "google-gemma-4-31B-it": "enable_thinking",
    "google-gemma-4-31B-it-interleaved": "enable_thinking",
    "ibm-granite-granite-3.3-2B-Instruct": "thinking",
    "inclusionai-ling-3.0-flash": "enable_thinking",
    "llama-cpp-rwkv-world": "enable_thinking",
    "openbmb-MiniCPM5-1B": "enable_thinking",
    "poolside-Laguna-S-2.1": "enable_thinking",
    "poolside-Laguna-XS-2.1": "enable_thinking",
    "poolside-Laguna-XS.2": "enable_thinking",
}

HELD = {
    "Kimi-K3": ("thinking_effort", ("low", "high", "max")),
    "deepseek-ai-DeepSeek-V4": ("reasoning_effort", EFFORTS[:-1]),
    "deepseek-ai-DeepSeek-V4-Flash-0731": ("reasoning_effort", ("minimal", "low", "medium", "high", "max")),
    "muse-glimmer": ("reasoning_strength", EFFORTS),
    "openai-gpt-oss-120b": ("reasoning_effort", EFFORTS),
    "tencent-Hy3": ("reasoning_effort", ("low", "high")),
    "upstage-Solar-Open-100B": ("reasoning_effort", EFFORTS),
}


def hello(model: PromptBuilder, settings: ChatSettings) -> tuple[str, PreparedPrompt]:
    prepared = model.prepare(PromptRequest((Message("user", (TextPart("Hello"),)),)), settings)
    return b"".join(model.vocab.piece(token) for token in prepared.tokens).decode(), prepared


@pytest.mark.slow
def test_switches_and_efforts_are_found(templates: dict[str, str]) -> None:
    found = {name: detect_capabilities(Template(source)).reasoning for name, source in templates.items()}
    assert {name: each.switch[0] for name, each in found.items() if each.switch} == SWITCHES
    assert {name: (each.effort, each.efforts) for name, each in found.items() if each.effort} == HELD


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SWITCHES))
def test_thinking_is_switched(vocab: Vocab, templates: dict[str, str], name: str) -> None:
    model = PromptBuilder(vocab, templates[name])
    (on, _), (off, prepared) = (hello(model, ChatSettings(thinking=thinking)) for thinking in (True, False))
    assert on != off
    assert model.format.reasoning_tags is None or prepared.parser.prompt_opening != model.format.reasoning_tags.open


@pytest.mark.parametrize("name", sorted(HELD))
def test_an_effort_reaches_the_prompt(vocab: Vocab, templates: dict[str, str], name: str) -> None:
    model = PromptBuilder(vocab, templates[name])
    efforts = HELD[name][1]
    least, most = (hello(model, ChatSettings(None, True, effort))[0] for effort in (efforts[0], efforts[-1]))
    assert least != most
    if name in SWITCHES:  # where thinking is off, it is told and means nothing
        off = ChatSettings(thinking=False)
        assert hello(model, ChatSettings(thinking=False, reasoning_effort=efforts[-1])) == hello(model, off)


def test_settings_that_a_template_does_not_know_change_nothing(vocab: Vocab, templates: dict[str, str]) -> None:
    model = PromptBuilder(vocab, templates["Qwen-Qwen2.5-7B-Instruct"])
    assert hello(model, ChatSettings(thinking=False, reasoning_effort="high")) == hello(model, ChatSettings())


def test_an_effort_that_the_template_does_not_take_is_left_out() -> None:
    known = ReasoningSwitches(None, "effort", ("low", "high"))
    assert known.options(ChatSettings(reasoning_effort="high")) == {"effort": "high"}
    assert known.options(ChatSettings(reasoning_effort="medium")) == {}
    # It is left out for no other reason.
    switched = ReasoningSwitches(("think", True, False), "effort", ("low", "high"))
    settings = ChatSettings(reasoning_effort="high", thinking=False)
    assert switched.options(settings) == {"think": False, "effort": "high"}


@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "Kimi-K3", "Qwen-Qwen2.5-7B-Instruct"])
def test_capabilities_say_what_can_be_told(vocab: Vocab, templates: dict[str, str], name: str) -> None:
    found = PromptBuilder(vocab, templates[name]).capabilities()
    assert found.thinking is (name in SWITCHES)
    assert found.reasoning_efforts == (HELD[name][1] if name in HELD else ())


TOOL = Tool("look", None, {"type": "object"})
ASK = Message("user", (TextPart("Look."),))
CALL = Message("assistant", (ToolCallPart("c1", "look", {}),))
RESULT = Message("toolResult", (TextPart("Seen."),), tool_call_id="c1", tool_name="look")
ANSWER = Message("assistant", (TextPart("I saw."),))
AGAIN = (
    Message("assistant", (ToolCallPart("c2", "look", {}),)),
    Message("toolResult", (TextPart("Seen."),), tool_call_id="c2", tool_name="look"),
)
REQUIRED = ChatSettings(reasoning_continuation="required")
WANTING = (
    *("Cohere2MoE", "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "Kimi-K2-Thinking", "Kimi-K3", "MiniMax-M2"),
    *("MiniMax-M3", "deepseek-ai-DeepSeek-V3.2", "deepseek-ai-DeepSeek-V4", "deepseek-ai-DeepSeek-V4-Flash-0731"),
    "openai-gpt-oss-120b",
)
"""Templates whose models are trained to get their own reasoning back within a loop of calls."""


def told(model: PromptBuilder, messages: tuple[Message, ...], settings: ChatSettings, **fields: Any) -> str:
    """What the refusal of this conversation says; empty where it is prepared."""
    try:
        model.prepare(PromptRequest(messages, (TOOL,), "auto", **fields), settings)
    except WireError as error:
        assert error.code == "unsupported"
        return error.message
    return ""


@pytest.mark.parametrize("messages", [(ASK, CALL, RESULT), (ASK, ANSWER, ASK, CALL, RESULT, CALL, RESULT)])
def test_a_loop_without_its_reasoning_is_refused_where_it_is_required(
    vocab: Vocab, messages: tuple[Message, ...]
) -> None:
    model = PromptBuilder(vocab)
    with pytest.raises(WireError, match="reasoning") as caught:
        model.prepare(PromptRequest(messages, (TOOL,), "auto"), REQUIRED)
    assert caught.value.code == "unsupported"
    model.prepare(PromptRequest(messages, (TOOL,), "auto"))


@pytest.mark.parametrize(
    "messages", [(ASK,), (ASK, ANSWER), (ASK, CALL, RESULT, ASK), (ASK, CALL, RESULT, ANSWER, ASK)]
)
def test_what_continues_no_loop_is_prepared(vocab: Vocab, messages: tuple[Message, ...]) -> None:
    assert not told(PromptBuilder(vocab), messages, REQUIRED)


def test_templates_of_models_that_want_their_reasoning_back(templates: dict[str, str]) -> None:
    found = set()
    for name, source in templates.items():
        format = recognise(source, detect_capabilities(Template(source)).sample)
        if format.needs_reasoning_history and format.reasoning_tags is not None:
            found.add(name)
    assert found == set(WANTING)


@pytest.mark.parametrize("name", WANTING)
def test_a_loop_without_its_reasoning_is_refused_where_the_format_wants_it(
    vocab: Vocab, templates: dict[str, str], name: str
) -> None:
    model, thinking = PromptBuilder(vocab, templates[name]), ChatSettings(thinking=True)
    rounds = (ASK, CALL, RESULT, *AGAIN)
    refused = told(model, (ASK, CALL, RESULT), thinking)
    assert refused.startswith("messages[1]: ") and "reasoning" in refused and "/llm/complete" in refused
    assert 'reasoning_continuation = "dropped"' in refused
    assert ("switch thinking off" in refused) is (name in SWITCHES)
    assert told(model, rounds, thinking).startswith("messages[1]: ")
    assert told(model, (ASK, CALL, RESULT, ANSWER, ASK, *AGAIN), thinking).startswith("messages[5]: ")
    # What the user has spoken behind is over.
    for over in ((ASK,), (ASK, ANSWER, ASK), (ASK, CALL, RESULT, ASK), (ASK, CALL, RESULT, ANSWER, ASK)):
        assert not told(model, over, thinking)
    # An owner may have it otherwise; so may a projection whose clients know no better, but for what an owner requires.
    assert not told(model, rounds, replace(thinking, reasoning_continuation="dropped"))
    assert not told(model, rounds, thinking, lenient=True)
    assert told(model, rounds, replace(thinking, reasoning_continuation="required"), lenient=True)
    if name in SWITCHES:
        assert not told(model, rounds, ChatSettings(thinking=False))


@pytest.mark.parametrize("name", WANTING)
def test_untold_a_model_thinks_as_its_template_has_it(vocab: Vocab, templates: dict[str, str], name: str) -> None:
    silent = {
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
        *(name for name in WANTING if name.startswith("deepseek")),
    }
    refused = told(PromptBuilder(vocab, templates[name]), (ASK, CALL, RESULT), ChatSettings())
    assert bool(refused) is (name not in silent)


@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "Kimi-K2-Instruct", "GLM-4.6", "Qwen-Qwen2.5-7B-Instruct"])
def test_models_that_get_along_without_go_on(vocab: Vocab, templates: dict[str, str], name: str) -> None:
    model = PromptBuilder(vocab, templates[name])
    for settings in (ChatSettings(), ChatSettings(thinking=True)):
        assert not told(model, (ASK, CALL, RESULT), settings)


def test_turns_of_another_route_begin_a_new_context(vocab: Vocab, templates: dict[str, str]) -> None:
    """By the contract of `/llm/complete`; an owner may require more."""
    model, messages = PromptBuilder(vocab, templates["openai-gpt-oss-120b"]), (ASK, CALL, RESULT)
    assert not told(model, messages, ChatSettings(), restarted=frozenset({1}))
    assert told(model, messages, REQUIRED, restarted=frozenset({1}))
    assert told(model, (*messages, *AGAIN), ChatSettings(), restarted=frozenset({1})).startswith("messages[3]: ")
    assert told(model, messages, ChatSettings(), names=("a", "b", "c")).startswith("b: ")


def test_formats_say_whose_models_expect_their_reasoning_back() -> None:
    wanted = {
        "command-r7b",
        "deepseek-v3.2",
        "deepseek-v4",
        "gpt-oss",
        "kimi-k2",
        "kimi-k3",
        "minimax-m2",
        "minimax-m3",
    }
    assert {name for name, format in FORMATS.items() if format.needs_reasoning_history} == wanted


@pytest.mark.slow
def test_thinking_never_reaches_a_prompt(vocab: Vocab, templates: dict[str, str]) -> None:
    thought = ThinkingPart("Secretwords.")
    messages = (ASK, Message("assistant", (thought, TextPart("Sidewords."), *CALL.content)), RESULT, ANSWER, ASK)
    for source in templates.values():
        model = PromptBuilder(vocab, source)
        for settings in (ChatSettings(), ChatSettings(thinking=True)):
            prepared = model.prepare(PromptRequest(messages, (TOOL,), "auto"), settings)
            prompt = b"".join(model.vocab.piece(token) for token in prepared.tokens)
            assert b"Secretwords" not in prompt and b"Sidewords" in prompt


@pytest.mark.slow
def test_templates_take_back_the_reasoning_that_their_models_want(templates: dict[str, str]) -> None:
    seen = {}
    for name, source in templates.items():
        traits = detect_capabilities(Template(source))
        seen[name] = (recognise(source, traits.sample), traits.replay)
    assert sum(replay for _, replay in seen.values()) == 31
    for name, (format, replay) in seen.items():
        assert replay or not (format.needs_reasoning_history and format.reasoning_tags), name
