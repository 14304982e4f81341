"""Earlier turns put back as the tokens they were, in all of llama.cpp's templates."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from server.chat.formats.render import render_tool_calls
from server.chat.formats.spec import ID
from server.chat.prompt_builder import PromptBuilder
from server.chat.template.replay import PromptPart, TurnReplay
from server.chat.template.template import TemplateError
from server.chat.types import ChatSettings, PromptRequest
from server.engine import Vocab
from server.engine.types import Segment
from server.wire.records import Message, TextPart, Tool, ToolCallPart, WireError
from tests.chat.test_places import BLUE, LOOK, RED, SEEING, prepare, result, user, written

pytestmark = pytest.mark.slow

ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "</s>", "<｜end▁of▁sentence｜>", "<|END_OF_TURN_TOKEN|>", "<|call|>"),
    *("<|return|>", "<end_of_turn>", "<turn|>", "<|tool_response>", "<|endoftext|>", "<|end_of_text|>", "[e~["),
    *(
        "<|observation|>",
        "<|user|>",
        "<|assistant_end|>",
        "<seed:eos>",
        "<|message_sep|>",
        "<end_of_sentence>",
        "<sep>",
    ),
    *(
        "<SPECIAL_12>",
        "<|role_end|>",
        "<|eot|>",
        "</assistant>",
        "<｜hy_eos:opensource｜>",
        "<|calls|>",
        "<|end_of_msg|>",
    ),
    "<|end|>",
)
"""What ends a generation in the families' own vocabularies."""

ELSEWHERE = ("Apertus-8B-Instruct", "CohereForAI-c4ai-command-r-plus-tool_use")
"""Templates that write nothing between calls and their results which ends a generation."""

TOOL = Tool("look", None, {"type": "object"})
ASK = Message("user", (TextPart("Question."),))
MORE = Message("user", (TextPart("Moreover."),))
SAID = Message("assistant", (TextPart("Visible."),))


def called(*ids: str) -> tuple[Message, ...]:
    results = (
        Message("toolResult", (TextPart(f"Seen{id}."),), tool_call_id=id, tool_name="look", is_error=False)
        for id in ids
    )
    return Message("assistant", tuple(ToolCallPart(id, "look", {"visible": True}) for id in ids)), *results


LOOPS: dict[str, tuple[tuple[Message, ...], tuple[int, ...], tuple[str, ...]]] = {
    "text": ((ASK, SAID, MORE), (1,), ("Moreover.",)),
    "call": ((ASK, *called("c1")), (1,), ("Seenc1.",)),
    "calls": ((ASK, *called("c1", "c2")), (1,), ("Seenc1.", "Seenc2.")),
    "rounds": ((ASK, *called("c1"), *called("c2")), (1, 3), ("Seenc1.", "Seenc2.")),
    "round, then text": ((ASK, *called("c1"), SAID, MORE), (1, 3), ("Seenc1.", "Moreover.")),
}


def model_of(vocab: Vocab, source: str) -> PromptBuilder:
    model = PromptBuilder(vocab, source)
    replay = TurnReplay(
        model.format, (*ENDS, *(vocab.text(token) for token in vocab.eog)), model._detokenize, model._opening
    )
    model.__dict__["replay"] = replay
    return model


def runs_of(
    model: PromptBuilder, messages: tuple[Message, ...], turns: dict[int, array[int]]
) -> tuple[list[PromptPart], Any]:
    return model._parts(PromptRequest(messages, (TOOL,), "auto", kept_tokens=turns), ChatSettings())


@pytest.mark.parametrize("loop", LOOPS)
def test_turns_stand_between_what_was_before_and_what_the_template_writes_behind(
    vocab: Vocab, templates: dict[str, str], loop: str
) -> None:
    messages, indices, later = LOOPS[loop]
    for name, source in templates.items():
        if name in ELSEWHERE:
            continue
        model = model_of(vocab, source)
        turns = {index: array("i", [index]) for index in indices}
        runs, replayed = runs_of(model, messages, turns)
        assert replayed == set(indices), name
        assert [run for run in runs if isinstance(run, array)] == list(turns.values()), name
        # What stands before a turn is what its own prompt was.
        for index in indices:
            before, _ = runs_of(model, messages[:index], {at: turns[at] for at in indices if at < index})
            assert runs[: len(before)] == before, name
        written = [run for run in runs[1:] if not isinstance(run, array)]
        behind = "".join(written)
        assert [behind.count(text) for text in later] == [1] * len(later), (name, behind)
        assert "Visible." not in behind and "visible" not in behind, name
        plain, _ = runs_of(model, messages, {})
        assert str(plain[0]).endswith(written[-1][-12:]), name


