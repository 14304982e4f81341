"""The header of a GGUF file: its metadata and where its tensors lie, read strictly and without llama.cpp.

llama.cpp ends its process over some files that are damaged or made to harm. This reader takes nothing on trust: every
count, length and offset is held against the size of the file before it is used, and its work and memory are bounded by
the header's bytes. Format: the GGUF specification (ggml, `docs/gguf.md`), versions 2 and 3, little endian.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from server.engine.types import EngineError

Value = int | float | bool | str

BLOCKS: Mapping[int, tuple[int, int]] = {
    0: (1, 4),
    1: (1, 2),
    24: (1, 1),
    25: (1, 2),
    26: (1, 4),
    27: (1, 8),
    28: (1, 8),
    30: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    9: (32, 36),
    20: (32, 18),
    39: (32, 17),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    15: (256, 292),
    16: (256, 66),
    17: (256, 74),
    18: (256, 98),
    19: (256, 50),
    21: (256, 110),
    22: (256, 82),
    23: (256, 136),
    29: (256, 56),
    34: (256, 54),
    35: (256, 66),
    40: (64, 36),
    41: (128, 18),
    42: (64, 18),
}
"""`enum ggml_type` → elements and bytes of one block."""

F16, Q8_0 = 1, 8

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_LEAST_PAIR, _LEAST_TENSOR = 8 + 1 + 4 + 1, 8 + 1 + 4 + 4 + 8
_MOST_PAIRS, _MOST_TENSORS, _MOST_PARTS = 10_000, 200_000, 1000
_KEY, _NAME, _TEXT = 65_535, 63, 16 * 2**20
_KEPT = 4096
"""Elements up to which an array of numbers is kept: per layer there may be some, per token there are too many."""
_CHUNK = 2**20
_DIMENSIONS = 4
_SPLIT = re.compile(r"(.*-)00001-of-(\d{5})(\.gguf)", re.DOTALL)


class GgufError(EngineError):
    """The file is no whole, well-formed GGUF. The reason names what is wrong, and no path."""


@dataclass(frozen=True, slots=True)
class Array:
    """An array of the metadata. `values` only where it is short and of numbers."""

    count: int
    values: tuple[int | float | bool, ...] | None


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    """As GGUF has it: the first varies fastest."""
    type: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Gguf:
    """What a model file says of itself; of a split model, what all its parts say."""

    metadata: Mapping[str, Value | Array]
    tensors: tuple[Tensor, ...]
    size: int
    """Bytes of the file or files."""

    def text(self, key: str, default: str = "") -> str:
        value = self.metadata.get(key, default)
        return value if isinstance(value, str) else default

    def number(self, key: str, default: int | None = None) -> int:
        """A whole number that is not negative. Raises GgufError where it is missing (without default) or none."""
        value = self.metadata.get(key, default)
        if not isinstance(value, int) or value < 0:
            raise GgufError(f"the model file's {key} is {'missing' if value is None else 'no count'}")
        return int(value)

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")


def read(path: Path | str) -> Gguf:
    """The header of the file at `path`, and where it is the first part of a split model, of all the others.

    Raises GgufError.
    """
    path = Path(path)
    first = _read(path)
    parts = first.metadata.get("split.count", 1)
    if not isinstance(parts, int) or parts <= 1:
        return first
    split = _SPLIT.fullmatch(path.name)
    if split is None or int(split[2]) != parts or parts > _MOST_PARTS:
        raise GgufError("the model file is no first part of as many as it says")
    rest = [_read(path.with_name(f"{split[1]}{n:05}-of-{split[2]}{split[3]}")) for n in range(2, parts + 1)]
    tensors = tuple(tensor for part in (first, *rest) for tensor in part.tensors)
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise GgufError("two parts of the model file have a tensor of the same name")
    return Gguf(first.metadata, tensors, first.size + sum(part.size for part in rest))


def _read(path: Path) -> Gguf:
    try:
        with path.open("rb", buffering=0) as file:
            return _Reader(file, path.stat().st_size).gguf()
    except OSError as error:
        raise GgufError(f"the model file, or a part of it, cannot be read: {error.strerror}") from error
    except struct.error as error:  # every read was held against the size before: the file shrank
        raise GgufError("the model file ends early") from error


class _Reader:
    """Reads forward through a header, by chunks."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._buffer = b""
        self._base = 0
        """Where in the file the buffer begins."""
        self._at = 0
        """Where in the buffer the next read begins; perhaps behind its end, after a skip."""

    @property
    def left(self) -> int:
        """Bytes from here to the end of the file."""
        return self._size - self._base - self._at

    def gguf(self) -> Gguf:
        if self._take(4) != b"GGUF":
            raise GgufError("the file is no GGUF")
        version = self._number("<I")
        if version not in (2, 3):
            raise GgufError("the model file's GGUF version is none of 2, 3, or it is big-endian")
        tensors = self._count("<Q", _LEAST_TENSOR, _MOST_TENSORS, "tensors")
        pairs = self._count("<Q", _LEAST_PAIR, _MOST_PAIRS, "metadata pairs")
        metadata: dict[str, Value | Array] = {}
        for _ in range(pairs):
            key = self._text(_KEY, "a metadata key")
            if not key or key in metadata:
                raise GgufError("the model file has an empty metadata key, or one twice")
            metadata[key] = self._value(self._number("<I"))
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 2**20 or alignment & (alignment - 1):
            raise GgufError("the model file's alignment is no power of two")
        return Gguf(metadata, self._tensors(tensors, alignment), self._size)

    def _tensors(self, count: int, alignment: int) -> tuple[Tensor, ...]:
        found: dict[str, Tensor] = {}
        expected = 0
        for _ in range(count):
            name = self._text(_NAME, "a tensor's name")
            if name in found:
                raise GgufError("the model file has two tensors of the same name")
            dimensions = self._number("<I")
            if dimensions > _DIMENSIONS:
                raise GgufError("a tensor of the model file has too many dimensions")
            shape = tuple(self._number("<Q") for _ in range(dimensions))
            kind = self._number("<I")
            if kind not in BLOCKS:
                raise GgufError("a tensor of the model file has an unknown type")
            elements, size = BLOCKS[kind]
            total = math.prod(shape)
            if total >= 2**62 or (shape[0] if shape else 1) % elements:
                raise GgufError("a tensor of the model file has an impossible shape")
            if self._number("<Q") != expected:
                raise GgufError("a tensor of the model file does not lie where the one before it ends")
            length = total // elements * size
            found[name] = Tensor(name, shape, kind, length)
            expected = -(-(expected + length) // alignment) * alignment
        if found:
            start = -(-(self._base + self._at) // alignment) * alignment
            # The last tensor may come without the padding behind it.
            if start + expected > self._size + alignment - 1:
                raise GgufError("the model file ends before its last tensor does")
        return tuple(found.values())

    def _value(self, kind: int) -> Value | Array:
        if kind in _SCALARS:
            value: int | float | bool = self._number(_SCALARS[kind])
            return value
        if kind == _STRING:
            return self._text(_TEXT, "a metadata text")
        if kind != _ARRAY:
            raise GgufError("the model file's metadata has a value of an unknown type")
        kind = self._number("<I")
        if kind == _STRING:
            count = self._count("<Q", 8, self._size, "texts in an array")
            self._skip_texts(count)
            return Array(count, None)
        if kind not in _SCALARS:
            raise GgufError("the model file's metadata has an array of an unknown type")
        form = _SCALARS[kind]
        size = struct.calcsize(form)
        count = self._count("<Q", size, self._size, "numbers in an array")
        if count > _KEPT:
            self._at += size * count
            return Array(count, None)
        return Array(count, struct.unpack(f"<{count}{form[1]}", self._take(size * count)))

    def _count(self, form: str, least: int, most: int, what: str) -> int:
        """A count of things that take at least so many bytes each."""
        count: int = self._number(form)
        if count > most or count * least > self.left:
            raise GgufError(f"the model file claims more {what} than it can hold")
        return count

    def _number(self, form: str) -> int:
        value: int = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return value

    def _text(self, most: int, what: str) -> str:
        length = self._number("<Q")
        if length > most:
            raise GgufError(f"{what} of the model file is too long")
        return self._take(length).decode("utf-8", "replace")

    def _skip_texts(self, count: int) -> None:
        """Vocabularies have hundreds of thousands: no call a text."""
        unpack = struct.Struct("<Q").unpack_from
        buffer, at, end = self._buffer, self._at, len(self._buffer) - 8
        for _ in range(count):
            if at > end:
                self._at = at
                self._need(8)
                buffer, at, end = self._buffer, self._at, len(self._buffer) - 8
            at += 8 + unpack(buffer, at)[0]
        self._at = at
        if self.left < 0:
            raise GgufError("the model file ends early")

    def _take(self, count: int) -> bytes:
        self._need(count)
        at = self._at
        self._at = at + count
        return self._buffer[at : at + count]

    def _need(self, count: int) -> None:
        """See that the buffer holds the next `count` bytes."""
        if count > self.left:
            raise GgufError("the model file ends early")
        if self._at + count > len(self._buffer):
            self._base += self._at
            self._at = 0
            self._file.seek(self._base)
            self._buffer = _full(self._file, max(count, _CHUNK))
            if len(self._buffer) < count:
                raise GgufError("the model file ends early")


def _full(file: BinaryIO, count: int) -> bytes:
    """Bytes of an unbuffered file: as many as asked for, fewer only at its end."""
    parts = []
    while count and (part := file.read(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
