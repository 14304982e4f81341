"""Handles: opaque references from an endpoint to a connection, as it was when it was selected (NAP-LLM, "Model").

A handle ends with its connection's revision, its token, its account or its endpoint, and with the process. Foreign,
ended and invented handles look alike.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from server.runtime.connections import Connection
from server.runtime.endpoint import Endpoint
from server.wire.records import WireError

MAX_HANDLES = 4096
"""Per token; the endpoint of that token which selected longest ago has to select again."""


@dataclass(frozen=True, slots=True)
class _Selection:
    endpoint: Endpoint
    connection: Connection
    revision: int


class Handles:
    def __init__(self) -> None:
        self._selections: OrderedDict[str, _Selection] = OrderedDict()
        self._handles: dict[_Selection, str] = {}

    def issue(self, endpoint: Endpoint, connection: Connection) -> str:
        """The endpoint's handle to the connection as it is now; the same one as long as that holds."""
        selection = _Selection(endpoint, connection, connection.revision)
        handle = self._handles.get(selection)
        if handle is None:
            handle = secrets.token_urlsafe(24)
            self._handles[selection] = handle
            self._selections[handle] = selection
            self._bound(endpoint.token)
        self._selections.move_to_end(handle)
        return handle

    def held(self, endpoint: Endpoint, connection: Connection) -> bool:
        """Whether the endpoint has a handle to the connection as it is now."""
        return _Selection(endpoint, connection, connection.revision) in self._handles

    def resolve(self, endpoint: Endpoint, handle: str) -> Connection:
        """Raises `selection-expired`. Looks at the connection's file, but loads nothing and asks nobody."""
        selection = self._selections.get(handle)
        if selection is None or selection.endpoint != endpoint:
            raise expired()
        connection = selection.connection
        if not connection.enabled or not connection.revalidate() or connection.revision != selection.revision:
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

    def _bound(self, token: str) -> None:
        if len(self._selections) <= MAX_HANDLES:
            return
        own = [each for each, selection in self._selections.items() if selection.endpoint.token == token]
        if len(own) > MAX_HANDLES:
            self._forget(own[0])

    def _forget(self, handle: str) -> None:
        del self._handles[self._selections.pop(handle)]


def expired() -> WireError:
    return WireError("selection-expired", "the selection is unknown or has ended; select again")
