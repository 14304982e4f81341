"""The conversation behind `nap-llm chat`, against a scripted client."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal

import pytest

from server.cli.main import build_parser
from server.cli.terminal import INTERRUPTED, ChatSession, Quit, Screen
from server.client import Stream
from server.wire.records import (
    Delta,
    Generation,
    GenerationRequest,
    Message,
    Model,
    NamedTool,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCallPart,
    Usage,
    WireError,
)

MODEL = Model("h", "Name", "exact", "this machine", False, True, True, ("auto", "none", "required", "tool"))
TOOL = Tool("look", None, {"type": "object"})

INTERRUPT = WireError("cancelled", "by Ctrl-C")
"""In a script: the person presses Ctrl-C here, and waits."""

Script = Sequence[Delta | Generation | WireError]


class Scripted:
    """Answers each request with the next script; keeps what was asked. Where it does not cancel, the person who waits
    for that presses Ctrl-C again."""

    def __init__(self, *scripts: Script, cancels: bool = True) -> None:
        self._scripts = iter(scripts)
        self.asked: list[GenerationRequest] = []
        self._cancels = cancels
        self._cancelled = asyncio.Event()

    def generate(self, request: GenerationRequest) -> Stream:
        self.asked.append(request)
        return Stream("g", self._events(next(self._scripts)), self.cancel)

    async def _events(self, script: Script) -> AsyncGenerator[Delta | Generation, None]:
        for each in script:
            if each is INTERRUPT:
                signal.raise_signal(signal.SIGINT)
                await self._cancelled.wait()
                raise WireError("cancelled", "gone")
            if isinstance(each, WireError):
                raise each
            yield each

    async def cancel(self, id: str) -> bool:
        if not self._cancels:
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()
        self._cancelled.set()
        return True


def conversation(client: Scripted, *arguments: str, tools: tuple[Tool, ...] = ()) -> ChatSession:
    options: argparse.Namespace = build_parser().parse_args(["chat", *arguments])
    choice = NamedTool("look") if tools else None
    return ChatSession(client, MODEL, options, tools, choice, Screen())  # type: ignore[arg-type]


def text(words: str) -> Script:
    return [
        Delta("g", 0, "start", "text", 0),
        Delta("g", 1, "delta", "text", 0, text=words),
        Delta("g", 2, "end", "text", 0),
        Generation((TextPart(words),), "stop", Usage(3, 2)),
    ]


async def test_history_grows_turn_by_turn(capsys: pytest.CaptureFixture[str]) -> None:
    client = Scripted(text("one"), text("two"))
    talk = conversation(client, "--system", "be brief", "--max-tokens", "9", "--temperature", "0")
    assert await talk.turn("first") == 0
    assert await talk.turn("second") == 0
    assert capsys.readouterr().out == "one\ntwo\n"
    assert client.asked[1] == GenerationRequest(
        handle="h",
        messages=(
            Message("system", (TextPart("be brief"),)),
            Message("user", (TextPart("first"),)),
            Message("assistant", (TextPart("one"),)),
            Message("user", (TextPart("second"),)),
        ),
        max_tokens=9,
        temperature=0.0,
    )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([Delta("g", 0, "start", "text", 0), WireError("timeout", "too late")], "timeout: too late"),
        ([WireError("quota-exceeded", "too long", reason="context")], "does not fit"),
    ],
    ids=["timeout", "context"],
)
async def test_a_failed_turn_leaves_no_trace_in_the_history(
    answer: list[Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Scripted(answer, text("two"))
    talk = conversation(client)
    assert await talk.turn("first") == 1
    assert said in capsys.readouterr().err
    assert await talk.turn("second") == 0
    assert client.asked[1].messages == (Message("user", (TextPart("second"),)),)


async def test_a_cancelled_turn_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert await conversation(Scripted([WireError("cancelled", "gone")])).turn("first") == INTERRUPTED
    assert "cancelled" in capsys.readouterr().err


async def test_an_empty_line_asks_nothing() -> None:
    client = Scripted()
    assert await conversation(client).turn("  \n") == 0
    assert client.asked == []


async def test_piped_thinking_is_apart_from_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    script: Script = [
        Delta("g", 0, "start", "thinking", 0),
        Delta("g", 1, "delta", "thinking", 0, text="hmm"),
        Delta("g", 2, "end", "thinking", 0),
        Delta("g", 3, "start", "text", 1),
        Delta("g", 4, "delta", "text", 1, text="yes"),
        Delta("g", 5, "end", "text", 1),
        Generation((ThinkingPart("hmm"), TextPart("yes")), "stop"),
    ]
    assert await conversation(Scripted(script)).turn("first") == 0
    out, err = capsys.readouterr()
    assert out == "yes\n"
    assert "hmm" in err


async def test_calls_wait_for_results_and_are_forced_once(capsys: pytest.CaptureFixture[str]) -> None:
    call = ToolCallPart("c1", "look", {"at": "é"})
    client = Scripted([Generation((call,), "toolUse")], text("seen"))
    talk = conversation(client, tools=(TOOL,))
    assert await talk.turn("look at it") == 0
    assert capsys.readouterr().out == '{"name": "look", "arguments": {"at": "é"}}\n'
    assert talk.pending == (call,)
    assert client.asked[0].tool_choice == NamedTool("look")
    assert await talk.answer(["blue"]) == 0
    assert talk.pending == ()
    assert client.asked[1].tool_choice is None
    assert client.asked[1].messages[-1] == Message(
        "toolResult", (TextPart("blue"),), tool_call_id="c1", tool_name="look"
    )


async def test_what_was_cut_short_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert await conversation(Scripted([Generation((TextPart("on and"),), "length")])).turn("first") == 0
    assert "cut short" in capsys.readouterr().err


BEGUN: Script = [
    Delta("g", 0, "start", "toolCall", 0, tool_call_id="c1", name="look"),
    Delta("g", 1, "delta", "toolCall", 0, text='{"at": "h'),
]


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (Generation((), "length"), 0),
        (Generation((), "refusal"), 0),
        (WireError("provider-error", "died"), 1),
        (INTERRUPT, INTERRUPTED),
    ],
)
async def test_calls_on_the_screen_that_are_discarded_are_called_so(
    end: Any, status: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal, where calls are shown as they come
    talk = conversation(Scripted([*BEGUN, end], text("seen")), tools=(TOOL,))
    assert await talk.turn("look") == status
    out, err = capsys.readouterr()
    assert "call look: " in out and "the call of look was discarded" in err
    assert talk.pending == ()
    await talk.turn("again")
    assert "discarded" not in capsys.readouterr().err


async def test_calls_that_count_are_not_called_discarded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    call = ToolCallPart("c1", "look", {"at": "hall"})
    ending = Delta("g", 2, "delta", "toolCall", 0, text='all"}')
    talk = conversation(Scripted([*BEGUN, ending, Generation((call,), "toolUse")]), tools=(TOOL,))
    assert await talk.turn("look") == 0
    assert "discarded" not in capsys.readouterr().err and talk.pending == (call,)


async def test_what_was_cut_short_can_be_gone_on_from() -> None:
    cut = Generation((TextPart("on and"),), "length")
    client = Scripted([cut], text("on"))
    talk = conversation(client)
    assert await talk.turn("first") == await talk.turn("go on") == 0
    assert [message.content for message in client.asked[1].messages] == [
        (TextPart("first"),),
        (TextPart("on and"),),
        (TextPart("go on"),),
    ]


@pytest.mark.parametrize("finish", ["stop", "length"])
async def test_an_empty_answer_leaves_no_trace(finish: Literal["stop", "length"]) -> None:
    client = Scripted([Generation((), finish)], text("two"))
    talk = conversation(client)
    assert await talk.turn("first") == await talk.turn("second") == 0
    assert client.asked[1].messages == (Message("user", (TextPart("second"),)),)


async def test_calls_whose_answer_failed_wait_for_results_again() -> None:
    call = ToolCallPart("c1", "look", {})
    client = Scripted([Generation((call,), "toolUse")], [WireError("timeout", "too late")], text("seen"))
    talk = conversation(client, tools=(TOOL,))
    assert await talk.turn("look at it") == 0
    assert await talk.answer(["blue"]) == 1
    assert talk.pending == (call,)
    assert await talk.answer(["red"]) == 0
    assert talk.pending == ()
    assert client.asked[2].messages == (
        *client.asked[1].messages[:2],
        Message("toolResult", (TextPart("red"),), tool_call_id="c1", tool_name="look"),
    )


async def test_an_interrupt_cancels_the_turn_alone(capsys: pytest.CaptureFixture[str]) -> None:
    client = Scripted([*text("one")[:2], INTERRUPT], text("two"))
    talk = conversation(client)
    assert await talk.turn("first") == INTERRUPTED
    out, err = capsys.readouterr()
    assert out == "one\n" and "cancelled" in err
    assert await talk.turn("second") == 0
    assert client.asked[1].messages == (Message("user", (TextPart("second"),)),)


async def test_a_second_interrupt_leaves() -> None:
    with pytest.raises(Quit):
        await asyncio.wait_for(conversation(Scripted([INTERRUPT], cancels=False)).turn("first"), 30)
