"""Server-sent events (WHATWG HTML, "Server-sent events"): one envelope in one `data:` line each."""

from __future__ import annotations

from collections.abc import Iterable

from server.wire import quoted
from server.wire.records import Delta

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
)
COMMENT = b":\n\n"


def event(envelope: bytes, name: str = "") -> bytes:
    """JSON text holds no raw CR or LF, so it is one line. `name`: the event's type, where it has one."""
    head = b"event: %b\n" % name.encode() if name else b""
    return head + _plain_lines(b"data: %b\n\n" % envelope)


def _plain_lines(text: bytes) -> bytes:
    """Escapes what some clients' line readers take for a line's end: NEL, LS and PS. They occur in strings alone."""
    if b"\xc2\x85" in text:
        text = text.replace(b"\xc2\x85", b"\\u0085")
    if b"\xe2\x80" in text:
        text = text.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    return text


class DeltaWriter:
    """Deltas of one generation as events. What they have in common is written once."""

    def __init__(self, request_id: str) -> None:
        self._head = f'data: {{"type":"llm.delta","requestId":{quoted(request_id)},"sequence":'

    def write(self, deltas: Iterable[Delta]) -> bytes:
        head = self._head
        lines = []
        for each in deltas:
            line = (
                f'{head}{each.sequence},"event":"{each.event}","block":"{each.block}","blockIndex":{each.block_index}'
            )
            if each.text is not None:
                line += f',"text":{quoted(each.text)}'
            elif each.tool_call_id is not None:
                line += f',"toolCallId":{quoted(each.tool_call_id)},"name":{quoted(each.name or "")}'
            lines.append(line)
        lines.append("")
        return _plain_lines("}\n\n".join(lines).encode())
