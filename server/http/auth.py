"""Authentication: the caller, from the request's headers (http-binding, "Who is calling")."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from server.http.asgi import HttpError, Scope, header
from server.runtime import Caller, Endpoint
from server.state import TokenStore
from server.wire.records import WireError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_NAME = 1024
"""Bytes of each header that names a part of the endpoint."""


def bearer(scope: Scope) -> str | None:
    """The token of `Authorization: Bearer` (RFC 6750), if there is exactly one."""
    given = [value for key, value in scope["headers"] if key == b"authorization"]
    if len(given) != 1:
        return None
    scheme, _, token = given[0].partition(b" ")
    return token.strip().decode("latin-1") if scheme.lower() == b"bearer" else None


def authenticate(scope: Scope, tokens: TokenStore) -> Caller:
    """Raises HttpError: 401 on a missing or unknown token, 400 on a name that is no UTF-8 or too long."""
    token = bearer(scope)
    policy = tokens.find(token) if token else None
    if policy is None:
        raise unauthorized()
    endpoint = Endpoint(
        token=policy.name,
        identity=_name(scope, b"napplet-identity"),
        endpoint=_name(scope, b"napplet-endpoint"),
        account=_name(scope, b"napplet-account"),
    )
    granted = policy.consent == "shell" and header(scope, b"napplet-consent") == b"granted"
    return Caller(endpoint, policy.consent, policy.select, granted)


def is_from(scope: Scope, networks: Iterable[Network]) -> bool:
    """True where the client's address is loopback, or lies in one of the networks."""
    try:
        address = ipaddress.ip_address(scope["client"][0])
    except (TypeError, ValueError):
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or any(address in each for each in networks)


def unauthorized() -> HttpError:
    error = WireError("invalid-request", "a valid bearer token is needed")
    return HttpError(401, error, ((b"www-authenticate", b"Bearer"),))


def _name(scope: Scope, name: bytes) -> str:
    value = header(scope, name) or b""
    if len(value) > MAX_NAME:
        raise HttpError(400, WireError("invalid-request", f"the header {name.decode()} is too long"))
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise HttpError(400, WireError("invalid-request", f"the header {name.decode()} is not UTF-8")) from None
