"""llama.cpp's samplers, grammars among them, and the candidate tokens they work on."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.engine.llama.bindings import C, function
from server.engine.llama.context import Context
from server.engine.llama.model import LlamaModel

_sampler_apply = function("llama_sampler_apply", None, ctypes.c_void_p, ctypes.c_void_p)
_sampler_accept = function("llama_sampler_accept", None, ctypes.c_void_p, ctypes.c_int32)
_sampler_sample = function("llama_sampler_sample", ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)

candidate = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""`llama_token_data`."""


class CandidateArray:
    """A `llama_token_data_array` over a buffer of its own, for samplers to work on."""

    def __init__(self, size: int) -> None:
        self.data = np.zeros(size, candidate)
        self._ids = np.arange(size, dtype=np.int32)
        self._array = C.llama_token_data_array()
        self._at = self.data.ctypes.data
        self._pointer = type(self._array.data)
        self.address = ctypes.addressof(self._array)

    def set_all(self, logits: NDArray[np.float32]) -> None:
        """The whole vocabulary."""
        self.data["id"] = self._ids
        self.data["logit"] = logits
        self._reset(len(logits))

    def set_some(self, ids: Sequence[int] | NDArray[np.int32], logits: Any) -> None:
        """Some tokens, in the order given."""
        count = len(ids)
        self.data["id"][:count] = ids
        self.data["logit"][:count] = logits
        self._reset(count)

    def _reset(self, size: int) -> None:
        array = self._array
        array.data = ctypes.cast(self._at, self._pointer)
        array.size = size
        array.selected = -1
        array.sorted = False

    @property
    def selected(self) -> int:
        """The index the last sampler chose, -1 where it chose none."""
        return int(self._array.selected)

    def view(self) -> NDArray[Any]:
        """The candidates left, in the samplers' order."""
        return self.data[: self._array.size]


class Sampler:
    """A llama.cpp sampler or chain; frees itself."""

    def __init__(self, pointer: Any) -> None:
        self._p = pointer
        self._address = ctypes.cast(pointer, ctypes.c_void_p).value

    def __del__(self) -> None:
        if self._p:
            C.llama_sampler_free(self._p)
            self._p = None

    def apply(self, candidates: CandidateArray) -> None:
        _sampler_apply(self._address, candidates.address)

    def accept(self, token: int) -> None:
        _sampler_accept(self._address, token)

    def clone(self) -> Sampler:
        return Sampler(C.llama_sampler_clone(self._p))

    def sample(self, context: Context, row: int) -> int:
        """Sample from a batch token's logits and accept the result."""
        return int(_sampler_sample(self._address, context._address, row))


class SingleCandidate:
    """One token to ask a grammar about: the answer of a `CandidateArray` in a fifth of its time."""

    def __init__(self) -> None:
        self._data = C.llama_token_data()
        self._array = C.llama_token_data_array(ctypes.pointer(self._data), 1, -1, False)
        self._address = ctypes.addressof(self._array)

    def allowed(self, grammar: Sampler, token: int) -> bool:
        """True where the grammar allows the token next."""
        self._data.id, self._data.logit = token, 0.0
        _sampler_apply(grammar._address, self._address)
        return bool(self._data.logit == 0.0)


class CandidateMask:
    """A fixed set of tokens to ask grammars about, again and again: without numpy, whose code is cold there."""

    def __init__(self, tokens: NDArray[np.int32]) -> None:
        data = np.zeros(len(tokens), candidate)
        data["id"] = tokens
        self._asked = data.tobytes()
        data["logit"] = -np.inf
        self._refused = data.tobytes()
        self._buffer = ctypes.create_string_buffer(self._asked, len(self._asked))
        self._array = C.llama_token_data_array(ctypes.cast(self._buffer, ctypes.POINTER(C.llama_token_data)))
        self._address = ctypes.addressof(self._array)
        self._count = len(tokens)

    def any_allowed(self, grammar: Sampler) -> bool:
        """True where the grammar allows one of the tokens next."""
        ctypes.memmove(self._buffer, self._asked, len(self._asked))
        self._array.size, self._array.selected, self._array.sorted = self._count, -1, False
        _sampler_apply(grammar._address, self._address)
        return self._buffer.raw != self._refused


def sampler_chain(*samplers: Any) -> Sampler:
    """A chain that owns the samplers, applied in order."""
    pointer = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
    for sampler in samplers:
        C.llama_sampler_chain_add(pointer, sampler)
    return Sampler(pointer)


def grammar_sampler(model: LlamaModel, text: str) -> Sampler | None:
    """A grammar (GBNF, root rule `root`) as a sampler; None where llama.cpp cannot read it."""
    vocab = ctypes.cast(model._vocab, C.llama_vocab_p_ctypes)
    pointer = C.llama_sampler_init_grammar(vocab, text.encode(), b"root")
    return Sampler(pointer) if pointer else None
