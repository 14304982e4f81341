"""Partial reply, read from its deltas. Provisional: only the Generation at the end counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from server.wire.records import Delta, Part, TextPart, ThinkingPart


@dataclass(frozen=True, slots=True)
class PartialCall:
    """A call that has no authority: to be looked at and never run.

    `arguments` are the fragments of the deltas joined. They are the JSON that the server has made of what the model
    wrote in its own format, which need not be JSON; they may stop anywhere, and be empty where none has come.
    """

    name: str
    arguments: str


@dataclass(slots=True)
class _Block:
    kind: str
    name: str
    texts: list[str] = field(default_factory=list)


class DeltaReader:
    """The blocks of one reply, as far as its deltas have come."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}

    def add(self, delta: Delta) -> None:
        if delta.event == "start":
            self._blocks[delta.block_index] = _Block(delta.block, delta.name or "")
        elif delta.text:
            self._blocks[delta.block_index].texts.append(delta.text)

    def parts(self) -> tuple[Part, ...]:
        """Text and thinking, in the order of their blocks, without empty ones."""
        kinds: dict[str, type[TextPart] | type[ThinkingPart]] = {"text": TextPart, "thinking": ThinkingPart}
        return tuple(
            kinds[block.kind]("".join(block.texts))
            for _, block in sorted(self._blocks.items())
            if block.kind in kinds and any(block.texts)
        )

    def calls(self) -> tuple[PartialCall, ...]:
        return tuple(
            PartialCall(block.name, "".join(block.texts))
            for _, block in sorted(self._blocks.items())
            if block.kind == "toolCall"
        )
