"""Headers of image files, read before anything is decoded: PNG, JPEG and WebP.

They tell the size, the number of frames, and the side on which the image stands. The parts that a decoder needs are
kept, all others (EXIF, XMP, colour profiles, comments, thumbnails) left out, so that no metadata reaches it.

Sources: Portable Network Graphics, third edition (W3C); JPEG, ITU-T T.81, annex B; WebP Container Specification
(RFC 9649); Exif 2.3, "Orientation", over TIFF 6.0.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_KEPT = frozenset([b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"])
_ANCILLARY = 0x20
"""The bit of a chunk type's first letter that allows a decoder to pass over it."""

_SOI, _EOI, _SOS, _APP1 = 0xD8, 0xD9, 0xDA, 0xE1
_FRAMES = frozenset([*range(0xC0, 0xD0)]) - {0xC4, 0xC8, 0xCC}
_TABLES = frozenset([0xC4, 0xCC, 0xDB, 0xDD])
_APPLICATION_KEPT = frozenset([0xE0, 0xEE])
"""JFIF's and Adobe's segments: which colours the components are."""

_ORIENTATION = 0x0112
_SHORT = 3
_EXIF = b"Exif\0\0"


class BadImage(ValueError):
    """The bytes are no well-formed file of the declared type."""


@dataclass(frozen=True, slots=True)
class ImageHeader:
    width: int
    """Pixels, before `orientation`."""
    height: int
    frames: int
    orientation: int
    """Exif's: 1 is upright."""
    data: bytes
    """The file without metadata."""
    scans: int = 1
    """How often a decoder goes over the whole image (progressive JPEG)."""


def read_container(mime_type: str, data: bytes) -> ImageHeader:
    """Reads a file of the type that was declared for it. Raises BadImage; takes time linear in the file's size."""
    try:
        found = _READERS[mime_type](data)
    except (struct.error, IndexError):
        raise BadImage("the file is cut short") from None
    if found.width < 1 or found.height < 1:
        raise BadImage("the image has no pixels")
    return found


def _png(data: bytes) -> ImageHeader:
    if not data.startswith(_PNG):
        raise BadImage("the bytes are no PNG")
    kept = [_PNG]
    width = height = 0
    frames = orientation = 1
    at, kind = len(_PNG), b""
    while kind != b"IEND":
        start = at
        length, kind = struct.unpack_from(">I4s", data, at)
        at += 12 + length
        if at > len(data):
            raise BadImage("the file is cut short")
        if (kind == b"IHDR") != (start == len(_PNG)):
            raise BadImage("the header does not stand first, and once")
        if kind == b"IHDR":
            width, height = struct.unpack_from(">II", data, start + 8)
        elif kind == b"acTL":
            frames = max(frames, *struct.unpack_from(">I", data, start + 8))
        elif kind == b"eXIf":
            orientation = _orientation(data[start + 8 : at - 4])
        if kind in _PNG_KEPT:
            kept.append(data[start:at])
        elif not kind[0] & _ANCILLARY:
            raise BadImage("the file holds a critical chunk that PNG does not know")
    return ImageHeader(width, height, frames, orientation, b"".join(kept))


def _jpeg(data: bytes) -> ImageHeader:
    if not data.startswith(b"\xff\xd8\xff"):
        raise BadImage("the bytes are no JPEG")
    kept = [data[:2]]
    size: tuple[int, int] | None = None
    orientation: int | None = None
    at = 2
    while True:
        if data[at] != 0xFF:
            raise BadImage("a marker is missing")
        while data[at] == 0xFF:
            at += 1
        marker = data[at]
        if not 0xC0 <= marker <= 0xFE or _EOI >= marker >= 0xD0:
            raise BadImage("a marker stands where none may")
        (length,) = struct.unpack_from(">H", data, at + 1)
        start, at = at - 1, at + 1 + length
        if length < 2 or at > len(data):
            raise BadImage("the file is cut short")
        if marker in _FRAMES:
            if size is not None:
                raise BadImage("the file holds several frame headers")
            height, width = struct.unpack_from(">HH", data, start + 5)
            size = width, height
        elif marker == _APP1 and orientation is None and data.startswith(_EXIF, start + 4):
            orientation = _orientation(data[start + 4 : at])
        if marker == _SOS:
            break
        if marker in _FRAMES or marker in _TABLES or marker in _APPLICATION_KEPT:
            kept.append(data[start:at])
    if size is None:
        raise BadImage("the frame header is missing")
    # Within the data of a scan no 0xFF stands before anything but a marker.
    scans = data.count(bytes([0xFF, _SOS]), start)
    return ImageHeader(*size, 1, orientation or 1, b"".join([*kept, data[start:]]), scans)


def _webp(data: bytes) -> ImageHeader:
    tag, size, form = struct.unpack_from("<4sI4s", data)
    if tag != b"RIFF" or form != b"WEBP":
        raise BadImage("the bytes are no WebP")
    if size + 8 > len(data):
        raise BadImage("the file is cut short")
    end = size + 8
    width, height = _canvas(data)
    frames, orientation = 0, 1
    for kind, start, stop in _chunks(data, end):
        if kind == b"ANMF":
            frames += 1
        elif kind == b"EXIF":
            orientation = _orientation(data[start:stop])
    return ImageHeader(width, height, max(frames, 1), orientation, data[:end])


def _chunks(data: bytes, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Kind, beginning and end of every chunk of a RIFF file."""
    at = 12
    while at < end:
        kind, length = struct.unpack_from("<4sI", data, at)
        if at + 8 + length > end:
            raise BadImage("the file is cut short")
        yield kind, at + 8, at + 8 + length
        at += 8 + length + length % 2


def _canvas(data: bytes) -> tuple[int, int]:
    """Width and height as the first chunk gives them: of the canvas, of a lossy or of a lossless image."""
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    raise BadImage("the file begins with no image")


def _orientation(exif: bytes) -> int:
    """The orientation in an EXIF block. Upright where it says none, or where it cannot be read: the image can."""
    tiff = exif.removeprefix(_EXIF)
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return 1
    try:
        magic, at = struct.unpack_from(f"{order}HI", tiff, 2)
        (entries,) = struct.unpack_from(f"{order}H", tiff, at)
        for entry in range(at + 2, at + 2 + 12 * entries, 12):
            tag, kind, count, value = struct.unpack_from(f"{order}HHIH", tiff, entry)
            if magic == 42 and (tag, kind, count) == (_ORIENTATION, _SHORT, 1) and 1 <= value <= 8:
                return int(value)
    except struct.error:
        return 1
    return 1


_READERS: dict[str, Callable[[bytes], ImageHeader]] = {"image/png": _png, "image/jpeg": _jpeg, "image/webp": _webp}
