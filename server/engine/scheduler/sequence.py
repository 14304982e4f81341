"""Sequences, the slots they run in, and the batches they are scheduled in."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from server.engine.types import EngineRequest
from server.engine.vision.placeholders import ImageSpan

_FAR = 2**62


@dataclass(slots=True, eq=False)
class Slot:
    """A place in the KV cache for one sequence.

    `tokens` are those of the `sequence` that runs here, else those that a finished request of `cache_salt` left in the
    KV cache. `mrope_offset`: its tokens less its positions (images under M-RoPE)."""

    id: int
    tokens: array[int] = field(default_factory=lambda: array("i"))
    cache_salt: str = ""
    mrope_offset: int = 0
    last_used: int = 0
    sequence: Sequence | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """A request in the batch. The KV cache holds the first `num_computed_tokens` of its `tokens`.

    `num_output_tokens` counts those behind the prompt, `num_jump_forward` those of them that the grammar left no choice
    about, `num_accepted_tokens` the accepted ones of `num_draft_tokens`; `pending_draft` may yet be accepted. With a
    `prefix_owner` it waits for that sequence to prefill the first `num_shared_tokens`, which they have in common.
    `next_image_start`: the beginning of the first of its `images` that is not wholly in the KV cache.
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
        """Tokens still to be decoded before the next image; 0 at an image."""
        end = len(self.tokens)
        return (end if end < self.next_image_start else self.next_image_start) - self.num_computed_tokens

    @property
    def prefilling(self) -> bool:
        """True while more than one token of its prompt is still to be decoded. (A jump forward is of the answer.)"""
        return self.num_new_tokens > 1 and self.num_computed_tokens < len(self.request.tokens)

    @property
    def position(self) -> int:
        """Position of the next token."""
        return self.num_computed_tokens - self.mrope_offset

    @property
    def image(self) -> ImageSpan | None:
        """The image whose embeddings come next; None where a token does."""
        return (
            next(image for image in self.images if image.start == self.next_image_start)
            if self.num_computed_tokens >= self.next_image_start
            else None
        )

    def set_computed(self, count: int) -> None:
        """Note that the KV cache holds the first `count` tokens, no more and no fewer."""
        self.num_computed_tokens, self.mrope_offset, self.next_image_start = count, 0, _FAR
        for image in self.images:
            if image.end > count:
                self.next_image_start = image.start
                break
            self.mrope_offset += image.mrope_offset

    def floor_to_image(self, count: int) -> int:
        """`count`, or the start of the image that reaches beyond it: whole images alone are kept."""
        return next((image.start for image in self.images if image.start < count < image.end), count)

    def position_of(self, count: int) -> int:
        """Position behind the first `count` tokens."""
        return count - sum(image.mrope_offset for image in self.images if image.end <= count)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The first `count` tokens of a sequence, held by `slot`; `exact`: it holds nothing more."""

    slot: Slot
    count: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Admission:
    """A request's new sequence, the prefix it reuses, and the slot to which its slot's content is copied before."""

    sequence: Sequence
    prefix: PrefixMatch
    relocate_to: Slot | None = None


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """One forward pass: `(sequence, num_tokens)` pairs ordered by slot. If `image`, the single pair counts image
    embeddings."""

    entries: tuple[tuple[Sequence, int], ...]
    image: bool = False
    stalls_decode: bool = False
    """Running answers wait for it, though it could take them along."""
    may_speculate: bool = False
    """No other sequence waits for it."""

    @property
    def decoding(self) -> int:
        """Sequences in it with one token to decode, before `Scheduler.update`."""
        return sum(sequence.num_new_tokens == 1 for sequence, _ in self.entries)
