"""Block events of one output, in the order in which a parser makes them certain."""

from __future__ import annotations

from server.chat.events import BlockDelta, BlockEnd, BlockEvent, BlockKind, BlockStart


class EventBuilder:
    """Opens and closes blocks and gathers their events.

    White space around text waits until it is known what follows: beside a marker it is dropped or, with `own_space`, is
    that of the visible text which it leads or ends.
    """

    def __init__(self, *, own_space: bool = False) -> None:
        self._own_space = own_space
        self._events: list[BlockEvent] = []
        self._index = -1
        self._open: BlockKind | None = None
        self._space: list[str] = []
        self._marked = False
        """Nothing but white space has come since the last marker."""
        self._trim = False
        """White space that leads the next text is dropped."""
        self.last: BlockKind | None = None
        """The kind of the last block."""
        self.answered = False
        """There is a block that is no thinking."""

    def take(self) -> list[BlockEvent]:
        """The events since the last time."""
        events, self._events = self._events, []
        return events

    def start(self, kind: BlockKind, name: str | None = None) -> None:
        """Open a block; the one before it ends."""
        self.close()
        self._index += 1
        self._open = self.last = kind
        self.answered |= kind != "thinking"
        self._events.append(BlockStart(self._index, kind, name))

    def close(self) -> None:
        if self._open is not None:
            self._events.append(BlockEnd(self._index))
            self._open = None

    def add(self, text: str) -> None:
        """More of the open block."""
        if text:
            self._events.append(BlockDelta(self._index, text))

    def say_text(self, text: str) -> None:
        """Free text; opens a block where none of its kind is open."""
        self._say("text", text)

    def say_thinking(self, text: str) -> None:
        self._say("thinking", text)

    def _say(self, kind: BlockKind, text: str) -> None:
        body = text.rstrip()
        if not body:
            self._space.append(text)
            return
        tail = text[len(body) :]
        body = "".join(self._space) + body
        if self._open != kind:
            self.start(kind)
            body = body.lstrip() if self._trim else body
        self._space = [tail] if tail else []
        self._trim = self._marked = False
        self.add(body)

    def cut(self, *, leads: bool = False) -> None:
        """A marker stands here: the block before it is over. `leads`: it is one of those that text stands behind."""
        leads &= self._own_space
        if self._own_space and self._open == "text":
            self.add("".join(self._space))
            self._space = []
        elif not leads or self.last != "text":
            self._space = []
        self._marked = True
        self._trim = not leads
        self.close()

    def end_text(self) -> None:
        """The output ends in free text: white space that stands in no marker's way belongs to it."""
        if self._space and not self._marked:
            if self._open != "text":
                self.start("text")
            self.add("".join(self._space))

    def finish(self, *, whole: bool) -> None:
        """The output is over. A call that is still open was cut short and gets no end; an answer that ended by itself
        (`whole`) without a block is an empty text."""
        if self._open in ("text", "thinking"):
            self.close()
        if whole and not self.answered:
            self.start("text")
            self.close()
