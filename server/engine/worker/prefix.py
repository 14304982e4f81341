"""Prefix cache in host memory: KV state of prompt beginnings shared by many requests (system prompt, template header).

Where every slot has cells of its own, a prefix that another slot holds can only be copied by reading all of that slot
and writing it anew. An entry here has been read once, is no longer than the shared prefix, and outlives its slot.
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
    """`state` of the KV cache for `tokens`, for requests of one `cache_salt`."""

    cache_salt: str
    tokens: array[int]
    state: NDArray[np.uint8]


class PrefixCache:
    """The entries used last, in at most `room` bytes."""

    def __init__(self, room: int = PREFIX_CACHE_BYTES) -> None:
        self._room = room
        self._entries: list[PrefixEntry] = []

    def match(self, cache_salt: str, tokens: array[int]) -> PrefixEntry | None:
        """The longest entry of this salt that is a proper prefix of the tokens."""
        found = None
        for entry in self._entries:
            count = len(entry.tokens)
            longer = count < len(tokens) and (found is None or count > len(found.tokens))
            if longer and entry.cache_salt == cache_salt and common_prefix(entry.tokens, tokens) == count:
                found = entry
        if found is not None:
            self._entries.remove(found)
            self._entries.append(found)
        return found

    def insert(self, entry: PrefixEntry) -> None:
        """Keep an entry, in place of those longest unused. One that would take most of the room is not worth it."""
        if 2 * entry.state.size > self._room or len(entry.tokens) < MIN_PREFIX:
            return
        self._entries.append(entry)
        while sum(each.state.size for each in self._entries) > self._room:
            del self._entries[0]
