"""The worker's end of the socket: frames in (on a thread of their own), frames out, and the abort of a decode."""

from __future__ import annotations

import os
import queue
import select
import socket
import threading
import time

from server.engine.pixels import PixelReceiver
from server.engine.protocol import (
    AbortRequest,
    AddRequest,
    Check,
    Checked,
    Decoder,
    Finish,
    Ping,
    Pixels,
    Pong,
    StepOutput,
    encode,
)
from server.engine.vision.encoder import EncoderResult
from server.engine.worker.loader import LoadedModel

_ABORT_FROM = 16
"""Tokens that a step must lose before it is aborted: for fewer, its survivors lose more by decoding theirs again."""


class StepInFlight:
    """The tokens of the step under way, by request."""

    def __init__(self, tokens: dict[int, int]) -> None:
        self._tokens = tokens
        self._total = sum(tokens.values())
        self._lost = 0

    def cancel(self, request_id: int) -> bool:
        """Note that a request is aborted. True once the step is no longer worth finishing."""
        self._lost += self._tokens.pop(request_id, 0)
        return self._lost >= _ABORT_FROM and 2 * self._lost >= self._total


class Channel:
    """Connection to the web process.

    `receive` runs on the reader thread, the rest on the main thread, except `send`, which either may call.
    """

    def __init__(self, connection: socket.socket, model: LoadedModel) -> None:
        self.inbox: queue.SimpleQueue[AddRequest | Finish | AbortRequest | Check | EncoderResult] = queue.SimpleQueue()
        self.steps = 0
        """Steps finished since the start: the progress that a `Pong` reports."""
        self._connection = connection
        self._sending = threading.Lock()
        self._context = model.context
        self._abortable = not model.model.recurrent  # a running state would be left part-way
        self._in_flight = StepInFlight({})

    def receive(self, decoder: Decoder) -> None:
        """Take in frames until the socket closes, which ends the process."""
        # Polled, because a thread that waits in recv() is woken for every frame the other side has read.
        readable = select.poll()
        readable.register(self._connection, select.POLLIN)
        pixels = PixelReceiver()
        while readable.poll() and (data := self._connection.recv(1 << 16)):
            for frame in decoder.feed(data):
                if isinstance(frame, Ping):
                    self.send(Pong(self.steps, time.process_time()))
                elif isinstance(frame, Pixels):
                    pixels.take(frame)
                elif isinstance(frame, AddRequest) and frame.request.images:
                    self.put(AddRequest(pixels.fill(frame.request)))
                else:
                    self.put(frame)
        os._exit(0)

    def put(self, frame: AddRequest | Finish | AbortRequest | Check) -> None:
        """Hand a frame to the main thread; abort the step under way where most of it has become idle."""
        # Put first, then look: the main thread announces a step first, then looks into the inbox.
        self.inbox.put(frame)
        if isinstance(frame, AbortRequest) and self._in_flight.cancel(frame.request_id) and self._abortable:
            self._context.abort()

    def send(self, frame: StepOutput | Pong | Checked) -> None:
        with self._sending:
            self._connection.sendall(encode(frame))

    def close(self) -> None:
        """Close the socket, which tells the other side that the worker is gone."""
        self._connection.close()

    def begin_step(self, tokens: dict[int, int]) -> bool:
        """Announce a step of so many tokens of each request. False where there is something to take in first."""
        self._in_flight = StepInFlight(tokens)
        self._context.abort(False)
        # Perhaps an abort, come before the reader thread could know of this step: plan again.
        return self.inbox.empty()

    def end_step(self) -> None:
        self.steps += 1
        self._in_flight = StepInFlight({})
