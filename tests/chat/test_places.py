"""Where images may stand in a conversation, and where they come to stand in the prompt, on llama.cpp's templates."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import pytest

from server.chat.prompt_builder import PromptBuilder
from server.chat.template.provenance import from_template, media
from server.chat.template.template import Template
from server.chat.types import ChatSettings, ImageLimits, PreparedPrompt, PromptRequest
from server.engine import Vocab
from server.engine.types import Segment
from server.wire.records import ImagePart, Message, Part, TextPart, Tool, ToolCallPart, WireError
from tests.pictures import image

SEEING = ChatSettings(projector="a projector")
MARKER = "<__media__>"
"""llama.cpp's own (`mtmd_default_marker`)."""
LOOK = Tool("look", "Looks around", {"type": "object", "properties": {}})
RED, BLUE, GREEN = image(10), image(90), image(50)

RAW_RESULTS = (
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen3.5-4B",
    "MiniMax-M3",
    "google-gemma-4-31B-it",
    "Reka-Edge",
    "MiMo-VL",
)
NO_RESULTS = {
    "meta-llama-Llama-3.1-8B-Instruct": "writes results as JSON",
    "openai-gpt-oss-120b": "writes results as JSON",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "writes results as JSON",
    "google-gemma-2-2b-it": "knows no tools",
    "microsoft-Phi-3.5-mini-instruct": "knows no tools",
}

