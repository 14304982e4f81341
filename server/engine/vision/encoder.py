"""Encodes images beside the batch loop, on a thread of its own, and keeps what it has lately encoded."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from server.engine.types import RgbImage
from server.engine.vision.projector import ProjectorError

MAX_BYTES = 256 * 2**20
"""Bytes of embeddings kept. An image of 256 tokens takes 1 to 5 MB."""

Embeddings = list[NDArray[np.float32]]


class Encodes(Protocol):
    def encode(self, picture: RgbImage) -> Embeddings: ...


class EncoderCacheKey(NamedTuple):
    """What one scope has shown is never another's to find."""

    cache_salt: str
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class EncoderResult:
    """The thread is done with a picture. None: it cannot be encoded. An error: our own, which ends the thread."""

    key: EncoderCacheKey
    embeddings: Embeddings | None
    error: Exception | None = None


class ImageEncoder:
    """One picture at a time: of each scope first come, first served, and scopes take turns, so that nobody waits for
    all of another's. All but the encoding itself happens on the caller's thread.

    Encoding cannot be interrupted: what nobody wants any more is encoded to its end, if it has begun, and dropped.
    """

    def __init__(self, projector: Encodes, done: Callable[[EncoderResult], None], *, kept: int = MAX_BYTES) -> None:
        self._projector = projector
        self._done = done
        self._kept = kept
        self._found: dict[EncoderCacheKey, Embeddings] = {}
        self.bytes = 0
        """Of the embeddings kept."""
        self._requests: dict[EncoderCacheKey, tuple[RgbImage, set[int]]] = {}
        self._current: EncoderCacheKey | None = None
        self._turns: dict[str, int] = {}
        """When each scope had its last turn, of those that have had one since nobody waited."""
        self._work: queue.SimpleQueue[tuple[EncoderCacheKey, RgbImage]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def busy(self) -> bool:
        """Whether an image is being encoded."""
        return self._current is not None

    @property
    def waiting(self) -> int:
        """Images that somebody waits for."""
        return len(self._requests)

    def request(self, job_id: int, scope: str, picture: RgbImage) -> Embeddings | None:
        """A picture's embeddings, where they are kept; else the job is among those that wait for them."""
        key = EncoderCacheKey(scope, picture.digest)
        if (found := self._found.pop(key, None)) is not None:
            self._found[key] = found  # the latest used
            return found
        self._requests.setdefault(key, (picture, set()))[1].add(job_id)
        self._go_on()
        return None

    def abort(self, job_id: int) -> None:
        """The job waits for nothing any more."""
        for key, (_, jobs) in list(self._requests.items()):
            jobs.discard(job_id)
            if not jobs:
                del self._requests[key]

    def complete(self, encoded: EncoderResult) -> set[int]:
        """Take in what the thread has said: the jobs that have waited for it. Nobody's is dropped. Raises its error."""
        if encoded.error is not None:
            raise encoded.error
        self._current = None
        _, jobs = self._requests.pop(encoded.key, (None, set()))
        if jobs and encoded.embeddings is not None:
            self._found[encoded.key] = encoded.embeddings
            self.bytes += _size(encoded.embeddings)
            while self.bytes > self._kept:
                self.bytes -= _size(self._found.pop(next(iter(self._found))))
        self._go_on()
        return jobs

    def _go_on(self) -> None:
        if self._current is None and self._requests:
            self._current = min(self._requests, key=lambda key: self._turns.get(key.cache_salt, 0))
            self._turns[self._current.cache_salt] = max(self._turns.values(), default=0) + 1
            self._work.put((self._current, self._requests[self._current][0]))
        elif not self._requests:
            self._turns.clear()

    def _run(self) -> None:
        while True:
            key, picture = self._work.get()
            try:
                embeddings = self._projector.encode(picture)
            except ProjectorError:
                embeddings = None
            except Exception as error:  # raised where the worker's own are
                self._done(EncoderResult(key, None, error))
                return
            self._done(EncoderResult(key, embeddings))


def _size(embeddings: Embeddings) -> int:
    return sum(each.nbytes for each in embeddings)
