"""One bounded memory for results that are worth keeping between compilations."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from . import limits

P = ParamSpec("P")
R = TypeVar("R")


class _Weighed(Protocol):
    @property
    def weight(self) -> int: ...


class Memo:
    """Keeps results of pure functions, the least recently used first to go, while their weights fit a budget.

    A result's `weight` counts its states and edges, or what else its size grows with; a long text of an argument counts
    too. Hostile schemas that come one after another thus cannot fill the memory of a process that lives on.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.weight = 0
        self._kept: dict[tuple[Any, ...], tuple[Any, int]] = {}
        self._lock = Lock()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorates a function of hashable positional arguments."""

        @wraps(function)
        def remembering(*args: P.args, **kwargs: P.kwargs) -> R:
            key = (function, args, *kwargs.items())
            with self._lock:
                found = self._kept.pop(key, None)
                if found is not None:
                    self._kept[key] = found
                    return cast(R, found[0])
            result = function(*args, **kwargs)
            weight = 1 + sum(len(part) // 16 for part in args if isinstance(part, str | frozenset))
            if hasattr(result, "weight"):
                weight += cast(_Weighed, result).weight
            with self._lock:
                if key not in self._kept:
                    self._kept[key] = (result, weight)
                    self.weight += weight
                while self.weight > self.budget and len(self._kept) > 1:
                    self.weight -= self._kept.pop(next(iter(self._kept)))[1]
            return result

        return remembering


memo = Memo(limits.CACHED)
