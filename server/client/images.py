"""Image files as parts of a message (NAP-LLM, "Part")."""

from __future__ import annotations

import base64
from os import PathLike
from pathlib import Path
from typing import Literal

from server.wire.records import ImagePart


def image(source: bytes | str | PathLike[str]) -> ImagePart:
    """The part that holds a PNG, JPEG or WebP: its bytes, or the path of its file. The type is the bytes' own.

    Raises ValueError where they are none of these, and OSError where the file cannot be read.
    """
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    return ImagePart(_mime_type(data), base64.b64encode(data).decode("ascii"))


def _mime_type(data: bytes) -> Literal["image/png", "image/jpeg", "image/webp"]:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    raise ValueError("the bytes are no PNG, JPEG or WebP image")
