"""Host, Origin, CORS and header limits: what keeps a web page from speaking to this server unasked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest_asyncio

from server.config import ServerConfig
from tests.http.conftest import Site, site_of

SHELL = "https://shell.example"


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    server = ServerConfig(allowed_hosts=("workstation.lan",), allowed_origins=(SHELL,))
    async with site_of(tmp_path, server) as made:
        yield made


async def test_our_names(site: Site) -> None:
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]", "[::1]:8080", "workstation.lan:99", "localhost."):
        assert (await site.client.get("/nap/llm", headers={"host": host})).status_code == 200, host


async def test_foreign_names(site: Site) -> None:
    for host in (
        "rebound.example",
        "localhost.example",
        "127.0.0.1.example",
        "10.0.0.1",
        "0.0.0.0",
        "",
        "[::2]",
        "[::1",
    ):
        for path in ("/nap/llm", "/other"):
            response = await site.client.get(path, headers={"host": host})
            assert response.status_code == 403, host
            assert set(response.json()["error"]) == {"code", "message"}


async def test_no_host_or_two(site: Site) -> None:
    for hosts, status in ((b"", b"403"), (b"host: localhost\r\nhost: evil\r\n", b"400")):
        reader, writer = await site.raw(b"GET /nap/llm HTTP/1.1\r\n" + hosts + b"connection: close\r\n\r\n")
        assert (await reader.readline()).split()[1] == status
        writer.close()


async def test_an_allowed_origin_gets_cors(site: Site) -> None:
    response = await site.client.get("/nap/llm", headers={"origin": SHELL})
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == SHELL and response.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in response.headers


async def test_errors_to_an_allowed_origin_can_be_read(site: Site) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{site.port}", verify=False) as client:
        response = await client.post("/nap/llm", headers={"origin": SHELL}, json={})
    assert response.status_code == 401 and response.headers["access-control-allow-origin"] == SHELL


async def test_foreign_origins_are_refused(site: Site) -> None:
    for origin in ("https://evil.example", "null", "http://localhost:1", "https://shell.example:1"):
        for response in (
            await site.client.get("/nap/llm", headers={"origin": origin}),
            await site.client.post("/nap/llm", headers={"origin": origin}, json={"type": "llm.select", "id": "s"}),
            await site.client.options("/nap/llm", headers=preflight(origin)),
        ):
            assert response.status_code == 403 and "access-control-allow-origin" not in response.headers, origin


async def test_our_own_origin_is_no_foreign_one(site: Site) -> None:
    own = f"http://127.0.0.1:{site.port}"
    response = await site.client.get("/nap/llm", headers={"origin": own})
    assert response.status_code == 200 and "access-control-allow-origin" not in response.headers


async def test_the_preflight(site: Site) -> None:
    response = await site.client.options("/nap/llm", headers=preflight(SHELL))
    assert response.status_code == 204
    assert response.headers["access-control-allow-origin"] == SHELL
    assert {"GET", "POST", "DELETE"} == set(response.headers["access-control-allow-methods"].split(", "))
    allowed = response.headers["access-control-allow-headers"].lower()
    assert all(name in allowed for name in ("authorization", "napplet-identity", "napplet-consent", "content-type"))
    assert "x-stainless-runtime-version" in allowed
    assert response.headers["access-control-allow-private-network"] == "true"
    plain = await site.client.options(
        "/nap/llm", headers={**preflight(SHELL), "access-control-request-private-network": "no"}
    )
    assert "access-control-allow-private-network" not in plain.headers


async def test_the_owners_api_is_closed_to_all_origins(site: Site) -> None:
    assert (await site.client.options("/owner/state", headers=preflight(SHELL))).status_code == 403


async def test_headers_are_bounded(site: Site) -> None:
    response = await site.client.get("/nap/llm", headers={"x-large": "x" * 40_000})
    assert response.status_code == 431


def preflight(origin: str) -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
        "access-control-request-private-network": "true",
    }
