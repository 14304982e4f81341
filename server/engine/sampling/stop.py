"""Stop sequences: texts that end an output where its answer holds one of them.

They are looked for in the answer alone, not in thinking, not in calls, not in the markers around them. Where an output
ends does not depend on how it was cut into tokens: of what stands in it the one that begins first counts, and what may
become one is held back until it is certain.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from server.engine.types import StopCriteria


class StopMatcher:
    """Reads one output. `feed` gives the bytes that may be shown; none are once `found` is set."""

    def __init__(self, stop: StopCriteria) -> None:
        self.found = False
        self._stops = _encode(stop.strings)
        self._opening, self._closing = (_encode([text]) for text in stop.reasoning_tags or ("", ""))
        self._calls, self._anchored = _encode(stop.calls), _encode(stop.anchored)
        self._markers = (*self._opening, *self._calls, *_encode(stop.ignored_markers))
        self._phase: Literal["answer", "thinking", "off"] = "answer"
        self._fresh = bool(self._anchored)
        self._held = b""
        # What of the lead is held back is not the output's own.
        self._foreign = len(stop.prompt_opening.encode())
        self._foreign -= len(self._read(stop.prompt_opening.encode(), final=False))

    def feed(self, piece: bytes) -> bytes:
        return self._own(self._read(piece, final=False))

    def finish(self) -> bytes:
        """The output has ended by itself: what was held back, as far as it may be shown."""
        return self._own(self._read(b"", final=True))

    def _own(self, shown: bytes) -> bytes:
        cut, self._foreign = self._foreign, max(0, self._foreign - len(shown))
        return shown[cut:] if cut else shown

    def _read(self, piece: bytes, *, final: bool) -> bytes:
        data, self._held = self._held + piece, b""
        shown = b""
        while not self.found:
            if self._fresh and self._phase == "answer" and not self._begins(data, final):
                self._held = data
                break
            stops = self._stops if self._phase == "answer" else ()
            markers = {"answer": self._markers, "thinking": self._closing, "off": ()}[self._phase]
            first = _first(data, markers, stops)
            begun = len(data) if final else _begun(data, stops), len(data) if final else _begun(data, markers)
            # What has begun further left is waited for. A marker that begins with a stop sequence is a marker.
            if first is None or begun[0] < first[0] or begun[1] <= first[0]:
                shown, self._held = shown + data[: min(begun)], data[min(begun) :]
                break
            at, text = first
            if text in markers:
                at += len(text)
                self._turn(text)
            else:
                self.found = True
            shown, data = shown + data[:at], data[at:]
        return shown

    def _begins(self, data: bytes, final: bool) -> bool:
        """Whether it is certain what the answer begins with; where that is a call, nothing more is looked for."""
        head = data.lstrip()
        if any(head.startswith(call) for call in self._anchored):
            self._phase = "off"
        elif not final and any(call.startswith(head) for call in self._anchored):
            return False
        self._fresh = False
        return True

    def _turn(self, marker: bytes) -> None:
        """Such a marker has been read."""
        if self._phase == "answer" and marker in self._opening:
            self._phase = "thinking"
        elif self._phase == "answer" and marker in self._calls:
            self._phase = "off"
        else:
            self._phase, self._fresh = "answer", bool(self._anchored)


def _encode(texts: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(text.encode() for text in texts if text)


def _first(data: bytes, *kinds: Iterable[bytes]) -> tuple[int, bytes] | None:
    """Where the first of the texts stands in the data, and which; of those that begin together the first kind's, the
    longest."""
    hits = (
        (at, kind, -len(text), text)
        for kind, texts in enumerate(kinds)
        for text in texts
        if (at := data.find(text)) >= 0
    )
    first = min(hits, default=None)
    return None if first is None else (first[0], first[3])


def _begun(data: bytes, texts: Iterable[bytes]) -> int:
    """Where one of the texts has begun at the end of the data without being whole; the data's length otherwise."""
    found = len(data)
    for text in texts:
        for at in range(max(0, len(data) - len(text) + 1), found):
            if text.startswith(data[at:]):
                found = at
                break
    return found
