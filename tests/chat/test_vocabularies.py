"""Every template's grammars over real vocabularies, and what a model of random weights writes by them.

`NAP_LLM_MANY=1` takes the whole of the stand-in's vocabulary and many generations a format.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

import jsonschema
import pytest

from server.chat.formats import FORMATS, GENERIC
from server.chat.formats.spec import NAME, ChatFormat
from server.chat.prompt_builder import PromptBuilder
from server.chat.types import PreparedPrompt, PromptRequest
from server.engine import Sampling, Vocab, llama
from server.engine.sampling.grammar import GrammarState
from server.engine.sampling.sampler import TokenSampler
from server.wire.records import Message, NamedTool, TextPart, Tool, ToolChoice
from tests.chat.blocks import read
from tests.chat.standin import control_texts, write_model
from tests.chat.test_formats import ONE_EACH, RECOGNISED

pytestmark = pytest.mark.slow

MANY = os.environ.get("NAP_LLM_MANY") == "1"
GENERATIONS = 30 if MANY else 1
"""Of each format and tool choice."""
LENGTH = 1900
"""Tokens after which a generation is given up."""
BROKEN = bytes((0xC0, 0xC1, *range(0xF5, 0x100)))
"""Bytes that never stand in UTF-8 (RFC 3629, section 4)."""
CRITICAL = bytes((0xE0, 0xED, 0xF0, 0xF4))
"""Those after which not every continuation byte may stand."""

REAL = {
    "llama-bpe": ("meta-llama-Llama-3", "NousResearch", "meetkai", "fireworks-ai-llama-3", "HuggingFaceTB-SmolLM3"),
    "qwen2": ("Qwen-Qw", "Qwen-Qwen", "Qwen3-Coder", "MiMo", "deepseek-ai-DeepSeek-R1-Distill-Qwen"),
    "qwen35": ("Qwen3.5",),
    "phi-3": ("microsoft-Phi-3",),
    "command-r": ("Cohere",),
    "gemma-4": ("google-gemma",),
}
"""Vocabularies among llama.cpp's sources by how the names of the families' templates begin."""
TRIP = Tool(
    "book_trip",
    "Books a trip",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 6},
            "cabin": {"enum": ["first", "second"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 30},
            "to": {"type": "array", "items": {"enum": ["Rome", "Oslo"]}, "maxItems": 2},
            "guest": {
                "type": "object",
                "properties": {"vip": {"type": "boolean"}},
                "additionalProperties": False,
            },
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
)
STOP = Tool("stop", None, {"type": "object", "properties": {}, "additionalProperties": False})
TOOLS = {tool.name: tool for tool in (TRIP, STOP)}
CHOICES: tuple[ToolChoice, ...] = ("auto", "none", "required", NamedTool("book_trip"))


def asked(choice: ToolChoice) -> PromptRequest:
    return PromptRequest((Message("user", (TextPart("A trip, please."),)),), tuple(TOOLS.values()), choice)


@dataclass
class Babbler:
    """A model of random weights, writing one output at a time under a constraint."""

    model: llama.LlamaModel
    vocab: Vocab
    context: llama.Context
    batch: llama.Batch
    candidates: llama.CandidateArray
    broken: tuple[int, ...]

    @classmethod
    def load(cls, path: Path) -> Babbler:
        model = llama.LlamaModel(str(path))
        vocab = Vocab(model)
        context = llama.Context(model, cells=2048, sequences=1, batch=64, threads=1)
        # llama.cpp's matcher takes overlong and other broken UTF-8 for characters. No trained model writes such.
        broken = [
            token
            for token, piece in enumerate(vocab.pieces)
            if piece.translate(None, BROKEN) != piece or piece.endswith(tuple(bytes([byte]) for byte in CRITICAL))
        ]
        return cls(model, vocab, context, llama.Batch(64), llama.CandidateArray(vocab.size), tuple(broken))

    def write(self, prepared: PreparedPrompt, beginning: str, seed: int, *, marker: str = "") -> str | None:
        """Goes on from `beginning` until the output ends; None where it does not within `LENGTH` tokens.

        Where the constraint waits for a marker, `marker` is what the model writes before `beginning`.
        """
        assert prepared.constraint is not None
        guard = GrammarState(prepared.constraint, self.model, self.vocab, self.candidates)
        sampler = TokenSampler(
            Sampling(temperature=1.0, seed=seed), prepared.suppress_tokens + self.broken, self.candidates
        )
        written = marker.encode()
        if marker:
            assert guard.feed_trigger(written) == len(written)
        assert guard.active
        given = self.model.tokenize(beginning, parse_special=True)
        for token in given:
            assert guard.allows(token) and token not in guard.banned, beginning
            guard.accept(token)
            written += self.vocab.piece(token)
        self.context.seq_rm(0)
        tokens = [Random(seed).randrange(256), *given]
        for position, token in enumerate(tokens):
            self._decode(token, position)
        for position in range(len(tokens), len(tokens) + LENGTH):
            token = sampler.choose(self.context.logits(1)[0], guard)
            if token in self.vocab.eog:
                return written.decode()
            guard.accept(token)
            sampler.accept(token)
            written += self.vocab.piece(token)
            if guard.complete:
                return written.decode()
            self._decode(token, position)
        return None

    def _decode(self, token: int, position: int) -> None:
        self.batch.token[0], self.batch.position[0], self.batch.output[0] = token, position, 1
        assert self.context.decode(self.batch, 1) == llama.OK


@pytest.fixture(scope="module")
def stand_in(sdist: Path, templates: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Babbler:
    path = tmp_path_factory.mktemp("model") / "random.gguf"
    markers = [marker for format in FORMATS.values() for marker in format.markers]
    base = sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf"
    write_model(path, base, control_texts(templates.values(), markers), size=None if MANY else 8192)
    return Babbler.load(path)


def loads(model: llama.LlamaModel, vocab: Vocab, source: str) -> Counter[str]:
    """How many grammars of a template load, by the tool choice."""
    loaded: Counter[str] = Counter()
    prepares = PromptBuilder(vocab, source)
    candidates = llama.CandidateArray(vocab.size)
    for choice in CHOICES:
        for format in ("text", "json"):
            conversation = asked(choice)
            prepared = prepares.prepare(PromptRequest(conversation.messages, conversation.tools, choice, format))
            if prepared.constraint is None:
                assert choice == "none" and format == "text"
                continue
            guard = GrammarState(prepared.constraint, model, vocab, candidates)  # raises where llama.cpp cannot read it
            assert guard.active == (not prepared.constraint.triggers)
            for marker in prepared.constraint.triggers:
                assert GrammarState(prepared.constraint, model, vocab, candidates).feed_trigger(marker.encode()) == len(
                    marker.encode()
                )
            loaded[str(choice)] += 1
    return loaded


@pytest.mark.parametrize("name", sorted(RECOGNISED))
def test_grammars_load_with_a_stand_in(stand_in: Babbler, templates: dict[str, str], name: str) -> None:
    found = loads(stand_in.model, stand_in.vocab, templates[name])
    assert [found[str(choice)] for choice in CHOICES] == [2, 1, 2, 2]


@pytest.mark.parametrize(("vocabulary", "families"), REAL.items(), ids=REAL)
def test_grammars_load_with_the_family_s_vocabulary(
    sdist: Path, templates: dict[str, str], vocabulary: str, families: tuple[str, ...]
) -> None:
    model = llama.LlamaModel(str(sdist / f"vendor/llama.cpp/models/ggml-vocab-{vocabulary}.gguf"), vocab_only=True)
    vocab = Vocab(model)
    names = [name for name in templates if name.startswith(families)]
    assert names
    for name in names:
        found = loads(model, vocab, templates[name])
        assert [found[str(choice)] for choice in CHOICES] == [2, 1, 2, 2], name
    model.close()


def opening(format: ChatFormat) -> str:
    """What a turn's first call begins with, as far as it is the same for every call to `book_trip`."""
    text = ""
    for part in format.calls[0].opening:
        if not isinstance(part, str):
            return text + ("book_trip" if part is NAME else "")
        text += part
    raise AssertionError("a call has no name")


