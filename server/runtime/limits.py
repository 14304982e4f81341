"""The owner's policy on how often and how much at once: of an endpoint, of all endpoints of its token, and of all.

An endpoint's name is free text of its shell's (http-binding, "Who is calling"), so limits of endpoints alone would
bound nobody: a token may name as many as it likes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from server.config import Limits
from server.runtime.endpoint import Endpoint
from server.wire.records import WireError

Asker = TypeVar("Asker")

MAX_ASKERS = 16_384
"""Bound on the askers that are remembered; the one that asked longest ago is forgotten first."""


class RateLimiter(Generic[Asker]):
    """Requests of one asker in any minute; 0: no limit. One is forgotten once its last request is a minute old."""

    WINDOW = 60.0

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._times: OrderedDict[Asker, deque[float]] = OrderedDict()

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._times)

    def full(self, asker: Asker, now: float) -> bool:
        """True where one more request would be one too many."""
        horizon = now - self.WINDOW
        while self._times and next(iter(self._times.values()))[-1] <= horizon:
            self._times.popitem(last=False)
        times = self._times.get(asker)
        while times and times[0] <= horizon:
            times.popleft()
        return times is not None and len(times) >= self._per_minute

    def count(self, asker: Asker, now: float) -> None:
        if self._per_minute == 0:
            return
        times = self._times.setdefault(asker, deque())
        times.append(now)
        self._times.move_to_end(asker)
        if len(self._times) > MAX_ASKERS:
            self._times.popitem(last=False)


class Rates:
    """Rate limits of an endpoint, and of all endpoints of its token together."""

    def __init__(self, limits: Limits) -> None:
        self.endpoints: RateLimiter[Endpoint] = RateLimiter(limits.requests_per_minute)
        self.tokens: RateLimiter[str] = RateLimiter(limits.requests_per_minute_per_token)

    def admit(self, endpoint: Endpoint, now: float) -> None:
        """Counts one request. Raises `quota-exceeded` where it is one too many; that one is not counted."""
        if self.tokens.full(endpoint.token, now) or self.endpoints.full(endpoint, now):
            raise WireError("quota-exceeded", "too many requests in the last minute", reason="rate")
        self.tokens.count(endpoint.token, now)
        self.endpoints.count(endpoint, now)


def check_places(taken: Iterable[Endpoint], endpoint: Endpoint, limits: Limits, what: str) -> None:
    """Raises `quota-exceeded` where one more would be too many. `taken` are the endpoints of what there is, `what` its
    name in the plural."""
    all_ = [*taken]
    own = [each for each in all_ if each.token == endpoint.token]
    for count, most, whose in (
        (own.count(endpoint), limits.concurrent_per_endpoint, " of this endpoint"),
        (len(own), limits.concurrent_per_token, " of this token"),
        (len(all_), limits.concurrent, ""),
    ):
        if count >= most:
            raise WireError("quota-exceeded", f"too many {what}{whose} are active", reason="concurrency")
