"""Syntax tree of regular expressions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from grammars.automata.chars import Ranges


@dataclass(frozen=True, slots=True)
class Literal:
    text: str


@dataclass(frozen=True, slots=True)
class CharClass:
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Dot:
    pass


@dataclass(frozen=True, slots=True)
class Anchor:
    """`start`, `end`, `word` (a word boundary) or `inside` (its opposite)."""

    kind: str


@dataclass(frozen=True, slots=True)
class Concat:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repetition:
    part: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Lookaround:
    ahead: bool
    positive: bool
    part: Node


@dataclass(frozen=True, slots=True)
class Flags:
    part: Node
    on: str
    off: str


Node: TypeAlias = Literal | CharClass | Dot | Anchor | Concat | Alternation | Repetition | Lookaround | Flags
