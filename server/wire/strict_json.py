"""Strict JSON (http-binding, "Requests"): what a body may say beyond RFC 8259's grammar.

NaN, infinities (also by overflow), duplicate keys, lone surrogates and nesting beyond a bound are violations.
They are reported beside the parsed value rather than raised, so that an envelope whose `type` and `id` are
readable can still be answered in correlation.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 128

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


class NotJson(ValueError):
    """The bytes are no JSON text at all. The message says where, never what."""


@dataclass(frozen=True, slots=True)
class Parsed:
    value: Any
    violation: str | None
    """The first breach of strictness, in words; None where there is none."""
    duplicate_members: frozenset[str]
    """Names that stand more than once in the outermost object."""


class _Hooks:
    def __init__(self) -> None:
        self.violation: str | None = None
        self.last_duplicates: frozenset[str] = frozenset()

    def _breach(self, what: str) -> None:
        if self.violation is None:
            self.violation = what

    def constant(self, name: str) -> float:
        self._breach("NaN and infinities are not JSON")
        return 0.0

    def real(self, text: str) -> float:
        number = float(text)
        if not math.isfinite(number):
            self._breach("a number is too large")
            return 0.0
        return number

    def integer(self, text: str) -> int:
        # Beyond a float's range no JSON reader agrees on the value; Python's own digit limit lies far above.
        if len(text) > 308 and not math.isfinite(float(text)):
            self._breach("a number is too large")
            return 0
        return int(text)

    def members(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        self.last_duplicates = frozenset()
        if len(value) != len(pairs):
            self._breach("an object has a duplicate key")
            counts = Counter(key for key, _ in pairs)
            self.last_duplicates = frozenset(key for key, count in counts.items() if count > 1)
        return value


def parse(body: bytes, *, max_depth: int = MAX_DEPTH) -> Parsed:
    """Parses one JSON text. Raises `NotJson` where there is none, nested beyond any reading included."""
    hooks = _Hooks()
    try:
        value = json.loads(
            body.decode("utf-8"),
            parse_constant=hooks.constant,
            parse_float=hooks.real,
            parse_int=hooks.integer,
            object_pairs_hook=hooks.members,
        )
    except UnicodeDecodeError as error:
        raise NotJson(f"the body is not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"the body is not JSON (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise NotJson("the body is nested too deeply") from None
    violation = hooks.violation
    # Both walks are needed only where the bytes make a breach possible at all.
    if violation is None and body.count(b"[") + body.count(b"{") > max_depth and _depth_exceeds(value, max_depth):
        violation = f"the body is nested more than {max_depth} levels deep"
    if violation is None and _SURROGATE_ESCAPE.search(body) and any(_has_lone_surrogate(s) for s in _strings(value)):
        violation = "a string holds a lone surrogate"
    return Parsed(value, violation, hooks.last_duplicates if isinstance(value, dict) else frozenset())


def _depth_exceeds(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not any(isinstance(item, dict | list) for item in level):
            return False
        level = below
    return True


def _strings(value: Any) -> Iterator[str]:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            yield from item
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _has_lone_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False
