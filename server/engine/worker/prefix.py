"""Heads: what many prompts begin with (a template's opening, a system prompt), kept outside the KV cache.

Where every slot has cells of its own, a beginning that another slot holds is had by reading all that is there and
writing it anew. A head has been read once, is no longer than what is shared, and outlives the slots it came from.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.engine.scheduler.scheduler import MIN_PREFIX, common_prefix
from server.engine.types import PREFIX_CACHE_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class PrefixEntry:
    """`tokens` as the KV cache holds them, in `state`; for jobs of `scope`."""

    cache_salt: str
    tokens: array[int]
    state: NDArray[np.uint8]


class PrefixCache:
    """The heads used last, in at most `room` bytes."""

    def __init__(self, room: int = PREFIX_CACHE_BYTES) -> None:
        self._room = room
        self._entries: list[PrefixEntry] = []

    def match(self, scope: str, tokens: array[int]) -> PrefixEntry | None:
        """The longest head of this scope that the tokens begin with and go on behind."""
        found = None
        for head in self._entries:
            count = len(head.tokens)
            longer = count < len(tokens) and (found is None or count > len(found.tokens))
            if longer and head.cache_salt == scope and common_prefix(head.tokens, tokens) == count:
                found = head
        if found is not None:
            self._entries.remove(found)
            self._entries.append(found)
        return found

    def insert(self, head: PrefixEntry) -> None:
        """Keep a head, in place of those longest unused. One that would take most of the room is not worth it."""
        if 2 * head.state.size > self._room or len(head.tokens) < MIN_PREFIX:
            return
        self._entries.append(head)
        while sum(each.state.size for each in self._entries) > self._room:
            del self._entries[0]
