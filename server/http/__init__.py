"""HTTP: the server's APIs, each with its paths, its routes and its form of errors.

A new dialect is a package with a `GenerationApi`, and its name in `DIALECTS`.
"""

from __future__ import annotations

from server.chat import HelperPool
from server.http.api import Api, GenerationApi
from server.http.complete import CompleteApi
from server.http.console import Console
from server.http.health import Health
from server.http.metrics import MetricsEndpoint
from server.http.nap import NapApi
from server.http.openai import OpenAIApi
from server.http.owner import OwnerApi
from server.runtime import Runtime
from server.state import TokenStore

__all__ = ["DIALECTS", "Api", "GenerationApi", "apis"]

DIALECTS: tuple[type[GenerationApi], ...] = (NapApi, CompleteApi, OpenAIApi)


def apis(runtime: Runtime, tokens: TokenStore, owner_token: str, helpers: HelperPool | None) -> tuple[Api, ...]:
    """All APIs over one runtime."""
    owner = OwnerApi(runtime, tokens, owner_token)
    return (
        *(dialect(runtime, tokens) for dialect in DIALECTS),
        owner,
        Console(owner, helpers),
        MetricsEndpoint(runtime, owner),
        Health(runtime, tokens, helpers),
    )
