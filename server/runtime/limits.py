"""The owner's policy on how often an endpoint may ask."""

from __future__ import annotations

from collections import OrderedDict, deque

from server.runtime.endpoint import Endpoint
from server.wire.records import WireError


class Rate:
    """Requests of one endpoint in any minute. An endpoint is forgotten once its last request is a minute old."""

    WINDOW = 60.0

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._times: OrderedDict[Endpoint, deque[float]] = OrderedDict()

    def admit(self, endpoint: Endpoint, now: float) -> None:
        """Counts one request. Raises `quota-exceeded` where it is one too many; that one is not counted."""
        if self._per_minute == 0:
            return
        horizon = now - self.WINDOW
        while self._times and next(iter(self._times.values()))[-1] <= horizon:
            self._times.popitem(last=False)
        times = self._times.setdefault(endpoint, deque())
        while times and times[0] <= horizon:
            times.popleft()
        if len(times) >= self._per_minute:
            raise WireError("quota-exceeded", "too many requests in the last minute", reason="rate")
        times.append(now)
        self._times.move_to_end(endpoint)
