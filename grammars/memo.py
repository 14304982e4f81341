"""One bounded memory for results that are worth keeping between compilations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from threading import Lock
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from grammars import limits

P = ParamSpec("P")
R = TypeVar("R")


class _Weighed(Protocol):
    @property
    def weight(self) -> int: ...


_scope: ContextVar[str] = ContextVar("scope", default="")


@contextmanager
def scoped(name: str) -> Iterator[None]:
    """What is compiled and validated within finds only what was kept under the same name.

    Whoever shares a process with others could else tell by the time that a schema takes whether they have used it.
    """
    before = _scope.set(name)
    try:
        yield
    finally:
        _scope.reset(before)


def scope() -> str:
    """The name under which results are kept and found now."""
    return _scope.get()


class Memo:
    """Keeps results of pure functions, the least recently used first to go, while their weights fit a budget.

    Each scope (`scoped`) has results of its own; the budget is one for all.

    A result's `weight` counts its states and edges, or what else its size grows with; the lengths of texts and tuples
    count too. Hostile schemas that come one after another thus cannot fill the memory of a process that lives on.
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
            key = (scope(), function, args, *kwargs.items())
            with self._lock:
                found = self._kept.pop(key, None)
                if found is not None:
                    self._kept[key] = found
                    return cast(R, found[0])
            result = function(*args, **kwargs)
            weight = 1 + sum(map(_length, args)) + _length(result)
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


def _length(value: object) -> int:
    """What a text, a set or a tuple weighs. Tuples of tuples are ranges of characters, mostly."""
    if isinstance(value, tuple):
        return sum(len(part) if isinstance(part, tuple) else 1 for part in value)
    return len(value) // 16 if isinstance(value, str | frozenset) else 0


memo = Memo(limits.CACHED)
