"""Blocks of one generation: their lifecycle, their numbering as deltas, and the parts they add up to.

NAP-LLM, "Delta": one start, any number of fragments, one end per block; blocks may interleave; indices and kinds stay;
the fragments joined are the final text. Slow consumers get fewer, larger deltas; nothing is dropped in between.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from server.chat import MOST_CALLS
from server.chat.events import BlockDelta, BlockEvent, BlockKind, BlockStart, Refusal
from server.wire import strict_json
from server.wire.records import Delta, Part, TextPart, ThinkingPart, ToolCallPart, WireError


@dataclass(slots=True)
class _Block:
    kind: BlockKind
    call_id: str | None
    name: str | None
    text: list[str] = field(default_factory=list)
    waiting: list[str] | None = None
    """Fragments that no delta carries yet, where the last delta of this block is still to be taken."""
    ended: bool = False
    part: Part | None = None
    """Of a call that has ended."""


@dataclass(slots=True)
class _Waiting:
    """One delta to come. It has no number before it is taken, so more text can still join it."""

    event: str
    index: int
    text: list[str] | None = None


class BlockAssembler:
    """Assembler of a turn's blocks. `push` takes block events, `take` gives the deltas that are due.

    What waits is bounded by the output itself: one start, one fragment and one end per block, however slow the reader.
    `most_calls` bounds the calls of the turn.
    """

    def __init__(self, request_id: str, most_calls: int = MOST_CALLS) -> None:
        self._request_id = request_id
        self._most_calls = most_calls
        self._blocks: dict[int, _Block] = {}
        self._waiting: list[_Waiting] = []
        self._sequence = 0
        self.refused = False

    @property
    def due(self) -> bool:
        return bool(self._waiting)

    @property
    def empty(self) -> bool:
        return not self._blocks

    def push(self, events: Iterable[BlockEvent]) -> None:
        """Raises `provider-error` where the events break the lifecycle, a call's arguments are no JSON object, or there
        is a call too many: as soon as that is certain, so that nothing more is decoded in vain."""
        for event in events:
            if isinstance(event, BlockDelta):
                self._delta(event.index, event.text)
            elif isinstance(event, BlockStart):
                self._start(event)
            elif isinstance(event, Refusal):
                self.refused = True
            else:
                block = self._open(event.index)
                block.ended, block.waiting = True, None
                if block.kind == "toolCall":
                    block.part = _part(block)
                self._waiting.append(_Waiting("end", event.index))

    def take(self) -> list[Delta]:
        """The deltas since the last call, numbered on."""
        deltas = []
        for sequence, each in enumerate(self._waiting, self._sequence):
            block = self._blocks[each.index]
            if each.text is not None:
                block.waiting = None
                text = each.text[0] if len(each.text) == 1 else "".join(each.text)
                deltas.append(Delta(self._request_id, sequence, "delta", block.kind, each.index, text))
            elif each.event == "start":
                deltas.append(
                    Delta(self._request_id, sequence, "start", block.kind, each.index, None, block.call_id, block.name)
                )
            else:
                deltas.append(Delta(self._request_id, sequence, "end", block.kind, each.index))
        self._sequence += len(deltas)
        self._waiting.clear()
        return deltas

    def discard(self) -> None:
        """Forgets what waits: nothing follows a terminal error, and some consumers want the result alone."""
        for each in self._waiting:
            self._blocks[each.index].waiting = None
        self._waiting.clear()

    def completed(self) -> tuple[Part, ...]:
        """All parts of a completed turn. Raises `provider-error` where a block is unfinished or a call no object."""
        if sorted(self._blocks) != list(range(len(self._blocks))) or not all(b.ended for b in self._blocks.values()):
            raise WireError("provider-error", "the output ended inside a block")
        ordered = (self._blocks[index] for index in range(len(self._blocks)))
        return tuple(block.part or _part(block) for block in ordered)

    def partial(self) -> tuple[Part, ...]:
        """Text and thinking of a truncated or refused turn. Its calls, even finished ones, do not count."""
        ordered = (self._blocks[index] for index in sorted(self._blocks))
        return tuple(_part(block) for block in ordered if block.kind != "toolCall")

    def _start(self, event: BlockStart) -> None:
        if event.index in self._blocks:
            raise WireError("provider-error", "the output begins a block twice")
        call = event.block == "toolCall"
        if call and not event.name:
            raise WireError("provider-error", "the output calls a tool without a name")
        if call and sum(block.kind == "toolCall" for block in self._blocks.values()) >= self._most_calls:
            raise _too_many_calls(self._most_calls)
        # Ids are the runtime's own, unique over all conversations, whatever the format carries (http-binding).
        call_id = f"call_{secrets.token_hex(12)}" if call else None
        self._blocks[event.index] = _Block(event.block, call_id, event.name if call else None)
        self._waiting.append(_Waiting("start", event.index))

    def _delta(self, index: int, text: str) -> None:
        if not text:
            return
        block = self._open(index)
        if not text.isascii():
            text = _encodable(text)
        block.text.append(text)
        if block.waiting is not None:
            block.waiting.append(text)
        else:
            block.waiting = [text]
            self._waiting.append(_Waiting("delta", index, block.waiting))

    def _open(self, index: int) -> _Block:
        block = self._blocks.get(index)
        if block is None or block.ended:
            raise WireError("provider-error", "the output continues a block that is not open")
        return block


def _too_many_calls(most: int) -> WireError:
    calls = "one call" if most == 1 else f"{most} calls"
    return WireError(
        "provider-error", f"the model made more than {calls} in one turn, which is the limit", reason="calls"
    )


def _part(block: _Block) -> Part:
    text = "".join(block.text)
    if block.kind == "text":
        return TextPart(text)
    if block.kind == "thinking":
        return ThinkingPart(text)
    try:
        arguments = strict_json.parse(text.encode())
    except strict_json.NotJson:
        raise WireError("provider-error", "the arguments of a tool call are not JSON") from None
    if arguments.violation or not isinstance(arguments.value, dict):
        raise WireError("provider-error", "the arguments of a tool call are not a JSON object")
    return ToolCallPart(block.call_id or "", block.name or "", arguments.value)


def _encodable(text: str) -> str:
    """A lone surrogate has no UTF-8, so no envelope could carry it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
