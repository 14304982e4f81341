"""Frames between the web process and a model's worker, over one socket pair.

Every frame is four bytes of length (little endian) and one of the tuples below: pickled, or marshalled, which is
quicker, where it is a step that ends no request, as nearly every frame is; pixels are neither. The first byte tells
them apart. Both ends are this program and the socket has no name, so nothing foreign is ever read.

To the worker: one `LoadModel`, then `Pixels`, `AddRequest`, `Finish`, `AbortRequest`, `Check` and `Ping`. Closing the
socket tells it to exit.
From the worker: perhaps `OutOfMemory`, then `Ready` or `LoadFailed`, then one `StepOutput` for each step that brought
something, a `Checked` for each `Check` and a `Pong` for each `Ping`, at last perhaps `Crashed`. A closed socket means
that the worker is gone.
"""

from __future__ import annotations

import marshal
import pickle
import struct
from typing import Any, NamedTuple

from server.engine.types import EngineConfig, EngineRequest, Failed, Finished, ModelInfo

_LENGTH = struct.Struct("<I")
_STEP, _PIXELS = b"S", b"P"
"""Begin a marshalled step, and pixels. A pickle of this protocol begins with 0x80."""


class LoadModel(NamedTuple):
    """Load this model. `repack`: let llama.cpp lay weights out anew for the processor at hand. `smaller`: so many of
    the best plans for the machine's memory are known to be too large."""

    spec: EngineConfig
    repack: bool
    smaller: int = 0


class Pixels(NamedTuple):
    """A piece of the pixels of the next request with images; empty: that request will not come."""

    data: bytes


class AddRequest(NamedTuple):
    """Generate; the pixels of its images have gone before."""

    request: EngineRequest


class AbortRequest(NamedTuple):
    """Drop this request, wherever it is. It is not answered."""

    request_id: int


class Finish(NamedTuple):
    """End this request, if it runs, with the output that it has."""

    request_id: int


class Check(NamedTuple):
    """Ask for the refusal of a prompt of so many tokens of text and images of these sizes: (width, height)."""

    id: int
    tokens: int
    sizes: tuple[tuple[int, int], ...]


class Checked(NamedTuple):
    """Why the prompt of that `Check` cannot be taken, None where it can."""

    id: int
    refusal: Failed | None


class Ping(NamedTuple):
    """Ask for a `Pong` at once, whatever is under way."""


class Pong(NamedTuple):
    """Steps finished and seconds of CPU time used since the worker's start."""

    steps: int
    cpu: float


class Ready(NamedTuple):
    """The model is loaded."""

    info: ModelInfo


class LoadFailed(NamedTuple):
    """The model cannot be loaded. `reason` is safe to show, `detail` is llama.cpp's own words for the log."""

    reason: str
    detail: str


class OutOfMemory(NamedTuple):
    """Memory has run out while the model is loaded by this one of the plans, the best being 0. Perhaps the worker goes
    on with a smaller one, perhaps it dies of it."""

    plan: int


class Crashed(NamedTuple):
    """The worker exits because of an error in our own code: the exception's type and where, without any values."""

    trace: str


class StepOutput(NamedTuple):
    """Output of one step: (request, bytes, tokens) of new output, (request, end) of ended requests, the load after it,
    and (request, *`Logprob`) of each token of requests that ask."""

    output: list[tuple[int, bytes, int]]
    ended: list[tuple[int, Finished | Failed]]
    active: int
    queued: int
    logprobs: list[tuple[int, bytes, float, tuple[tuple[bytes, float], ...]]] | tuple[()] = ()


def encode(frame: Any) -> bytes:
    if isinstance(frame, StepOutput) and not frame.ended:
        data = _STEP + marshal.dumps(tuple(frame))
    elif isinstance(frame, Pixels):
        data = _PIXELS + frame.data
    else:
        data = pickle.dumps(frame, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


def _decode(data: bytes) -> Any:
    if data.startswith(_STEP):
        return StepOutput(*marshal.loads(data[len(_STEP) :]))
    if data.startswith(_PIXELS):
        return Pixels(data[len(_PIXELS) :])
    return pickle.loads(data)


class Decoder:
    """Frames out of a byte stream that arrives in any pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The frames that `data` completes."""
        buffer = self._buffer
        buffer += data
        frames = []
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, at)
            end = at + _LENGTH.size + length
            if len(buffer) < end:
                break
            frames.append(_decode(bytes(buffer[at + _LENGTH.size : end])))
            at = end
        del buffer[:at]
        return frames
