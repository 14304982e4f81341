"""Every format end to end: HTTP in, events out, and between them a real worker whose model writes that format.

The model's tokens are scripted, in a worker that obeys the constraint it was given (see `tests.scripted`): what a
family writes must be what its grammar allows. What some format cannot express stands in `CANNOT`, with its reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from server.app import create_app
from server.chat import HelperPool
from server.chat.formats import FORMATS, GENERIC
from server.chat.formats.render import render_tool_calls
from server.chat.formats.spec import ChatFormat
from server.chat.prompt_builder import PromptBuilder
from server.chat.template.provenance import ProvenanceStr, from_template, join
from server.config import Config, ModelConfig, ModelSource, ServerConfig
from server.engine import Vocab
from server.state import TokenStore
from tests.chat.standin import control_texts, write_model
from tests.chat.test_formats import RECOGNISED
from tests.conformance.conftest import check_stream
from tests.http.conftest import events, listening
from tests.scripted import Director, Run, directing, prompt_of, scripted_runtime

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEMPLATES = {format: template for template, format in sorted(RECOGNISED.items(), reverse=True)} | {
    "hermes": "Qwen-Qwen3-0.6B",
    "kimi-k2": "Kimi-K2-Thinking",
    "lfm-2": "LFM2.5-8B-A1B",
}
"""One template for each format, of models that think where there are such."""

BESIDE = {"solar-open": ("<|calls|>", "<|flush|>")}
"""Control tokens of the family's vocabulary that its template need not name: by these llama.cpp knows which token ends
a message and which the turn."""

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
_NUMBERS = itertools.count()
Call = tuple[str, dict[str, Any]]
Part = tuple[Any, ...]

ONE_CALL = "its grammar lets a model write one call a turn, as its models do"
NO_THINKING = "it has no markers for thinking"
MARKED = "its strings stand raw up to the text that closes them, which is this marker"
ANCHORED = "a call is one only where the answer begins with it"
WHOLE = "the grammar of its answer is either calls or text"

CANNOT: dict[str, dict[str, str]] = {
    "two calls": dict.fromkeys(("gigachat-3", "gigachat-3.1", "gpt-oss", "llama3"), ONE_CALL),
    "thinking": dict.fromkeys(
        (
            "apriel-1.5",
            "command-r-plus",
            "firefunction-2",
            "functionary-3.1",
            "functionary-3.2",
            "generic",
            "gigachat-3",
            "gigachat-3.1",
            "llama3",
            "mistral-call-id",
            "mistral-nemo",
        ),
        NO_THINKING,
    )
    | {"minimax-m1": "its template closes no thinking"},
    "text before a call": {"llama3": ANCHORED, "generic": WHOLE},
    "text after a call": {"generic": WHOLE},
    "call in a string": {"minimax-m3": MARKED},
    "call's end in a string": dict.fromkeys(
        ("functionary-3.2", "gpt-oss", "mistral-args", "mistral-call-id"), "its calls end with their arguments"
    )
    | {"minimax-m3": MARKED},
}
"""By case, the formats that cannot express it. Of two cases no format can: a refusal, which is text to a local model,
and blocks that interleave, for a model has one output. Both are tested where a parser says them (`test_nap.py`)."""


@dataclass
class House:
    """A server with one model of one format."""

    format: ChatFormat
    vocab: Vocab
    client: httpx.AsyncClient
    director: Director
    handle: str

    def cannot(self, case: str) -> bool:
        return self.format.name in CANNOT.get(case, {})

    @contextlib.asynccontextmanager
    async def asking(self, **fields: Any) -> AsyncIterator[tuple[Answer, asyncio.Task[Any]]]:
        """The model's side of a generation, and its deltas and result to come."""
        self.director.runs.clear()
        messages = [{"role": "user", "content": [{"type": "text", "text": "A trip, please."}]}]
        request = {"handle": self.handle, "messages": messages, "tools": [TRIP, STOP], "temperature": 0, **fields}
        envelope = {"type": "llm.generate", "id": f"g{next(_NUMBERS)}", "request": request}
        task = asyncio.create_task(self._stream(envelope))
        arrival = asyncio.create_task(self.director.run())
        await asyncio.wait({task, arrival}, return_when=asyncio.FIRST_COMPLETED)
        assert arrival.done(), task.result()
        run = arrival.result()
        try:
            yield Answer(self.format, prompt_of(self.vocab, run.job.tokens), run), task
        finally:
            task.cancel()

    async def _stream(self, envelope: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        accept = {"accept": "text/event-stream"}
        async with self.client.stream("POST", "/nap/llm", json=envelope, headers=accept) as response:
            *deltas, result = [each async for each in events(response)]
        check_stream(envelope["id"], deltas, result)
        return deltas, result


class Answer:
    """Writes one turn as the model would that reads this prompt."""

    def __init__(self, format: ChatFormat, prompt: str, run: Run) -> None:
        self.format, self.run = format, run
        end = prompt.rstrip()
        self._between = ""
        self._thinks = format.reasoning_tags is not None and end.endswith(format.reasoning_tags.open.strip())
        self._lead = format.prompt_opening if format.prompt_opening and end.endswith(format.prompt_opening) else ""

    def think(self, text: str) -> None:
        """Thinking stands first: in the prompt it may have begun."""
        frame = self.format.reasoning_tags
        assert frame is not None
        self._say(
            join(["" if self._thinks else from_template(frame.open), ProvenanceStr(text), from_template(frame.close)])
        )
        self._thinks = False

    def answer(self, text: str) -> None:
        self._end_thinking()
        frame = self.format.answer_tags[0] if self.format.answer_tags else None
        if frame is None:
            self._say(ProvenanceStr(text))
        elif self.format.grammar_only:
            self._say(join([from_template(frame.open), ProvenanceStr(f'"{text}"'), from_template(frame.close)]))
        else:
            self._say(join([from_template(frame.open), ProvenanceStr(text), from_template(frame.close)]))

    def call(self, *calls: Call) -> None:
        self._end_thinking()
        given = [(name, self._id(index), arguments) for index, (name, arguments) in enumerate(calls)]
        self._say(render_tool_calls(self.format.calls[0], given))
        if self.format.always_tagged:
            self._between = self.format.calls[0].between

    def _id(self, index: int) -> str:
        return str(index) if self.format.calls[0].id.startswith("[0-9]") else "a1B2c3D4e"

    def _end_thinking(self) -> None:
        if self._thinks:
            self.think("")

    def _say(self, text: ProvenanceStr) -> None:
        if self._lead:
            text, self._lead = text.removeprefix(self._lead), ""
        self.run.say(from_template(self._between), text)
        self._between = self.format.separator


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


QUICK = ("generic", "gpt-oss", "hermes")


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in sorted(TEMPLATES)],
)
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
    controls = {*control_texts([source], markers), *BESIDE.get(name, ())}
    base = sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf"
    write_model(
        directory / "m.gguf",
        base,
        sorted(controls),
        size=4096,
        template=source,
    )
    vocab = Vocab.load(str(directory / "m.gguf"))
    model = ModelConfig(
        name, name, name, ModelSource(path=directory / "m.gguf"), context_length=4096, slots=2, threads=1
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
            yield House(PromptBuilder(vocab).format, vocab, client, director, handle)


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


async def test_every_format_has_a_template() -> None:
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


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_thinking_before_a_call(house: House, choice: str) -> None:
    if house.cannot("thinking"):
        assert house.format.reasoning_tags is None
        return
    async with house.asking(toolChoice=choice) as (answer, task):
        answer.think("Where to? Oslo it is.")
        answer.call(OSLO)
        answer.run.done()
        _, result = await task
        await obeyed(answer)
    assert parts(result) == [("thinking", "Where to? Oslo it is."), *called(OSLO)]
    # White space behind the opening marker counts as thinking.
    thinking = house.format.reasoning_tags
    assert thinking is not None
    space = thinking.open.removeprefix(thinking.open.rstrip())
    tokens = house.vocab.continuation(f"{space}Where to? Oslo it is.".encode())
    assert result["result"]["usage"]["reasoningTokens"] == len(tokens)


async def test_thinking_before_an_answer(house: House) -> None:
    if house.cannot("thinking"):
        assert house.format.reasoning_tags is None
        return
    async with house.asking(tools=[]) as (answer, task):
        answer.think("They ask for a trip.")
        answer.answer("Where to?")
        answer.run.done()
        _, result = await task
    assert parts(result) == [("thinking", "They ask for a trip."), ("text", "Where to?")]


async def test_text_before_a_call(house: House) -> None:
    async with house.asking(toolChoice="auto") as (answer, task):
        answer.answer("I book it.")
        answer.call(OSLO)
        answer.run.done()
        _, result = await task
    if house.cannot("text before a call"):
        assert parts(result) != [("text", "I book it."), *called(OSLO)]
        return
    await obeyed(answer)
    assert parts(result) == [("text", "I book it."), *called(OSLO)]


async def test_a_turn_ends_with_its_calls(house: House) -> None:
    """What a model would say after them it says once it has their results. But where text begins as a further call
    does it may go on in text: else it were held to a call that it does not want."""
    async with house.asking(toolChoice="auto") as (answer, task):
        answer.call(OSLO)
        answer.answer("Booked.")
        answer.run.done()
        _, result = await task
        over = await answer.run.over
    further = house.format.always_tagged
    assert parts(result) == [*called(OSLO), *([("text", "Booked.")] if further else [])]
    assert result["result"]["finish"] == "toolUse" and ("Booked." in over.unsaid) != further


async def test_text_after_a_call_that_no_constraint_forbids(house: House) -> None:
    house.director.obedient = False
    try:
        async with house.asking(toolChoice="auto") as (answer, task):
            answer.call(OSLO)
            answer.answer("Booked.")
            answer.run.done()
            _, result = await task
    finally:
        house.director.obedient = True
    if house.cannot("text after a call"):
        assert result["error"]["code"] == "provider-error"
        return
    assert parts(result) == [*called(OSLO), ("text", "Booked.")] and result["result"]["finish"] == "toolUse"


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_call_that_is_cut_off(house: House, choice: str) -> None:
    """Once it is known how many tokens it takes, it is asked for with ever fewer: by the request's own limit."""
    async with house.asking(toolChoice=choice) as (answer, task):
        answer.call(OSLO)
        answer.run.done()
        _, result = await task
    tokens = result["result"]["usage"]["outputTokens"]
    for fewer in (1, 3, tokens // 2):
        async with house.asking(toolChoice=choice, maxTokens=tokens - fewer) as (answer, task):
            answer.call(OSLO)
            answer.run.done()
            deltas, result = await task
        usage = result["result"]["usage"]
        assert (result["result"]["finish"], usage["outputTokens"]) == ("length", tokens - fewer)
        assert all(part["type"] != "toolCall" for part in result["result"]["content"])
        told = "".join(each.get("text", "") for each in deltas if each["block"] == "toolCall")
        assert len(told) <= len(json.dumps(OSLO[1], ensure_ascii=False))


@pytest.mark.parametrize("which", ["call", "call's end", "thinking", "thinking's end"])
async def test_a_marker_within_a_string(house: House, which: str) -> None:
    calls, thinking = house.format.calls[0], house.format.reasoning_tags
    ending = str(calls.call[-1]) if isinstance(calls.call[-1], str) else calls.end
    marker = {
        "call": calls.marker,
        "call's end": (calls.end or ending).strip(),
        "thinking": thinking.open.strip() if thinking else "",
        "thinking's end": thinking.close.strip() if thinking else "",
    }[which]
    if not marker:
        assert house.cannot("thinking" if which.startswith("thinking") else f"{which} in a string")
        return
    call = ("book_trip", {"city": f"a {marker} b", "days": 1})
    async with house.asking(toolChoice="auto") as (answer, task):
        answer.call(call)
        answer.run.done()
        _, result = await task
        if house.cannot(f"{which} in a string"):
            assert "error" in result or parts(result) != called(call)
            return
        await obeyed(answer)
    assert parts(result) == called(call)
