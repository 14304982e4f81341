"""Who runs, where, and how much of each prompt in the next step: policy alone, without llama.cpp.

A *slot* is a place in the KV cache that holds one sequence. Finished sequences stay in their slot until another job
needs it. A job that begins like what any slot of its scope holds need not prefill what they share: it goes on in that
slot, or gets a copy of its beginning. Where that is still being prefilled for another job, it waits for it. Jobs wait
first come, first served; running sequences share each step. Images cannot share a step with tokens: they get steps of
their own, in turn with those, as prompts do where they had better not share one with running answers.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from server.engine.scheduler.budget import PrefillBudget
from server.engine.types import PREFILL_SLOWDOWN, EngineRequest
from server.engine.vision.placeholders import ImageSpan

_FAR = 2**62
MIN_PREFIX = 8
"""Tokens that are not worth a difference: as soon prefilled as looked for."""
_COPIED = 64
"""A copy of another slot's beginning pays from so many tokens on, and where that slot holds no more than so many times
as many: on a CPU a hundred tokens are copied, with all the slot holds, while one is prefilled."""


@dataclass(slots=True, eq=False)
class Slot:
    """`tokens` are those of the sequence that runs here, else what the KV cache holds, left there by a job of
    `scope`. Of what it holds, `lag` is how many positions fewer there are than tokens (images under M-RoPE)."""

    id: int
    tokens: array[int] = field(default_factory=lambda: array("i"))
    cache_salt: str = ""
    mrope_offset: int = 0
    last_used: int = 0
    sequence: Sequence | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """A job in the batch. The first `past` of its `tokens` are in the KV cache, the rest are still to be decoded.

    `output` counts the tokens behind the prompt, `forced` those of them that the grammar left no choice about,
    `drafted` what was decoded ahead, `confirmed` what of that the output has; `ahead` is what may yet be confirmed.
    While it has a `leader` it waits for that sequence to prefill the first `shared` tokens, which they have in common.
    `images` stand among the tokens; `edge` is where the next one begins, in whole or in part not yet in the cache.
    """

    request: EngineRequest
    slot: Slot
    arrival: int
    tokens: array[int]
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_jump_forward: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    pending_draft: array[int] = field(default_factory=lambda: array("i"))
    preempted: bool = False
    prefix_owner: Sequence | None = None
    num_shared_tokens: int = 0
    images: tuple[ImageSpan, ...] = ()
    next_image_start: int = _FAR
    mrope_offset: int = 0

    @property
    def num_new_tokens(self) -> int:
        """Tokens still to be decoded, up to the next image; none where it stands at one."""
        end = len(self.tokens)
        return (end if end < self.next_image_start else self.next_image_start) - self.num_computed_tokens

    @property
    def prefilling(self) -> bool:
        """Whether more of its prompt is still to be decoded than a token. (What a grammar forces is of the answer.)"""
        return self.num_new_tokens > 1 and self.num_computed_tokens < len(self.request.tokens)

    @property
    def position(self) -> int:
        """Where the next token stands."""
        return self.num_computed_tokens - self.mrope_offset

    @property
    def image(self) -> ImageSpan | None:
        """The image that comes next, where it stands at one, or within."""
        return (
            next(image for image in self.images if image.start == self.next_image_start)
            if self.num_computed_tokens >= self.next_image_start
            else None
        )

    def set_computed(self, past: int) -> None:
        """The first `past` tokens are in the KV cache: no more, no fewer."""
        self.num_computed_tokens, self.mrope_offset, self.next_image_start = past, 0, _FAR
        for image in self.images:
            if image.end > past:
                self.next_image_start = image.start
                break
            self.mrope_offset += image.mrope_offset

    def floor_to_image(self, count: int) -> int:
        """The first `count` tokens without the image that ends behind them."""
        return next((image.start for image in self.images if image.start < count < image.end), count)

    def position_of(self, count: int) -> int:
        """The position that the first `count` tokens end before."""
        return count - sum(image.mrope_offset for image in self.images if image.end <= count)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The first `count` tokens of a sequence, as `slot` holds them; `whole`: it holds nothing more."""

    slot: Slot
    count: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Admission:
    """A job's new sequence, the prefix it reuses, and whither what its slot held is to be copied before."""

    sequence: Sequence
    prefix: PrefixMatch
    relocate_to: Slot | None = None


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """One step: so many tokens of each of these sequences, in the order of their slots; or, `image`, so many of the one
    at which a sequence stands."""

    entries: tuple[tuple[Sequence, int], ...]
    image: bool = False
    stalls_decode: bool = False
    """Whether running answers wait for it, though it could take them along."""
    may_speculate: bool = False
    """Whether nothing waits for it but what it takes."""

    @property
    def decoding(self) -> int:
        """How many of its sequences, before it is done, have but one token to decode."""
        return sum(sequence.num_new_tokens == 1 for sequence, _ in self.entries)


