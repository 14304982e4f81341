"""Prompts with images are those that llama.cpp's server makes: a marker in the text of the message, the template over
it, then mtmd's own tokenizer over text and markers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

from server.chat.prompt_builder import PromptBuilder
from server.chat.template.provenance import from_template
from server.chat.template.template import Template
from server.chat.types import ChatSettings, PromptRequest
from server.engine import EngineRequest, RgbImage, Sampling, Vocab, llama
from server.engine.vision.placeholders import PlaceholderExpander
from server.engine.vision.projector import Projector
from server.wire.records import ImagePart, Message, TextPart
from tests.chat.test_places import TYPED
from tests.fixtures.projectors import KINDS, Seer
from tests.pictures import image

TEMPLATES = ("Qwen3.5-4B", "google-gemma-4-31B-it", "Mistral-Small-3.2-24B-Instruct-2506", "MiniMax-M3", "typed")
Parts = tuple[str | ImagePart, ...]
PARTS: Parts = ("Look: ", image(10, 40, 30), " or\n\n", image(90, 120, 30), image(10, 40, 30), "which? ")
Prompt = list[int | tuple[str, int]]
"""Tokens of text, and for an image how many tokens it has."""


@pytest.fixture(params=KINDS)
def seer(request: pytest.FixtureRequest, seers: dict[str, Seer]) -> Seer:
    return seers[request.param]


@pytest.fixture
def projector(seer: Seer) -> Iterator[Projector]:
    model = llama.LlamaModel(str(seer.model), repack=False, gpu_layers=0)
    projector = Projector.load(str(seer.projector), model, threads=1, gpu=False)
    assert projector is not None
    yield projector
    projector.close()
    model.close()


def ours(model: PromptBuilder, projector: Projector, parts: Parts) -> tuple[Prompt, list[RgbImage]]:
    content = tuple(part if isinstance(part, ImagePart) else TextPart(part) for part in parts)
    prepared = model.prepare(PromptRequest((Message("user", content),)), ChatSettings(projector="projector"))
    job = EngineRequest(1, prepared.tokens, Sampling(), "", 0, images=prepared.images)
    tokens, images = PlaceholderExpander(projector).expand(job)
    told: Prompt = []
    at = 0
    for each in images:
        told += tokens[at : each.start]
        told.append(("image", each.end - each.start))
        at = each.end
    return [*told, *tokens[at:]], [picture for _, picture in prepared.images]


def theirs(
    model: PromptBuilder, projector: Projector, parts: Parts, pictures: list[RgbImage], *, typed: bool
) -> Prompt:
    m = projector._m
    marker = m.mtmd_default_marker().decode()
    marked = "".join(marker if isinstance(part, ImagePart) else part for part in parts)
    content: Any = [{"type": "text", "text": marked}] if typed else marked
    vocab = model.vocab
    template = Template(model.template.source, bos=vocab.text(vocab.bos or 0), eos=vocab.text(vocab.eos or 0))
    tools: Any = [] if model.template_capabilities.no_tools == "empty" else None
    text = str.__str__(template.render([{"role": from_template("user"), "content": content}], tools=tools)).encode()
    bitmaps = [projector._bitmap(each.width, each.height, each.rgb) for each in pictures]
    chunks = m.mtmd_input_chunks_init()
    given = m.mtmd_input_text(text, len(text), True, True)
    found = (ctypes.c_void_p * len(bitmaps))(*bitmaps)
    assert m.mtmd_tokenize(projector._p, chunks, ctypes.byref(given), found, len(bitmaps)) == 0
    told: Prompt = []
    for index in range(m.mtmd_input_chunks_size(chunks)):
        chunk = m.mtmd_input_chunks_get(chunks, index)
        if m.mtmd_input_chunk_get_type(chunk) == 0:
            count = ctypes.c_size_t()
            tokens = m.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
            told += tokens[: count.value]
        else:
            told.append(("image", m.mtmd_input_chunk_get_n_tokens(chunk)))
    m.mtmd_input_chunks_free(chunks)
    for bitmap in bitmaps:
        m.mtmd_bitmap_free(bitmap)
    return told


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_prompt_is_mtmds(seer: Seer, projector: Projector, templates: dict[str, str], name: str) -> None:
    model = PromptBuilder(Vocab.load(str(seer.model)), TYPED if name == "typed" else templates[name])
    # That stand-in's vocabulary has the empty line as a control token, which text never becomes here.
    parts = tuple(" or\n" if part == " or\n\n" else part for part in PARTS) if seer.kind == "idefics3" else PARTS
    prompt, pictures = ours(model, projector, parts)
    assert len(pictures) == 3 <= sum(isinstance(each, tuple) for each in prompt)  # some are cut into tiles
    assert prompt == theirs(model, projector, parts, pictures, typed=model.template_capabilities.needs_content_parts)
