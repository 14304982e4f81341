"""llama.cpp's image encoder (mtmd): the tokens, positions and embeddings of images.

Facts are those of llama.cpp's `tools/mtmd/mtmd.h`. As with the model, a failed assertion ends the process.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.engine.llama import LlamaModel, LoadError, add_logger, load_bindings
from server.engine.types import RgbImage
from server.engine.vision.base import Chunk, Embeddings, ImageChunk, ProjectorError

__all__ = ["Chunk", "ImageChunk", "Projector", "ProjectorError"]

_SIZES = (1, 1), (64, 64), (448, 448), (2048, 2048), (4096, 4096), (4096, 256), (256, 4096)
"""Images, in pixels, whose tokens show how many any image takes."""


class Projector:
    """One loaded projector ("mmproj"), an `ImageModel`.

    `causal`: an image's tokens attend only to those before them; otherwise they all attend to each other, which takes a
    whole image in one micro-batch of at least `largest` tokens. `most`: the most tokens an image takes, all patches
    together. `scaled`: that is less than the projector would take by itself.
    """

    @classmethod
    def load(cls, path: str, model: LlamaModel, *, threads: int, gpu: bool, room: int = 0) -> Projector | None:
        """None where the projector takes no images (but sound, for instance). Raises LoadError.

        Where large images would take more than `room` tokens they are scaled down to that, if the projector can.
        """
        m = _mtmd()
        sees = m.mtmd_get_cap_from_file(path.encode())
        if not sees.inp_vision:
            if sees.inp_audio:
                return None
            raise LoadError("the projector file cannot be loaded")
        projector = cls(path, model, threads=threads, gpu=gpu)
        if not 0 < room < projector.most:
            return projector
        projector.close()  # there may be no memory for two
        with suppress(LoadError):  # below its least size, for instance
            smaller = cls(path, model, threads=threads, gpu=gpu, room=room)
            if smaller.most < projector.most:
                return smaller
            smaller.close()
        return cls(path, model, threads=threads, gpu=gpu)

    def __init__(self, path: str, model: LlamaModel, *, threads: int, gpu: bool, room: int = 0) -> None:
        m = _mtmd()
        params = m.mtmd_context_params_default()
        if room:
            params.image_max_tokens = room
        self.scaled = room > 0
        params.use_gpu = gpu
        params.n_threads = threads
        params.print_timings = False
        self._p = m.mtmd_init_from_file(path.encode(), model._p, params)
        if not self._p:
            raise LoadError("the projector does not fit the model, or llama.cpp does not know its kind")
        self._m = m
        self._model = model  # mtmd refers to its vocabulary
        self.width = model.width
        self.causal = not m.mtmd_decode_use_non_causal(self._p, None)
        self._mrope = bool(m.mtmd_decode_use_mrope(self._p))
        layouts = [self.layout(*size) for size in _SIZES]
        self.largest = max(map(_longest, layouts))
        self.most = max(sum(part.tokens for part in parts if isinstance(part, ImageChunk)) for parts in layouts)
        if any(token < 0 for parts in layouts for part in parts if not isinstance(part, ImageChunk) for token in part):
            raise LoadError("the projector needs tokens that the model does not have")
        if not self._stands_alone():
            raise LoadError("the projector's images depend on what stands before them, which is not supported")

    def close(self) -> None:
        if self._p:
            self._m.mtmd_free(self._p)
            self._p = None

    def layout(self, width: int, height: int) -> list[Chunk]:
        """The chunks of an image of this size in pixels: text tokens of the model's own around and between patches.

        Quick: nothing is computed from pixels. Raises ProjectorError.
        """
        bitmap = self._bitmap(width, height, None)
        try:
            with self._tokenized(bitmap) as chunks:
                return [self._part(chunk) for chunk in chunks]
        finally:
            self._m.mtmd_bitmap_free(bitmap)

    def encode(self, image: RgbImage) -> Embeddings:
        """The embeddings of each of the image's patches, [tokens, width]. Takes long and cannot be interrupted.

        Raises ProjectorError. One call at a time; `layout` may be called meanwhile.
        """
        bitmap = self._bitmap(image.width, image.height, image.rgb)
        try:
            with self._tokenized(bitmap) as chunks:
                return [self._encode(chunk) for chunk in chunks if not self._is_text(chunk)]
        finally:
            self._m.mtmd_bitmap_free(bitmap)

    # --- mtmd

    def _bitmap(self, width: int, height: int, rgb: bytes | None) -> Any:
        data = ctypes.cast(ctypes.c_char_p(rgb), ctypes.POINTER(ctypes.c_uint8)) if rgb is not None else None
        return self._m.mtmd_bitmap_init(width, height, data)

    def _tokenized(self, *bitmaps: Any, lead: bytes = b"") -> _Chunks:
        m = self._m
        parts = [m.mtmd_input_part(None, bitmap) for bitmap in bitmaps]
        if lead:
            parts.insert(0, m.mtmd_input_part(ctypes.pointer(m.mtmd_input_text(lead, len(lead), False, False)), None))
        pointers = (ctypes.POINTER(m.mtmd_input_part) * len(parts))(*map(ctypes.pointer, parts))
        chunks = m.mtmd_input_chunks_init()
        if m.mtmd_tokenize_from_parts(self._p, chunks, pointers, len(parts), False) != 0:
            m.mtmd_input_chunks_free(chunks)
            raise ProjectorError("the model takes no image of this shape")
        return _Chunks(m, chunks)

    def _is_text(self, chunk: Any) -> bool:
        return bool(self._m.mtmd_input_chunk_get_type(chunk) == self._m.MTMD_INPUT_CHUNK_TYPE_TEXT)

    def _part(self, chunk: Any) -> Chunk:
        m = self._m
        count = m.mtmd_input_chunk_get_n_tokens(chunk)
        if self._is_text(chunk):
            tokens = m.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(ctypes.c_size_t()))
            return array("i", tokens[:count])
        start = self._positions(chunk, count, 0)
        return ImageChunk(count, m.mtmd_input_chunk_get_n_pos(chunk), start, self._positions(chunk, count, 1) - start)

    def _positions(self, chunk: Any, count: int, first: int) -> NDArray[np.int32]:
        """Sections in the order in which llama.cpp's batches hold them: time, row, column, and one unused."""
        if not self._mrope:
            return np.arange(first, first + count, dtype=np.int32)[None]
        found = (self._m.mtmd_decoder_pos * count)()
        self._m.mtmd_helper_image_get_decoder_pos(self._m.mtmd_input_chunk_get_tokens_image(chunk), first, found)
        t, x, y, z = np.frombuffer(found, np.int32).reshape(count, 4).T
        return np.stack([t, y, x, z])

    def _encode(self, chunk: Any) -> NDArray[np.float32]:
        m = self._m
        if m.mtmd_encode_chunk(self._p, chunk) != 0:
            raise ProjectorError("the image cannot be encoded")
        shape = m.mtmd_input_chunk_get_n_tokens(chunk), self.width
        return np.ctypeslib.as_array(m.mtmd_get_output_embd(self._p), shape).copy()

    def _stands_alone(self) -> bool:
        """True where an image is laid out alike behind text and another image: only then can it be kept by itself."""
        one, two = (self._bitmap(448, 448, None) for _ in range(2))
        try:
            with self._tokenized(one) as chunks:
                alone = self._flat([self._part(chunk) for chunk in chunks])
            with self._tokenized(one, two, lead=b"a") as chunks:
                behind = self._flat([self._part(chunk) for chunk in chunks])
        finally:
            self._m.mtmd_bitmap_free(one)
            self._m.mtmd_bitmap_free(two)
        return behind[-2 * len(alone) :] == 2 * alone

    def _flat(self, parts: list[Chunk]) -> list[Any]:
        return [
            each
            for part in parts
            for each in ([part.positions(5).tobytes()] if isinstance(part, ImageChunk) else part.tolist())
        ]


class _Chunks:
    """The chunks of one tokenized prompt, freed at the end of the block that reads them."""

    def __init__(self, m: Any, pointer: Any) -> None:
        self._m, self._pointer = m, pointer

    def __enter__(self) -> Iterator[Any]:
        count = self._m.mtmd_input_chunks_size(self._pointer)
        return (self._m.mtmd_input_chunks_get(self._pointer, index) for index in range(count))

    def __exit__(self, *_: object) -> None:
        self._m.mtmd_input_chunks_free(self._pointer)


def _longest(parts: list[Chunk]) -> int:
    return max((part.tokens for part in parts if isinstance(part, ImageChunk)), default=0)


@cache
def _mtmd() -> Any:
    m = load_bindings("mtmd_cpp")
    add_logger(m.mtmd_helper_log_set)
    return m
