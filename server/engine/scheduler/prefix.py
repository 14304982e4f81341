"""Common prefixes of token sequences."""

from __future__ import annotations

from array import array
from typing import Protocol

import numpy as np

MIN_PREFIX = 8
"""Tokens that are not worth a difference: as soon prefilled as looked for."""


class CachedTokens(Protocol):
    """Tokens held in a cache, for requests of one cache salt alone."""

    @property
    def cache_salt(self) -> str: ...

    @property
    def tokens(self) -> array[int]: ...


def match_length(cached: CachedTokens, cache_salt: str, tokens: array[int]) -> int:
    """The length of the common prefix with cached tokens; 0 where these are another salt's."""
    return common_prefix(cached.tokens, tokens) if cached.cache_salt == cache_salt else 0


def common_prefix(one: array[int], other: array[int]) -> int:
    """The length of the common prefix of two token sequences."""
    length = min(len(one), len(other))
    if not length:
        return 0
    differ = np.frombuffer(one, np.int32, length) != np.frombuffer(other, np.int32, length)
    first = int(differ.argmax())
    return first if differ[first] else length
