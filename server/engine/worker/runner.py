"""Forward passes: batches of tokens or image embeddings through llama.cpp, and the threads that compute them."""

from __future__ import annotations

import time
from array import array
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from server.engine import llama
from server.engine.scheduler.scheduler import ScheduledBatch, Sequence
from server.engine.worker.channel import Channel
from server.engine.worker.loader import LoadedModel


class StepResult(NamedTuple):
    """One forward pass: llama.cpp's status, seconds, and the sequences that get logits, each with its first row."""

    status: int
    seconds: float
    due: list[tuple[Sequence, int]]
    rows: int


class ModelRunner:
    """Runs the scheduler's batches on the model."""

    def __init__(self, loaded: LoadedModel, channel: Channel) -> None:
        self._loaded = loaded
        self._context = loaded.context
        self._batch = loaded.batch
        self._mtp_drafter = loaded.mtp_drafter
        self._channel = channel
        self._threads_beside_encoder = (
            loaded.threads if loaded.on_gpu else max(1, loaded.threads - loaded.image_threads)
        )
        self.encoding = False
        """An image is being encoded, so steps have fewer cores."""

    def run(self, batch: ScheduledBatch, drafts: dict[int, array[int]]) -> StepResult | None:
        """Decode a batch of tokens, with the drafts of its sequences. None where something came in that changes it."""
        count, rows, due = self.build_batch(batch, drafts)
        if not self._channel.begin_step({sequence.request.id: tokens for sequence, tokens in batch.entries}):
            return None
        began = time.monotonic()
        # While an image is encoded, missing cores say nothing of other programs.
        status = self._context.decode(self._batch, count) if self.encoding else self._loaded.decode(count)
        self._channel.end_step()
        seconds = time.monotonic() - began
        if status == llama.OK and self._mtp_drafter is not None:
            self._mtp_drafter.observe(self._batch, count, self._context.hidden(count))
        return StepResult(status, seconds, due, rows)

    def run_image(
        self, sequence: Sequence, embeddings: NDArray[np.float32], positions: NDArray[np.int32], *, causal: bool
    ) -> StepResult | None:
        """Decode image embeddings of one sequence. Not `causal`: all of them see each other."""
        if not self._channel.begin_step({sequence.request.id: len(embeddings)}):
            return None
        began = time.monotonic()
        status = self._context.decode_embeddings(embeddings, positions, sequence.slot.id, causal=causal)
        self._channel.end_step()
        return StepResult(status, time.monotonic() - began, [], 0)

    def build_batch(
        self, scheduled: ScheduledBatch, drafts: dict[int, array[int]]
    ) -> tuple[int, int, list[tuple[Sequence, int]]]:
        """Write the batch; its size, its rows of logits, and the sequences that get some, each with its first row.

        A sequence with a draft gets a row for each token of it and one more.
        """
        batch = self._batch
        token, position, ids, output = batch.token, batch.position, batch.sequence, batch.output
        due = []
        at = rows = 0
        for sequence, count in scheduled.entries:
            done, place = sequence.num_computed_tokens, sequence.position
            draft = drafts.get(sequence.request.id)
            if count == 1:
                token[at], position[at] = sequence.tokens[done], place
                ids[at], output[at] = sequence.slot.id, 0
            else:
                end = at + count
                token[at:end] = sequence.tokens[done : done + count]
                position[at:end] = range(place, place + count)
                ids[at:end], output[at:end] = sequence.slot.id, 0
            at += count
            if done + count == len(sequence.tokens):
                output[at - 1] = 1
                due.append((sequence, rows))
                rows += 1
            if draft is not None:
                end = at + len(draft)
                token[at:end], position[at:end] = draft, range(place + 1, place + 1 + len(draft))
                ids[at:end], output[at:end] = sequence.slot.id, 1
                at, rows = end, rows + len(draft)
        return at, rows, due

    def share_cores(self, encoding: bool) -> None:
        """Leave cores to the image encoder while it is at work on the CPU."""
        if self.encoding != encoding:
            self.encoding = encoding
            loaded = self._loaded
            count = loaded.threads if loaded.tuner is None else loaded.tuner.count
            loaded.use_threads(min(count, self._threads_beside_encoder) if encoding else count)