# SmolVLM's way: typed content alone, and a word about images of its own.
TYPED = (
    "{% for m in messages %}{{ m['role'] | capitalize }}"
    "{% if m['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% elif part['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def user(*parts: str | ImagePart) -> Message:
    return Message("user", tuple(TextPart(each) if isinstance(each, str) else each for each in parts))


def result(*parts: str | ImagePart, error: bool = False, id: str = "1") -> Message:
    content: tuple[Part, ...] = user(*parts).content
    return Message("toolResult", content, tool_call_id=id, tool_name="look", is_error=error)


def called(*ids: str) -> Message:
    return Message("assistant", tuple(ToolCallPart(id, "look", {}) for id in ids))


def prepare(
    model: PromptBuilder, *messages: Message, settings: ChatSettings = SEEING, tools: tuple[Tool, ...] = ()
) -> PreparedPrompt:
    return model.prepare(PromptRequest(messages, tools, "auto" if tools else None), settings)


def written(model: PromptBuilder, prepared: PreparedPrompt) -> str:
    """The prompt with `{n}` for each picture, n telling equal ones."""
    told, start, names = "", 0, dict[str, int]()
    for offset, picture in prepared.images:
        number = names.setdefault(picture.digest, len(names))
        told += text(model.vocab, prepared.tokens[start:offset]) + f"{{{number}}}"
        start = offset
    return told + text(model.vocab, prepared.tokens[start:])


def text(vocab: Vocab, tokens: array[int]) -> str:
    return b"".join(vocab.piece(token) for token in tokens).decode()


def refused(model: PromptBuilder, *messages: Message, **given: Any) -> str:
    with pytest.raises(WireError) as caught:
        prepare(model, *messages, **given)
    assert caught.value.code == "unsupported", caught.value.message
    return caught.value.message


@pytest.fixture(scope="module")
def models(vocab: Vocab, templates: dict[str, str]) -> dict[str, PromptBuilder]:
    names = {*RAW_RESULTS, *NO_RESULTS, "Mistral-Small-3.2-24B-Instruct-2506", "Kimi-K2-Instruct"}
    return {name: PromptBuilder(vocab, templates[name]) for name in names} | {"typed": PromptBuilder(vocab, TYPED)}


@pytest.fixture(scope="module")
def hermes(models: dict[str, PromptBuilder]) -> PromptBuilder:
    return models["NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use"]


def test_order_of_text_and_images_is_kept(models: dict[str, PromptBuilder]) -> None:
    for name, model in models.items():
        prompt = written(model, prepare(model, user("one", RED, "two", BLUE, BLUE, " three", RED)))
        assert "one{0}two{1}{1} three{0}" in prompt, name
        prompt = written(model, prepare(model, user(RED), Message("assistant", (TextPart("Red."),)), user("and", BLUE)))
        assert 0 < prompt.index("{0}") < prompt.index("Red.") < prompt.index("and{1}"), name


def test_a_picture_alone_is_a_message(models: dict[str, PromptBuilder]) -> None:
    for name, model in models.items():
        prepared = prepare(model, user(RED))
        assert [picture.width for _, picture in prepared.images] == [4], name
        assert 0 < prepared.images[0][0] < len(prepared.tokens), name


def test_the_prompt_is_that_of_llama_cpps_server(models: dict[str, PromptBuilder], vocab: Vocab) -> None:
    """Which puts a marker into the text of a message, renders, cuts at the markers, and tokenizes the texts apart."""
    parts = ("Look: ", RED, " or\n\n", BLUE, "which?")
    marked = "".join(each if isinstance(each, str) else MARKER for each in parts)
    for name, model in models.items():
        content: Any = [{"type": "text", "text": marked}] if model.template_capabilities.needs_content_parts else marked
        template = Template(model.template.source, bos=vocab.text(vocab.bos or 0), eos=vocab.text(vocab.eos or 0))
        tools = [] if model.template_capabilities.no_tools == "empty" else None
        prompt = str.__str__(template.render([{"role": from_template("user"), "content": content}], tools=tools))
        want = [vocab.tokenize([Segment(each, True)], begins=False) for each in prompt.split(MARKER)]
        prepared = prepare(model, user(*parts))
        ends = [0, *(offset for offset, _ in prepared.images), len(prepared.tokens)]
        assert [prepared.tokens[a:b] for a, b in pairwise(ends)] == want, name


def test_templates_write_no_tokens_around_an_image_that_the_projector_writes(models: dict[str, PromptBuilder]) -> None:
    for name, sign in (("Qwen3.5-4B", "vision_start"), ("google-gemma-4-31B-it", "<|image"), ("MiniMax-M3", "image[")):
        model = models[name]
        assert sign in model.template.source
        assert sign not in written(model, prepare(model, user("see", RED))), name


@pytest.mark.parametrize("name", RAW_RESULTS)
def test_a_tool_result_may_hold_images(models: dict[str, PromptBuilder], name: str) -> None:
    model = models[name]
    assert model.image_roles == {"user", "toolResult"}
    messages = (
        user("look"),
        called("1"),
        result("before", RED, "after", BLUE),
        Message("assistant", (TextPart("Seen."),)),
    )
    prompt = written(model, prepare(model, *messages, user(GREEN), tools=(LOOK,)))
    assert "before{0}after{1}" in prompt
    assert prompt.index("{1}") < prompt.index("Seen.") < prompt.index("{2}")


def test_results_in_another_order_than_their_calls_keep_their_images(hermes: PromptBuilder) -> None:
    results = (result("second", BLUE, id="2"), result("first", RED, id="1"))
    prompt = written(hermes, prepare(hermes, user("look"), called("1", "2"), *results, tools=(LOOK,)))
    assert prompt.index("first{0}") < prompt.index("second{1}")
    (_, first), (_, second) = prepare(hermes, user("look"), called("1", "2"), *results, tools=(LOOK,)).images
    alone = {name: prepare(hermes, user(each)).images[0][1].digest for name, each in (("red", RED), ("blue", BLUE))}
    assert (first.digest, second.digest) == (alone["red"], alone["blue"])


def test_a_failed_result_says_so_before_its_image(hermes: PromptBuilder) -> None:
    prompt = written(hermes, prepare(hermes, user("look"), called("1"), result(RED, error=True), tools=(LOOK,)))
    assert "Tool execution failed.\n{0}" in prompt


@pytest.mark.parametrize("name", NO_RESULTS)
def test_a_tool_result_that_is_written_as_json_takes_no_image(models: dict[str, PromptBuilder], name: str) -> None:
    model = models[name]
    assert model.image_roles == {"user"}
    told = refused(model, user("look"), called("1"), result("x", RED), tools=(LOOK,))
    assert told == "messages[2].content[1]: this connection takes no image in a tool result"


def test_a_conversation_that_moves_results_into_a_user_turn_takes_no_image(models: dict[str, PromptBuilder]) -> None:
    """Mistral's templates refuse a user's turn behind results; these are told as JSON in it."""
    model = models["Mistral-Small-3.2-24B-Instruct-2506"]
    assert "toolResult" in model.image_roles and not model.template_capabilities.answered
    history = (user("look"), called("1"), result(RED))
    assert len(prepare(model, *history, tools=(LOOK,)).images) == 1
    told = refused(model, *history, user("so?"), tools=(LOOK,))
    assert told == "messages[2].content[0]: this model's chat template does not write an image in a tool result"
    # The image of that user's own turn stays where it is.
    prompt = written(model, prepare(model, user("look"), called("1"), result("x"), user("so", RED), tools=(LOOK,)))
    assert "so{0}" in prompt


def test_system_and_assistant_messages_take_none(models: dict[str, PromptBuilder]) -> None:
    for model in models.values():
        told = refused(model, Message("system", (TextPart("x"), RED)), user("hello"))
        assert told == "messages[0].content[1]: this connection takes no image in a system message"
        told = refused(model, user("hello"), Message("assistant", (RED,)), user("hello"))
        assert told == "messages[1].content[0]: this connection takes no image in an assistant message"


def test_without_a_projector_nothing_takes_images(hermes: PromptBuilder) -> None:
    assert "user message" in refused(hermes, user(RED), settings=ChatSettings())


@pytest.mark.parametrize(
    ("body", "times"),
    [
        ("{{ m.content }}{{ m.content }}", "writes more than once an image"),
        ("{{ m.content[:9] }}", "does not write an image"),
        ("{{ m.content | tojson }}", "does not write an image"),
        ("{{ '%s.' % m.content }}", "does not write an image"),
    ],
)
def test_a_template_must_write_each_image_once(vocab: Vocab, body: str, times: str) -> None:
    whole = f"{{% if '!' in m.content %}}{body}{{% else %}}{{{{ m.content }}}}{{% endif %}}"
    model = PromptBuilder(vocab, f"{{% for m in messages %}}{whole}{{% endfor %}}{{{{ 'answer:' }}}}")
    assert model.image_roles >= {"user"}
    assert refused(model, user("long enough!", RED)).endswith(f"template {times} in a user message")


def test_a_prompt_ends_with_text(vocab: Vocab) -> None:
    model = PromptBuilder(vocab, "{% for m in messages %}{{ m.content }}{% endfor %}")
    assert "ends the prompt" in refused(model, user("x", RED))
    assert len(prepare(model, user(RED, "x")).images) == 1


def test_a_template_that_loses_a_users_image_shows_in_the_capabilities(vocab: Vocab, tmp_path: Path) -> None:
    settings = ChatSettings(projector=str(projector(tmp_path / "p.gguf", vision=True)))
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert PromptBuilder(vocab, plain).capabilities(settings).images
    quoted = PromptBuilder(vocab, plain.replace("m.content", "m.content | tojson"))
    assert not quoted.capabilities(settings).images
    assert "user message" in refused(quoted, user("x", RED, "y"))


def test_text_that_spells_an_image_stays_text(models: dict[str, PromptBuilder], vocab: Vocab) -> None:
    content = f"{MARKER}<start_of_image><|image_pad|><image>{str.__str__(media(0))}<|im_start|>"
    for name, model in models.items():
        prepared = prepare(model, user(content, RED, "."))
        assert len(prepared.images) == 1, name
        offset = prepared.images[0][0]
        before = text(vocab, prepared.tokens[:offset])
        assert before.endswith(content), name
        # Tokenized as plain text: no control token among the last, which spell it.
        plain = vocab.tokenize([Segment(content, False)], begins=False)
        controls = [token for token in prepared.tokens[offset - len(plain) : offset] if vocab.is_control(token)]
        assert controls == [], name
        assert not prepare(model, user(content)).images, name


def test_limits_reach_the_decoder(hermes: PromptBuilder) -> None:
    small = replace(SEEING, images=ImageLimits(pixels=12))
    assert len(prepare(hermes, user(RED, "x"), settings=small).images) == 1
    with pytest.raises(WireError, match="more than 12 pixels") as caught:
        prepare(hermes, user(RED, BLUE, "x"), settings=small)
    assert (caught.value.code, caught.value.extra) == ("quota-exceeded", {"reason": "images"})


# --- what a projector's file says


def projector(path: Path, **has: bool) -> Path:
    """The header of a projector."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("general.name", "tests")
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("some.names", ["a", "b"])
    for what, value in has.items():
        writer.add_bool(f"clip.has_{what}_encoder", value)
    writer.add_uint32("clip.vision.image_size", 28)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("has", "images"),
    [({"vision": True}, True), ({"audio": True}, False), ({"audio": True, "vision": False}, False), ({}, False)],
)
def test_a_projector_for_sound_alone_sees_nothing(
    hermes: PromptBuilder, tmp_path: Path, has: dict[str, bool], images: bool
) -> None:
    path = projector(tmp_path / "projector.gguf", **has)
    assert hermes.capabilities(ChatSettings(projector=str(path))).images is images
    assert not hermes.capabilities(ChatSettings()).images


def test_a_broken_projector_is_a_broken_connection(hermes: PromptBuilder, tmp_path: Path) -> None:
    whole = projector(tmp_path / "whole.gguf", audio=True).read_bytes()
    path = tmp_path / "broken.gguf"
    broken = [b"", b"GGUF", b"no GGUF at all, but long enough to hold a header", whole[:4] + b"\1" + whole[5:]]
    broken += [whole[:length] for length in range(24, len(whole) - 20)]
    broken += [whole[:at] + b"\xff" * 8 + whole[at + 8 :] for at in (16, 24)]
    for data in broken:
        path.write_bytes(data)
        with pytest.raises(WireError) as caught:
            hermes.capabilities(ChatSettings(projector=str(path)))
        assert caught.value.code == "provider-error"
        assert str(tmp_path) not in caught.value.message
    with pytest.raises(WireError):
        hermes.capabilities(ChatSettings(projector=str(tmp_path / "missing")))
