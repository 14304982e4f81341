"""Helpers of the grammar tests: compact JSON, acceptance by the matcher, and random texts of a grammar."""

from __future__ import annotations

import json
import random
from typing import Any

from grammars import Compiled, InvalidInstance, compile_schema
from grammars.testing import Matcher, read


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def spaced(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def matcher(grammar: Compiled | Any) -> Matcher:
    compiled = grammar if isinstance(grammar, Compiled) else compile_schema(grammar)
    return Matcher(read(compiled.gbnf))


def validates(compiled: Compiled, value: Any) -> bool:
    try:
        compiled.validate(value)
    except InvalidInstance:
        return False
    return True


def accepts(grammar: Compiled | Any, *values: Any) -> list[bool]:
    """Whether the grammar, as it is printed, accepts the compact JSON of each value."""
    start = matcher(grammar)
    out = []
    for value in values:
        here = start.copy()
        out.append(here.accept(compact(value)) and here.accepting)
    return out


def random_text(start: Matcher, seed: int, length: int = 120) -> str | None:
    """A random text of the grammar: after `length` characters the walk turns to whatever ends soonest; None if it did
    not end."""
    chance = random.Random(seed)
    here = start.copy()
    out: list[str] = []
    while len(out) < 4 * length:
        if here.accepting and (len(out) >= length or chance.random() < 0.3):
            return "".join(out)
        ranges = here.next_chars()
        if not ranges:
            return "".join(out) if here.accepting else None
        closing = [c for c in '"]}' if any(low <= ord(c) <= high for low, high in ranges)]
        if closing and (len(out) >= length or chance.random() < 0.2):
            char = chance.choice(closing)
        else:
            low, high = chance.choice(ranges)
            high = min(high, 0x7E) if low < 0x7F and chance.random() < 0.9 else high
            code = chance.randint(low, high)
            if 0xD800 <= code <= 0xDFFF:
                continue
            char = chr(code)
        if here.accept(char):
            out.append(char)
    return None
