"""llama.cpp behind a thin typed layer over its C API, as llama-cpp-python binds it.

Nothing here decides anything: objects own what llama.cpp allocates, methods return what it returned. llama.cpp
ends the process on a failed assertion, so a context belongs in a worker process; a vocabulary alone
(`Model(path, vocab_only=True)`) is safe anywhere. Facts of the C API are those of llama.cpp's `include/llama.h`.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import re
import socket
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray


def bindings(name: str) -> Any:
    """A module of `llama_cpp` alone: the package's `__init__` would import its high-level classes and all they need."""
    if "llama_cpp" in sys.modules:
        return importlib.import_module(f"llama_cpp.{name}")
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("llama-cpp-python is not installed")
    package = ModuleType("llama_cpp")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["llama_cpp"] = package
    try:
        return importlib.import_module(f"llama_cpp.{name}")
    finally:
        del sys.modules["llama_cpp"]  # who imports the package later gets the real one


C = bindings("llama_cpp")
_lib = C._lib
_libc = ctypes.CDLL(None)

OK, NO_SLOT, ABORTED = 0, 1, 2
"""What `Context.decode` returns, besides the negative numbers of errors."""

_GPU, _INTEGRATED = 1, 2
"""`enum ggml_backend_dev_type`."""

KV_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}
"""`enum ggml_type` of what the KV cache may be stored as. Fewer bits need flash attention."""

_EXPERTS = r"blk\.{}\.ffn_(up|down|gate|gate_up)_(ch)?exps"

_REACH = 5.0
"""Seconds within which an RPC server must take a connection."""

LOG_WARN = 3
"""`GGML_LOG_LEVEL_WARN`."""

# The same functions with addresses as plain integers: no pointer object a call.
_get_logits = _lib["llama_get_logits"]
_get_logits.argtypes, _get_logits.restype = [ctypes.c_void_p], ctypes.c_void_p
_sampler_apply = _lib["llama_sampler_apply"]
_sampler_apply.argtypes, _sampler_apply.restype = [ctypes.c_void_p, ctypes.c_void_p], None
_sampler_accept = _lib["llama_sampler_accept"]
_sampler_accept.argtypes, _sampler_accept.restype = [ctypes.c_void_p, ctypes.c_int32], None
_sampler_sample = _lib["llama_sampler_sample"]
_sampler_sample.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32]
_sampler_sample.restype = ctypes.c_int32
_token_to_piece = _lib["llama_token_to_piece"]
_token_to_piece.argtypes = [
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_char_p,
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.c_bool,
]
_token_to_piece.restype = ctypes.c_int32
_tokenize = _lib["llama_tokenize"]
_tokenize.argtypes = [
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_bool,
    ctypes.c_bool,
]
_tokenize.restype = ctypes.c_int32
# Declared in llama.cpp's `src/llama-ext.h` alone, as C++: these are their names as Linux's and macOS's compilers mangle
# them.
_show_hidden = getattr(_lib, "_Z26llama_set_embeddings_nextnP13llama_contextbb", None)
_get_hidden = getattr(_lib, "_Z26llama_get_embeddings_nextnP13llama_context", None)
if _show_hidden is not None and _get_hidden is not None:
    _show_hidden.argtypes, _show_hidden.restype = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool], None
    _get_hidden.argtypes, _get_hidden.restype = [ctypes.c_void_p], ctypes.c_void_p

_MTP = 1
"""`LLAMA_CONTEXT_TYPE_MTP`."""

_initialised = False
_log: Any = None
_loggers = [C.llama_log_set]
"""What tells each of llama.cpp's libraries where to log to."""


def log_to(sink: Callable[[int, str], None] | None) -> None:
    """Send llama.cpp's log lines (level of ggml.h, text) to `sink`, or nowhere.

    "Nowhere" is libc's `abs`: called with the level, it does nothing, and no line costs a trip through Python.
    """
    global _log
    if sink is None:
        _log = ctypes.cast(_libc.abs, C.llama_log_callback)
    else:
        _log = C.llama_log_callback(lambda level, text, _: sink(level, (text or b"").decode("utf-8", "replace")))
    for logger in _loggers:
        logger(_log, None)


