"""The tool loop over real HTTP: the real runtime with an engine that does as told, then SmolLM2."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest
import pytest_asyncio

from server.app import create_app
from server.chat.events import BlockDelta, BlockEnd, BlockStart
from server.client import Client, Conversation, FunctionTool, PartialCall, SyncClient, SyncConversation, TurnResult
from server.config import Config, ModelConfig, ModelSource, ServerConfig
from server.state import TokenStore
from server.wire.records import NamedTool, Requirements, TextPart, WireError
from tests.http.conftest import Site, listening, site_of

pytestmark = pytest.mark.slow

CALL = [BlockStart(0, "toolCall", "weather"), BlockDelta(0, '{"city": "Rome"}'), BlockEnd(0)]
BEGUN = [BlockStart(0, "toolCall", "weather"), BlockDelta(0, '{"city": "Ro')]


def weather(city: str) -> str:
    """Weather of a city."""
    return f"22 degrees in {city}"


class Talk:
    """A conversation with the site, a turn of it running, and the engine's side of each request."""

    def __init__(self, site: Site, conversation: Conversation) -> None:
        self.site, self.conversation, self.number = site, conversation, 0

    def send(self, words: str = "Rome?", **options: Any) -> asyncio.Task[TurnResult]:
        return asyncio.create_task(self.conversation.send(words, tools=[weather], **options))

    async def engine(self, *texts: str, finish: str | None = "stop") -> Any:
        run = await self.site.world.engine.run(self.number)
        self.number += 1
        run.say(*texts)
        if finish is not None:
            run.done(finish)
        return run


@pytest_asyncio.fixture
async def scripted(tmp_path: Path) -> AsyncIterator[Talk]:
    async with site_of(tmp_path) as site:
        site.world.chat.script = {"<call>": CALL, "<begun>": BEGUN}  # type: ignore[dict-item]
        token = site.tokens.create("python", consent="always")
        async with Client(str(site.client.base_url), token) as client:
            model = await client.select(Requirements(tools=True))
            assert await client.describe(model.handle) == model
            yield Talk(site, Conversation(client, model))


async def test_completed(scripted: Talk) -> None:
    turn = scripted.send()
    await scripted.engine("<call>")
    await scripted.engine("Warm.")
    result = await turn
    assert (result.stop_reason, result.text) == ("completed", "Warm.")
    assert scripted.conversation.history == list(result.messages)
    # What the model was given is the whole turn, with the runtime's own id of the call.
    conversation = scripted.site.world.chat.conversations[-1]
    assert conversation.messages == result.messages[:3]
    assert conversation.messages[2].content == (TextPart("22 degrees in Rome"),)


async def test_cancelled_stops_the_engine_and_keeps_the_partial_answer(scripted: Talk) -> None:
    seen = asyncio.Event()
    turn = scripted.send(on_delta=lambda delta: seen.set() if delta.text else None)
    run = await scripted.engine("Once", finish=None)
    await seen.wait()
    scripted.conversation.cancel()
    result = await turn
    assert (result.stop_reason, result.rolled_back, result.text) == ("cancelled", False, "Once")
    await run.closed.wait()
    assert run.cancelled


async def test_cancelled_before_the_first_token(scripted: Talk) -> None:
    turn = scripted.send()
    run = await scripted.engine(finish=None)
    scripted.conversation.cancel()
    result = await turn
    assert (result.stop_reason, result.rolled_back) == ("cancelled", True)
    assert scripted.conversation.history == []
    await run.closed.wait()


async def test_truncated(scripted: Talk) -> None:
    turn = scripted.send()
    await scripted.engine("<call>")
    await scripted.engine("<begun>", finish="length")
    result = await turn
    assert (result.stop_reason, result.rolled_back) == ("truncated", True)
    assert result.partial_tool_calls == (PartialCall("weather", '{"city": "Ro'),)
    assert result.pending_tool_calls == () and scripted.conversation.history == []
    assert [m.role for m in result.messages] == ["user", "assistant", "toolResult"]


async def test_context_exceeded(scripted: Talk) -> None:
    result = await scripted.send("x" * 5000)
    assert (result.stop_reason, result.rolled_back) == ("context_exceeded", True)
    assert scripted.conversation.history == []


async def test_max_rounds_and_on(scripted: Talk) -> None:
    turn = scripted.send(max_rounds=0)
    await scripted.engine("<call>")
    result = await turn
    assert result.stop_reason == "max_rounds" and scripted.conversation.history == []
    scripted.conversation.add(*result.messages)
    scripted.conversation.answer(result.pending_tool_calls[0], "by hand")
    resumed = asyncio.create_task(scripted.conversation.resume(tools=[weather]))
    await scripted.engine("Warm.")
    assert (await resumed).text == "Warm."


