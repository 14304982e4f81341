"""Drafts of the model itself: of a layer it was trained with to guess the token after the next (MTP, "NextN" in GGUF).

The layer joins a token with the hidden state that the model had before it; so it follows what the model decodes, and
has a KV cache of its own for that (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", 2.2). What it guesses it goes on
from with its own hidden states, which are less and less those of the model: a draft ends where it is not sure.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from server.engine import llama
from server.engine.memory.plan import MemoryPlan
from server.engine.speculative.base import MAX_DRAFT_TOKENS, DraftRequest, append_if_confident

Rows = NDArray[np.float32]
Tokens = NDArray[np.int32] | Sequence[int]


class MtpDrafter:
    """Greedy drafts for all sequences together.

    What the model decodes is noted (`observe`), and decoded here when a draft is wanted or as much is noted as fits a
    step. A token has the position it has there. One that comes where another has been says that the model's memory
    was cut before it, and so is this one.
    """

    def __init__(self, model: llama.LlamaModel, eog: frozenset[int], plan: MemoryPlan, *, threads: int) -> None:
        """For a model that was loaded by a plan, with the layer, and whose context shows hidden states; and the tokens
        that end its generations. Raises LoadError."""
        self._context = llama.Context(model, batch=plan.batch, threads=threads, hidden=True, mtp=True, **plan.layout)
        self._noted = llama.Batch(plan.batch, hidden=model.hidden_width)
        self._count = 0
        self._step = llama.Batch(plan.slots, hidden=model.hidden_width)
        self._ends = [0] * plan.slots
        """The position behind the last token of each slot, noted or decoded."""
        self._none = 0, np.zeros((0, model.hidden_width), np.float32)
        self._states = [self._none] * plan.slots
        """The model's last hidden states of each slot, and the position of the first."""
        self._eog = eog

    def close(self) -> None:
        self._context.close()

    def use_threads(self, count: int) -> None:
        """From the next draft on."""
        self._context.use_threads(count)

    # --- what the model does

    def observe(self, batch: llama.Batch, count: int, hidden: Rows) -> None:
        """The model has decoded a batch's first `count` tokens, each sequence's side by side; their hidden states."""
        bounds = (np.flatnonzero(np.diff(batch.sequence[:count])) + 1).tolist()
        for start, end in zip([0, *bounds], [*bounds, count], strict=True):
            slot, place = int(batch.sequence[start]), int(batch.position[start])
            self._seek(slot, place)
            before = np.concatenate([self._before(slot, place), hidden[start : end - 1]])
            self._note(slot, place, batch.token[start:end], before)
            kept = max(start, end - MAX_DRAFT_TOKENS - 1)  # behind one of these is the last that is confirmed
            self._states[slot] = place + kept - start, hidden[kept:end].copy()

    def forget(self, slot: int) -> None:
        """The slot holds another sequence now, or nothing."""
        self._cut(slot, 0)
        self._states[slot] = self._none

    def copy(self, source: int, target: int, count: int) -> None:
        """A slot holds the first `count` tokens of another now, and nothing else."""
        self.forget(target)
        self._flush()
        count = min(count, self._ends[source])
        if 0 <= self._context.first_position(source) < count and self._context.seq_cp(source, target, count):
            self._ends[target], self._states[target] = count, self._states[source]

    def _seek(self, slot: int, place: int) -> None:
        """Be where a token of this position is the next."""
        if place < self._ends[slot]:
            self._cut(slot, place)
        elif place > self._ends[slot]:  # what is before came from elsewhere
            self.forget(slot)
            self._ends[slot] = place

    def _cut(self, slot: int, place: int) -> None:
        noted, count = self._noted, self._count
        keep = (noted.sequence[:count] != slot) | (noted.position[:count] < place)
        self._count = int(keep.sum())
        if self._count < count:
            for values in (noted.token, noted.position, noted.sequence, noted.hidden):
                values[: self._count] = values[:count][keep]
        self._context.seq_rm(slot, place)
        self._ends[slot] = place

    def _before(self, slot: int, place: int) -> Rows:
        """The model's hidden state before a position, [1, width]; zeros where that is not known."""
        first, states = self._states[slot]
        at = place - 1 - first
        return states[at : at + 1] if 0 <= at < len(states) else np.zeros((1, states.shape[1]), np.float32)

    def _note(self, slot: int, place: int, tokens: NDArray[np.int32], before: Rows) -> None:
        done = 0
        while done < len(tokens):
            if self._count == self._noted.size:
                self._flush()
            count = min(len(tokens) - done, self._noted.size - self._count)
            self._add(self._noted, self._count, slot, place + done, tokens[done : done + count], before[done:])
            self._count += count
            done += count
        self._ends[slot] = place + len(tokens)

    @staticmethod
    def _add(batch: llama.Batch, at: int, slot: int, place: int, tokens: Tokens, before: Rows) -> None:
        end = at + len(tokens)
        batch.token[at:end], batch.hidden[at:end] = tokens, before[: len(tokens)]
        batch.position[at:end] = range(place, place + len(tokens))
        batch.sequence[at:end], batch.output[at:end] = slot, 0

    def _flush(self) -> None:
        """Decode what is noted."""
        if self._count and self._context.decode(self._noted, self._count) != llama.OK:
            self._reset()
        self._count = 0

    def _reset(self) -> None:
        """The cache is full: begin anew."""
        for slot in range(len(self._ends)):
            self.forget(slot)

    # --- drafts

    def propose(self, asked: Sequence[DraftRequest], most: int) -> dict[int, array[int]]:
        """By job, up to so many tokens of each; nothing for sequences that it has not followed to their last token."""
        asked = [each for each in asked if not each.images and self._follows(each)]
        most = min(most, MAX_DRAFT_TOKENS // max(1, len(asked)))
        if not most:
            return {}
        for each in asked:
            self._seek(each.slot, len(each.tokens) - 1)
        if self._count + len(asked) > self._noted.size:
            self._flush()
        drafts = {each.request_id: array("i") for each in asked}
        feed = [(each, self._before(each.slot, len(each.tokens) - 1)) for each in asked]
        batch, at = self._noted, self._count
        while feed:
            for row, (each, state) in enumerate(feed, at):
                draft = drafts[each.request_id]
                place = len(each.tokens) - 1 + len(draft)
                self._add(batch, row, each.slot, place, draft[-1:] or each.tokens[-1:], state)
                batch.output[row] = 1
                self._ends[each.slot] = place + 1
            if self._context.decode(batch, at + len(feed)) != llama.OK:
                self._reset()
                return {}
            self._count = 0
            logits, hidden = self._context.logits(len(feed)), self._context.hidden(at + len(feed))[at:]
            feed = [
                (each, hidden[row : row + 1])
                for row, (each, _) in enumerate(feed)
                if append_if_confident(drafts[each.request_id], logits[row], self._eog, min(most, each.room))
            ]
            batch, at = self._step, 0
        return {job: draft for job, draft in drafts.items() if draft}

    def _follows(self, asked: DraftRequest) -> bool:
        place = len(asked.tokens) - 1
        first, states = self._states[asked.slot]
        return place <= self._ends[asked.slot] and first < place <= first + len(states)
