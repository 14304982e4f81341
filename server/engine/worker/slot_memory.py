"""KV cache of the slots: prefixes that sequences reuse, copies between slots, and cuts."""

from __future__ import annotations

from server.engine.scheduler.scheduler import MIN_PREFIX, PrefixMatch, Sequence, Slot
from server.engine.worker.loader import LoadedModel
from server.engine.worker.prefix import PrefixCache, PrefixEntry


class SlotMemory:
    """Keeps llama.cpp's memory in line with the scheduler's slots, and tells a drafter that follows it."""

    def __init__(self, loaded: LoadedModel) -> None:
        plan, model = loaded.plan, loaded.model
        self._model = model
        self._context = loaded.context
        self._mtp_drafter = loaded.mtp_drafter
        can_cut = not model.recurrent and not model.window
        self.prefix_cache = PrefixCache() if plan.kv_per_slot and can_cut and plan.slots > 1 else None

    def restore_prefix(self, sequence: Sequence, prefix: PrefixMatch) -> None:
        """Begin with as much of the sequence's first tokens as a slot or the prefix cache holds, where that is provably
        right."""
        context, slot, donor = self._context, sequence.slot, prefix.slot
        # The last prompt token's logits are needed.
        keep = sequence.floor_to_image(min(prefix.count, len(sequence.tokens) - 1))
        position = sequence.position_of(keep)
        if self._model.recurrent:
            keep = keep if prefix.exact and keep == prefix.count else 0  # a running state cannot be cut
        elif (window := self._model.window) and context.first_position(donor.id) > max(0, position - window):
            keep = 0  # tokens that the window needs have been overwritten
        if (entry := self._match_cache(sequence, keep, copied=donor is not slot)) is not None:
            keep = len(entry.tokens) if context.load_state(slot.id, entry.state, len(entry.tokens)) else 0
            if self._mtp_drafter is not None:
                self._mtp_drafter.forget(slot.id)
        elif not keep:
            context.seq_rm(slot.id)
        elif donor is not slot:
            keep = self._copy_prefix(sequence, donor, keep)
        elif not (prefix.exact and keep == prefix.count) and not context.seq_rm(slot.id, position):
            context.seq_rm(slot.id)
            keep = 0
        sequence.set_computed(keep)
        sequence.num_cached_tokens = keep

    def _match_cache(self, sequence: Sequence, count: int, *, copied: bool) -> PrefixEntry | None:
        """A cached prefix, where it is longer than the `count` tokens a slot would give, or as good as their copy."""
        if self.prefix_cache is None or sequence.prefix_owner is not None or sequence.images:
            return None
        entry = self.prefix_cache.match(sequence.request.cache_salt, sequence.tokens)
        least = count - MIN_PREFIX if copied and count else count + MIN_PREFIX
        return entry if entry is not None and len(entry.tokens) >= least else None

    def _copy_prefix(self, sequence: Sequence, donor: Slot, count: int) -> int:
        """Copy the first tokens of another slot; returns how many. A small part of that slot is worth caching."""
        if not self.copy(donor, sequence.slot, sequence.position_of(count)):
            return 0
        if self.prefix_cache is not None and not sequence.images and 2 * count < len(donor.tokens):
            state = self._context.save_state(sequence.slot.id)
            self.prefix_cache.insert(PrefixEntry(sequence.request.cache_salt, sequence.tokens[:count], state))
        return count

    def copy(self, source: Slot, target: Slot, count: int) -> bool:
        """Give a slot the first `count` positions of another, in place of all it held; False where that failed."""
        copied = self._context.seq_cp(source.id, target.id, count)
        if self._mtp_drafter is not None:
            self._mtp_drafter.copy(source.id, target.id, count if copied else 0)
        return copied

    def relocate(self, source: Slot, target: Slot) -> None:
        """Move the tokens that the scheduler has given another slot, before a sequence overwrites them."""
        if not self.copy(source, target, len(target.tokens) - target.mrope_offset):
            target.tokens = target.tokens[:0]

    def rewind(self, sequence: Sequence) -> None:
        """Cut a slot to the computed tokens of its sequence; an image that is only in part there is taken out."""
        sequence.set_computed(min(sequence.num_computed_tokens, sequence.next_image_start))
        if not self._context.seq_rm(sequence.slot.id, sequence.position):
            self.clear(sequence)

    def clear(self, sequence: Sequence) -> None:
        """Forget all that a running sequence's slot holds."""
        self._context.seq_rm(sequence.slot.id)
        sequence.set_computed(0)

    def evict(self, slot: Slot) -> None:
        """Forget all that an idle slot holds."""
        self._context.seq_rm(slot.id)
        slot.tokens = slot.tokens[:0]
