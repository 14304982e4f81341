"""Headless Chromium before a real server: over the runtime's doubles, or over a real model.

The server runs in a thread with an event loop of its own, so that the tests read as what a person does.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from fastapi import FastAPI
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from server.app import create_app
from server.chat import HelperPool
from server.config import Config, ModelConfig, ModelSource, ServerConfig
from server.state import TokenStore, owner_token
from tests.browser.page import SECONDS, Page
from tests.http.conftest import listening
from tests.runtime.doubles import Run, World

T = TypeVar("T")

REQUIRED = "NAP_LLM_BROWSER_TESTS"
"""Set to `required`, these tests fail where there is no browser instead of being skipped."""

OUTPUT = Path(__file__).parent.parent.parent / "test-output"
"""Where screenshots are kept."""


class Background:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.begin(work).result(SECONDS)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing runs in the loop meanwhile."""
        going_on = threading.Event()
        self._loop.call_soon_threadsafe(going_on.wait)
        try:
            yield
        finally:
            going_on.set()

    def close(self) -> None:
        self.do(_end_all())
        gc.collect()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()


async def _end_all() -> None:
    """Ends what failed tests have left."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for each in left:
        each.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


class Shell:
    """A shell at the server's wire: what it asks waits in the background while the test looks at the browser."""

    def __init__(self, site: Served, token: str, headers: dict[str, bytes]) -> None:
        self._site = site
        self._headers = {"authorization": f"Bearer {token}".encode(), **headers}

    def begin(self, envelope: dict[str, Any]) -> Future[dict[str, Any]]:
        async def call() -> dict[str, Any]:
            async with httpx.AsyncClient(base_url=self._site.url, headers=self._headers, timeout=60) as client:
                answer: dict[str, Any] = (await client.post("/nap/llm", json=envelope)).json()
                return answer

        return self._site.background.begin(call())

    def select(self, **requirements: Any) -> Future[dict[str, Any]]:
        return self.begin({"type": "llm.select", "id": "s", "requirements": requirements})

    def generate(self, *messages: dict[str, Any], **fields: Any) -> Future[dict[str, Any]]:
        handle = self.select().result(SECONDS)["model"]["handle"]
        request = {"handle": handle, "messages": messages or (said("hello"),), **fields}
        return self.begin({"type": "llm.generate", "id": "g", "request": request})


class Served:
    """A running server, its address, its state, and shells that call it."""

    def __init__(self, background: Background, app: FastAPI, state: Path) -> None:
        self.background = background
        # The server has a store of its own: this one is as good as the command line.
        self.tokens = TokenStore(state)
        self.owner = owner_token(state)
        self._serving = contextlib.ExitStack()
        self.url = self._serving.enter_context(serving(background, app))

    @property
    def link(self) -> str:
        return f"{self.url}/#token={self.owner}"

    def shell(self, name: str = "desktop", *, consent: str = "ask", select: str = "default", **headers: str) -> Shell:
        token = self.tokens.create(name, consent=consent, select=select)  # type: ignore[arg-type]
        named = {"identity": "notes;7f3a9c", "account": "alice", "endpoint": "window-1", **headers}
        return Shell(self, token, {f"napplet-{key}": value.encode() for key, value in named.items()})

    def close(self) -> None:
        self._serving.close()


class Site(Served):
    """A server over doubles. `run(n)` is the n-th job that reached its engine."""

    def __init__(
        self,
        background: Background,
        directory: Path,
        *,
        helpers: bool = False,
        models: tuple[tuple[str, str], ...] = (("small", "SmolLM2 135M"), ("large", "Qwen3 4B")),
    ) -> None:
        self.world = background.do(self._make_world(directory, models))
        state = directory / "state"
        pool = HelperPool(size=1) if helpers else None
        app = create_app(self.world.config, self.world.runtime, tokens=TokenStore(state), helpers=pool)
        super().__init__(background, app, state)

    async def _make_world(self, directory: Path, models: tuple[tuple[str, str], ...]) -> World:
        file = directory / "model.gguf"
        connections = tuple(
            ModelConfig(key=key, name=name, model=name.replace(" ", "-"), source=ModelSource(path=file))
            for key, name in models
        )
        return World(file, server=ServerConfig(deadline=300), connections=connections, real_clock=True)

    def run(self, number: int = 0) -> Run:
        return self.background.do(self.world.engine.run(number))

    def soon(self, what: Callable[..., object], *arguments: Any) -> None:
        """Does something in the server's event loop."""

        async def call() -> None:
            what(*arguments)

        self.background.do(call())

    def close(self) -> None:
        # What a failed test leaves waiting must not keep the server from ending.
        self.soon(self.world.runtime.revoke, lambda _: True)
        super().close()


