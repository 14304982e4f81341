"""A model's running state (`llama_context`) and the batches that it decodes."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.engine.llama.bindings import C, LoadError, function, libc
from server.engine.llama.model import LlamaModel

OK, NO_SLOT, ABORTED = 0, 1, 2
"""Results of `Context.decode`, besides the negative numbers of errors."""

KV_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}
"""`enum ggml_type` of the types that the KV cache may be stored in. Fewer bits need flash attention."""

_MTP = 1
"""`LLAMA_CONTEXT_TYPE_MTP`."""

_get_logits = function("llama_get_logits", ctypes.c_void_p, ctypes.c_void_p)


def _hidden_functions() -> tuple[Any, Any]:
    """llama.cpp's functions that show hidden states, None where this build has them not.

    Declared in its `src/llama-ext.h` alone, as C++: these are their names as Linux's and macOS's compilers mangle them.
    """
    try:
        return (
            function(
                "_Z26llama_set_embeddings_nextnP13llama_contextbb", None, ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool
            ),
            function("_Z26llama_get_embeddings_nextnP13llama_context", ctypes.c_void_p, ctypes.c_void_p),
        )
    except AttributeError:
        return None, None


_show_hidden, _get_hidden = _hidden_functions()


def shows_hidden() -> bool:
    """True where this build of llama.cpp gives out hidden states, without which there is no MTP."""
    return _show_hidden is not None


class Batch:
    """The arrays of one `llama_batch`, allocated once and filled in place.

    With `embeddings`, [size, `LlamaModel.width`], these replace the tokens, at `positions`: [sections, size], of one
    section or M-RoPE's four. With `hidden`, the width of a hidden state, each token has one beside it, for MTP.
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


def _context_params(
    *,
    cells: int,
    sequences: int,
    batch: int,
    threads: int,
    split: bool,
    flash: bool,
    kv_type: str,
    outputs: int,
    mtp: bool,
    snapshots: int,
) -> Any:
    """`llama_context_params` of a `Context`."""
    params = C.llama_context_default_params()
    params.n_ctx = cells
    # An abort undoes the current micro-batch only. In a pool there is one a decode, which makes it all or nothing.
    params.n_batch = params.n_ubatch = batch
    params.n_seq_max = sequences
    params.n_outputs_max = outputs
    params.n_threads = params.n_threads_batch = threads
    # Flash attention on a CPU works token by token below 64 tokens a micro-batch, and its time grows with the
    # context: 8 tokens behind 1,200 took 135 ms with it and 30 without, one 23 and 11.
    params.flash_attn_type = -1 if flash else 0
    # One pool of cells for all sequences, or `split`: cells of its own for each. In a pool a sequence attends over
    # the others' cells too: masked, but not free (8 sequences on two cores with AMX, SmolLM2-135M: 35 ms a step,
    # 29 split). Split, llama.cpp cuts a batch into micro-batches of equally many tokens of neighbouring sequences, and
    # every sequence's cells are set aside for it.
    params.kv_unified = not split
    params.type_k = params.type_v = KV_TYPES[kv_type]
    params.swa_full = False
    params.no_perf = True
    params.n_rs_seq = snapshots
    assert snapshots + 1 < batch  # llama.cpp ends the process otherwise
    if mtp:
        params.ctx_type = _MTP
    return params


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
        states are asked for too. `mtp`: run the model's layer that predicts the token after the next in its place
        (the model must be loaded with it and have just one: llama.cpp ends the process otherwise). `snapshots`: of a
        running state, that many of the last decode's tokens can be removed again, where llama.cpp knows how, if all
        the decode's sequences had equally many tokens there, neighbours if split. Raises LoadError."""
        params = _context_params(
            cells=cells,
            sequences=sequences,
            batch=batch,
            threads=threads,
            split=split,
            flash=flash,
            kv_type=kv_type,
            outputs=outputs or sequences,
            mtp=mtp,
            snapshots=snapshots,
        )
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
        self._register_abort()

    def _register_abort(self) -> None:
        """The flag of `abort`, and the callback by which llama.cpp reads it.

        llama.cpp asks between graph nodes, some thousand times a step; through Python each call would wait for the
        GIL. `strlen` of a two-byte buffer has the callback's shape and returns its answer: 0 while the first byte is 0,
        else 1.
        """
        self._flag = ctypes.create_string_buffer(2)
        self._abort = ctypes.cast(libc.strlen, C.ggml_abort_callback)
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
        """Note which of these sequences' tokens can be removed again.

        A snapshot is of the state behind a token of the last micro-batch. llama.cpp gives older ones out as well; and
        those of another micro-batch of the same decode are lost where it moves states to bring them together.
        """
        counts = Counter(decoded)
        together = len(set(counts.values())) == 1 and len(decoded) <= self._batch
        self._fresh = dict(counts) if together and self.can_rollback(counts.keys()) else {}
        self._cut -= counts.keys()

    def can_rollback(self, sequences: Collection[int]) -> bool:
        """True where a running state can give back tokens that these sequences decode together, equally many each."""
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
        """The state of a sequence, read once for all who copy it before the next step; empty where that failed."""
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
