"""Callers: the endpoint everything is scoped to, and what its token's policy says (http-binding, "Who is calling")."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One live endpoint of one napplet under one account of one shell. Ids, handles and results never leave it."""

    token: str
    """Name of the shell's token."""
    identity: str = ""
    endpoint: str = ""
    account: str = ""

    @property
    def scope(self) -> str:
        """A fixed-size name for the engine's cache that gives away none of the four."""
        parts = (self.token, self.identity, self.endpoint, self.account)
        return hashlib.sha256("".join(f"{len(each)}:{each}" for each in parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Caller:
    """An endpoint with its token's policy, as one request presents it."""

    endpoint: Endpoint
    consent: Literal["ask", "shell", "always"] = "ask"
    select: Literal["default", "ask"] = "default"
    granted: bool = False
    """The shell says that it has obtained the authorization itself. Counts only where `consent` is `shell`."""