def test_a_turn_whose_place_cannot_be_found_is_written_from_its_message(
    vocab: Vocab, templates: dict[str, str]
) -> None:
    messages = LOOPS["call"][0]
    for name in ELSEWHERE:
        model = PromptBuilder(vocab, templates[name])
        assert model.replay.eog_texts == ()
        runs, replayed = runs_of(model, messages, {1: array("i", [5])})
        assert (runs, replayed) == (runs_of(model, messages, {})[0], frozenset())
    required = ChatSettings(reasoning_continuation="required")
    with pytest.raises(WireError, match="continuations"):
        model.prepare(PromptRequest(messages, (TOOL,), "auto", kept_tokens={1: array("i", [5])}), required)


def test_reasoning_is_kept_between_calls_where_it_is_required(vocab: Vocab, templates: dict[str, str]) -> None:
    required = ChatSettings(reasoning_continuation="required")
    model = model_of(vocab, templates["Qwen-Qwen3-0.6B"])
    thought = vocab.tokenize([Segment("Secretwords.", control=False)])
    messages = LOOPS["rounds"][0]
    prepared = model.prepare(PromptRequest(messages, (TOOL,), "auto", kept_tokens={1: thought, 3: thought}), required)
    assert model._detokenize(prepared.tokens).count("Secretwords.") == 2
    with pytest.raises(WireError):
        model.prepare(PromptRequest(messages, (TOOL,), "auto", kept_tokens={1: thought}), required)


def test_results_answer_to_the_ids_that_the_model_gave(vocab: Vocab, templates: dict[str, str]) -> None:
    seen = set()
    for source in templates.values():
        model = model_of(vocab, source)
        calls = model.format.calls[0]
        if ID not in calls.call or not model.template_capabilities.results:
            continue
        id = "77" if "index" in model.format.id_template else "abcdef123"
        said = "".join(render_tool_calls(calls, [("look", id, {"visible": True})]))
        tokens = vocab.tokenize([Segment(said, control=False)], begins=False, follows=True)
        runs, replayed = runs_of(model, (ASK, *called("call_own")), {1: tokens})
        assert replayed == {1}
        assert str(runs[2]).count("call_own") == str(runs[2]).count("Seencall_own.") == 1
        if id in runs[2]:
            seen.add(model.format.name)
    assert {"mistral-nemo", "mistral-call-id", "kimi-k2"} <= seen


def test_the_tokens_of_a_replayed_prompt(vocab: Vocab) -> None:
    """SmolLM2: the first prompt, the turn, and the rest, with nothing lost or added where they meet."""
    model = PromptBuilder(vocab)
    messages = (Message("system", (TextPart("Be brief."),)), ASK, SAID, MORE)
    first = model.prepare(PromptRequest(messages[:2]))
    turn = vocab.tokenize([Segment("  An answer <|im_end|> as it was", control=False)], begins=False, follows=True)
    second = model.prepare(PromptRequest(messages, kept_tokens={2: turn}))
    before = first.tokens + turn
    assert second.replayed == {2}
    assert second.tokens[: len(before)] == before
    assert (
        model._detokenize(second.tokens[len(before) :])
        == "<|im_end|>\n<|im_start|>user\nMoreover.<|im_end|>\n<|im_start|>assistant\n"
    )
    # As one text it is tokenized alike: the template's part begins with a control token.
    whole = vocab.tokenize(
        [Segment(model._detokenize(second.tokens[len(before) :]), control=True)], begins=False, follows=True
    )
    assert second.tokens[len(before) :] == whole


def test_images_keep_their_places_around_a_turn(vocab: Vocab, templates: dict[str, str]) -> None:
    model = model_of(vocab, templates["Qwen-Qwen2.5-7B-Instruct"])
    call, _ = called("1")
    turn = vocab.tokenize([Segment("The turn.", control=False)], begins=False, follows=True)
    messages = (user("see", RED, "this"), call, result("seen", BLUE))
    first = prepare(model, messages[0], tools=(LOOK,))
    second = model.prepare(PromptRequest(messages, (LOOK,), "auto", kept_tokens={1: turn}), SEEING)
    assert second.replayed == {1} and second.images[0] == first.images[0]
    assert second.tokens[: len(first.tokens) + len(turn)] == first.tokens + turn
    prompt = written(model, second)
    before, behind = prompt.split("The turn.")
    assert "see{0}this" in before and "seen{1}" in behind and before == written(model, first)


def test_a_conversation_that_begins_with_an_answer_is_no_fault(vocab: Vocab, templates: dict[str, str]) -> None:
    for source in templates.values():
        model = model_of(vocab, source)
        try:
            plain, _ = runs_of(model, (SAID, MORE), {})
        except TemplateError:
            continue
        runs, replayed = runs_of(model, (SAID, MORE), {0: array("i", [9])})
        assert (runs == plain) is (replayed == frozenset())