def add_logger(logger: Any) -> None:
    """Another library of llama.cpp's logs to where `log_to` said and will say."""
    _loggers.append(logger)
    if _log is not None:
        logger(_log, None)


def _initialise() -> None:
    global _initialised
    if not _initialised:
        if _log is None:
            log_to(None)
        C.llama_backend_init()
        _initialised = True


class LoadError(Exception):
    """llama.cpp could not load the model or make its context."""


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
        """`cpu_experts`: of so many layers, the first, the experts of a mixture stay with the CPU. `mtp`: with the
        layers that predict tokens after the next, for contexts that run these (multi-token prediction)."""
        _initialise()
        params = C.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = gpu_layers
        params.use_extra_bufts = repack
        params.load_mtp = mtp
        if cpu_experts:
            memory = ctypes.c_void_p(_ggml("ggml_backend_cpu_buffer_type", ctypes.c_void_p)())
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
        """Whether (a part of) the memory is a running state that cannot be cut."""
        return bool(C.llama_model_is_recurrent(self._p) or C.llama_model_is_hybrid(self._p))

    @property
    def decoder(self) -> bool:
        """Whether the model is a plain causal decoder: no encoder, no diffusion."""
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


class Batch:
    """The arrays of one `llama_batch`, allocated once and filled in place.

    With `embeddings`, [size, `Model.width`], these stand in the place of tokens, at `positions`: [sections, size], of
    one section or M-RoPE's four. With `hidden`, the width of such, there is beside each token a hidden state, for MTP.
    """

    def __init__(
        self,
        size: int,
        embeddings: NDArray[np.float32] | None = None,
        positions: NDArray[np.int32] | None = None,
        *,
        hidden: int = 0,
    ) -> None:
        self.size = size
        self.token = np.zeros(size, np.int32)
        self.position = np.zeros(size, np.int32) if positions is None else np.ascontiguousarray(positions)
        self.sequence = np.zeros(size, np.int32)
        self.output = np.zeros(size, np.int8)
        self.hidden = np.zeros((size, hidden), np.float32)
        self._embeddings = None if embeddings is None else np.ascontiguousarray(embeddings)
        self._one = np.ones(size, np.int32)
        # token i belongs to the one sequence whose id stands in sequence[i]
        self._sequences = (self.sequence.ctypes.data + 4 * np.arange(size)).astype(np.uintp)
        self.struct = C.llama_batch(size)
        for field, values in (
            ("token", self.token) if self._embeddings is None else ("embd", self._embeddings),
            ("pos", self.position),
            ("n_seq_id", self._one),
            ("seq_id", self._sequences),
            ("logits", self.output),
        ):
            self._point(field, values)
        if hidden:
            self._point("embd", self.hidden)

    def _point(self, field: str, values: NDArray[Any]) -> None:
        kind = type(getattr(self.struct, field))
        setattr(self.struct, field, ctypes.cast(values.ctypes.data, kind))


