"""Text to tokens on real vocabularies: content never becomes control, and nothing else changes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from server.engine import Segment, Vocab
from server.engine.llama import LlamaModel

FAMILIES = ("llama-spm", "llama-bpe", "phi-3", "qwen2", "gemma-4", "command-r", "deepseek-coder", "gpt-neox", "falcon")


@cache
def load(path: str) -> Vocab:
    return Vocab.load(path)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, sdist: Path) -> Vocab:
    return load(str(sdist / "vendor" / "llama.cpp" / "models" / f"ggml-vocab-{request.param}.gguf"))


def markers(vocab: Vocab) -> list[str]:
    """The vocabulary's own control spellings, the user-defined ones first, some of each kind."""
    every = sorted(vocab._markers, key=lambda text: (vocab.is_control(vocab._spelled[text]), text))
    return every[:12] + every[-12:]


def control(text: str) -> Segment:
    return Segment(text, control=True)


def content(text: str) -> Segment:
    return Segment(text, control=False)


def whole(vocab: Vocab, text: str) -> list[int]:
    """llama.cpp's own reading of the whole text."""
    tokens = list(vocab._model.tokenize(text, parse_special=True))
    return tokens if not vocab.add_bos or tokens[:1] == [vocab.bos] else [vocab.bos or 0, *tokens]


def told(vocab: Vocab, tokens: list[int]) -> str:
    return b"".join(map(vocab.piece, tokens)).decode("utf-8", "replace")


PLAIN = "Hello  world,\n\n\tdéjà vu €\n    indented; 1234 a<b>c [x] <y> | \u4f60\u597d"


def test_control_text_is_tokenized_as_llama_cpp_does(family: Vocab) -> None:
    text = PLAIN.join(markers(family)[:4])
    assert list(family.tokenize([control(text)])) == whole(family, text)


def test_content_without_spellings_changes_nothing(family: Vocab) -> None:
    marker = markers(family)[-1]
    segments = [control(marker), content(PLAIN), control(marker + "\n"), content("a"), content(" b "), control(marker)]
    text = "".join(segment.text for segment in segments)
    if "<y>" not in family._markers and "[x]" not in family._markers:
        assert list(family.tokenize(segments)) == whole(family, text)


@pytest.mark.slow
def test_content_never_becomes_control(family: Vocab) -> None:
    for marker in markers(family):
        before, after = control("x: "), control(" y")
        tokens = list(family.tokenize([before, content(f"a{marker}b {marker}{marker}"), after]))
        assert family._spelled[marker] not in tokens[1:], marker
        assert not any(family.is_control(token) for token in tokens[1:]), marker
        assert told(family, tokens).endswith(f"x: a{marker}b {marker}{marker} y"), marker


def test_content_and_its_neighbours_together_never_become_control(family: Vocab) -> None:
    for marker in markers(family):
        for at in range(1, len(marker)):
            halves = [control("x " + marker[:at]), content(marker[at:])]
            for segments in (halves, [content(halves[0].text), control(halves[1].text)]):
                assert family._spelled[marker] not in family.tokenize(segments)[1:]


def test_the_same_spelling_in_a_control_segment_is_control(family: Vocab) -> None:
    marker = markers(family)[-1]
    tokens = family.tokenize([content(marker + " "), control(marker)])
    assert list(tokens[1:]).count(family._spelled[marker]) == 1


def test_bos_stands_once(family: Vocab) -> None:
    if family.bos is None or not family.add_bos:
        assert family.tokenize([control("x")]) == family._model.tokenize("x", parse_special=True)
        return
    bare = family.tokenize([control("x")])
    written = family.tokenize([control(family.text(family.bos) + "x")])
    assert bare[0] == family.bos and list(bare).count(family.bos) == 1
    assert list(written).count(family.bos) == 1
    assert list(family.tokenize([content(family.text(family.bos))])).count(family.bos) == 1


def test_spelling_concatenates_to_the_bytes(family: Vocab) -> None:
    data = 'plain {"a": 1} é€\n'.encode()
    tokens = family.encode_bytes(data)
    assert b"".join(map(family.piece, tokens)) == data
    assert not any(family.is_control(token) for token in tokens)


def test_what_a_vocabulary_says_of_its_tokens(vocab: Vocab) -> None:
    end = vocab.token_of("<|im_end|>")
    assert end is not None and vocab.is_eog(end) and vocab.is_control(end) and end in vocab.eog
    assert vocab.text(end) == "<|im_end|>" and vocab.piece(end) == b"<|im_end|>"
    assert vocab.token_of("hello") is None
    assert vocab.size == 49152 and vocab.eos is not None
    assert "im_start" in vocab.metadata["tokenizer.chat_template"]
    start = vocab.token_of("<|im_start|>")
    assert start in vocab.controls and end not in vocab.controls


def test_white_space_defined_as_tokens_stays_text(sdist: Path) -> None:
    vocab = load(str(sdist / "vendor" / "llama.cpp" / "models" / "ggml-vocab-gpt-neox.gguf"))
    assert "    " in vocab._spelled and "    " not in vocab._markers
    assert list(vocab.tokenize([content("a        b")])) == whole(vocab, "a        b")


def test_a_vocabulary_alone_needs_no_weights(smollm2: Path) -> None:
    alone, loaded = LlamaModel(str(smollm2), vocab_only=True), LlamaModel(str(smollm2), repack=False)
    assert alone.vocabulary == loaded.vocabulary
    assert alone.tokenize(PLAIN, parse_special=True) == loaded.tokenize(PLAIN, parse_special=True)
    alone.close()
    loaded.close()


def test_longer_tokens(vocab: Vocab) -> None:
    [quote] = vocab.continuation(b'":')
    longer = vocab.extensions_of(quote)
    pieces = {vocab.piece(token) for token in longer}
    assert b'":"' in pieces and b'":' not in pieces and all(piece.startswith(b'":') for piece in pieces)
    everything = [token for token in range(vocab.size) if vocab.piece(token).startswith(b'":') and token != quote]
    assert sorted(longer) == sorted(token for token in everything if not vocab.is_control(token))


def test_tokens_with_bytes_of_no_character(sdist: Path) -> None:
    vocab = Vocab.load(str(sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf"))
    assert {vocab.byte_tokens[byte] for byte in (0xC0, 0xC1, 0xF5, 0xFF)} <= vocab.invalid_utf8
    assert vocab.byte_tokens[0xC3] not in vocab.invalid_utf8, "the first of two bytes"
    assert all("\ufffd" in vocab.piece(token).decode("utf-8", "replace") for token in vocab.invalid_utf8)
