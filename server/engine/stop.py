"""Stop sequences: texts that end an output where its answer holds one of them.

They are looked for in the answer alone, not in thinking, not in calls, not in the markers around them. Where an output
ends does not depend on how it was cut into tokens: of the texts that stand in it the one that begins first counts, and
what may become one is held back until it is certain.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from server.engine.messages import Stop

_Phase = Literal["before", "answer", "thinking", "off"]


class StopSearch:
    """Reads one output. `feed` gives the bytes that may be shown; none are once `found` is set."""

    def __init__(self, stop: Stop) -> None:
        self.found = False
        self._stops = _encode(stop.texts)
        self._begin = _encode(stop.begin)
        self._calls = _encode(stop.calls)
        opening, closing = stop.thinking or ("", "")
        self._opening, self._closing = _encode([opening]), _encode([closing])
        self._anchored = stop.anchored
        self._phase: _Phase = "off"
        self._held = b""
        self._settle()
        if stop.lead:
            self.feed(stop.lead.encode())

    def feed(self, piece: bytes) -> bytes:
        return self._read(piece, final=False)

    def finish(self) -> bytes:
        """The output has ended by itself: what was held back, as far as it may be shown."""
        return self._read(b"", final=True)

    def _read(self, piece: bytes, *, final: bool) -> bytes:
        shown = b""
        while not self.found:
            if self._phase == "answer":
                text, rest = self._answer(self._held + piece, final)
            else:
                text, rest = self._pass(piece)
            shown += text
            if rest is None:
                break
            piece = rest
        return shown

    def _settle(self) -> None:
        """What comes next may be an answer."""
        self._phase = "before" if self._begin else "answer"
        self._fresh = self._anchored
        self._held = b""

    def _turn(self, marker: bytes) -> None:
        """Such a marker has been read."""
        if marker in self._opening and self._phase != "thinking":
            self._phase, self._held = "thinking", b""
        elif marker in self._calls:
            self._phase, self._held = "off", b""
        elif marker in self._begin:
            self._phase, self._held = "answer", b""
        else:
            self._settle()

    def _pass(self, piece: bytes) -> tuple[bytes, bytes | None]:
        """Text that is shown whatever it says, up to the marker that ends it; what follows that, if it came.

        `held` is the end of what has been shown, in which a marker may have begun.
        """
        markers = {
            "thinking": self._closing,
            "before": (*self._begin, *self._opening, *self._calls),
        }.get(self._phase, ())
        data = self._held + piece
        hits = [(at + len(text), at, text) for text in markers if (at := data.find(text)) >= 0]
        if not hits:
            reach = max(map(len, markers), default=1) - 1
            self._held = data[-reach:] if reach else b""
            return piece, None
        end, _, marker = min(hits)
        end -= len(self._held)
        self._turn(marker)
        return piece[:end], piece[end:]

    def _answer(self, data: bytes, final: bool) -> tuple[bytes, bytes | None]:
        if self._fresh:
            head = data.lstrip()
            if any(head.startswith(call) for call in self._calls):
                self._phase, self._held = "off", b""
                return data, None
            if not final and any(call.startswith(head) for call in self._calls):
                self._held = data
                return b"", None
            self._fresh = False
        markers = (*self._opening, *(() if self._anchored else self._calls))
        stops, turns = (len(data), len(data)) if final else (_begun(data, self._stops), _begun(data, markers))
        if (found := _first(data, markers, self._stops)) is not None:
            at, text = found
            # What has begun further left is waited for; a marker that begins with a stop sequence is a marker.
            if text in markers and stops >= at and turns >= at:
                at += len(text)
                self._turn(text)
                return data[:at], data[at:]
            if text not in markers and stops >= at and turns > at:
                self.found = True
                return data[:at], None
        certain = min(stops, turns)
        self._held = data[certain:]
        return data[:certain], None


def _encode(texts: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(text.encode() for text in texts if text)


def _first(data: bytes, *kinds: Iterable[bytes]) -> tuple[int, bytes] | None:
    """Which of the texts stands first in the data, and where; of those that begin together the first kind's, the
    shortest."""
    hits = (
        (at, kind, len(text), text)
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
