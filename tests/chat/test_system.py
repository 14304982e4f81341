"""System messages behind the first, in all of llama.cpp's templates: in place, joined to the first, or refused."""

from __future__ import annotations

from array import array

import pytest

from server.chat.prompt_builder import PromptBuilder
from server.chat.template.capabilities import detect_capabilities
from server.chat.template.template import Template
from server.chat.types import ChatSettings, PromptRequest
from server.engine import Vocab
from server.engine.types import Segment
from server.wire.records import Message, Role, TextPart, Tool, WireError
from tests.chat.test_replay import model_of

MERGE = ChatSettings(system_messages="merge")
TOOL = Tool("look", "Looksword", {"type": "object"})

JOINING = {
    *("deepseek-ai-DeepSeek-V3.1", "deepseek-ai-DeepSeek-V3.2", "deepseek-ai-DeepSeek-V4"),
    *("deepseek-ai-DeepSeek-V4-Flash-0731", "tencent-Hy3", "upstage-Solar-Open-100B"),
}
"""Templates that write every system message at the beginning."""
DISPLACING = {
    *("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"),
    *("llama-cpp-deepseek-r1", "llama-cpp-rwkv-world"),
}
"""Of those that take one, those that take the last."""
TAKING_ONE = DISPLACING | {
    *("Apertus-8B-Instruct", "Bielik-11B-v3.0-Instruct", "HuggingFaceTB-SmolLM3-3B", "MiniMax-M1", "MiniMax-M2"),
    *("MiniMax-M3", "Mistral-Small-3.2-24B-Instruct-2506", "NVIDIA-Nemotron-Nano-v2", "Qwen3.5-4B", "Reka-Edge"),
    *("google-gemma-2-2b-it", "mistralai-Ministral-3-14B-Reasoning-2512", "mistralai-Mistral-Nemo-Instruct-2407"),
    "openai-gpt-oss-120b",
}


def said(role: Role, text: str) -> Message:
    return Message(role, (TextPart(text),))


FIRST, LATER, LAST = (said("system", f"{word}rules.") for word in ("First", "Later", "Last"))
ASK, ANSWER, MORE = said("user", "Question."), said("assistant", "Answer."), said("user", "Moreover.")
SHAPES: dict[str, tuple[tuple[Message, ...], int]] = {
    "between turns": ((FIRST, ASK, ANSWER, LATER, MORE), 3),
    "two at once": ((FIRST, LATER, ASK), 1),
    "without a first": ((ASK, ANSWER, LATER, MORE), 2),
    "at the end": ((FIRST, ASK, LATER), 2),
    "twice": ((FIRST, ASK, LATER, ANSWER, LAST, MORE), 2),
}


def prompt_of(model: PromptBuilder, messages: tuple[Message, ...], settings: ChatSettings, **fields: object) -> str:
    prepared = model.prepare(PromptRequest(messages, **fields), settings)  # type: ignore[arg-type]
    return model._detokenize(prepared.tokens)


def test_what_templates_do_with_them(templates: dict[str, str]) -> None:
    found = {name: detect_capabilities(Template(source)).later_system for name, source in templates.items()}
    assert {name for name, rule in found.items() if rule == "first"} == JOINING
    assert {name for name, rule in found.items() if rule == "none"} == TAKING_ONE


@pytest.mark.parametrize("shape", SHAPES)
def test_each_is_in_the_prompt_or_refused_by_its_name(vocab: Vocab, templates: dict[str, str], shape: str) -> None:
    messages, index = SHAPES[shape]
    for name, source in templates.items():
        model = PromptBuilder(vocab, source)
        if name in TAKING_ONE:
            with pytest.raises(WireError) as caught:
                model.prepare(PromptRequest(messages))
            assert caught.value.code == "unsupported", name
            assert caught.value.message.startswith(f"messages[{index}]: "), name
            assert "system_messages" in caught.value.message and "rules" not in caught.value.message
            continue
        prompt = prompt_of(model, messages, ChatSettings())
        texts = [part.text for each in messages for part in each.content if isinstance(part, TextPart)]
        assert all(prompt.count(text) == 1 for text in texts), (name, prompt)
        order = sorted(texts, key=prompt.index)
        if name in JOINING:
            assert order == [*(t for t in texts if "rules" in t), *(t for t in texts if "rules" not in t)], name
        else:
            assert order == texts, name
        assert prompt == prompt_of(model, messages, MERGE), "where they have a place the owner has nothing to allow"


