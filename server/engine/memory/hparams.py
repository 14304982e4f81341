"""A model's shape: what its layers weigh and remember, read from the header of its file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from server.engine.memory.gguf import BLOCKS, Array, Gguf, GgufError, read
from server.engine.types import EngineError

_BLOCK = re.compile(r"blk\.(\d+)\.(.*)")
_EXPERTS = re.compile(r"ffn_(up|down|gate|gate_up)_(ch)?exps\.")
_MOST_LAYERS = 1024

_WINDOWED = {
    **dict.fromkeys(("gemma3", "gemma-embedding"), 6),
    **dict.fromkeys(("gemma2", "gpt-oss"), 2),
    **dict.fromkeys(("cohere2", "exaone4", "exaone-moe", "olmo2", "llama4", "afmoe", "mellum"), 4),
    "gemma3n": 5,
    "plamo3": 8,
}
"""Of so many layers one sees everything, the last; the others see a window (llama.cpp, `src/models`). Where a file says
so itself, that counts. A missing architecture is taken to see everything everywhere: too much, never too little."""

_RECURRENT = frozenset(("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"))
"""All of whose layers keep a running state and nothing else."""


_ROLLS_BACK = frozenset(("bailingmoe3", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe"))
"""Of whose running states llama.cpp can keep copies of the last tokens (`llm_arch_supports_rs_rollback`)."""

_GUESSES = frozenset(
    ("bailingmoe3", "deepseek2", "deepseek32", "glm-dsa", "glm4moe", "hy_v3", "nemotron_h_moe", "qwen35", "qwen35moe")
)
"""Of which llama.cpp runs a layer that guesses the token after the next with a plain KV cache. Others chain several,
see a window alone, or share the model's memory."""


@dataclass(frozen=True, slots=True)
class LayerParams:
    weights: int
    """Bytes of all its tensors."""
    experts: int
    """Bytes of those that hold a mixture's experts, of which a token meets few."""
    keys: int
    """Elements of the keys of one token."""
    values: int
    windowed: bool
    state_bytes: int
    """Bytes of the running state of one sequence."""


@dataclass(frozen=True, slots=True)
class HParams:
    architecture: str
    n_ctx_train: int
    layers: tuple[LayerParams, ...]
    embedding: int
    """Bytes of the token embeddings, which stay with the CPU."""
    output: int
    """Bytes of what comes behind the last layer. Where the embeddings serve there too, a second copy of them."""
    repackable: tuple[tuple[int, int], ...]
    """Bytes of matrices by `ggml_type`: a CPU may lay them out anew."""
    size: int
    """Bytes of all tensors, as the file has them."""
    vocabulary: int
    n_embd: int
    """Elements between layers."""
    n_head: int
    n_embd_q: int
    """Elements of the queries of one token."""
    n_ff: int
    """Elements inside the feed-forward part; of a mixture, for all experts that a token meets."""
    n_expert_used: int
    n_swa: int
    """Tokens of the sliding window; 0: none."""
    nextn_layers: int = 0
    """Layers, the last, that guess tokens after the next (MTP); a model does without them."""
    has_mtp: bool = False
    """Whether these are one, and such that llama.cpp can run it: it ends the process over others."""

    @property
    def recurrent(self) -> bool:
        return any(layer.state_bytes for layer in self.layers)

    @property
    def supports_rollback(self) -> bool:
        """Whether drafts that were wrong can be taken back: a running state is one of all that came before."""
        return not self.recurrent or self.architecture in _ROLLS_BACK

    @property
    def experts(self) -> int:
        """Layers that hold experts."""
        return sum(layer.experts > 0 for layer in self.layers)

    @classmethod
    def of(cls, file: Gguf) -> HParams:
        """Raises GgufError where the file does not say what is needed, or says what cannot be."""
        return _Reading(file).shape()


