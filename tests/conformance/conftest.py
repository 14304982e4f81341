"""Where the conformance cases run.

By themselves they run against our own server twice over: with a model that says what the test tells it to, all between
the socket and that model's logits being real (`tests.scripted`), and with SmolLM2. With
`pytest tests/conformance --base-url URL --token T --shell-token S --owner-token O` they run against any server of the
binding; what it cannot be made to show is skipped there, each case under its id with its reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from server.app import create_app
from server.chat import HelperPool
from server.config import CapabilityLimits, Config, ModelConfig, ModelSource, ServerConfig
from server.engine import Vocab
from server.state import TokenStore, owner_token
from tests.chat.standin import WIDTH, write_model
from tests.fixtures.projectors import write_projector
from tests.http.conftest import events, listening
from tests.runtime.doubles import ClockDouble
from tests.scripted import Director, directing, prompt_of, scripted_runtime

MODEL = "SmolLM2-135M-Instruct"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "NAP-LLM conformance cases against a running server")
    group.addoption("--base-url", help="server to run the cases against")
    group.addoption("--token", help="a token of policy consent=always")
    group.addoption("--shell-token", help="a token of policy consent=shell")
    group.addoption("--owner-token", help="the owner's token, for the cases in which the owner decides")


HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(what): what a server that is merely given cannot be made to show")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "anywhere" in metafunc.fixturenames:
        given = metafunc.config.getoption("--base-url", None) is not None
        metafunc.parametrize("anywhere", ["real"] if given else ["controlled", "real"], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    given = config.getoption("--base-url", None) is not None
    for item in items:  # those of the whole run
        if (
            HERE not in item.path.parents
            or not isinstance(item, pytest.Function)
            or not {"make", "controlled"} & {*item.fixturenames}
        ):
            continue
        needs = item.get_closest_marker("needs")
        if needs is None:
            raise pytest.UsageError(f"{item.name} does not say what it needs beyond a server")
        if given:
            item.add_marker(pytest.mark.skip(reason=f"{case(item.name)} needs {needs.args[0]}"))


def case(name: str) -> str:
    """The id of the conformance case that a test belongs to."""
    found = re.match(r"test_llm_c(\d\d)_", name)
    assert found, name
    return f"LLM-C{found[1]}"


class Shell:
    """A shell of the binding: one token, any endpoints, raw envelopes; and the owner, where his token is given."""

    most = 16
    """Tokens of an answer where a test does not say."""

    def __init__(
        self, base_url: str, token: str, shell_token: str | None = None, owner_token: str | None = None
    ) -> None:
        self.http = _client(base_url, token)
        self.shell_token = shell_token
        self.owned = owner_token is not None
        self.owner = _client(base_url, owner_token or "")
        self._made: set[str] = set()
        self._ids = 0

    async def close(self) -> None:
        for name in self._made:
            await self.owner.delete(f"/owner/tokens/{name}")
        await self.http.aclose()
        await self.owner.aclose()

    def need_owner(self) -> None:
        if not self.owned:
            pytest.skip("needs --owner-token")

    async def asking(self) -> dict[str, str]:
        """Headers of another shell, whose generations the owner decides on."""
        self.need_owner()
        name = f"conformance-{secrets.token_hex(6)}"
        made = await self.owner.post("/owner/tokens", json={"name": name})
        assert made.status_code == 200, made.text
        self._made.add(name)
        return {"authorization": f"Bearer {made.json()['token']}", "napplet_identity": "notes;hash"}

    async def decisions(self) -> list[dict[str, Any]]:
        """What waits for the owner because of us."""
        state = (await self.owner.get("/owner/state")).json()
        return [each for each in state["decisions"] if each["endpoint"]["token"] in self._made]

    async def submitted(self) -> object:
        """What every engine has done so far, as far as it can be seen: alike where nothing was submitted in between."""
        if not self.owned:
            return None
        seen = await self._counters()
        while True:
            # A job cancelled just now may still end its step.
            await asyncio.sleep(0.05)
            before, seen = seen, await self._counters()
            if seen == before:
                return seen

    async def _counters(self) -> object:
        state = (await self.owner.get("/owner/state")).json()
        names = ("key", "state", "active", "queued", "outputTokens")
        return [[each.get(name) for name in names] for each in state["connections"]]

    async def post(self, envelope: dict[str, Any], **headers: str) -> httpx.Response:
        return await self.http.post("/nap/llm", json=envelope, headers=_names(headers))

    async def call(self, type: str, *, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
        """One operation, its correlation checked."""
        self._ids += 1
        envelope = {"type": type, "id": f"id{self._ids}", **fields}
        response = await self.post(envelope, **(headers or {}))
        assert response.status_code == 200, response.text
        value: dict[str, Any] = response.json()
        assert value["type"] == f"{type}.result" and value["id"] == envelope["id"]
        return value

    async def select(self, headers: dict[str, str] | None = None, **requirements: Any) -> dict[str, Any]:
        result = await self.call("llm.select", headers=headers, requirements=requirements)
        assert "model" in result, result
        model: dict[str, Any] = result["model"]
        return model

    async def request(self, text: str = "Hello", *, headers: dict[str, str] | None = None, **fields: Any) -> Any:
        """A GenerationRequest under a fresh selection."""
        handle = (await self.select(headers))["handle"]
        return {"handle": handle, "messages": [user(text)], "temperature": 0, "maxTokens": self.most, **fields}

    @contextlib.asynccontextmanager
    async def streaming(self, id: str, request: Any, **headers: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        envelope = {"type": "llm.generate", "id": id, "request": request}
        accept = {"accept": "text/event-stream", **_names(headers)}
        async with self.http.stream("POST", "/nap/llm", json=envelope, headers=accept) as response:
            yield events(response)

    async def stream(self, id: str, request: Any, **headers: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """All deltas of a generation and its terminal result, the lifecycle of the blocks checked."""
        async with self.streaming(id, request, **headers) as source:
            *deltas, result = [each async for each in source]
        check_stream(id, deltas, result)
        return deltas, result

    async def fail(self, request: Any, id: str = "g", **headers: str) -> dict[str, Any]:
        """The error of a generation that must have one."""
        _, result = await self.stream(id, request, **headers)
        assert "result" not in result, result
        error: dict[str, Any] = result["error"]
        assert error["code"] and error["message"]
        return error


class Controlled(Shell):
    """A shell before our server whose model says what the test tells it to, and whose clock, of deadlines and rates,
    stands still unless it is advanced."""

    most = 400

    def __init__(self, base_url: str, tokens: TokenStore, director: Director, clock: ClockDouble, vocab: Vocab) -> None:
        super().__init__(
            base_url,
            tokens.create("always", consent="always"),
            tokens.create("shell", consent="shell"),
            owner_token(tokens.directory),
        )
        self.engine, self.clock, self.vocab = director, clock, vocab

    async def submitted(self) -> object:
        return len(self.engine.runs), len(self.engine.starts)

    def prompt(self, number: int = -1, *, tokens: Sequence[int] | None = None) -> str:
        """What the model was given to read, or what these tokens of it say."""
        return prompt_of(self.vocab, self.engine.runs[number].job.tokens if tokens is None else tokens)


def _client(base_url: str, token: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.AsyncClient(base_url=base_url, headers=headers, timeout=None, verify=False, trust_env=False)


def _names(headers: dict[str, str]) -> dict[str, str]:
    return {key.replace("_", "-"): value for key, value in headers.items()}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def check_stream(id: str, deltas: list[dict[str, Any]], result: dict[str, Any]) -> None:
    """One terminal result after ordered deltas; for a completed turn, blocks that match its content."""
    assert result["type"] == "llm.generate.result" and result["id"] == id
    assert ("result" in result) != ("error" in result)
    assert [each["sequence"] for each in deltas] == list(range(len(deltas)))
    blocks: dict[int, list[dict[str, Any]]] = {}
    for each in deltas:
        assert each["type"] == "llm.delta" and each["requestId"] == id and "id" not in each
        own = blocks.setdefault(each["blockIndex"], [])
        own.append(each)
        assert each["block"] == own[0]["block"]
        assert (each["event"] == "start") == (len(own) == 1)
        assert all(earlier["event"] != "end" for earlier in own[:-1])
        called = each["event"] == "start" and each["block"] == "toolCall"
        assert set(each) - {"type", "requestId", "sequence", "event", "block", "blockIndex"} == (
            {"text"} if each["event"] == "delta" else {"toolCallId", "name"} if called else set()
        )
    if "error" in result:
        return
    generation = result["result"]
    calls = [part for part in generation["content"] if part["type"] == "toolCall"]
    if generation["finish"] in ("length", "refusal"):
        assert not calls
        return
    assert (generation["finish"] == "toolUse") == bool(calls)
    assert sorted(blocks) == list(range(len(generation["content"])))
    for index, part in enumerate(generation["content"]):
        start, *middle, end = blocks[index]
        assert start["block"] == part["type"] and end["event"] == "end"
        text = "".join(each["text"] for each in middle)
        if part["type"] == "toolCall":
            assert (start["toolCallId"], start["name"]) == (part["toolCallId"], part["name"])
            assert httpx.Response(200, text=text).json() == part["arguments"]
        else:
            assert text == part["text"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shell]:
    """A server with a real model: the given one, or ours with SmolLM2."""
    base_url = request.config.getoption("--base-url", None)
    if base_url is not None:
        token = request.config.getoption("--token")
        if token is None:
            pytest.fail("--base-url needs --token")
        shell = Shell(
            base_url, token, request.config.getoption("--shell-token"), request.config.getoption("--owner-token")
        )
        yield shell
        await shell.close()
        return
    path: Path = request.getfixturevalue("smollm2")
    connection = ModelConfig("smollm2", "SmolLM2", MODEL, ModelSource(path=path), context_length=1024, threads=1)
    tokens = TokenStore(tmp_path_factory.mktemp("state"))
    app = create_app(Config(ServerConfig(), (connection,)), tokens=tokens)
    async with listening(app) as port:
        shell = Shell(
            f"http://127.0.0.1:{port}",
            tokens.create("always", consent="always"),
            tokens.create("shell", consent="shell"),
            owner_token(tokens.directory),
        )
        yield shell
        await shell.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[HelperPool]:
    # A test may stop its processes for a while.
    pool = HelperPool(size=1, seconds=120)
    await pool.start()
    yield pool
    await pool.close()


@pytest.fixture(scope="module")
def stand_in(sdist: Path, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as small as can be with the chat template of SmolLM2 and its control tokens."""
    path = tmp_path_factory.mktemp("stand-in") / "model.gguf"
    template = Vocab.load(str(smollm2)).metadata["tokenizer.chat_template"]
    base = sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf"
    write_model(path, base, ["<|im_start|>", "<|im_end|>"], size=4096, template=template)
    return path