def beginning(prepared: PreparedPrompt, choice: ToolChoice) -> tuple[str, str]:
    """The marker, and what an output is made to begin with: random thinking never ends, so it is written for it."""
    assert prepared.constraint is not None
    format, lead = prepared.parser.format, prepared.parser.prompt_opening
    thinking, thought = format.reasoning_tags, ""
    if thinking and (choice == "required" or lead == thinking.open):
        thought = f"Hm.{thinking.close.rstrip()}{format.separator}"
        thought = thought if lead == thinking.open else f"{thinking.open}{thought}"
    if prepared.constraint.triggers:
        return thought + prepared.constraint.triggers[0], ""
    return "", thought or ("" if choice == "required" else opening(format).removeprefix(lead))


@pytest.mark.parametrize("name", ONE_EACH)
def test_random_weights_write_valid_calls(stand_in: Babbler, templates: dict[str, str], name: str) -> None:
    """None wrong, and nearly all complete."""
    prepares = PromptBuilder(stand_in.vocab, templates[name])
    outcomes: Counter[str] = Counter()
    for choice in CHOICES:
        if choice == "none":
            continue
        prepared = prepares.prepare(asked(choice))
        marker, begun = beginning(prepared, choice)
        for seed in range(GENERATIONS):
            text = stand_in.write(prepared, begun, seed, marker=marker)
            if text is None:
                outcomes["incomplete"] += 1
                continue
            # What the parser's `lead` holds is the prompt's end: it has not been written.
            calls = read(prepared.parser, list(text)).calls
            assert calls, text
            for tool, arguments in calls:
                assert tool is not None
                jsonschema.validate(arguments, TOOLS[tool].parameters)
            assert not isinstance(choice, NamedTool) or [tool for tool, _ in calls] == [choice.name]
            outcomes["valid"] += 1
    print(f"{prepares.format.name}: {json.dumps(outcomes)}")
    assert outcomes["valid"] >= 0.95 * outcomes.total()


def test_the_generic_format_with_thinking(stand_in: Babbler) -> None:
    """No template of the collection has it: one that ends thinking but knows no tools."""
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    )
    prepares = PromptBuilder(stand_in.vocab, source + "<|im_start|>assistant\n")
    assert prepares.format.name == GENERIC.name and prepares.format.reasoning_tags
    prepared = prepares.prepare(asked("required"))
    text = stand_in.write(prepared, "<think>Hm.</think>\n", 1)
    assert text is not None
    reading = read(prepared.parser, list(text))
    assert reading.of("thinking") == "Hm."
    for tool, arguments in reading.calls:
        assert tool is not None
        jsonschema.validate(arguments, TOOLS[tool].parameters)
