"""Drafts for a step of running sequences: from which drafter, how many, and whether it paid."""

from __future__ import annotations

import time
from array import array
from typing import NamedTuple

from server.engine.scheduler.scheduler import ScheduledBatch
from server.engine.speculative.base import DraftController, Drafter, DraftRequest, NgramDrafter
from server.engine.worker.loader import LoadedModel
from server.engine.worker.output import tokens_left


class DraftBatch(NamedTuple):
    """Draft tokens of one step by request, the controller that asked for them, and the seconds they took to make."""

    tokens: dict[int, array[int]]
    controller: DraftController | None = None
    seconds: float = 0.0


NO_DRAFTS = DraftBatch({})


class Speculator:
    """Asks the drafters in turn: the first that has something to say is heard."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._context = loaded.context
        self._context_length = loaded.plan.context_length
        drafters: list[Drafter] = [NgramDrafter()] if loaded.draft_tokens else []
        if loaded.drafter is not None:
            drafters.append(loaded.drafter)
        self.controllers = [DraftController(drafter) for drafter in drafters]
        self._skip = False

    def skip_next(self) -> None:
        """Do without drafts in the next step."""
        self._skip = True

    def draft(self, batch: ScheduledBatch) -> DraftBatch:
        """Tokens with which running sequences may go on, where nothing is prefilled beside them."""
        skip, self._skip = self._skip, False
        if skip or any(sequence.num_new_tokens > 1 for sequence, _ in batch.entries):
            return NO_DRAFTS
        requests = self._requests(batch)
        together = len(batch.entries)
        # Out of a running state only as many tokens can be taken back as all sequences have decoded together.
        even = self._context.snapshots
        if not requests or (
            even and not (len(requests) == together and self._context.can_rollback({each.slot for each in requests}))
        ):
            return NO_DRAFTS
        for controller in self.controllers:
            if most := controller.draft_length(together):
                began = time.monotonic()
                drafts = controller.drafter.propose(requests, min(most, even or most))
                if even:
                    shortest = min(map(len, drafts.values())) if len(drafts) == together else 0
                    drafts = {request: draft[:shortest] for request, draft in drafts.items() if shortest}
                if drafts:
                    return DraftBatch(drafts, controller, time.monotonic() - began)
        return NO_DRAFTS

    def _requests(self, batch: ScheduledBatch) -> list[DraftRequest]:
        return [
            DraftRequest(
                sequence.request.id,
                sequence.slot.id,
                sequence.request.cache_salt,
                sequence.tokens,
                room,
                bool(sequence.images),
            )
            for sequence, _ in batch.entries
            # Else an image comes next; or the token that is being decoded is the last but one.
            if sequence.num_computed_tokens + 1 == len(sequence.tokens)
            and (room := tokens_left(sequence, self._context_length) - 1) > 0
        ]

    def observe(self, decoding: int, drafts: DraftBatch, accepted: int, seconds: float) -> None:
        """Note a step of `decoding` sequences and nothing else; one without drafts tells every controller."""
        drafted = sum(map(len, drafts.tokens.values()))
        for controller in self.controllers if drafts.controller is None else [drafts.controller]:
            controller.observe(decoding, drafted, accepted, seconds + drafts.seconds)
