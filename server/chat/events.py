"""Block events: a model's text as the parser reads it. The runtime numbers them and writes them as deltas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BlockKind = Literal["text", "thinking", "toolCall"]


@dataclass(frozen=True, slots=True)
class BlockStart:
    """A block opens. `index` counts the blocks of an output."""

    index: int
    block: BlockKind
    name: str | None = None
    """Of the tool that a call is to. The call's id is the runtime's own (http-binding)."""


@dataclass(frozen=True, slots=True)
class BlockDelta:
    """A fragment: of text, of thinking, or of a call's arguments as JSON."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """A block is whole."""

    index: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """The engine says that the model refused. A local model never does; the path is there for one that can."""


BlockEvent = BlockStart | BlockDelta | BlockEnd | Refusal
