"""Models of any size that take no room: headers as real ones have them, and holes where the weights would be."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path

from server.engine.memory.gguf import BLOCKS

F32, Q4_0, Q8_0 = 0, 2, 8


def text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def header(tensors: int = 0, pairs: int = 0, *, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, pairs)


def write(
    path: Path,
    architecture: str,
    numbers: Mapping[str, int | float],
    tensors: Mapping[str, tuple[tuple[int, ...], int]],
    *,
    vocabulary: int = 32_000,
) -> Path:
    """A GGUF without a tokenizer. `numbers` are keys of the architecture, `tensors` shapes and types by name."""
    pairs = [
        pair("general.architecture", 8, text(architecture)),
        pair("tokenizer.ggml.model", 8, text("no_vocab")),
        pair(f"{architecture}.vocab_size", 4, struct.pack("<I", vocabulary)),
    ]
    for key, value in numbers.items():
        form, of = {bool: ("<?", 7), int: ("<I", 4), float: ("<f", 6)}[type(value)]
        pairs.append(pair(f"{architecture}.{key}", of, struct.pack(form, value)))
    content, offset = header(len(tensors), len(pairs)) + b"".join(pairs), 0
    for name, (shape, kind) in tensors.items():
        content += tensor(name, shape, kind, offset)
        elements, size = BLOCKS[kind]
        offset = -(-(offset + math.prod(shape) // elements * size) // 32) * 32
    with path.open("wb") as file:
        file.write(content)
        file.truncate(-(-len(content) // 32) * 32 + offset)
    return path


Shapes = dict[str, tuple[int, ...]]


def attention(width: int, heads: int, key_heads: int, head: int) -> Shapes:
    return {
        "attn_q": (width, heads * head),
        "attn_k": (width, key_heads * head),
        "attn_v": (width, key_heads * head),
        "attn_output": (heads * head, width),
    }


def decoder(
    layers: int, width: int, vocabulary: int, kind: int, *, matrices: Shapes, exact: Shapes
) -> dict[str, tuple[tuple[int, ...], int]]:
    """The tensors of a decoder of equal layers: `matrices` of this kind and, beside the usual norms, some as F32."""
    exact = {"attn_norm": (width,), "ffn_norm": (width,), **exact}
    tensors: dict[str, tuple[tuple[int, ...], int]] = {"token_embd.weight": ((width, vocabulary), kind)}
    for at in range(layers):
        tensors |= {f"blk.{at}.{name}.weight": (shape, kind) for name, shape in matrices.items()}
        tensors |= {f"blk.{at}.{name}.weight": (shape, F32) for name, shape in exact.items()}
    return {**tensors, "output_norm.weight": ((width,), F32), "output.weight": ((width, vocabulary), kind)}


def llama(
    path: Path,
    *,
    layers: int = 32,
    width: int = 4096,
    inner: int = 14_336,
    heads: int = 32,
    key_heads: int = 8,
    context: int = 131_072,
    vocabulary: int = 128_256,
    kind: int = Q4_0,
) -> Path:
    """The shape of a Llama 3 of 8 billion parameters, unless told otherwise."""
    forward = {"ffn_gate": (width, inner), "ffn_up": (width, inner), "ffn_down": (inner, width)}
    matrices = attention(width, heads, key_heads, width // heads) | forward
    numbers: dict[str, int | float] = {
        "block_count": layers,
        "context_length": context,
        "embedding_length": width,
        "feed_forward_length": inner,
        "attention.head_count": heads,
        "attention.head_count_kv": key_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": width // heads,
    }
    tensors = decoder(layers, width, vocabulary, kind, matrices=matrices, exact={})
    return write(path, "llama", numbers, tensors, vocabulary=vocabulary)


def qwen3moe(
    path: Path,
    *,
    layers: int = 48,
    width: int = 2048,
    experts: int = 128,
    met: int = 8,
    inner: int = 768,
    heads: int = 32,
    key_heads: int = 4,
    head: int = 128,
    context: int = 40_960,
    vocabulary: int = 151_936,
    kind: int = Q4_0,
) -> Path:
    """The shape of Qwen 3 30B A3B, a mixture of experts, unless told otherwise."""
    forward = {
        "ffn_gate_exps": (width, inner, experts),
        "ffn_up_exps": (width, inner, experts),
        "ffn_down_exps": (inner, width, experts),
    }
    matrices = attention(width, heads, key_heads, head) | forward
    exact: Shapes = {"ffn_gate_inp": (width, experts), "attn_q_norm": (head,), "attn_k_norm": (head,)}
    numbers: dict[str, int | float] = {
        "block_count": layers,
        "context_length": context,
        "embedding_length": width,
        "feed_forward_length": 6144,
        "attention.head_count": heads,
        "attention.head_count_kv": key_heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "expert_count": experts,
        "expert_used_count": met,
        "expert_feed_forward_length": inner,
    }
    tensors = decoder(layers, width, vocabulary, kind, matrices=matrices, exact=exact)
    return write(path, "qwen3moe", numbers, tensors, vocabulary=vocabulary)


def projector(path: Path) -> Path:
    """One that takes images, of 1 GiB."""
    numbers = {"embedding_length": 1024, "feed_forward_length": 4096, "image_size": 448, "patch_size": 14}
    keys = {f"vision.{key}": value for key, value in numbers.items()}
    return write(path, "clip", {"has_vision_encoder": True, **keys}, {"v.patch_embd.weight": ((2**28,), F32)})
