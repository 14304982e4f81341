"""Image placeholders: prompts with images as one array of tokens, without llama.cpp.

An image is a run of one negative number in the array, the same wherever the image occurs. So comparing tokens (the
prefix cache) compares images by their digest, and counting tokens counts theirs.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from server.engine.types import EngineRequest, RgbImage
from server.engine.vision.base import ImageChunk, ImageModel

_REMEMBERED = 4096
"""Images whose numbers are remembered. One forgotten and seen again gets others: nothing cached is found, nothing is
wrong."""


@dataclass(slots=True, eq=False)
class ImageSpan:
    """The tokens `start` ≤ i < `end` of one sequence: an image, or its `index`-th patch. `embeddings` are set from the
    end of its encoding until they are in the KV cache."""

    start: int
    end: int
    image: RgbImage
    index: int
    chunk: ImageChunk
    embeddings: NDArray[np.float32] | None = field(default=None, repr=False)

    @property
    def mrope_offset(self) -> int:
        """Tokens of the span less its positions (M-RoPE)."""
        return self.end - self.start - self.chunk.advance


class PlaceholderExpander:
    """Expands each image of a prompt to its tokens, always the same image the same way."""

    def __init__(self, model: ImageModel) -> None:
        self._model = model
        self._numbers: dict[str, int] = {}
        self._next = -1

    def expand(self, request: EngineRequest) -> tuple[array[int], tuple[ImageSpan, ...]]:
        """The prompt's tokens with those of its images. Raises ProjectorError."""
        tokens: array[int] = array("i")
        images: list[ImageSpan] = []
        done = 0
        for offset, image in request.images:
            tokens += request.tokens[done:offset]
            done = offset
            chunks = self._model.layout(image.width, image.height)
            number = self._number(image.digest, sum(isinstance(chunk, ImageChunk) for chunk in chunks))
            index = 0
            for chunk in chunks:
                if isinstance(chunk, ImageChunk):
                    start = len(tokens)
                    tokens += array("i", [number - index]) * chunk.tokens
                    images.append(ImageSpan(start, len(tokens), image, index, chunk))
                    index += 1
                else:
                    tokens += chunk
        return tokens + request.tokens[done:], tuple(images)

    def _number(self, digest: str, count: int) -> int:
        """The first of the numbers of an image's patches, descending."""
        number = self._numbers.pop(digest, None)
        if number is None:
            number, self._next = self._next, self._next - count
        self._numbers[digest] = number
        if len(self._numbers) > _REMEMBERED:
            del self._numbers[next(iter(self._numbers))]
        return number