class Context:
    """A model's running state: the KV cache of all sequences and the logits of the last decode."""

    def __init__(
        self,
        model: LlamaModel,
        *,
        cells: int,
        sequences: int,
        batch: int,
        threads: int,
        split: bool = False,
        flash: bool = True,
        kv_type: str = "f16",
        outputs: int = 0,
        hidden: bool = False,
        mtp: bool = False,
        snapshots: int = 0,
    ) -> None:
        """`outputs`: the most logits a decode is asked for; 0: one for each sequence. `hidden`: its tokens' hidden
        states are asked for too. `mtp`: what is run is not the model but its layer that predicts the token after the
        next (the model must be loaded with it and have just one: llama.cpp ends the process otherwise). `snapshots`:
        of a running state, so many of the last decode's tokens can be removed again, where llama.cpp knows how, if
        there all its sequences had equally many, neighbours if split."""
        params = C.llama_context_default_params()
        params.n_ctx = cells
        # An abort undoes the current micro-batch only. In a pool there is one a decode, which makes it all or nothing.
        params.n_batch = params.n_ubatch = batch
        params.n_seq_max = sequences
        params.n_outputs_max = outputs or sequences
        params.n_threads = params.n_threads_batch = threads
        # One pool of cells for all sequences, or `split`: cells of its own for each. In a pool a sequence attends over
        # the others' cells too: masked, but not free (8 sequences on two cores with AMX, SmolLM2-135M: 35 ms a step,
        # 29 split). Split, llama.cpp cuts a batch into micro-batches of equal shares for neighbouring sequences, and
        # every sequence's cells are set aside for it.
        # Flash attention on a CPU works token by token below 64 tokens a micro-batch, and its time grows with the
        # context: 8 tokens behind 1,200 took 135 ms with it and 30 without, one 23 and 11.
        params.flash_attn_type = -1 if flash else 0
        params.kv_unified = not split
        params.type_k = params.type_v = KV_TYPES[kv_type]
        params.swa_full = False
        params.no_perf = True
        params.n_rs_seq = snapshots
        assert snapshots + 1 < batch  # llama.cpp ends the process otherwise
        if mtp:
            params.ctx_type = _MTP
        self._split = split
        self._p = C.llama_init_from_model(model._p, params)
        if not self._p:
            raise LoadError("the model's context cannot be made")
        self._memory = C.llama_get_memory(self._p)
        self._address = ctypes.cast(self._p, ctypes.c_void_p).value
        self._width = model.vocabulary
        self._hidden_width = model.hidden_width
        if hidden:
            assert _show_hidden is not None
            # For every token. Only for those with logits, llama.cpp's MTP graphs would give the first ones' instead.
            _show_hidden(self._address, True, False)
        self._rows = outputs or sequences
        self._batch = batch
        self.snapshots = int(C.llama_n_rs_seq(self._p))
        """0 where llama.cpp knows not how."""
        self._fresh: dict[int, int] = {}
        """Of a running state with snapshots: each sequence's tokens of the last decode, where they can be removed."""
        self._cut: set[int] = set()
        """Sequences of which some were, until their next decode: the state itself is still the one behind them."""
        self._state: tuple[int, NDArray[np.uint8]] | None = None
        """A sequence and what it holds, while that is so."""
        self._logits_at = 0
        self._logits: NDArray[np.float32] = np.zeros((0, 0), np.float32)
        # llama.cpp asks the abort callback between graph nodes, some thousand times a step; through Python each call
        # would wait for the GIL. `strlen` of a two-byte buffer has the callback's shape and returns its answer:
        # 0 while the first byte is 0, else 1.
        self._flag = ctypes.create_string_buffer(2)
        self._abort = ctypes.cast(_libc.strlen, C.ggml_abort_callback)
        C.llama_set_abort_callback(self._p, self._abort, ctypes.addressof(self._flag))

    @property
    def cells(self) -> int:
        return int(C.llama_n_ctx(self._p))

    def close(self) -> None:
        if self._p:
            C.llama_free(self._p)
            self._p = None

    def decode(self, batch: Batch, count: int) -> int:
        """Run the batch's first `count` tokens: OK, NO_SLOT (memory as before), ABORTED (some of
        the tokens may be in memory), negative on an error."""
        batch.struct.n_tokens = count
        return self._run(batch, count)

    def decode_embeddings(
        self, embeddings: NDArray[np.float32], positions: NDArray[np.int32], sequence: int, *, causal: bool
    ) -> int:
        """Run embeddings in the place of tokens (see `Batch`), without outputs; results are those of `decode`.

        Not `causal`: all of them see each other; they must fit one micro-batch then.
        """
        batch = Batch(len(embeddings), embeddings, positions)
        batch.sequence[:] = sequence
        if causal:
            return self._run(batch, batch.size)
        C.llama_set_causal_attn(self._p, False)
        try:
            return self._run(batch, batch.size)
        finally:
            C.llama_set_causal_attn(self._p, True)

    def _run(self, batch: Batch, count: int) -> int:
        self._state = None
        result = int(C.llama_decode(self._p, batch.struct))
        if self.snapshots:
            self._note(batch.sequence[:count].tolist() if result == OK else [])
        return result

    def _note(self, decoded: list[int]) -> None:
        """What of these sequences' tokens can be removed again.

        A snapshot is of the state behind a token of the last micro-batch. llama.cpp gives older ones out as well; and
        those of another micro-batch of the same decode are lost where it moves states to bring them together.
        """
        counts = Counter(decoded)
        together = len(set(counts.values())) == 1 and len(decoded) <= self._batch
        self._fresh = dict(counts) if together and self.can_rollback(counts.keys()) else {}
        self._cut -= counts.keys()

    def can_rollback(self, sequences: Collection[int]) -> bool:
        """Whether of a running state tokens can be removed again that these sequences decode together, each as many."""
        return not self._split or max(sequences) - min(sequences) == len(sequences) - 1

    def use_threads(self, count: int) -> None:
        """From the next decode on."""
        C.llama_set_n_threads(self._p, count, count)

    def abort(self, stop: bool = True) -> None:
        """Ask the decode under way (or the next one) to stop; from any thread. Only the CPU backend listens."""
        self._flag[0] = b"\x01" if stop else b"\x00"

    def logits(self, rows: int) -> NDArray[np.float32]:
        """A writable view of the last decode's logits, a row for each output in the batch's order. No copy."""
        address = _get_logits(self._address)
        if address != self._logits_at:
            buffer = (ctypes.c_float * (self._rows * self._width)).from_address(address)
            self._logits = np.ctypeslib.as_array(buffer).reshape(self._rows, self._width)
            self._logits_at = address
        return self._logits[:rows]

    def hidden(self, rows: int) -> NDArray[np.float32]:
        """A view of the last decode's hidden states, a row for each token in the batch's order. No copy."""
        assert _get_hidden is not None
        buffer = (ctypes.c_float * (rows * self._hidden_width)).from_address(_get_hidden(self._address))
        return np.ctypeslib.as_array(buffer).reshape(rows, self._hidden_width)

    def seq_rm(self, sequence: int, start: int = -1, end: int = -1) -> bool:
        """Forget positions start ≤ p < end of a sequence; False where its memory cannot be cut there."""
        if self._state is not None and self._state[0] == sequence:
            self._state = None
        if self.snapshots and start > 0 and (count := self.last_position(sequence) + 1 - start) > 0:
            if count >= self._fresh.pop(sequence, 0):
                return False
            self._cut.add(sequence)
        return bool(C.llama_memory_seq_rm(self._memory, sequence, start, end))

    def seq_cp(self, source: int, target: int, count: int) -> bool:
        """Give a sequence the first `count` positions of another, in place of all it held; False where that failed.

        In a pool they share cells. Split, the cells go through a buffer: llama.cpp's own copy would move all that are
        set aside for a sequence, used or not. So does a state that was cut: its copy would not be.
        """
        if not self._split and source not in self._cut:
            self.seq_rm(target)
            C.llama_memory_seq_cp(self._memory, source, target, 0, count)
            return True
        return self.load_state(target, self.save_state(source), count)

    def load_state(self, target: int, state: NDArray[np.uint8], count: int) -> bool:
        """Give a sequence the first `count` positions of a state that was read, in place of all it held."""
        self.seq_rm(target)
        data = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if state.size and C.llama_state_seq_set_data(self._p, data, state.size, target) and self.seq_rm(target, count):
            return True
        self.seq_rm(target)
        return False

    def save_state(self, sequence: int) -> NDArray[np.uint8]:
        """What a sequence holds, read once for all who copy it before the next step; empty where that failed."""
        if self._state is None or self._state[0] != sequence:
            size = C.llama_state_seq_get_size(self._p, sequence)
            state = np.empty(size, np.uint8)
            data = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
            self._state = sequence, state[: C.llama_state_seq_get_data(self._p, data, size, sequence)]
        return self._state[1]

    def first_position(self, sequence: int) -> int:
        """The oldest position still held, -1 where nothing is."""
        return int(C.llama_memory_seq_pos_min(self._memory, sequence))

    def last_position(self, sequence: int) -> int:
        return int(C.llama_memory_seq_pos_max(self._memory, sequence))


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
        """What is left, in the samplers' order."""
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
    """One token to ask a grammar about: what `Candidates` would say of it, for a fifth of their time."""

    def __init__(self) -> None:
        self._data = C.llama_token_data()
        self._array = C.llama_token_data_array(ctypes.pointer(self._data), 1, -1, False)
        self._address = ctypes.addressof(self._array)

    def allowed(self, grammar: Sampler, token: int) -> bool:
        """Whether the grammar allows it next."""
        self._data.id, self._data.logit = token, 0.0
        _sampler_apply(grammar._address, self._address)
        return bool(self._data.logit == 0.0)


