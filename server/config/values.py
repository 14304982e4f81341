"""Texts of the configuration with a form of their own: hosts, origins, networks, files of the Hugging Face Hub.

Each function takes a text and returns its value. Raises ValueError, whose message goes on behind the text.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

SHA256 = "[0-9a-f]{64}"
"""Pattern of a digest: lower-case hexadecimal."""


def host(text: str) -> str:
    """A host name or an IP address, without port."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        label = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
        if not re.fullmatch(rf"{label}(\.{label})*", text):
            raise ValueError("is no host name or address without port") from None
    return text


def origin(text: str) -> str:
    """A web origin (RFC 6454): scheme, host and optional port."""
    try:
        parts = urlsplit(text)
        # Reading the port refuses one that is no number.
        complete = parts.scheme and parts.hostname and (parts.port or True)
    except ValueError:
        complete = False
    if not complete or parts.path or parts.query or parts.fragment or parts.username or text.endswith(("/", "?", "#")):
        raise ValueError("is no origin such as https://shell.example or http://localhost:8080")
    return text


def network(text: str) -> Network:
    """An IP address or a network in CIDR notation."""
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise ValueError("is no address or network such as 172.17.0.0/16") from None


def host_and_port(text: str) -> str:
    """A host name or IPv4 address with its port."""
    found = re.fullmatch(r"[A-Za-z0-9.-]{1,253}:(\d{1,5})", text)
    if not found or not 0 < int(found[1]) < 2**16:
        raise ValueError("is no host and port such as 10.0.0.2:50052")
    return text


def sha256(text: str) -> str:
    """A digest in lower-case hexadecimal."""
    if not re.fullmatch(SHA256, text):
        raise ValueError("is no SHA-256 in lower-case hexadecimal")
    return text
