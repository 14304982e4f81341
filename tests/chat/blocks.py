"""Reading an output whole, in pieces and byte by byte, and what comes of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from server.chat.events import BlockDelta, BlockEnd, BlockEvent, BlockStart
from server.chat.parser import OutputParser, ParserSpec


@dataclass
class Block:
    kind: str
    text: str = ""
    name: str | None = None
    ended: bool = False

    @property
    def arguments(self) -> Any:
        return json.loads(self.text)


@dataclass
class Reading:
    """The blocks of one output; complains about events out of order."""

    blocks: list[Block] = field(default_factory=list)

    def take(self, events: Iterable[BlockEvent]) -> None:
        for event in events:
            if isinstance(event, BlockStart):
                assert event.index == len(self.blocks)
                assert not self.blocks or self.blocks[-1].ended
                assert (event.name is not None) == (event.block == "toolCall")
                self.blocks.append(Block(event.block, name=event.name))
                continue
            assert isinstance(event, BlockDelta | BlockEnd)
            assert event.index == len(self.blocks) - 1 and not self.blocks[-1].ended
            if isinstance(event, BlockDelta):
                assert event.text
                self.blocks[-1].text += event.text
            else:
                self.blocks[-1].ended = True

    def of(self, kind: str) -> str:
        return "".join(block.text for block in self.blocks if block.kind == kind)

    @property
    def calls(self) -> list[tuple[str | None, Any]]:
        return [(block.name, block.arguments) for block in self.blocks if block.kind == "toolCall"]


def read(spec: ParserSpec, pieces: Iterable[str], finish: Literal["stop", "length"] = "stop") -> Reading:
    """Reads the pieces. Raises MalformedOutput."""
    parser = OutputParser(spec)
    reading = Reading()
    for piece in pieces:
        reading.take(parser.feed(piece))
    reading.take(parser.finish(finish))
    return reading
