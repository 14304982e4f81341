"""Scheduler: which sequences the next step takes, and how much of each prompt; policy alone, without llama.cpp.

A *slot* is a place in the KV cache that holds one sequence. Finished sequences stay in their slot until another
request needs it. A request with the prefix of any slot of its cache salt need not prefill it: it continues in that
slot, or gets a copy of the prefix. While that is being prefilled for another request, it waits for it. Requests are
admitted first come, first served; running sequences share each step. Images cannot share a step with tokens: they get
steps of their own, in turn with those, as prompts do where they had better not share one with running answers.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from server.engine.scheduler.budget import PrefillBudget, split_budget
from server.engine.scheduler.prefix import MIN_PREFIX, common_prefix
from server.engine.scheduler.sequence import Admission, PrefixMatch, ScheduledBatch, Sequence, Slot
from server.engine.scheduler.slots import Slots, count_runs
from server.engine.types import PREFILL_SLOWDOWN, EngineRequest

__all__ = [
    "MIN_PREFIX",
    "Admission",
    "PrefixMatch",
    "ScheduledBatch",
    "Scheduler",
    "Sequence",
    "Slot",
    "common_prefix",
    "count_runs",
    "split_budget",
]


class PreviousStep(NamedTuple):
    """A step that running answers waited for, with an image or with prompts; `cut`: it took no more than the budget."""

    tokens: int
    seconds: float
    image: bool = False
    cut: bool = True


_NOTHING = PreviousStep(0, 0.0)


class Scheduler:
    """The queue, the sequences that run, and the steps they share.

    `chunk`: prompt tokens of a step. `can_copy_prefix`: the beginning of a slot can be copied. `prefer_adjacent`:
    sequences run best in neighbouring slots. `separate_prefill`: a step takes either prompts or answers.
    `max_decode_slowdown`: the factor by which prompts may prolong the steps of running answers.
    """

    def __init__(
        self,
        slots: int,
        chunk: int,
        *,
        can_copy_prefix: bool = True,
        prefer_adjacent: bool = False,
        separate_prefill: bool = False,
        max_decode_slowdown: float = PREFILL_SLOWDOWN,
    ) -> None:
        self.chunk = chunk
        self.queue: deque[EngineRequest] = deque()
        self.running: list[Sequence] = []
        self.budget = PrefillBudget(chunk, max_decode_slowdown)
        self._slots = Slots(slots, can_copy_prefix=can_copy_prefix, prefer_adjacent=prefer_adjacent)
        self._separate_prefill = separate_prefill
        self._previous: PreviousStep | None = None
        """The step before the next one, if running answers waited for it."""

    @property
    def slots(self) -> list[Slot]:
        return self._slots.all

    def submit(self, request: EngineRequest) -> None:
        self.queue.append(request)

    def abort(self, request_id: int) -> Sequence | None:
        """Take a request out of the queue; or return its running sequence, which is to be finished."""
        for sequence in self.running:
            if sequence.request.id == request_id:
                return sequence
        self.queue = deque(request for request in self.queue if request.id != request_id)
        return None

    def admit(self) -> Admission | None:
        """Give the next waiting request a slot; None where none waits, or it has to wait on."""
        if not self.queue or any(sequence.preempted for sequence in self.running) or not self._slots.free:
            return None
        admission = self._slots.admit(self.queue.popleft())
        self.running.append(admission.sequence)
        return admission

    def ready_followers(self) -> list[tuple[Sequence, PrefixMatch]]:
        """The sequences whose prefix owner has prefilled their common prefix: they wait no longer.

        At most as many as one step takes: prefixes are copied first, and the others can wait for that meanwhile.
        """
        found = []
        room = self.chunk
        for sequence in self.running:
            owner = sequence.prefix_owner
            if room > 0 and owner is not None and owner.num_computed_tokens >= sequence.num_shared_tokens:
                room -= len(sequence.tokens) - sequence.num_shared_tokens
                sequence.prefix_owner = None
                found.append((sequence, PrefixMatch(owner.slot, sequence.num_shared_tokens, exact=False)))
        return found

    def finish(self, sequence: Sequence) -> tuple[Sequence, PrefixMatch] | None:
        """The sequence has ended; the part of it that the KV cache holds stays in its slot.

        The first of its followers goes on with that (it is returned), and owns the prefix of the others.
        """
        self._slots.finish(sequence)
        self.running.remove(sequence)
        for other in self.running:
            other.preempted = False
        return self._promote_follower(sequence)

    def _promote_follower(self, owner: Sequence) -> tuple[Sequence, PrefixMatch] | None:
        waiting = [sequence for sequence in self.running if sequence.prefix_owner is owner]
        if not waiting:
            return None
        first, *rest = waiting
        for other in rest:
            other.prefix_owner, other.num_shared_tokens = first, min(first.num_shared_tokens, other.num_shared_tokens)
        first.prefix_owner = None
        return first, PrefixMatch(owner.slot, min(owner.num_computed_tokens, first.num_shared_tokens), exact=False)

    def schedule(self) -> ScheduledBatch | None:
        """The next step; None where all running sequences wait for something."""
        before, image = self._previous, self._schedule_image()
        tokens, stalls = self._schedule_tokens()
        if image is not None and not (tokens and before):
            return ScheduledBatch((image,), image=True)
        return (
            ScheduledBatch(tuple(tokens), stalls_decode=stalls, may_speculate=image is None and before is None)
            if tokens
            else None
        )

    def update(
        self, batch: ScheduledBatch, seconds: float, *, cut: bool = True, done: bool = True, tells: bool = True
    ) -> None:
        """Note the duration of a step, before its sequences go on. `cut`: it took no more tokens than scheduled;
        `done`: it succeeded; `tells`: its duration is typical of such steps."""
        before, self._previous = self._previous, None
        count = sum(tokens for _, tokens in batch.entries)
        if batch.image or (batch.stalls_decode and done):
            self._previous = PreviousStep(count, seconds, batch.image, cut)
        if done and tells and not batch.image:
            decoding = batch.decoding
            earlier = before if before is not None and before.cut else _NOTHING
            self.budget.observe(decoding, count - decoding + earlier.tokens, seconds + earlier.seconds)

    def _awake(self) -> list[Sequence]:
        return [sequence for sequence in self.running if not sequence.preempted and sequence.prefix_owner is None]

    def _schedule_tokens(self) -> tuple[list[tuple[Sequence, int]], bool]:
        """A step with tokens: every decoding sequence's one, then the chunk, split among those with more; and whether
        running answers wait for it.

        Splitting the chunk keeps a short prompt from waiting behind a long one. Beside decoding sequences it is as
        large as the budget, less the tokens of an image before it; where more prompts wait than sequences decode, it
        grows with their number.
        """
        before = self._previous
        ready = [sequence for sequence in self._awake() if sequence.num_new_tokens > 0]
        prompts = [sequence for sequence in ready if sequence.prefilling]
        decoding = [sequence for sequence in ready if sequence.num_new_tokens == 1]
        taken, stalls = ready, False
        if self._separate_prefill and 0 < len(prompts) < len(ready):
            if before is None:
                taken, stalls = prompts, True
            elif not before.image:
                taken = [sequence for sequence in ready if not sequence.prefilling]
        several = [sequence for sequence in taken if sequence.num_new_tokens > 1]
        more = max(0, len(several) - len(decoding))
        pace = (
            max(0, self.budget.image_tokens - before.tokens)
            if before is not None and before.image
            else self.budget.tokens
        )
        budget = max(pace, self.chunk * more // len(several)) if decoding and several else self.chunk
        chunks = split_budget([sequence.num_new_tokens for sequence in several], budget)
        counts = {sequence.slot.id: count for sequence, count in zip(several, chunks, strict=True)}
        entries = [(sequence, counts.get(sequence.slot.id, 1)) for sequence in taken]
        # In the order of slots: a split KV cache takes neighbours together.
        return sorted((entry for entry in entries if entry[1]), key=lambda entry: entry[0].slot.id), stalls

    def _schedule_image(self) -> tuple[Sequence, int] | None:
        """A step with an image: its sequence, and the number of its tokens if it may be cut.

        First come, first served. Beside decoding sequences it is cut to the budget: they wait for this step and the
        next one with tokens together.
        """
        awake = self._awake()
        ready = [(s, image) for s in awake if (image := s.image) is not None and image.embeddings is not None]
        if not ready:
            return None
        sequence, image = min(ready, key=lambda each: each[0].arrival)
        budget = self.chunk
        if any(s.num_new_tokens == 1 for s in awake):
            budget = (
                self.budget.image_tokens // 2 if any(s.num_new_tokens > 1 for s in awake) else self.budget.image_tokens
            )
        return sequence, min(budget, image.end - sequence.num_computed_tokens)

    def evict(self) -> Slot | None:
        """The idle slot to forget when the KV cache is full: the one longest unused that still holds something."""
        return self._slots.evict()

    def preempt(self) -> Sequence | None:
        """Evicting was not enough: the newest sequence waits until another ends. None where only one runs."""
        awake = self._awake()
        if len(awake) < 2:
            return None
        newest = max(awake, key=lambda sequence: sequence.arrival)
        newest.preempted = True
        newest.set_computed(0)
        return newest