class _Reading:
    def __init__(self, file: Gguf) -> None:
        self._file = file
        self._name = file.architecture
        self._count = file.number(f"{self._name}.block_count")
        if not 1 <= self._count <= _MOST_LAYERS:
            raise GgufError("the model file's number of layers is none that can be")

    def one(self, key: str, default: int | None = None) -> int:
        """A number of the architecture; of one for each layer, the largest."""
        value = self._file.metadata.get(f"{self._name}.{key}")
        if isinstance(value, Array):
            return max(self.each(key, 0))
        return self._file.number(f"{self._name}.{key}", default)

    def each(self, key: str, default: int | None = None) -> tuple[int, ...]:
        """A number for each layer."""
        value = self._file.metadata.get(f"{self._name}.{key}")
        if not isinstance(value, Array):
            return (self.one(key, default),) * self._count
        values = value.values or ()
        if len(values) < self._count or not all(isinstance(each, int) and 0 <= each < 2**31 for each in values):
            raise GgufError(f"the model file's {self._name}.{key} has no count for each layer")
        return tuple(int(each) for each in values[: self._count])

    def shape(self) -> HParams:
        weights, experts = [0] * self._count, [0] * self._count
        embedding = output = 0
        matrices: dict[int, int] = {}
        for tensor in self._file.tensors:
            if (found := _BLOCK.match(tensor.name)) is not None:
                at = min(int(found[1]), self._count - 1)
                weights[at] += tensor.bytes
                if _EXPERTS.match(found[2]):
                    experts[at] += tensor.bytes
            elif tensor.name.startswith(("token_embd", "per_layer_token_embd")):
                embedding += tensor.bytes
            else:
                output += tensor.bytes
            if len(tensor.shape) > 1 and BLOCKS[tensor.type][0] > 1 and not tensor.name.startswith("token_embd"):
                matrices[tensor.type] = matrices.get(tensor.type, 0) + tensor.bytes
        size = sum(tensor.bytes for tensor in self._file.tensors)
        shared = next((each for each in self._file.tensors if each.name == "token_embd.weight"), None)
        if shared is not None and not any(each.name == "output.weight" for each in self._file.tensors):
            output += shared.bytes
            if BLOCKS[shared.type][0] > 1:
                matrices[shared.type] = matrices.get(shared.type, 0) + shared.bytes
        width, heads = self.one("embedding_length"), self.each("attention.head_count", 0)
        inner = self.each("feed_forward_length", 0)
        met = self.one("expert_used_count", 0)
        feed_forward = max(max(inner), met * self.one("expert_feed_forward_length", max(inner) if met else 0))
        head = width // max(1, *heads)
        return HParams(
            architecture=self._name,
            n_ctx_train=self.one("context_length"),
            layers=tuple(self._layers(weights, experts, heads, head)),
            embedding=embedding,
            output=output,
            repackable=tuple(matrices.items()),
            size=size,
            vocabulary=self._vocabulary(),
            n_embd=width,
            n_head=max(heads),
            n_embd_q=max(heads) * self.one("attention.key_length", head),
            n_ff=feed_forward,
            n_expert_used=met,
            n_swa=self.one("attention.sliding_window", 0) if any(self._windowed()) else 0,
            nextn_layers=self._spare(),
            has_mtp=self._spare() == 1 and self._name in _GUESSES,
        )

    def _spare(self) -> int:
        needed = f"blk.{self._count - 1}.nextn.eh_proj.weight"
        said = self.one("nextn_predict_layers", 0)
        return min(said, self._count - 1) if any(tensor.name == needed for tensor in self._file.tensors) else 0

    def _vocabulary(self) -> int:
        tokens = self._file.metadata.get("tokenizer.ggml.tokens")
        return tokens.count if isinstance(tokens, Array) else self.one("vocab_size", 0)

    def _layers(
        self, weights: list[int], experts: list[int], heads: tuple[int, ...], head: int
    ) -> Iterable[LayerParams]:
        key_heads = [
            given if given is not None else own
            for own, given in zip(
                heads,
                self.each("attention.head_count_kv") if self._has("attention.head_count_kv") else [None] * self._count,
                strict=True,
            )
        ]
        keys, values = self.one("attention.key_length", head), self.one("attention.value_length", head)
        window_keys = self.one("attention.key_length_swa", keys)
        window_values = self.one("attention.value_length_swa", values)
        latent = self._has("attention.key_length_mla")  # keys and values are one latent vector (DeepSeek V2)
        windowed, own = self._windowed(), self._count - self.one("attention.shared_kv_layers", 0)
        states = self._states(key_heads)
        for at in range(self._count):
            count = key_heads[at] if at < own and not (states[at] and self._either) else 0
            yield LayerParams(
                weights[at],
                experts[at],
                count * (window_keys if windowed[at] else keys),
                0 if latent else count * (window_values if windowed[at] else values),
                windowed[at],
                states[at],
            )

    def _has(self, key: str) -> bool:
        return f"{self._name}.{key}" in self._file.metadata

    def _windowed(self) -> tuple[bool, ...]:
        """Which layers see a window alone."""
        key = "attention.sliding_window_pattern"
        if not self.one("attention.sliding_window", 0):
            return (False,) * self._count
        value = self._file.metadata.get(f"{self._name}.{key}")
        if isinstance(value, Array):
            return tuple(bool(each) for each in self.each(key))
        period = self.one(key, _WINDOWED.get(self._name, 1))
        return tuple(period == 0 or at % period < period - 1 for at in range(self._count))

    @property
    def _either(self) -> bool:
        """Whether a layer has either keys and values or a running state, not both."""
        return self._name != "falcon-h1"

    def _states(self, key_heads: list[int]) -> list[int]:
        """Bytes of each layer's running state for one sequence (llama.cpp, `llama_hparams::n_embd_r`, `n_embd_s`)."""
        width = self.one("embedding_length")
        inner, size = self.one("ssm.inner_size", 0), self.one("ssm.state_size", 0)
        convolution = max(0, self.one("ssm.conv_kernel", 0) - 1)
        state = convolution * (inner + 2 * self.one("ssm.group_count", 0) * size) + size * inner
        if cache := self.one("shortconv.l_cache", 0):
            state = width * (cache - 1)
        elif head := self.one("wkv.head_size", 0):
            state = width * (head + self.one("token_shift_count", 2))
        elif head := self.one("kda.head_dim", 0):
            heads = self.one("attention.head_count")
            state = heads * head * (3 * (convolution or 3) + head)
        if not state:
            return [0] * self._count
        every = self.one("full_attention_interval", 4 if self._name in ("qwen3next", "qwen35", "qwen35moe") else 0)
        if every:  # what guesses, behind the others, attends
            own = self._count - self.one("nextn_predict_layers", 0)
            return [0 if (at + 1) % every == 0 or at >= own else 4 * state for at in range(self._count)]
        if self._name in _RECURRENT or not self._either:
            return [4 * state] * self._count
        return [0 if count else 4 * state for count in key_heads]


def element_bytes(kind: str) -> float:
    """Bytes of one element of the KV cache."""
    return {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}[kind]


def projector_bytes(path: str) -> int:
    """Bytes that a projector takes, with the buffers in which it encodes an image of its own size; none where it takes
    no images, for then it is not loaded. Raises EngineError where the file is none.

    The buffers hold most in attention (residual, queries, keys, values, their views and the result) or inside the
    feed-forward part. Fitted, a little above, to what llama.cpp reports; larger images of a projector without a fixed
    size take more.
    """
    try:
        file = read(path)
        if file.metadata.get("clip.has_vision_encoder") is not True:
            return 0
        width, inner, side, patch = (
            file.number(f"clip.vision.{key}")
            for key in ("embedding_length", "feed_forward_length", "image_size", "patch_size")
        )
    except GgufError as error:
        raise EngineError(f"the projector cannot be used: {error.reason}") from None
    return file.size + 4 * (side // max(1, patch)) ** 2 * max(7 * width, 2 * width + 2 * inner)
