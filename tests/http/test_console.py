"""The console's routes: its files under their policy, the machine, and schemas compiled to be read."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from server.app import create_app
from server.chat import HelperPool
from server.http.console import DIRECTORY
from server.state import TokenStore, owner_token
from tests.http.conftest import Site, listening
from tests.runtime.doubles import World


@pytest_asyncio.fixture
async def compiling(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """The owner's client of a server that compiles schemas."""
    world = World(tmp_path / "model.gguf")
    tokens = TokenStore(tmp_path / "state")
    app = create_app(world.config, world.runtime, tokens=tokens, helpers=HelperPool(size=1))
    async with listening(app) as port:
        headers = {"authorization": f"Bearer {owner_token(tokens.directory)}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20) as client:
            yield client


def policy(response: httpx.Response) -> dict[str, str]:
    directives = (each.strip().partition(" ") for each in response.headers["content-security-policy"].split(";"))
    return {name: value for name, _, value in directives}


async def test_the_page_and_its_files_need_no_token_and_run_nothing_foreign(site: Site) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{site.port}") as stranger:
        page = await stranger.get("/")
        assert page.status_code == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
        named = re.findall(r'(?:src|href)="(/[^"]*)"', page.text)
        assert named
        for path in {"/", *named, *(f"/console/{each.name}" for each in DIRECTORY.glob("*.js"))}:
            response = await stranger.get(path)
            assert response.status_code == 200, path
            allowed = policy(response)
            assert allowed["default-src"] == allowed["base-uri"] == allowed["frame-ancestors"] == "'none'"
            assert allowed["script-src"] == allowed["style-src"] == allowed["connect-src"] == "'self'"
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["referrer-policy"] == "no-referrer"
            assert "set-cookie" not in response.headers


def test_no_file_names_another_origin_or_writes_markup() -> None:
    for each in (*DIRECTORY.glob("*.js"), *DIRECTORY.glob("*.html"), *DIRECTORY.glob("*.css")):
        text = each.read_text(encoding="utf-8")
        assert not re.search(r"https?://|(?<!:)//[a-z]|innerHTML|outerHTML|insertAdjacentHTML|document\.write", text), (
            each
        )
        assert not re.search(r"<script(?! type=\"module\" src)|\son[a-z]+=|\sstyle=", text), each


@pytest.mark.parametrize("name", ["nothing.js", "screenshot.png", "..%2fapp.py", "%2e%2e/app.py", "../http/console.py"])
async def test_nothing_else_is_served(site: Site, name: str) -> None:
    response = await site.client.get(f"/console/{name}")
    assert response.status_code == 404
    assert "def " not in response.text


async def test_the_machine_is_the_owners(site: Site) -> None:
    assert (await site.client.get("/owner/device")).status_code == 401
    assert (await site.client.post("/owner/grammar", json={"schema": {}})).status_code == 401
    device = (await site.owner.get("/owner/device")).json()
    assert device["memory"] > 0 and device["cores"] > 0 and "CPU" in device["backends"]


REFUSED = [
    ({"schema": {"properties": {"a": {"type": 5}}}}, "invalid-request", ("/properties/a", "type")),
    ({"schema": {"properties": {"a": {"pattern": "("}}}}, "invalid-request", ("/properties/a", "pattern")),
    ({"schema": {"properties": {"a": {"$ref": "other.json"}}}}, "unsupported", ("/properties/a", "$ref")),
    ({"schema": {"allOf": [{"type": "string"}, {"type": "number"}]}}, "unsupported", (None, None)),
    ({}, "invalid-request", (None, None)),
    ({"schema": True}, "invalid-request", (None, None)),
    ({"schema": {}, "more": 1}, "invalid-request", (None, None)),
]


async def test_a_schema_is_compiled_or_it_is_said_where_it_cannot_be(compiling: httpx.AsyncClient) -> None:
    schema = {
        "type": "object",
        "properties": {"room": {"enum": ["kitchen", "hall"]}},
        "required": ["room"],
        "additionalProperties": False,
    }
    answer = (await compiling.post("/owner/grammar", json={"schema": schema})).json()
    assert "root ::=" in answer["gbnf"] and "kitchen" in answer["gbnf"]
    assert answer["checks"] == []
    lists = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    answer = (await compiling.post("/owner/grammar", json={"schema": lists})).json()
    assert answer["checks"] == [{"path": "/properties/a", "keyword": "uniqueItems"}]
    for body, code, place in REFUSED:
        response = await compiling.post("/owner/grammar", json=body)
        assert response.status_code == 400, body
        error = response.json()["error"]
        assert (error["code"], (error.get("path"), error.get("keyword"))) == (code, place)


async def test_without_helpers_nothing_is_compiled(site: Site) -> None:
    response = await site.owner.post("/owner/grammar", json={"schema": {}})
    assert response.status_code == 501
