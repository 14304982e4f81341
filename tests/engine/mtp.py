"""Tiny models of random weights with a head that predicts the token after the next (MTP; "NextN" in a GGUF).

The head is one more layer behind the model's own. It joins what the model made of a token, its hidden state, with the
embedding of the token that came next, and shares the model's embeddings and output.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.chat.standin import add_vocabulary, write_out

WIDTH, LAYERS, HEADS = 64, 2, 4
_EXPERTS = 2
_STATE, _GROUPS, _RANK, _CONV = 16, 2, 2, 4


def write_model(
    path: Path,
    base: Path,
    *,
    architecture: str = "glm4moe",
    depth: float = 1.0,
    size: int = 600,
    seed: int = 1,
    heads: int = 1,
    without: bool = False,
) -> Path:
    """A GGUF over the first `size` tokens of the vocabulary `base`.

    `architecture`: "glm4moe" (attention) or "qwen35" (a running state, and attention in the last layer). `depth`: how
    much layers do. At 1 the head's guesses are as random as its weights, at 0 a token alone determines the next, and
    the head is always right. `heads` is as many as the file says it has; `without`: and does not.
    """
    writer = gguf.GGUFWriter(path, architecture)
    texts, _ = add_vocabulary(writer, base, [], size=size)
    head = WIDTH // HEADS
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS + heads)
    writer.add_nextn_predict_layers(heads)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(head)
    if architecture == "glm4moe":
        writer.add_leading_dense_block_count(LAYERS)
        writer.add_expert_count(_EXPERTS)
        writer.add_expert_used_count(1)
        writer.add_expert_shared_count(1)
        writer.add_expert_feed_forward_length(WIDTH)
    else:
        writer.add_rope_dimension_sections([3, 3, 2, 0])
        writer.add_full_attention_interval(LAYERS)
        writer.add_ssm_conv_kernel(_CONV)
        writer.add_ssm_state_size(_STATE)
        writer.add_ssm_group_count(_GROUPS)
        writer.add_ssm_time_step_rank(_RANK)
        writer.add_ssm_inner_size(_RANK * _STATE)

    random = np.random.default_rng(seed)

    def weights(name: str, *shape: int, scale: float = 1.0) -> None:
        writer.add_tensor(name, scale * _random(random, *shape))

    def ones(name: str, width: int = WIDTH) -> None:
        writer.add_tensor(name, np.ones(width, np.float32))

    def attention(block: str, queries: int) -> None:
        weights(f"{block}.attn_q.weight", queries, WIDTH)
        weights(f"{block}.attn_k.weight", WIDTH, WIDTH)
        weights(f"{block}.attn_v.weight", WIDTH, WIDTH)
        weights(f"{block}.attn_output.weight", WIDTH, WIDTH, scale=depth)
        ones(f"{block}.attn_q_norm.weight", head)
        ones(f"{block}.attn_k_norm.weight", head)

    def running(block: str) -> None:
        inner, channels = _RANK * _STATE, (2 * _GROUPS + _RANK) * _STATE
        weights(f"{block}.attn_qkv.weight", channels, WIDTH)
        weights(f"{block}.attn_gate.weight", inner, WIDTH)
        weights(f"{block}.ssm_conv1d.weight", channels, _CONV)
        ones(f"{block}.ssm_dt.bias", _RANK)
        writer.add_tensor(f"{block}.ssm_a", np.full(_RANK, -0.1, np.float32))
        weights(f"{block}.ssm_alpha.weight", _RANK, WIDTH)
        weights(f"{block}.ssm_beta.weight", _RANK, WIDTH)
        ones(f"{block}.ssm_norm.weight", _STATE)
        weights(f"{block}.ssm_out.weight", WIDTH, inner, scale=depth)

    def forward(block: str, suffix: str = "", inner: int = 2 * WIDTH, experts: tuple[int, ...] = ()) -> None:
        weights(f"{block}.ffn_gate{suffix}.weight", *experts, inner, WIDTH)
        weights(f"{block}.ffn_up{suffix}.weight", *experts, inner, WIDTH)
        weights(f"{block}.ffn_down{suffix}.weight", *experts, WIDTH, inner, scale=depth)

    weights("token_embd.weight", len(texts), WIDTH)
    for layer in range(LAYERS if without else LAYERS + heads):
        block = f"blk.{layer}"
        ones(f"{block}.attn_norm.weight")
        ones(f"{block}.post_attention_norm.weight")
        if architecture == "glm4moe":
            attention(block, WIDTH)
        elif layer < LAYERS - 1:
            running(block)
        else:
            attention(block, 2 * WIDTH)  # queries, and gates of what they find
        if layer >= LAYERS and architecture == "glm4moe":
            weights(f"{block}.ffn_gate_inp.weight", _EXPERTS, WIDTH)
            writer.add_tensor(f"{block}.exp_probs_b.bias", np.zeros(_EXPERTS, np.float32))
            forward(block, "_exps", WIDTH, (_EXPERTS,))
            forward(block, "_shexp", WIDTH)
        else:
            forward(block)
        if layer >= LAYERS:
            token = np.eye(WIDTH, 2 * WIDTH, dtype=np.float32)  # the embedding comes before the hidden state
            both = _random(random, WIDTH, 2 * WIDTH)
            writer.add_tensor(f"{block}.nextn.eh_proj.weight", ((1 - depth) * token + depth * both).astype(np.float32))
            ones(f"{block}.nextn.enorm.weight")
            ones(f"{block}.nextn.hnorm.weight")
    ones("output_norm.weight")
    weights("output.weight", len(texts), WIDTH)
    write_out(writer)
    return path


def _random(random: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return random.standard_normal(shape, np.float32) / np.sqrt(shape[-1]).astype(np.float32)