class CandidateMask:
    """Some tokens, asked about again and again: without numpy, whose code is cold where this is."""

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
        """Whether the grammar allows one of them next."""
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


def backends() -> tuple[str, ...]:
    """The compute backends this build of llama.cpp brings, as its system information names them."""
    _initialise()
    info = (C.llama_print_system_info() or b"").decode("utf-8", "replace")
    names = [part.split(":")[0].strip() for part in info.split("|") if ":" in part]
    return tuple(dict.fromkeys(name for name in names if name))


def offloads() -> bool:
    """Whether this build of llama.cpp can put layers on a GPU."""
    return bool(C.llama_supports_gpu_offload())


def shows_hidden() -> bool:
    """Whether this build of llama.cpp gives out hidden states, without which there is no MTP."""
    return _show_hidden is not None and _get_hidden is not None


def attach(servers: Sequence[str]) -> None:
    """Add the devices of RPC servers (`host:port`) to those that models are laid over. Raises LoadError.

    The RPC backend is built in, or in the library that `GGML_BACKEND_PATH` names. It ends the process where a server
    does not answer, so that is tried first.
    """
    if not servers:
        return
    _initialise()
    for server in servers:
        host, port = server.rsplit(":", 1)
        try:
            socket.create_connection((host, int(port)), timeout=_REACH).close()
        except OSError as error:
            raise LoadError("a machine that the model is spread over does not answer") from error
    find = _ggml("ggml_backend_reg_by_name", ctypes.c_void_p)
    registry = find(b"RPC")
    if not registry and (path := os.environ.get("GGML_BACKEND_PATH")):
        _ggml("ggml_backend_load", ctypes.c_void_p)(path.encode())
        registry = find(b"RPC")
    if not registry:
        raise LoadError("this build of llama.cpp has no RPC backend")
    get = _ggml("ggml_backend_reg_get_proc_address", ctypes.c_void_p)
    address = get(ctypes.c_void_p(registry), b"ggml_backend_rpc_add_server")
    add = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(address)
    for server in servers:
        added = add(server.encode())
        if not added:
            raise LoadError("a machine that the model is spread over has no device")
        _ggml("ggml_backend_register", None)(ctypes.c_void_p(added))


