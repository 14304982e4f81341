"""Every format end to end: HTTP in, events out, and between them a real worker whose model writes that format.

The model's tokens are scripted, by a worker that obeys the constraint it was given (see `tests.scripted`): what a family
writes must be what its grammar allows. What some format cannot express stands in `CANNOT`, with its reason.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
import pytest_asyncio

from server.app import create_app
from server.chat import HelperPool
from server.chat.format import Format, Json
from server.chat.formats import FORMATS, GENERIC
from server.chat.prepare import Model
from server.chat.spell import spell
from server.chat.text import Text, control, join
from server.config import Config, ConnectionConfig, ServerConfig, Source
from server.engine import Vocab
from server.state import TokenStore
from tests.chat.standin import control_texts, write_model
from tests.chat.test_formats import RECOGNISED
from tests.conformance.conftest import check_stream
from tests.http.conftest import events, listening
from tests.scripted import Director, Run, directing, prompt_of, scripted_runtime

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEMPLATES = {format: template for template, format in sorted(RECOGNISED.items(), reverse=True)}
"""One template for each format."""

TRIP = {
    "name": "book_trip",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
STOP = {"name": "stop", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
OSLO = ("book_trip", {"city": "Oslo – 奥斯陆", "days": 3})
ROME = ("book_trip", {"city": 'Rome, "Italy"', "days": -1})
Call = tuple[str, dict[str, Any]]
Part = tuple[Any, ...]

ONE_CALL = "its grammar lets a model write one call a turn, as its models do"
NO_THINKING = "it has no markers for thinking"
MARKED = "its strings stand raw up to the text that closes them, which is this marker"
ANCHORED = "a call is one only where the answer begins with it"
WHOLE = "the grammar of its answer is either calls or text"

CANNOT: dict[str, dict[str, str]] = {
    "two calls": dict.fromkeys(("gigachat-3", "gigachat-3.1", "gpt-oss", "llama3"), ONE_CALL),
    "thinking": {},
    "text before a call": {"llama3": ANCHORED, "generic": WHOLE, "functionary-3.2": WHOLE, "muse-glimmer": WHOLE},
}
"""By case, the formats that cannot express it. Of two cases no format can: a refusal, which is text to a local model,
and blocks that interleave, for a model has one output. Both are tested where a parser says them (`test_nap.py`)."""


@dataclass
class House:
    """A server with one model of one format."""

    format: Format
    vocab: Vocab
    client: httpx.AsyncClient
    director: Director
    handle: str

    def cannot(self, case: str) -> bool:
        return self.format.name in CANNOT[case]

    @contextlib.asynccontextmanager
    async def asking(self, **fields: Any) -> AsyncIterator[tuple[Answer, asyncio.Task[Any]]]:
        """The model's side of a generation, and its deltas and result to come."""
        self.director.runs.clear()
        messages = [{"role": "user", "content": [{"type": "text", "text": "A trip, please."}]}]
        request = {"handle": self.handle, "messages": messages, "tools": [TRIP, STOP], "temperature": 0, **fields}
        envelope = {"type": "llm.generate", "id": "g", "request": request}
        task = asyncio.create_task(self._stream(envelope))
        arrival = asyncio.create_task(self.director.run())
        await asyncio.wait({task, arrival}, return_when=asyncio.FIRST_COMPLETED)
        assert arrival.done(), task.result()
        run = arrival.result()
        yield Answer(self.format, prompt_of(self.vocab, run.job.tokens), run), task

    async def _stream(self, envelope: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        accept = {"accept": "text/event-stream"}
        async with self.client.stream("POST", "/nap/llm", json=envelope, headers=accept) as response:
            *deltas, result = [each async for each in events(response)]
        check_stream("g", deltas, result)
        return deltas, result


class Answer:
    """Writes one turn as the model would that reads this prompt."""

    def __init__(self, format: Format, prompt: str, run: Run) -> None:
        self.format, self.run = format, run
        end = prompt.rstrip()
        self._written = False
        self._thinks = format.thinking is not None and end.endswith(format.thinking.open.strip())
        self._lead = format.lead if format.lead and end.endswith(format.lead) else ""

    def think(self, text: str) -> None:
        """Thinking stands first: in the prompt it may have begun."""
        frame = self.format.thinking
        assert frame is not None
        self._say(join(["" if self._thinks else control(frame.open), Text(text), control(frame.close)]))
        self._thinks = False

    def answer(self, text: str) -> None:
        self._end_thinking()
        frame = self.format.text[0] if self.format.text else None
        if frame is None:
            self._say(Text(text))
        elif frame.json:
            self._say(join([control(frame.open), Text(f'"{text}"'), control(frame.close)]))
        else:
            self._say(join([control(frame.open), Text(text), control(frame.close)]))

    def call(self, *calls: Call, which: int = 0) -> None:
        self._end_thinking()
        given = [(name, self._id(index), arguments) for index, (name, arguments) in enumerate(calls)]
        self._say(spell(self.format.calls[which], given))

    def _id(self, index: int) -> str:
        return str(index) if self.format.calls[0].id.startswith("[0-9]") else "a1B2c3D4e"

    def _end_thinking(self) -> None:
        if self._thinks:
            self.think("")

    def _say(self, text: Text) -> None:
        if self._written:
            self.run.say(control(self.format.next))
        if self._lead:
            text, self._lead = text.removeprefix(self._lead), ""
        self._written = True
        self.run.say(text)


@pytest.fixture(scope="module")
def templates(sdist: Path) -> dict[str, str]:
    found = (sdist / "vendor/llama.cpp/models/templates").glob("*.jinja")
    return {path.stem: path.read_text() for path in found}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[HelperPool]:
    pool = HelperPool(size=1, seconds=60)
    await pool.start()
    yield pool
    await pool.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=sorted(TEMPLATES))
