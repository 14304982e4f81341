"""What callers are told while the server is about to end."""

from __future__ import annotations

from server.http.asgi import Headers
from server.runtime import Runtime
from server.wire.records import WireError


def retry_headers(runtime: Runtime, outcome: object) -> Headers:
    """`Retry-After` (RFC 9110, 10.2.3), for whom the server's end has turned away."""
    if isinstance(outcome, WireError) and outcome.extra.get("reason") == "shutdown":
        return ((b"retry-after", b"%d" % runtime.retry_after),)
    return ()