def devices() -> list[tuple[str, int, int]]:
    """The GPUs that this build of llama.cpp uses: name, bytes of memory and of these free ones. Integrated ones count
    where there are no others. On Metal the memory is the working set that the system recommends. Those of attached
    servers, called by host and port, come first, as llama.cpp has them."""
    _initialise()
    found: dict[int, list[tuple[str, int, int]]] = {}
    servers: set[str] = set()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    for index in range(_ggml("ggml_backend_dev_count", ctypes.c_size_t)()):
        device = ctypes.c_void_p(_ggml("ggml_backend_dev_get", ctypes.c_void_p)(ctypes.c_size_t(index)))
        kind = _ggml("ggml_backend_dev_type", ctypes.c_int)(device)
        _ggml("ggml_backend_dev_memory", None)(device, ctypes.byref(free), ctypes.byref(total))
        name = _ggml("ggml_backend_dev_description", ctypes.c_char_p)(device).decode("utf-8", "replace")
        remote = _ggml("ggml_backend_dev_name", ctypes.c_char_p)(device).startswith(b"RPC")
        listed = found.setdefault(kind, [])
        at = sum(name in servers for name, _, _ in listed) if remote else len(listed)
        servers |= {name} if remote else set()
        listed.insert(at, (name, total.value, free.value))
    return found.get(_GPU) or found.get(_INTEGRATED) or []


def features() -> frozenset[str]:
    """What llama.cpp's CPU backend was built for and may use here, as its system information names it."""
    info = (C.llama_print_system_info() or b"").decode("utf-8", "replace")
    return frozenset(re.findall(r"(\w+) = 1\b", info))


def _ggml(name: str, returns: Any) -> Any:
    """A function of ggml, which llama.cpp's own library is linked to."""
    function = _lib[name]
    function.restype = returns
    return function