async def house(
    request: pytest.FixtureRequest,
    sdist: Path,
    templates: dict[str, str],
    pool: HelperPool,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[House]:
    name: str = request.param
    directory = tmp_path_factory.mktemp("format")
    source = templates[TEMPLATES[name]]
    markers = (GENERIC if name == GENERIC.name else FORMATS[name]).markers
    base = sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf"
    write_model(directory / "m.gguf", base, control_texts([source], markers), size=4096, template=source)
    vocab = Vocab.load(str(directory / "m.gguf"))
    model = ConnectionConfig(
        name, name, name, Source(path=directory / "m.gguf"), context_length=4096, slots=2, threads=1
    )
    tokens = TokenStore(directory)
    token = tokens.create("test", consent="always")
    config = Config(ServerConfig(watchdog=0), (model,))
    headers = {"authorization": f"Bearer {token}"}
    async with directing() as director:
        app = create_app(config, scripted_runtime(config, director, pool), tokens=tokens)
        async with (
            listening(app) as port,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client,
        ):
            selected = await client.post("/nap/llm", json={"type": "llm.select", "id": "s"})
            handle = selected.json()["model"]["handle"]
            yield House(Model(vocab).format, vocab, client, director, handle)


def parts(result: dict[str, Any]) -> list[Part]:
    """The content of a result: kind and text, or name and arguments."""
    assert "result" in result, result
    return [
        (part["type"], part["name"], part["arguments"]) if part["type"] == "toolCall" else (part["type"], part["text"])
        for part in result["result"]["content"]
    ]


def called(*calls: Call) -> list[Part]:
    return [("toolCall", *call) for call in calls]


async def obeyed(answer: Answer) -> None:
    """The constraint has let the model write all that it would."""
    over = await answer.run.over
    assert over.astray == "" and over.unsaid == "", over


CHOICES = ("auto", "required", {"type": "tool", "name": "book_trip"})


def test_every_format_has_a_template() -> None:
    assert TEMPLATES.keys() == {*FORMATS, GENERIC.name}
    assert all(format in TEMPLATES for formats in CANNOT.values() for format in formats)


async def test_a_plain_answer(house: House) -> None:
    async with house.asking() as (answer, task):
        answer.answer("It is late: 3 < 4.")
        answer.run.done()
        _, result = await task
    assert parts(result) == [("text", "It is late: 3 < 4.")] and result["result"]["finish"] == "stop"


@pytest.mark.parametrize("choice", CHOICES, ids=["auto", "required", "named"])
async def test_one_call(house: House, choice: Any) -> None:
    async with house.asking(toolChoice=choice) as (answer, task):
        answer.call(OSLO)
        answer.run.done()
        _, result = await task
        await obeyed(answer)
    assert parts(result) == called(OSLO) and result["result"]["finish"] == "toolUse"


async def test_two_calls(house: House) -> None:
    async with house.asking(toolChoice="auto") as (answer, task):
        answer.call(OSLO, ROME)
        answer.run.done()
        _, result = await task
        if house.cannot("two calls"):
            assert (await answer.run.over).unsaid
            assert parts(result) == called(OSLO)
            return
        await obeyed(answer)
    assert parts(result) == called(OSLO, ROME)
    assert len({part["toolCallId"] for part in result["result"]["content"]}) == 2
