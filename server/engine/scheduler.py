"""Who runs, where, and how much of each prompt in the next step: policy alone, without llama.cpp.

A *slot* is a place in the KV cache that holds one sequence. Finished sequences stay in their slot until another job
needs it, so that a job which begins like one of them need not prefill what they share. Jobs wait first come,
first served; all running sequences share each step.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from server.engine.messages import Job


@dataclass(slots=True, eq=False)
class Slot:
    """`tokens` are what the KV cache holds for this sequence id, left there by a job of `scope`."""

    id: int
    tokens: array[int] = field(default_factory=lambda: array("i"))
    scope: str = ""
    used: int = 0
    busy: bool = False


@dataclass(slots=True, eq=False)
class Sequence:
    """A job in the batch. The first `past` of its `tokens` are in the KV cache, the rest are still to be decoded."""

    job: Job
    slot: Slot
    order: int
    tokens: array[int]
    past: int = 0
    cache_read: int = 0
    output: int = 0
    parked: bool = False

    @property
    def remaining(self) -> int:
        return len(self.tokens) - self.past


def common_prefix(one: array[int], other: array[int]) -> int:
    """How many tokens two sequences share at their beginning."""
    length = min(len(one), len(other))
    if not length:
        return 0
    differ = np.frombuffer(one, np.int32, length) != np.frombuffer(other, np.int32, length)
    first = int(differ.argmax())
    return first if differ[first] else length


def share(wanted: list[int], budget: int) -> list[int]:
    """Split a budget: half of it evenly, so that none starves, the rest to the smallest first. Each gets at least 1."""
    if not wanted:
        return []
    floor = max(1, budget // (2 * len(wanted)))
    shares = [min(want, floor) for want in wanted]
    left = budget - sum(shares)
    for index in sorted(range(len(wanted)), key=wanted.__getitem__):
        more = max(0, min(wanted[index] - shares[index], left))
        shares[index] += more
        left -= more
    return shares


class Scheduler:
    """Slots, the queue behind them, and the sequences that run."""

    def __init__(self, slots: int, chunk: int) -> None:
        self.slots = [Slot(i) for i in range(slots)]
        self.chunk = chunk
        self.queue: deque[Job] = deque()
        self.running: list[Sequence] = []
        self._clock = 0

    def submit(self, job: Job) -> None:
        self.queue.append(job)

    def drop(self, job_id: int) -> Sequence | None:
        """Take a job out of the queue, or its sequence out of the batch."""
        for sequence in self.running:
            if sequence.job.id == job_id:
                self.release(sequence)
                return sequence
        self.queue = deque(job for job in self.queue if job.id != job_id)
        return None

    def admit(self) -> tuple[Sequence, int] | None:
        """Give the next waiting job a slot; the sequence, and how many of the slot's tokens it begins with.

        The free slot of the same scope with the longest common prefix, where that is worth giving up the rest of
        what the slot holds; else the one longest unused.
        """
        if not self.queue or any(sequence.parked for sequence in self.running):
            return None
        free = [slot for slot in self.slots if not slot.busy]
        if not free:
            return None
        job = self.queue.popleft()

        def fit(slot: Slot) -> tuple[int, int]:
            common = common_prefix(slot.tokens, job.tokens) if slot.scope == job.scope else 0
            # every conversation of a template begins alike: that much is no reason to overwrite another one
            return (common if 2 * common >= min(len(slot.tokens), len(job.tokens)) else 0, -slot.used)

        slot = max(free, key=fit)
        common, _ = fit(slot)
        self._clock += 1
        slot.busy, slot.scope = True, job.scope
        sequence = Sequence(job, slot, self._clock, array("i", job.tokens))
        self.running.append(sequence)
        return sequence, common

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended; what the KV cache holds of it stays in its slot."""
        self._clock += 1
        slot = sequence.slot
        slot.tokens, slot.used, slot.busy = sequence.tokens[: sequence.past], self._clock, False
        self.running.remove(sequence)
        for other in self.running:
            other.parked = False

    def plan(self) -> list[tuple[Sequence, int]]:
        """The next step: every decoding sequence's one token, then the chunk, shared by those in prefill.

        Sharing it keeps a short prompt from waiting behind a long one; half a chunk beside decoding sequences keeps
        their stalls short, at a tenth of the prefill's speed.
        """
        decoding = [(s, 1) for s in self.running if s.remaining == 1 and not s.parked]
        prefilling = [s for s in self.running if s.remaining > 1 and not s.parked]
        budget = (self.chunk + 1) // 2 if decoding else self.chunk
        shares = share([s.remaining for s in prefilling], budget)
        return decoding + list(zip(prefilling, shares, strict=True))

    def evict(self) -> Slot | None:
        """The idle slot to forget when the KV cache is full: the one longest unused that still holds something."""
        idle = [slot for slot in self.slots if not slot.busy and slot.tokens]
        return min(idle, key=lambda slot: slot.used, default=None)

    def park(self) -> Sequence | None:
        """Evicting was not enough: the newest sequence steps aside until another ends. None where only one runs."""
        awake = [sequence for sequence in self.running if not sequence.parked]
        if len(awake) < 2:
            return None
        newest = max(awake, key=lambda sequence: sequence.order)
        newest.parked = True
        newest.past = 0
        return newest
