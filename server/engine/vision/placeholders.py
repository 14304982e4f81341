"""Prompts with images, laid out as one array of tokens.

An image stands in the array as a run of one negative number, which means the same picture wherever it occurs. So what
compares tokens (the prefix cache) compares images by their digest, and what counts tokens counts theirs.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from server.engine.types import EngineRequest, RgbImage
from server.engine.vision.projector import Chunk, ImageChunk

_REMEMBERED = 4096
"""Pictures whose numbers are known. One forgotten and seen again gets others: nothing cached is found, nothing is
wrong."""


class ImageModel(Protocol):
    def layout(self, width: int, height: int) -> list[Chunk]: ...


@dataclass(slots=True, eq=False)
class ImageSpan:
    """The tokens `start` ≤ i < `end` of one sequence: a picture, or its `index`-th patch. `embeddings` are there from
    when they are known until they are in the KV cache."""

    start: int
    end: int
    image: RgbImage
    index: int
    chunk: ImageChunk
    embeddings: NDArray[np.float32] | None = field(default=None, repr=False)

    @property
    def mrope_offset(self) -> int:
        """How many positions fewer than tokens it takes."""
        return self.end - self.start - self.chunk.advance


class PlaceholderExpander:
    """Lays prompts out, always the same picture the same way."""

    def __init__(self, projector: ImageModel) -> None:
        self._projector = projector
        self._numbers: dict[str, int] = {}
        self._next = -1

    def expand(self, job: EngineRequest) -> tuple[array[int], tuple[ImageSpan, ...]]:
        """The prompt's tokens with those of its pictures. Raises ProjectorError."""
        tokens: array[int] = array("i")
        images: list[ImageSpan] = []
        done = 0
        for offset, picture in job.images:
            tokens += job.tokens[done:offset]
            done = offset
            parts = self._projector.layout(picture.width, picture.height)
            number = self._number(picture.digest, sum(isinstance(part, ImageChunk) for part in parts))
            index = 0
            for part in parts:
                if isinstance(part, ImageChunk):
                    start = len(tokens)
                    tokens += array("i", [number - index]) * part.tokens
                    images.append(ImageSpan(start, len(tokens), picture, index, part))
                    index += 1
                else:
                    tokens += part
        return tokens + job.tokens[done:], tuple(images)

    def _number(self, digest: str, count: int) -> int:
        """The first of the numbers of a picture's patches, descending."""
        number = self._numbers.pop(digest, None)
        if number is None:
            number, self._next = self._next, self._next - count
        self._numbers[digest] = number
        if len(self._numbers) > _REMEMBERED:
            del self._numbers[next(iter(self._numbers))]
        return number
