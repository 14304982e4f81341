"""A tiny model of random weights around a real vocabulary, with the control tokens of every family added.

Only a few families' vocabularies come with llama.cpp's sources; for the others GPT-2's stands in, whose byte-level
BPE is what nearly all of them use. Its tokens stand in the order of their merges: any number of the first ones is a
vocabulary as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import gguf
import numpy as np

_PIPES = re.compile(r"<\|[^|<>\s]+\|>|<｜[^｜<>\s]+｜>|<\|[a-z_]+>|<[a-z_]+\|>|\[/?[A-Z_]{3,}\]")
_TAG = re.compile(r"</?[\w:]*(tool|think|arg_)[\w:]*>")
WIDTH, LAYERS, HEADS = 64, 2, 4
_STATE, _RANK = 8, 4
_BYTES = 256


def control_texts(templates: Iterable[str], markers: Iterable[str]) -> list[str]:
    """What families write as single tokens: in pipes or capitals wherever it stands, tags where a format names them."""
    found = {text for source in (*templates, *markers) for text in _PIPES.findall(source)}
    return sorted(found | {marker for marker in markers if _TAG.fullmatch(marker)})


def write_model(
    path: Path,
    base: Path,
    controls: Iterable[str],
    *,
    size: int | None = None,
    seed: int = 1,
    architecture: str = "llama",
    layers: int = LAYERS,
    template: str | None = None,
    plain: bool = False,
) -> None:
    """A GGUF over the first `size` tokens of a byte-level BPE vocabulary, and `controls`.

    `architecture`: "llama", "gemma3" (sliding window in five of six layers), "mamba" (a running state) or
    "qwen2vl" (M-RoPE); `template`: its chat
    template. `plain`: greedy output is printable ASCII, for the logits of all other tokens are 0.
    """
    writer = gguf.GGUFWriter(path, architecture)
    texts, normal = add_vocabulary(writer, base, controls, size=size)
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    if architecture == "gemma3":
        writer.add_key_length(WIDTH // HEADS)
        writer.add_value_length(WIDTH // HEADS)
        writer.add_sliding_window(512)
    elif architecture == "mamba":
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_inner_size(2 * WIDTH)
        writer.add_ssm_state_size(_STATE)
        writer.add_ssm_time_step_rank(_RANK)
    elif architecture == "qwen2vl":
        writer.add_rope_dimension_sections([2, 3, 3, 0])
    if template is not None:
        writer.add_chat_template(template)

    random = np.random.default_rng(seed)

    def weights(name: str, *shape: int) -> None:
        writer.add_tensor(name, random.standard_normal(shape, np.float32) / np.sqrt(shape[-1]).astype(np.float32))

    def ones(name: str, width: int = WIDTH) -> None:
        writer.add_tensor(name, np.ones(width, np.float32))

    weights("token_embd.weight", len(texts), WIDTH)
    for layer in range(layers):
        block = f"blk.{layer}"
        ones(f"{block}.attn_norm.weight")
        if architecture == "mamba":
            weights(f"{block}.ssm_in.weight", 4 * WIDTH, WIDTH)
            weights(f"{block}.ssm_conv1d.weight", 2 * WIDTH, 4)
            weights(f"{block}.ssm_conv1d.bias", 2 * WIDTH)
            weights(f"{block}.ssm_x.weight", _RANK + 2 * _STATE, 2 * WIDTH)
            weights(f"{block}.ssm_dt.weight", 2 * WIDTH, _RANK)
            weights(f"{block}.ssm_dt.bias", 2 * WIDTH)
            decay = -np.arange(1, _STATE + 1, dtype=np.float32) / 4
            writer.add_tensor(f"{block}.ssm_a", np.tile(decay, (2 * WIDTH, 1)))
            ones(f"{block}.ssm_d", 2 * WIDTH)
            weights(f"{block}.ssm_out.weight", WIDTH, 2 * WIDTH)
            continue
        ones(f"{block}.ffn_norm.weight")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights(f"{block}.{name}.weight", WIDTH, WIDTH)
        if architecture == "gemma3":
            ones(f"{block}.attn_q_norm.weight", WIDTH // HEADS)
            ones(f"{block}.attn_k_norm.weight", WIDTH // HEADS)
            ones(f"{block}.post_attention_norm.weight")
            ones(f"{block}.post_ffw_norm.weight")
        weights(f"{block}.ffn_gate.weight", 2 * WIDTH, WIDTH)
        weights(f"{block}.ffn_up.weight", 2 * WIDTH, WIDTH)
        weights(f"{block}.ffn_down.weight", WIDTH, 2 * WIDTH)
    ones("output_norm.weight")
    output = random.standard_normal((len(texts), WIDTH), np.float32) / np.sqrt(WIDTH).astype(np.float32)
    if plain:
        output[[token for token, text in enumerate(texts) if token >= normal or not _printable(text)]] = 0
    writer.add_tensor("output.weight", output)
    write_out(writer)


def add_vocabulary(
    writer: gguf.GGUFWriter, base: Path, controls: Iterable[str], *, size: int | None = None
) -> tuple[list[str], int]:
    """All tokens' texts, and how many of them, the first, are no control tokens."""
    texts, merges = _vocabulary(base)
    assert texts[-1] == "<|endoftext|>"
    size = min(size or len(texts), len(texts)) - 1
    texts, merges = texts[:size], merges[: size - _BYTES]
    normal, controls = len(texts), ["<|endoftext|>", *controls]
    texts = [*texts, *controls]
    writer.add_vocab_size(len(texts))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_types([gguf.TokenType.NORMAL] * normal + [gguf.TokenType.CONTROL] * len(controls))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(normal)
    writer.add_eos_token_id(normal)
    writer.add_add_bos_token(False)
    return texts, normal


def write_out(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@cache
def _vocabulary(path: Path) -> tuple[list[str], list[str]]:
    """A vocabulary's tokens and merges."""
    fields = gguf.GGUFReader(path).fields
    return fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.merges"].contents()


def _printable(text: str) -> bool:
    """Whether a byte-level token stands for printable ASCII: "Ġ" is how GPT-2's vocabulary writes the space."""
    return all(character == "Ġ" or "!" <= character <= "~" for character in text)