class PreviousStep(NamedTuple):
    """A step that running answers waited for: with an image or with prompts, and whether it took only as much as the
    pace allows."""

    tokens: int
    seconds: float
    image: bool = False
    cut: bool = True


_NOTHING = PreviousStep(0, 0.0)


def common_prefix(one: array[int], other: array[int]) -> int:
    """How many tokens two sequences share at their beginning."""
    length = min(len(one), len(other))
    if not length:
        return 0
    differ = np.frombuffer(one, np.int32, length) != np.frombuffer(other, np.int32, length)
    first = int(differ.argmax())
    return first if differ[first] else length


def split_budget(wanted: list[int], budget: int) -> list[int]:
    """Split a budget: half of it to the first, so that none starves, the rest to the smallest first.

    Few get much and some nothing: each sequence that prefills beside others costs a micro-batch of its own.
    """
    shares = [0] * len(wanted)
    if wanted:
        shares[0] = min(wanted[0], max(1, budget // 2))
    left = budget - sum(shares)
    for index in sorted(range(len(wanted)), key=wanted.__getitem__):
        more = max(0, min(wanted[index] - shares[index], left))
        shares[index] += more
        left -= more
    return shares


def count_runs(ids: set[int]) -> int:
    """How many blocks of neighbours these numbers form."""
    return sum(number - 1 not in ids for number in ids)


class Scheduler:
    """Slots, the queue behind them, and the sequences that run.

    `copies`: a slot's beginning can be copied. `adjoining`: sequences run best in neighbouring slots. `apart`: a step
    takes either prompts or answers.
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
        self.slots = [Slot(i) for i in range(slots)]
        self.chunk = chunk
        self.queue: deque[EngineRequest] = deque()
        self.running: list[Sequence] = []
        self.budget = PrefillBudget(chunk, max_decode_slowdown)
        self._can_copy_prefix = can_copy_prefix
        self._prefer_adjacent = prefer_adjacent and can_copy_prefix
        self._separate_prefill = separate_prefill
        self._previous: PreviousStep | None = None
        """The step before the next one, if running answers waited for it."""
        self._clock = 0

    def submit(self, job: EngineRequest) -> None:
        self.queue.append(job)

    def abort(self, job_id: int) -> Sequence | None:
        """Take a job out of the queue; or its running sequence, which is to be released."""
        for sequence in self.running:
            if sequence.request.id == job_id:
                return sequence
        self.queue = deque(job for job in self.queue if job.id != job_id)
        return None

    def admit(self) -> Admission | None:
        """Give the next waiting job a slot.

        It goes on where a free slot of its scope holds little else than what it begins with. Otherwise it takes the
        slot longest unused, and a copy of its beginning from where that is held longest, running sequences included.
        """
        if not self.queue or any(sequence.preempted for sequence in self.running):
            return None
        free = [slot for slot in self.slots if slot.sequence is None]
        if not free:
            return None
        job = self.queue.popleft()
        common = {
            slot.id: common_prefix(slot.tokens, job.tokens) if slot.cache_salt == job.cache_salt else 0
            for slot in self.slots
        }
        donor = self._best_match(self.slots if self._can_copy_prefix else free, common)
        count = common[donor.id]
        worth = self._can_copy_prefix and count >= MIN_PREFIX and _COPIED * count >= len(donor.tokens)
        if donor.sequence is None and count and 2 * count >= len(donor.tokens):
            slot = donor
        else:
            others = [slot for slot in free if slot is not donor] if worth else []
            slot = min(others or free, key=lambda each: each.last_used)
        slot, rescue = self._place(slot, free, donor if worth else None)
        count = count if worth or slot is donor else 0
        prefix = PrefixMatch(donor, count, count == len(donor.tokens))
        self._clock += 1
        sequence = Sequence(job, slot, self._clock, array("i", job.tokens))
        if count and donor.sequence is not None and donor.sequence.num_computed_tokens < count:
            sequence.prefix_owner, sequence.num_shared_tokens = donor.sequence, count
            prefix = PrefixMatch(donor, 0, exact=False)
        slot.cache_salt, slot.tokens, slot.sequence = job.cache_salt, sequence.tokens, sequence
        self.running.append(sequence)
        return Admission(sequence, prefix, rescue)

    def _best_match(self, slots: list[Slot], common: dict[int, int]) -> Slot:
        """The slot that holds most of what a job begins with; of those that hold about as much the one that has it
        soonest: one that is there, else one being prefilled, else one that waits for another itself."""
        most = max(common[slot.id] for slot in slots)
        near = [slot for slot in slots if common[slot.id] > max(0, most - MIN_PREFIX)] or slots

        def promise(slot: Slot) -> tuple[bool, bool, int, bool]:
            runner, count = slot.sequence, common[slot.id]
            there = runner is None or runner.num_computed_tokens >= count
            return there, runner is None or runner.prefix_owner is None, count, runner is None

        return max(near, key=promise)

    def _place(self, slot: Slot, free: list[Slot], donor: Slot | None) -> tuple[Slot, Slot | None]:
        """The slot to run in and where to rescue what it holds, for a job that would take `slot`.

        Where sequences run best side by side, a slot next to those that run takes its place.
        """
        if not self._prefer_adjacent:
            return slot, None
        busy = {sequence.slot.id for sequence in self.running}
        place = min(free, key=lambda each: (count_runs(busy | {each.id}), each is not slot, each.last_used))
        if place is slot or len(place.tokens) < MIN_PREFIX or place is donor:
            return place, None
        if slot is donor:  # copied from there, not gone on with: it holds nothing of use any more
            slot.last_used = 0
            spare = [each for each in free if each not in (place, donor)]
            slot = min(spare, key=lambda each: each.last_used, default=place)
        if slot.last_used >= place.last_used:
            return place, None
        slot.cache_salt, slot.tokens, slot.mrope_offset, slot.last_used = (
            place.cache_salt,
            place.tokens,
            place.mrope_offset,
            place.last_used,
        )
        return place, slot

    def ready_followers(self) -> list[tuple[Sequence, PrefixMatch]]:
        """The sequences whose leader has prefilled what they share: they wait no longer.

        At most as many as one step takes: what they share is copied first, and the others can wait for that meanwhile.
        """
        found = []
        room = self.chunk
        for sequence in self.running:
            leader = sequence.prefix_owner
            if room > 0 and leader is not None and leader.num_computed_tokens >= sequence.num_shared_tokens:
                room -= len(sequence.tokens) - sequence.num_shared_tokens
                sequence.prefix_owner = None
                found.append((sequence, PrefixMatch(leader.slot, sequence.num_shared_tokens, exact=False)))
        return found

    def finish(self, sequence: Sequence) -> tuple[Sequence, PrefixMatch] | None:
        """The sequence has ended; what the KV cache holds of it stays in its slot.

        Of those that waited for it the first goes on with what there is (it is returned), and leads the others.
        """
        self._clock += 1
        slot = sequence.slot
        slot.tokens, slot.mrope_offset = sequence.tokens[: sequence.num_computed_tokens], sequence.mrope_offset
        slot.last_used, slot.sequence = self._clock, None
        self.running.remove(sequence)
        for other in self.running:
            other.preempted = False
        return self._promote_follower(sequence)

    def _promote_follower(self, leader: Sequence) -> tuple[Sequence, PrefixMatch] | None:
        waiting = [sequence for sequence in self.running if sequence.prefix_owner is leader]
        if not waiting:
            return None
        first, *rest = waiting
        for other in rest:
            other.prefix_owner, other.num_shared_tokens = first, min(first.num_shared_tokens, other.num_shared_tokens)
        first.prefix_owner = None
        return first, PrefixMatch(leader.slot, min(leader.num_computed_tokens, first.num_shared_tokens), exact=False)

    def schedule(self) -> ScheduledBatch | None:
        """The next step; None where all that runs waits for something."""
        before, view = self._previous, self._schedule_image()
        tokens, waited = self._schedule_tokens()
        if view is not None and not (tokens and before):
            return ScheduledBatch((view,), image=True)
        return (
            ScheduledBatch(tuple(tokens), stalls_decode=waited, may_speculate=view is None and before is None)
            if tokens
            else None
        )

    def update(
        self, turn: ScheduledBatch, seconds: float, *, cut: bool = True, done: bool = True, tells: bool = True
    ) -> None:
        """A step took so long, before its sequences go on. `cut`: it took only as much as it was to take; `done`: it
        has brought something; `tells`: steps like it come again."""
        before, self._previous = self._previous, None
        count = sum(tokens for _, tokens in turn.entries)
        if turn.image or (turn.stalls_decode and done):
            self._previous = PreviousStep(count, seconds, turn.image, cut)
        if done and tells and not turn.image:
            decoding = turn.decoding
            earlier = before if before is not None and before.cut else _NOTHING
            self.budget.observe(decoding, count - decoding + earlier.tokens, seconds + earlier.seconds)

    def _awake(self) -> list[Sequence]:
        return [sequence for sequence in self.running if not sequence.preempted and sequence.prefix_owner is None]

    def _schedule_tokens(self) -> tuple[list[tuple[Sequence, int]], bool]:
        """A step with tokens: every decoding sequence's one, then the chunk, shared by those with more; and whether
        running answers wait for it.

        Sharing the chunk keeps a short prompt from waiting behind a long one. Beside decoding sequences it is as large
        as their pace allows, less what an image before it took; where more wait than decode, those come first in the
        measure of their number.
        """
        before = self._previous
        ready = [sequence for sequence in self._awake() if sequence.num_new_tokens > 0]
        prompts = [sequence for sequence in ready if sequence.prefilling]
        decoding = [sequence for sequence in ready if sequence.num_new_tokens == 1]
        taken, waited = ready, False
        if self._separate_prefill and 0 < len(prompts) < len(ready):
            if before is None:
                taken, waited = prompts, True
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
        shares = split_budget([sequence.num_new_tokens for sequence in several], budget)
        counts = {sequence.slot.id: count for sequence, count in zip(several, shares, strict=True)}
        entries = [(sequence, counts.get(sequence.slot.id, 1)) for sequence in taken]
        # In the order of slots: a split KV cache takes neighbours together.
        return sorted((entry for entry in entries if entry[1]), key=lambda entry: entry[0].slot.id), waited

    def _schedule_image(self) -> tuple[Sequence, int] | None:
        """A step with an image: whose, and how many of its tokens as long as it may be cut.

        First come, first served. Beside decoding sequences it is cut as their pace demands, who wait for this step and
        the next one with tokens together.
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
        idle = [slot for slot in self.slots if slot.sequence is None and slot.tokens]
        return min(idle, key=lambda slot: slot.last_used, default=None)

    def preempt(self) -> Sequence | None:
        """Evicting was not enough: the newest sequence steps aside until another ends. None where only one runs."""
        awake = self._awake()
        if len(awake) < 2:
            return None
        newest = max(awake, key=lambda sequence: sequence.arrival)
        newest.preempted = True
        newest.set_computed(0)
        return newest