async def test_unhandled(scripted: Talk) -> None:
    turn = asyncio.create_task(scripted.conversation.send("Rome?", tools=[FunctionTool.of(weather).definition]))
    await scripted.engine("<call>")
    result = await turn
    assert (result.stop_reason, len(scripted.conversation.history)) == ("unhandled_tool_calls", 2)
    assert result.pending_tool_calls[0].arguments == {"city": "Rome"}


async def test_a_failure_rolls_back(scripted: Talk) -> None:
    turn = scripted.send()
    await scripted.engine("<call>")
    run = await scripted.engine("Wa", finish=None)
    run.fail("provider-error", "died")
    with pytest.raises(WireError, match="engine failed"):
        await turn
    assert scripted.conversation.history == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def smol(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> AsyncIterator[tuple[str, str]]:
    """Address and token of a server with SmolLM2."""
    connection = ModelConfig(
        "smollm2", "SmolLM2", "SmolLM2-135M-Instruct", ModelSource(path=smollm2), context_length=1024, threads=1
    )
    tokens = TokenStore(tmp_path_factory.mktemp("state"))
    token = tokens.create("python", consent="always")
    async with listening(create_app(Config(ServerConfig(), (connection,)), tokens=tokens)) as port:
        yield f"http://127.0.0.1:{port}", token


@pytest.mark.asyncio(loop_scope="module")
async def test_smollm2_calls_a_function_and_answers(smol: tuple[str, str]) -> None:
    given: list[tuple[str, int]] = []

    def book_table(area: Literal["inside", "outside"], guests: Literal[1, 2, 3]) -> str:
        """Books a table in the restaurant.

        Args:
            area: Where to sit.
            guests: How many people come.
        """
        given.append((area, guests))
        return "Booked."

    async with Client(*smol) as client:
        model = await client.select(Requirements(tools=True))
        conversation = Conversation(client, model, max_tokens=200, temperature=0)
        forced: Any = {"tool_choice": NamedTool("book_table")}
        # What the model does once nothing forces it is its own affair; the first call is not.
        looped = await conversation.send("A table for two, please.", tools=[book_table], max_rounds=1, **forced)
        assert given and all(area in ("inside", "outside") and guests in (1, 2, 3) for area, guests in given)
        assert looped.messages[2].content == (TextPart("Booked."),)
        assert looped.stop_reason == ("max_rounds" if looped.pending_tool_calls else "completed")

        conversation.history.clear()
        stopped = await conversation.send("A table for two, please.", tools=[book_table], max_rounds=0, **forced)
        assert (stopped.stop_reason, stopped.rolled_back) == ("max_rounds", True)
        waiting = await conversation.send(
            "A table for two, please.", tools=[FunctionTool.of(book_table).definition], **forced
        )
        assert (waiting.stop_reason, waiting.rolled_back) == ("unhandled_tool_calls", False)
        assert waiting.pending_tool_calls
        for call in waiting.pending_tool_calls:
            conversation.answer(call, "Booked.")
        resumed = await conversation.resume(tools=[book_table], max_rounds=0, **forced)
        assert (resumed.stop_reason, resumed.rolled_back) == ("max_rounds", True)
        assert resumed.messages[: len(waiting.messages)] == waiting.messages and conversation.history == []

        answered = await conversation.send("Say hello in one short sentence.")
    assert answered.stop_reason == "completed" and answered.text.strip()
    assert conversation.history == list(answered.messages)


@pytest.mark.asyncio(loop_scope="module")
async def test_smollm2_is_cut_off_cancelled_and_overfilled(smol: tuple[str, str]) -> None:
    """From a thread, as a program without a loop would."""

    def program() -> list[tuple[str, bool, int]]:
        with SyncClient(*smol) as client:
            conversation = SyncConversation(client, client.select(), temperature=0)
            conversation.inner.max_tokens = 3
            ends = [conversation.send("Count to a thousand.")]
            conversation.inner.max_tokens = 800
            told: list[Any] = []

            def enough(delta: Any) -> None:
                told.append(delta)
                if len(told) > 4:
                    conversation.cancel()

            ends.append(conversation.send("Write a long story about a whale.", on_delta=enough))
            ends.append(conversation.send("whale " * 2000))
            return [(end.stop_reason, end.rolled_back, len(conversation.history)) for end in ends]

    ends = await asyncio.to_thread(program)
    assert ends == [("truncated", True, 2), ("cancelled", False, 2), ("context_exceeded", True, 2)]