@pytest.fixture(scope="module")
def vocab(stand_in: Path) -> Vocab:
    return Vocab.load(str(stand_in))


@contextlib.asynccontextmanager
async def controlling(
    directory: Path, connection: ModelConfig, server: ServerConfig, pool: HelperPool, vocab: Vocab
) -> AsyncIterator[Controlled]:
    # A model that rests between two lines of its script does not hang.
    config = Config(replace(server, watchdog=0), (connection,))
    clock = ClockDouble()
    # To the engine a deadline is one of the machine's clock, which goes on.
    clock.time = time.monotonic() + 1e6
    tokens = TokenStore(directory)
    async with directing() as director:
        runtime = scripted_runtime(config, director, pool, clock)
        async with listening(create_app(config, runtime, tokens=tokens)) as port:
            controlled = Controlled(f"http://127.0.0.1:{port}", tokens, director, clock, vocab)
            yield controlled
            await controlled.close()


def connecting(path: Path, **fields: Any) -> ModelConfig:
    defaults = {"context_length": 2048, "slots": 2, "threads": 1, "unload_after": 0}
    return ModelConfig("smollm2", "SmolLM2", MODEL, ModelSource(path=path), **defaults | fields)


Make = Any
"""`make(restrictions=…, server=…, template=…)` gives a Controlled of its own; it is closed after the test. With `sees`
its connection has a projector."""


