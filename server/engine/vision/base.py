"""Images as a model takes them: the protocol of an image model and its values, without llama.cpp."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from server.engine.types import RgbImage

Embeddings = list[NDArray[np.float32]]
"""The embeddings of one image: of each patch, [tokens, width]."""


class ProjectorError(Exception):
    """An image cannot be encoded."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageChunk:
    """The part of a prompt that an image, or a slice of it, takes: `tokens` embeddings, behind which the position is
    `advance` further (the same number, except with M-RoPE)."""

    tokens: int
    advance: int
    _start: NDArray[np.int32]
    _slope: NDArray[np.int32]

    def positions(self, first: int) -> NDArray[np.int32]:
        """[sections, tokens]: the positions of all its tokens, where the first stands at `first`."""
        return self._start + np.int32(first) * self._slope


Chunk = array | ImageChunk  # type: ignore[type-arg]
"""Text tokens, or the place of embeddings."""


class ImageModel(Protocol):
    """A model's encoder of images. `layout` may be called while another thread is in `encode`."""

    def layout(self, width: int, height: int) -> list[Chunk]:
        """The chunks of an image of this size in pixels. Quick. Raises ProjectorError."""

    def encode(self, image: RgbImage) -> Embeddings:
        """The embeddings of each of the image's patches. Takes long. Raises ProjectorError."""
