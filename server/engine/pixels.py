"""Pictures on their way to the worker: their pixels go before the job, in pieces.

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


def pixel_frames(job: EngineRequest) -> Iterator[Pixels]:
    """The pixels of a job's pictures, one after the other."""
    for _, picture in job.images:
        for start in range(0, len(picture.rgb), PIECE):
            yield Pixels(picture.rgb[start : start + PIECE])


def without_pixels(job: EngineRequest) -> EngineRequest:
    """The job as it is submitted behind its pixels."""
    return replace(job, images=tuple((offset, replace(picture, rgb=b"")) for offset, picture in job.images))


class PixelReceiver:
    """The worker's end: pixels that have come and belong to no job yet."""

    def __init__(self) -> None:
        self._pixels = bytearray()

    def take(self, frame: Pixels) -> None:
        """Keeps a piece. An empty one says that the job will not come."""
        if frame.data:
            self._pixels += frame.data
        else:
            self._pixels = bytearray()

    def fill(self, job: EngineRequest) -> EngineRequest:
        """The job with its pixels."""
        pictures: list[tuple[int, RgbImage]] = []
        start = 0
        with memoryview(self._pixels) as pixels:
            for offset, picture in job.images:
                end = start + 3 * picture.width * picture.height
                pictures.append((offset, replace(picture, rgb=bytes(pixels[start:end]))))
                start = end
        self._pixels = bytearray()
        return replace(job, images=tuple(pictures))