@pytest_asyncio.fixture(loop_scope="module")
async def make(pool: HelperPool, stand_in: Path, vocab: Vocab, tmp_path: Path) -> AsyncIterator[Make]:
    async with contextlib.AsyncExitStack() as stack:

        async def made(
            restrictions: CapabilityLimits | None = None,
            server: ServerConfig | None = None,
            sees: bool = False,
            **fields: Any,
        ) -> Controlled:
            if sees:
                write_projector(tmp_path / "projector.gguf", "mlp", WIDTH)
                fields["mmproj"] = ModelSource(path=tmp_path / "projector.gguf")
            connection = connecting(stand_in, capabilities=restrictions or CapabilityLimits(), **fields)
            return await stack.enter_async_context(
                controlling(tmp_path / "state", connection, server or ServerConfig(), pool, vocab)
            )

        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def seeing(make: Make, sdist: Path) -> Controlled:
    """With a projector, and a chat template that writes the results of tools as they are."""
    templates = sdist / "vendor/llama.cpp/models/templates"
    template = (templates / "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja").read_text()
    seeing: Controlled = await make(sees=True, template=template)
    return seeing


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def controlled_by_all(
    pool: HelperPool, stand_in: Path, vocab: Vocab, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Controlled]:
    directory = tmp_path_factory.mktemp("state")
    async with controlling(directory, connecting(stand_in), ServerConfig(), pool, vocab) as controlled:
        yield controlled


@pytest.fixture
def controlled(controlled_by_all: Controlled) -> Controlled:
    """The one server of all tests that need no other, none of whose jobs are this test's."""
    controlled_by_all.engine.reset()
    controlled_by_all.clock.advance(60)
    return controlled_by_all


@pytest.fixture
def anywhere(request: pytest.FixtureRequest) -> Shell:
    """A server whose model is scripted, then one with a real model; of a given server, that one alone."""
    shell: Shell = request.getfixturevalue("controlled" if request.param == "controlled" else "shell")
    return shell
