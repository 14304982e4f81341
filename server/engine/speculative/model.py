"""A smaller model of the same vocabulary, which says how the sequences of a larger one may go on.

It has a slot for each of the larger one's. What it lacks of a sequence it prefills when it is asked, a chunk at a time,
so that no step waits for a long prompt. A draft is as long as this model is sure of it; the larger one confirms or
corrects it (Leviathan et al. 2023, "Fast inference from transformers via speculative decoding").
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from server.engine import llama
from server.engine.memory.plan import MemoryPlan
from server.engine.scheduler import match_length
from server.engine.speculative.base import MAX_DRAFT_TOKENS, DraftRequest, append_if_confident
from server.engine.vocab import Vocab

_MIN_COPY_GAIN = 64
"""Tokens by which another slot must hold more of a sequence than its own, for a copy to pay."""

_OTHERS = 128
"""Tokens that the two vocabularies may differ in: makers pad them, and rename what is reserved."""


@dataclass(slots=True)
class _Held:
    """The tokens that the KV cache holds in a slot, and their cache salt."""

    cache_salt: str = ""
    tokens: array[int] = field(default_factory=lambda: array("i"))


Feed = list[tuple[DraftRequest, "array[int]"]]
"""Sequences, and what is to be decoded of each next."""


class ModelDrafter:
    """Greedy drafts of a model of its own, for all sequences together."""

    def __init__(self, path: str, target: Vocab, plan: MemoryPlan, *, threads: int, repack: bool = True) -> None:
        """To draft for a model of this vocabulary that is loaded by a plan. Raises LoadError, also where this one
        cannot."""
        on_gpu = plan.gpu_layers > 0
        self._model = llama.LlamaModel(path, gpu_layers=-1 if on_gpu else 0, repack=repack)
        try:
            if not self._model.decoder or self._model.recurrent:  # what was not confirmed has to be cut off again
                raise llama.LoadError("the draft model is of a kind that cannot draft")
            if not _agree(self._model.pieces(), target.pieces):
                raise llama.LoadError("the draft model has another vocabulary")
            self._context = llama.Context(self._model, batch=plan.batch, threads=threads, **plan.layout)
        except llama.LoadError:
            self._model.close()
            raise
        self._batch = llama.Batch(plan.batch)
        self._chunk = plan.chunk
        self._held = [_Held() for _ in range(plan.slots)]
        self._crowd = plan.slots + 1
        """With so many sequences the KV cache was too small."""
        self._ends = target.eog.union(range(target.size, self._model.vocabulary))
        """Where no draft goes on: ends, and what the other model does not know."""

    def close(self) -> None:
        self._context.close()
        self._model.close()

    def use_threads(self, count: int) -> None:
        """From the next draft on."""
        self._context.use_threads(count)

    def propose(self, asked: Sequence[DraftRequest], most: int) -> dict[int, array[int]]:
        """By job, up to so many tokens of each; nothing for those that this model has yet to catch up with."""
        asked = [each for each in asked if not each.images]
        if not asked or len(asked) >= self._crowd:
            return {}
        most = min(most, MAX_DRAFT_TOKENS // len(asked))
        drafts = {each.request_id: array("i") for each in asked}
        feed = self._lacking(asked) if most else []
        while feed:
            due = [each for each, tokens in feed if self._whole(each, tokens, drafts[each.request_id])]
            logits = self._decode(feed, due)
            if logits is None:
                self._shrink(asked)
                return {}
            feed = []
            for each, row in zip(due, logits, strict=True):
                draft = drafts[each.request_id]
                if append_if_confident(draft, row, self._ends, min(most, each.room)):
                    feed.append((each, draft[-1:]))
        return {job: draft for job, draft in drafts.items() if draft}

    def _whole(self, asked: DraftRequest, tokens: array[int], draft: array[int]) -> bool:
        """Whether these are the last that are known of the sequence."""
        return len(self._held[asked.slot].tokens) + len(tokens) == len(asked.tokens) + len(draft)

    def _lacking(self, asked: list[DraftRequest]) -> Feed:
        """What has to be decoded before anything can be drafted, as far as it fits one step: the shortest first."""
        for each in asked:
            self._find(each)
        left = self._chunk
        feed = []
        for each in sorted(asked, key=lambda each: len(each.tokens) - len(self._held[each.slot].tokens)):
            past = len(self._held[each.slot].tokens)
            # The last token of each has a place of its own.
            count = min(len(each.tokens) - past, left + 1)
            if count > 0:
                left -= count - 1
                feed.append((each, each.tokens[past : past + count]))
        return feed

    def _find(self, asked: DraftRequest) -> None:
        """Leave in a slot its common prefix with the sequence, or copy a longer one from another slot."""
        held, last = self._held[asked.slot], len(asked.tokens) - 1
        common = [match_length(each, asked.cache_salt, asked.tokens) for each in self._held]
        keep, longest = min(common[asked.slot], last), max(common)
        if (count := min(longest, last)) >= keep + _MIN_COPY_GAIN:
            copied = self._context.seq_cp(common.index(longest), asked.slot, count)
            keep = count if copied else 0
        elif len(held.tokens) > keep and not self._context.seq_rm(asked.slot, keep):
            keep = 0
        if not keep:
            self._context.seq_rm(asked.slot)
        held.cache_salt, held.tokens = asked.cache_salt, asked.tokens[:keep]

    def _decode(self, feed: Feed, due: list[DraftRequest]) -> NDArray[np.float32] | None:
        """A row of logits for each that is due; None where the cache is full."""
        batch, at = self._batch, 0
        for each, tokens in feed:
            past, end = len(self._held[each.slot].tokens), at + len(tokens)
            batch.token[at:end], batch.position[at:end] = tokens, range(past, past + len(tokens))
            batch.sequence[at:end], batch.output[at:end] = each.slot, 0
            batch.output[end - 1] = each in due
            at = end
        if self._context.decode(batch, at) != llama.OK:
            return None
        for each, tokens in feed:
            self._held[each.slot].tokens.extend(tokens)
        return self._context.logits(len(due))

    def _shrink(self, asked: list[DraftRequest]) -> None:
        """The cache is full: forget all; where nothing was held for others, there are too many at once."""
        slots = {each.slot for each in asked}
        if not any(held.tokens for slot, held in enumerate(self._held) if slot not in slots):
            self._crowd = len(asked)
        for slot, held in enumerate(self._held):
            self._context.seq_rm(slot)
            held.tokens = held.tokens[:0]


def _agree(ours: list[bytes], theirs: list[bytes]) -> bool:
    """Whether the same numbers stand for the same tokens, but for a few."""
    differ = sum(mine != their for mine, their in zip(ours, theirs, strict=False))
    return differ + abs(len(ours) - len(theirs)) <= _OTHERS
