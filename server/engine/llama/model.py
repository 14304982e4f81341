"""A model file as llama.cpp loads it: vocabulary, metadata, weights."""

from __future__ import annotations

import ctypes
from array import array
from typing import Any

from server.engine.llama.bindings import C, LoadError, function, initialise

_EXPERTS = r"blk\.{}\.ffn_(up|down|gate|gate_up)_(ch)?exps"

_token_to_piece = function(
    "llama_token_to_piece",
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_char_p,
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.c_bool,
)
_tokenize = function(
    "llama_tokenize",
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_bool,
    ctypes.c_bool,
)


class _Placed(ctypes.Structure):
    """`llama_model_tensor_buft_override`: tensors whose names match lie in this kind of memory."""

    _fields_ = (("pattern", ctypes.c_char_p), ("memory", ctypes.c_void_p))


class LlamaModel:
    """A GGUF file: its vocabulary, its metadata and, unless `vocab_only`, its weights."""

    def __init__(
        self,
        path: str,
        *,
        vocab_only: bool = False,
        gpu_layers: int = -1,
        cpu_experts: int = 0,
        repack: bool = True,
        mtp: bool = False,
    ) -> None:
        """`gpu_layers`: the number of layers, the last, on GPUs; -1: all. `cpu_experts`: the number of layers, the
        first, whose mixture of experts stays with the CPU. `mtp`: load the layers that predict tokens after the next,
        for contexts that run these (multi-token prediction). Raises LoadError."""
        initialise()
        params = C.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = gpu_layers
        params.use_extra_bufts = repack
        params.load_mtp = mtp
        if cpu_experts:
            memory = ctypes.c_void_p(function("ggml_backend_cpu_buffer_type", ctypes.c_void_p)())
            placed = [_Placed(_EXPERTS.format(layer).encode(), memory) for layer in range(cpu_experts)]
            places = (_Placed * (cpu_experts + 1))(*placed)  # the last, empty, ends the list
            params.tensor_buft_overrides = ctypes.addressof(places)
        self._p = C.llama_model_load_from_file(path.encode(), params)
        if not self._p:
            raise LoadError("the model file cannot be loaded")
        self._vocab: int = ctypes.cast(C.llama_model_get_vocab(self._p), ctypes.c_void_p).value or 0
        self.vocabulary: int = C.llama_vocab_n_tokens(self._vocab)

    def close(self) -> None:
        if self._p:
            C.llama_model_free(self._p)
            self._p = None

    # --- metadata

    def metadata(self) -> dict[str, str]:
        """The GGUF's scalar key/value pairs, as text."""
        found = {}
        for i in range(C.llama_model_meta_count(self._p)):
            key = self._string(C.llama_model_meta_key_by_index, i)
            found[key] = self._string(C.llama_model_meta_val_str_by_index, i)
        return found

    def _string(self, get: Any, index: int) -> str:
        size = 512
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = get(self._p, index, buffer, size)
            if length < 0:
                return ""
            if length < size:
                return buffer.raw[:length].decode("utf-8", "replace")
            size = length + 1

    @property
    def window(self) -> int:
        """Tokens of the sliding attention window; 0 where every layer sees everything."""
        return int(C.llama_model_n_swa(self._p))

    @property
    def recurrent(self) -> bool:
        """True where (a part of) the memory is a running state that cannot be cut."""
        return bool(C.llama_model_is_recurrent(self._p) or C.llama_model_is_hybrid(self._p))

    @property
    def decoder(self) -> bool:
        """True of a plain causal decoder: no encoder, no diffusion."""
        return bool(
            C.llama_model_has_decoder(self._p)
            and not C.llama_model_has_encoder(self._p)
            and not C.llama_model_is_diffusion(self._p)
        )

    @property
    def width(self) -> int:
        """Numbers in the embedding of one token of input."""
        return int(C.llama_model_n_embd_inp(self._p))

    @property
    def hidden_width(self) -> int:
        """Numbers in the hidden state of one token."""
        return int(C.llama_model_n_embd_out(self._p))

    # --- vocabulary

    @property
    def bos(self) -> int:
        return int(C.llama_vocab_bos(self._vocab))

    @property
    def eos(self) -> int:
        return int(C.llama_vocab_eos(self._vocab))

    @property
    def add_bos(self) -> bool:
        return bool(C.llama_vocab_get_add_bos(self._vocab))

    def attributes(self) -> list[int]:
        """`enum llama_token_attr` of every token."""
        get, vocab = C.llama_vocab_get_attr, self._vocab
        return [get(vocab, token) for token in range(self.vocabulary)]

    def is_eog(self, token: int) -> bool:
        return bool(C.llama_vocab_is_eog(self._vocab, token))

    def text(self, token: int) -> str:
        """The token's text as the vocabulary stores it (for control tokens: as written in a template)."""
        return (C.llama_vocab_get_text(self._vocab, token) or b"").decode("utf-8", "replace")

    def pieces(self) -> list[bytes]:
        """The bytes that each token stands for; control tokens by their text."""
        size = 1024
        buffer = ctypes.create_string_buffer(size)
        found = []
        for token in range(self.vocabulary):
            length = _token_to_piece(self._vocab, token, buffer, size, 0, True)
            if length < 0:
                size = -length
                buffer = ctypes.create_string_buffer(size)
                length = _token_to_piece(self._vocab, token, buffer, size, 0, True)
            found.append(ctypes.string_at(buffer, length))
        return found

    def tokenize(self, text: str, *, parse_special: bool) -> array[int]:
        """Tokens of a text, without BOS or EOS."""
        data = text.encode("utf-8", "replace")
        size = len(data) + 8
        while True:
            buffer = (ctypes.c_int32 * size)()
            count = _tokenize(self._vocab, data, len(data), buffer, size, False, parse_special)
            if count >= 0:
                return array("i", memoryview(buffer).cast("B").cast("i")[:count])
            size = -count
