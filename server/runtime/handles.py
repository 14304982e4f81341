"""Handles: opaque references from an endpoint to a connection, as it was when it was selected (NAP-LLM, "Model").

A handle ends with its connection's revision, its token, its account or its endpoint, and with the process. Foreign,
ended and invented handles look alike. What is kept is bounded: one handle for each endpoint and connection, and so many
of each token.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from server.runtime.endpoint import Endpoint
from server.runtime.served_model import ServedModel
from server.wire.records import WireError


@dataclass(frozen=True, slots=True)
class _Selection:
    endpoint: Endpoint
    connection: ServedModel
    revision: int


class Handles:
    """`per_token`: how many are kept of one token; the endpoint of that token which selected longest ago has to select
    again."""

    def __init__(self, per_token: int) -> None:
        self._per_token = per_token
        self._selections: dict[str, _Selection] = {}
        self._tokens: dict[str, dict[tuple[Endpoint, ServedModel], str]] = {}
        """By token: its handles, that of the latest selection last."""

    def issue(self, endpoint: Endpoint, connection: ServedModel) -> str:
        """The endpoint's handle to the connection as it is now; the same one as long as that holds."""
        own = self._tokens.setdefault(endpoint.token, {})
        handle = own.pop((endpoint, connection), None)
        if handle is None or self._selections[handle].revision != connection.revision:
            self._selections.pop(handle or "", None)
            handle = secrets.token_urlsafe(24)
            self._selections[handle] = _Selection(endpoint, connection, connection.revision)
        own[endpoint, connection] = handle
        if len(own) > self._per_token:
            self._forget(next(iter(own.values())))
        return handle

    def held(self, endpoint: Endpoint, connection: ServedModel) -> bool:
        """True where the endpoint has a handle to the connection as it is now."""
        handle = self._tokens.get(endpoint.token, {}).get((endpoint, connection))
        return handle is not None and self._selections[handle].revision == connection.revision

    def resolve(self, endpoint: Endpoint, handle: str) -> ServedModel:
        """Raises `selection-expired`. Looks at the connection's file, but loads nothing and asks nobody."""
        selection = self._selections.get(handle)
        if selection is None or selection.endpoint != endpoint:
            raise expired()
        connection = selection.connection
        if not connection.enabled or not connection.refresh_file() or connection.revision != selection.revision:
            self._forget(handle)
            raise expired()
        return connection

    def end(self, ends: Callable[[Endpoint], bool]) -> None:
        """Ends the handles of all endpoints for which `ends` holds."""
        for handle in [each for each, selection in self._selections.items() if ends(selection.endpoint)]:
            self._forget(handle)

    def endpoints(self) -> dict[Endpoint, int]:
        """Endpoints with live handles, and how many."""
        counts: dict[Endpoint, int] = {}
        for selection in self._selections.values():
            counts[selection.endpoint] = counts.get(selection.endpoint, 0) + 1
        return counts

    def _forget(self, handle: str) -> None:
        selection = self._selections.pop(handle)
        own = self._tokens[selection.endpoint.token]
        del own[selection.endpoint, selection.connection]
        if not own:
            del self._tokens[selection.endpoint.token]


def expired() -> WireError:
    return WireError("selection-expired", "the selection is unknown or has ended; select again")
