"""Image encoder: a thread beside the batch loop that encodes images, and the cache of their embeddings."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from server.engine.types import ENCODER_CACHE_BYTES, RgbImage
from server.engine.vision.base import Embeddings, ImageModel, ProjectorError


class EncoderCacheKey(NamedTuple):
    """An image of one cache salt: never found under another."""

    cache_salt: str
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class EncoderResult:
    """The thread is done with an image. None: it cannot be encoded. An error: our own, which ends the thread."""

    key: EncoderCacheKey
    embeddings: Embeddings | None
    error: Exception | None = None


class ImageEncoder:
    """One image at a time: of each cache salt first come, first served, and salts take turns, so that nobody waits for
    all images of another. All but the encoding itself happens on the caller's thread.

    Encoding cannot be interrupted: an image that nobody wants any more is encoded to its end, if begun, and dropped.
    """

    def __init__(
        self, projector: ImageModel, done: Callable[[EncoderResult], None], *, kept: int = ENCODER_CACHE_BYTES
    ) -> None:
        self._projector = projector
        self._done = done
        self._kept = kept
        self._found: dict[EncoderCacheKey, Embeddings] = {}
        self.bytes = 0
        """Of the embeddings kept."""
        self._requests: dict[EncoderCacheKey, tuple[RgbImage, set[int]]] = {}
        self._current: EncoderCacheKey | None = None
        self._turns: dict[str, int] = {}
        """When each cache salt had its last turn, of those that have had one since nobody waited."""
        self._work: queue.SimpleQueue[tuple[EncoderCacheKey, RgbImage]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def busy(self) -> bool:
        """True while an image is being encoded."""
        return self._current is not None

    @property
    def waiting(self) -> int:
        """The number of images that requests wait for."""
        return len(self._requests)

    def request(self, request_id: int, cache_salt: str, image: RgbImage) -> Embeddings | None:
        """An image's embeddings, where they are kept; else the request is among those that wait for them."""
        key = EncoderCacheKey(cache_salt, image.digest)
        if (found := self._found.pop(key, None)) is not None:
            self._found[key] = found  # the latest used
            return found
        self._requests.setdefault(key, (image, set()))[1].add(request_id)
        self._go_on()
        return None

    def abort(self, request_id: int) -> None:
        """The request waits for no image any more."""
        for key, (_, waiting) in list(self._requests.items()):
            waiting.discard(request_id)
            if not waiting:
                del self._requests[key]

    def complete(self, encoded: EncoderResult) -> set[int]:
        """Take in a result of the thread, for the requests whose ids it returns; dropped where there are none.
        Raises its error."""
        if encoded.error is not None:
            raise encoded.error
        self._current = None
        _, waiting = self._requests.pop(encoded.key, (None, set()))
        if waiting and encoded.embeddings is not None:
            self._found[encoded.key] = encoded.embeddings
            self.bytes += _size(encoded.embeddings)
            while self.bytes > self._kept:
                self.bytes -= _size(self._found.pop(next(iter(self._found))))
        self._go_on()
        return waiting

    def _go_on(self) -> None:
        if self._current is None and self._requests:
            self._current = min(self._requests, key=lambda key: self._turns.get(key.cache_salt, 0))
            self._turns[self._current.cache_salt] = max(self._turns.values(), default=0) + 1
            self._work.put((self._current, self._requests[self._current][0]))
        elif not self._requests:
            self._turns.clear()

    def _run(self) -> None:
        while True:
            key, image = self._work.get()
            try:
                embeddings = self._projector.encode(image)
            except ProjectorError:
                embeddings = None
            except Exception as error:  # raised where the worker's own are
                self._done(EncoderResult(key, None, error))
                return
            self._done(EncoderResult(key, embeddings))


def _size(embeddings: Embeddings) -> int:
    return sum(each.nbytes for each in embeddings)
