"""Image files for the tests, well-formed and not, made where they are used."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from server.wire.records import ImagePart

PNG, JPEG, WEBP = "image/png", "image/jpeg", "image/webp"
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def part(data: bytes, mime_type: str = PNG) -> ImagePart:
    return ImagePart(mime_type, base64.b64encode(data).decode())  # type: ignore[arg-type]


def pixels(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """A smooth picture in which no two corners are alike."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    bands = [x * 200 + seed, y * 200 + 20, (x + y) * 100, 255 - x * 200]
    return np.stack(bands[:channels], axis=-1).astype(np.uint8) if channels > 1 else bands[0].astype(np.uint8)


def saved(image: Image.Image, mime_type: str, **options: Any) -> bytes:
    out = BytesIO()
    image.save(out, mime_type.removeprefix("image/").upper(), **options)
    return out.getvalue()


def png(width: int = 4, height: int = 3, *, seed: int = 0) -> bytes:
    return saved(Image.fromarray(pixels(height, width, seed=seed)), PNG)


def image(seed: int = 0, width: int = 4, height: int = 3) -> ImagePart:
    """A small image part; another seed, another picture."""
    return part(png(width, height, seed=seed))


# --- PNG by hand


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def raw_png(
    width: int,
    height: int,
    data: bytes,
    *,
    depth: int = 8,
    colour: int = 2,
    interlaced: bool = False,
    more: Iterable[bytes] = (),
) -> bytes:
    """A PNG with this header, around this compressed data; `more` chunks stand before that."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    return b"".join([_SIGNATURE, chunk(b"IHDR", header), *more, chunk(b"IDAT", data), chunk(b"IEND", b"")])


def zeros(size: int) -> bytes:
    """So many zero bytes, compressed."""
    packer = zlib.compressobj(9)
    block = bytes(1 << 20)
    parts = [packer.compress(block) for _ in range(size >> 20)]
    return b"".join([*parts, packer.compress(bytes(size & ((1 << 20) - 1))), packer.flush()])


def exif(orientation: int, *, order: str = "<", entries: Iterable[bytes] = ()) -> bytes:
    """An EXIF block: other directory entries, then the orientation."""
    own = struct.pack(f"{order}HHIHH", 0x0112, 3, 1, orientation, 0)
    entries = [*entries, own]
    head = struct.pack(f"{order}2sHIH", b"II" if order == "<" else b"MM", 42, 8, len(entries))
    return head + b"".join(entries) + bytes(4)