class RealSite(Served):
    """A server with a real, small model."""

    def __init__(self, background: Background, directory: Path, model: Path) -> None:
        connection = ModelConfig(
            key="smol",
            name="SmolLM2 135M Instruct",
            model="SmolLM2-135M-Instruct",
            source=ModelSource(path=model),
            context_length=2048,
            slots=2,
        )
        state = directory / "state"
        super().__init__(background, create_app(Config(ServerConfig(), (connection,)), state=state), state)


class Wire:
    """A line to a server that can be cut and mended."""

    def __init__(self, background: Background, url: str) -> None:
        self._background = background
        self._target = httpx.URL(url)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._port = 0
        self.mend()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def mend(self) -> None:
        self._background.do(self._listen())

    def cut(self) -> None:
        self._background.do(self._drop())

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _drop(self) -> None:
        assert self._server is not None
        self._server.close()
        for each in self._writers:
            each.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target.port)
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(65536):
                writer.write(chunk)
                await writer.drain()
        self._writers.discard(writer)
        writer.close()


@contextlib.contextmanager
def serving(background: Background, app: FastAPI) -> Iterator[str]:
    """Serves the application in the background; gives its address."""
    context = listening(app)
    port = background.begin(context.__aenter__()).result(120)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        background.do(_exit(context.__aexit__))


async def _exit(leave: Callable[..., Awaitable[bool | None]]) -> None:
    await leave(None, None, None)


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}


BACKGROUND = pytest.StashKey[Background]()


@pytest.fixture(scope="session")
def background(request: pytest.FixtureRequest) -> Iterator[Background]:
    made = request.config.stash[BACKGROUND] = Background()
    yield made
    del request.config.stash[BACKGROUND]
    made.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failure's report parses source; Python 3.11 crashes where a traceback is printed in the middle of that."""
    running = item.config.stash.get(BACKGROUND, None)
    if call.excinfo is None or running is None:
        return (yield)
    gc.collect()
    with running.paused():
        return (yield)


@pytest.fixture
def site(background: Background, tmp_path: Path) -> Iterator[Site]:
    made = Site(background, tmp_path)
    yield made
    made.close()


@pytest.fixture
def twin_site(background: Background, tmp_path: Path) -> Iterator[Site]:
    """A site with two connections that differ in nothing but their keys."""
    made = Site(background, tmp_path, models=(("careful", "Qwen3 4B"), ("creative", "Qwen3 4B")))
    yield made
    made.close()


@pytest.fixture
def compiling_site(background: Background, tmp_path: Path) -> Iterator[Site]:
    """A site whose schemas are really compiled."""
    made = Site(background, tmp_path, helpers=True)
    yield made
    made.close()


@pytest.fixture
def real_site(background: Background, tmp_path: Path, smollm2: Path) -> Iterator[RealSite]:
    made = RealSite(background, tmp_path, smollm2)
    yield made
    made.close()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        absent = "Chromium and its driver are not installed (Debian: apt install chromium chromium-driver)"
        if os.environ.get(REQUIRED) == "required":
            pytest.fail(absent)
        pytest.skip(absent)
    options = Options()
    options.binary_location = browser
    for each in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--force-device-scale-factor=1",
        "--hide-scrollbars",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options, Service(driver))
    yield made
    made.quit()


@pytest.fixture
def page(chromium: webdriver.Chrome) -> Iterator[Page]:
    """A new tab at 1280 pixels, in the light. Whatever the browser complained of fails the test."""
    made = Page(chromium, OUTPUT)
    made.resize(1280)
    made.scheme("light")
    yield made
    made.close()
