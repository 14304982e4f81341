"""What a projector's file says of itself, read without loading it: in a process that must not die of it, and quickly.

Source: the GGUF specification (ggml, docs/gguf.md); the keys are llama.cpp's (`tools/mtmd/clip-impl.h`).
"""

from __future__ import annotations

import os
import struct
from typing import Any, BinaryIO, Final

from server.engine.messages import EngineError

_VISION: Final = b"clip.has_vision_encoder"
_VERSIONS: Final = (2, 3)
_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value by its type; strings and arrays have none of their own."""
_BOOL, _STRING, _ARRAY = 7, 8, 9
_ENTRIES: Final = 1 << 16
"""Keys, and elements of an array of strings, beyond which a header is taken for broken. Real ones have some dozens."""
_KEY: Final = 0xFFFF
"""Bytes a key may have."""


def sees(path: str) -> bool:
    """Whether the projector at `path` says that it takes images; one for sound alone does not.

    Only loading it shows whether it does (`ModelInfo.vision`). Raises EngineError where the file is no GGUF.
    """
    try:
        with open(path, "rb") as file:
            return _sees(file)
    except (OSError, struct.error) as error:
        raise EngineError("the projector's file cannot be read") from error


def _sees(file: BinaryIO) -> bool:
    magic, version, _, entries = _take(file, "<4sIQQ")
    if magic != b"GGUF" or version not in _VERSIONS or entries > _ENTRIES:
        raise EngineError("the projector's file is no GGUF of a known version")
    for _ in range(entries):
        (length,) = _take(file, "<Q")
        if length > _KEY:
            raise EngineError("the projector's file has a damaged header")
        key = file.read(length)
        (kind,) = _take(file, "<I")
        if key == _VISION and kind == _BOOL:
            return bool(_take(file, "<?")[0])
        _skip(file, kind)
    return False


def _skip(file: BinaryIO, kind: int) -> None:
    count = 1
    if kind == _ARRAY:
        kind, count = _take(file, "<IQ")
    if kind == _STRING and count <= _ENTRIES:
        for _ in range(count):
            file.seek(_within(_take(file, "<Q")[0]), os.SEEK_CUR)
    elif kind in _SIZES:
        file.seek(_within(_SIZES[kind] * count), os.SEEK_CUR)
    else:
        raise EngineError("the projector's file has a damaged header")


def _within(length: int) -> int:
    """A length that a file may have: what goes beyond its end shows at the next read."""
    if length >= 1 << 48:
        raise EngineError("the projector's file has a damaged header")
    return int(length)


def _take(file: BinaryIO, format: str) -> tuple[Any, ...]:
    return struct.unpack(format, file.read(struct.calcsize(format)))
