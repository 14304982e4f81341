"""Transfer of images to the worker: their pixels go before the request, in pieces.

A photograph has tens of megabytes. As one frame it would hold up the loop that sends it, and the steps that wait for
the interpreter of the one that takes it in, for as long as it takes to copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from server.engine.protocol import Pixels
from server.engine.types import EngineRequest, RgbImage

PIECE = 1 << 18
"""Bytes in one frame."""


def pixel_frames(request: EngineRequest) -> Iterator[Pixels]:
    """The pixels of a request's images, one after the other."""
    for _, image in request.images:
        for start in range(0, len(image.rgb), PIECE):
            yield Pixels(image.rgb[start : start + PIECE])


def without_pixels(request: EngineRequest) -> EngineRequest:
    """The request as it is sent behind its pixels."""
    return replace(request, images=tuple((offset, replace(image, rgb=b"")) for offset, image in request.images))


class PixelReceiver:
    """The worker's end: pixels that have come and belong to no request yet."""

    def __init__(self) -> None:
        self._pixels = bytearray()

    def take(self, frame: Pixels) -> None:
        """Keep a piece. An empty one says that the request will not come."""
        if frame.data:
            self._pixels += frame.data
        else:
            self._pixels = bytearray()

    def fill(self, request: EngineRequest) -> EngineRequest:
        """The request with its pixels."""
        images: list[tuple[int, RgbImage]] = []
        start = 0
        with memoryview(self._pixels) as pixels:
            for offset, image in request.images:
                end = start + 3 * image.width * image.height
                images.append((offset, replace(image, rgb=bytes(pixels[start:end]))))
                start = end
        self._pixels = bytearray()
        return replace(request, images=tuple(images))