@pytest.mark.parametrize("name", sorted(TAKING_ONE))
def test_they_join_the_first_where_the_owner_lets_them(vocab: Vocab, templates: dict[str, str], name: str) -> None:
    model = PromptBuilder(vocab, templates[name])
    texts = "Firstrules.\n\nLaterrules.\n\nLastrules."
    merged = prompt_of(model, SHAPES["twice"][0], MERGE)
    assert merged == prompt_of(model, (said("system", texts), ASK, ANSWER, MORE), ChatSettings())
    assert texts in merged
    alone = prompt_of(model, SHAPES["without a first"][0], MERGE)
    assert alone == prompt_of(model, (LATER, ASK, ANSWER, MORE), ChatSettings())
    with_tools = prompt_of(model, SHAPES["twice"][0], MERGE, tools=(TOOL,), tool_choice="auto")
    assert texts in with_tools and "Looksword" in with_tools


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", sorted(TAKING_ONE))
def test_lenient_projections_write_them_as_user_turns(
    vocab: Vocab, templates: dict[str, str], name: str, shape: str
) -> None:
    model, (messages, _) = PromptBuilder(vocab, templates[name]), SHAPES[shape]
    for tools in ((), (TOOL,)):
        fields = {"tools": tools, "tool_choice": "auto" if tools else None, "lenient": True}
        prompt = prompt_of(model, messages, ChatSettings(), **fields)
        texts = [part.text for each in messages for part in each.content if isinstance(part, TextPart)]
        assert all(prompt.count(text) == 1 for text in texts), prompt
        # Where the first one goes is the template's own business: Mistral Nemo's is in the last user's turn.
        places = [prompt.index(text) for text in texts if text != "Firstrules."]
        assert places == sorted(places), prompt
        assert not tools or "Looksword" in prompt
    merged = prompt_of(model, messages, MERGE, lenient=True)
    assert merged == prompt_of(model, messages, MERGE), "what the owner allows holds for every projection"


@pytest.mark.parametrize("name", [*sorted(JOINING), "google-gemma-2-2b-it", "openai-gpt-oss-120b"])
def test_what_joins_the_first_is_there_before_turns_that_are_replayed(
    vocab: Vocab, templates: dict[str, str], name: str
) -> None:
    model = model_of(vocab, templates[name])
    turn: array[int] = vocab.tokenize([Segment("Replayed.", control=False)], begins=False, follows=True)
    prepared = model.prepare(PromptRequest(SHAPES["between turns"][0], kept_tokens={2: turn}), MERGE)
    assert prepared.replayed == {2}
    prompt = model._detokenize(prepared.tokens)
    assert [prompt.count(text) for text in ("Firstrules.", "Laterrules.", "Question.", "Replayed.", "Moreover.")] == [
        1
    ] * 5
    assert prompt.index("Laterrules.") < prompt.index("Replayed.") < prompt.index("Moreover.")
    assert "Answer." not in prompt


def test_a_message_is_named_as_its_caller_knows_it(vocab: Vocab, templates: dict[str, str]) -> None:
    model = PromptBuilder(vocab, templates["google-gemma-2-2b-it"])
    with pytest.raises(WireError, match=r"^messages\[7\]: "):
        model.prepare(PromptRequest((ASK, LATER), names=("messages[0]", "messages[7]")))
