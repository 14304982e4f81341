"""Slots: which one a request runs in, and whose prefix it reuses."""

from __future__ import annotations

from array import array

from server.engine.scheduler.prefix import MIN_PREFIX, match_length
from server.engine.scheduler.sequence import Admission, PrefixMatch, Sequence, Slot
from server.engine.types import EngineRequest

_MIN_COPY_SHARE = 64
"""A copy of another slot's prefix pays where that slot holds no more than this many times as many tokens: on a CPU a
hundred tokens are copied, with all the slot holds, while one is prefilled."""


class Slots:
    """The slots of a KV cache, with the tokens that each holds.

    `can_copy_prefix`: the beginning of a slot can be copied. `prefer_adjacent`: sequences run best in neighbouring
    slots.
    """

    def __init__(self, count: int, *, can_copy_prefix: bool, prefer_adjacent: bool) -> None:
        self.all = [Slot(i) for i in range(count)]
        self._can_copy_prefix = can_copy_prefix
        self._prefer_adjacent = prefer_adjacent and can_copy_prefix
        self._clock = 0

    @property
    def free(self) -> list[Slot]:
        """The slots in which no sequence runs."""
        return [slot for slot in self.all if slot.sequence is None]

    def admit(self, request: EngineRequest) -> Admission:
        """Start a request's sequence in one of the free slots, of which there must be one.

        It continues in a free slot of its cache salt that holds little but its prefix. Otherwise it takes the slot
        longest unused, and a copy of the longest prefix held anywhere, running sequences included.
        """
        free = self.free
        common = {slot.id: match_length(slot, request.cache_salt, request.tokens) for slot in self.all}
        donor = self._best_match(self.all if self._can_copy_prefix else free, common)
        count = common[donor.id]
        copies = self._can_copy_prefix and count >= MIN_PREFIX and _MIN_COPY_SHARE * count >= len(donor.tokens)
        if donor.sequence is None and count and 2 * count >= len(donor.tokens):
            slot = donor
        else:
            others = [slot for slot in free if slot is not donor] if copies else []
            slot = min(others or free, key=lambda each: each.last_used)
        slot, relocate_to = self._place(slot, free, donor if copies else None)
        count = count if copies or slot is donor else 0
        prefix = PrefixMatch(donor, count, count == len(donor.tokens))
        self._clock += 1
        sequence = Sequence(request, slot, self._clock, array("i", request.tokens))
        if count and donor.sequence is not None and donor.sequence.num_computed_tokens < count:
            sequence.prefix_owner, sequence.num_shared_tokens = donor.sequence, count
            prefix = PrefixMatch(donor, 0, exact=False)
        slot.cache_salt, slot.tokens, slot.sequence = request.cache_salt, sequence.tokens, sequence
        return Admission(sequence, prefix, relocate_to)

    def finish(self, sequence: Sequence) -> None:
        """Free a sequence's slot; the part of it that the KV cache holds stays there."""
        self._clock += 1
        slot = sequence.slot
        slot.tokens, slot.mrope_offset = sequence.tokens[: sequence.num_computed_tokens], sequence.mrope_offset
        slot.last_used, slot.sequence = self._clock, None

    def evict(self) -> Slot | None:
        """The free slot to forget when the KV cache is full: the one longest unused that still holds something."""
        idle = [slot for slot in self.free if slot.tokens]
        return min(idle, key=lambda slot: slot.last_used, default=None)

    def _best_match(self, slots: list[Slot], common: dict[int, int]) -> Slot:
        """The slot with the longest common prefix; of those with about as long a one the one that has it soonest: one
        in the KV cache, else one being prefilled, else one that waits for its own prefix owner."""
        most = max(common[slot.id] for slot in slots)
        near = [slot for slot in slots if common[slot.id] > max(0, most - MIN_PREFIX)] or slots

        def promise(slot: Slot) -> tuple[bool, bool, int, bool]:
            runner, count = slot.sequence, common[slot.id]
            there = runner is None or runner.num_computed_tokens >= count
            return there, runner is None or runner.prefix_owner is None, count, runner is None

        return max(near, key=promise)

    def _place(self, slot: Slot, free: list[Slot], donor: Slot | None) -> tuple[Slot, Slot | None]:
        """The slot to run in and the one to relocate its content to, for a request that would take `slot`.

        Where sequences run best side by side, a slot next to those that run is taken.
        """
        if not self._prefer_adjacent:
            return slot, None
        busy = {each.id for each in self.all if each.sequence is not None}
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


def count_runs(ids: set[int]) -> int:
    """The number of runs of neighbours that these ids form."""
    return sum(number - 1 not in ids for number in ids)
