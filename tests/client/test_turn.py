"""The tool loop, row by row: why it stops, what it leaves in the history, what it hands back."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from server.client import Conversation, FunctionTool, PartialCall, TransportError
from server.wire.records import (
    Generation,
    ImagePart,
    Message,
    NamedTool,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCallPart,
    WireError,
)
from tests.client.scripted import MODEL, Fragment, Reply, Server, call, calls, cut, held, says

EARLIER = (
    Message("system", (TextPart("Be brief."),)),
    Message("user", (TextPart("Hello"),)),
    Message("assistant", (TextPart("Hi."),)),
)
BY_HAND = Tool("ask_owner", None, {"type": "object"})


def weather(city: str) -> dict[str, Any]:
    """Weather of a city."""
    return {"city": city, "degrees": 22}


def talk(server: Server) -> Conversation:
    return Conversation(server.client(), MODEL, EARLIER)


def texts(conversation: Conversation) -> list[str]:
    return [part.text for message in conversation.history for part in message.content if isinstance(part, TextPart)]


def untouched(conversation: Conversation) -> bool:
    return conversation.history == list(EARLIER)


# --- completed


async def test_completed_without_a_call() -> None:
    conversation = talk(server := Server(says("Paris.")))
    result = await conversation.send("The capital of France?", tools=[weather])
    assert (result.stop_reason, result.text, result.rolled_back) == ("completed", "Paris.", False)
    assert conversation.history == [*EARLIER, *result.messages]
    assert [message.role for message in result.messages] == ["user", "assistant"]
    assert result.generations[0].usage is not None and result.pending_tool_calls == ()
    (request,) = server.requests
    assert request.handle == "h1" and request.tools == (FunctionTool.of(weather).definition,)


async def test_completed_after_rounds_keeps_calls_results_and_answer() -> None:
    first, second = call("weather", city="Seoul"), call("weather", city="Rome")
    conversation = talk(server := Server(calls(first, text="I look."), calls(second), says("Warm in both.")))
    seen: list[Message] = []
    result = await conversation.send("Seoul and Rome?", tools=[weather], on_message=seen.append)
    assert (result.stop_reason, result.text) == ("completed", "Warm in both.")
    assert [m.role for m in result.messages] == [
        "user",
        "assistant",
        "toolResult",
        "assistant",
        "toolResult",
        "assistant",
    ]
    assert conversation.history == [*EARLIER, *result.messages] and seen == list(result.messages)
    answer = Message(
        "toolResult",
        (TextPart('{"city": "Seoul", "degrees": 22}'),),
        tool_call_id=first.tool_call_id,
        tool_name="weather",
    )
    assert result.messages[2] == answer
    # Each request holds all that came before it.
    assert [len(request.messages) for request in server.requests] == [4, 6, 8]
    assert len(result.generations) == 3
    # The next turn's request would be accepted.
    server.replies = [says("Bye.")]
    assert (await conversation.send("Thanks.")).stop_reason == "completed"


async def test_calls_of_a_round_run_together_and_answer_in_their_order() -> None:
    """Each waits for the next one, so the last ends first; in sequence they would never end."""
    names = [f"tool{number}" for number in range(8)]
    started = {name: threading.Event() for name in names}
    ended: list[str] = []

    def plain(number: int) -> Any:
        def handler() -> str:
            if number + 1 < len(names):
                assert started[names[number + 1]].wait(20)
            ended.append(names[number])
            started[names[number]].set()
            return names[number]

        return FunctionTool.of(handler, name=names[number])

    conversation = talk(Server(calls(*[call(name) for name in names]), says("Done.")))
    result = await conversation.send("All.", tools=[plain(number) for number in range(len(names))])
    assert ended == names[::-1]
    assert [m.tool_name for m in result.messages if m.role == "toolResult"] == names
    assert texts(conversation)[-9:] == [*names, "Done."]


async def test_async_tools_run_together_on_the_loop() -> None:
    barrier = asyncio.Barrier(2)

    async def meet(who: str) -> str:
        await barrier.wait()
        return who

    class Callable:
        """Meets another."""

        async def __call__(self, who: str) -> str:
            await barrier.wait()
            return who

    conversation = talk(Server(calls(call("meet", who="a"), call("Callable", who="b")), says("Met.")))
    result = await conversation.send("Meet.", tools=[meet, Callable()])
    assert [m.content for m in result.messages[2:4]] == [(TextPart("a"),), (TextPart("b"),)]


@pytest.mark.parametrize("choice", ["required", NamedTool("weather")])
async def test_the_choice_is_made_once(choice: Any) -> None:
    conversation = talk(server := Server(calls(call("weather", city="Rome")), says("Warm.")))
    await conversation.send("Rome?", tools=[weather], tool_choice=choice)
    # The wire's default, where nothing is chosen, reads as auto.
    assert [request.tool_choice for request in server.requests] == [choice, "auto"]


# --- cancelled


async def cancelled(server: Server, **options: Any) -> tuple[Conversation, Any]:
    conversation = talk(server)
    turn = asyncio.create_task(conversation.send("Go on.", tools=[weather], **options))
    await server.streaming.wait()
    assert conversation.cancel()
    return conversation, await turn


async def test_cancelled_during_the_answer_keeps_the_partial_answer() -> None:
    server = Server(held(Fragment("thinking", "Hm"), Fragment("text", "Once upon")))
    conversation, result = await cancelled(server)
    assert (result.stop_reason, result.rolled_back, result.text) == ("cancelled", False, "Once upon")
    assert conversation.history[-1] == Message("assistant", (ThinkingPart("Hm"), TextPart("Once upon")))
    assert len(server.cancels) == 1 and not conversation.cancel()
    server.replies = [says("Sorry.")]
    assert (await conversation.send("Stop it.")).text == "Sorry."


async def test_cancelled_during_the_answer_after_a_round() -> None:
    server = Server(calls(call("weather", city="Rome")), held(Fragment("text", "It is")))
    conversation, result = await cancelled(server)
    assert (result.stop_reason, result.rolled_back) == ("cancelled", False)
    assert [m.role for m in conversation.history[3:]] == ["user", "assistant", "toolResult", "assistant"]


@pytest.mark.parametrize(
    "fragments",
    [
        (),
        (Fragment("text", ""),),
        (Fragment("thinking", "Hm"),),
        (Fragment("text", "I look."), Fragment("toolCall", '{"city":', "weather")),
    ],
    ids=["nothing", "empty", "thinking", "call"],
)
async def test_cancelled_before_an_answer_rolls_back(fragments: tuple[Fragment, ...]) -> None:
    conversation, result = await cancelled(Server(held(*fragments)))
    assert (result.stop_reason, result.rolled_back) == ("cancelled", True)
    assert untouched(conversation)
    assert result.messages[0].role == "user" and result.partial_tool_calls == () and result.pending_tool_calls == ()


async def test_a_request_that_the_server_does_not_know_is_given_up_by_closing() -> None:
    server = Server(held(Fragment("text", "Once"), known=False))
    _, result = await cancelled(server)
    assert (result.stop_reason, result.rolled_back, result.text) == ("cancelled", False, "Once")
    assert server.given_up.is_set() and len(server.cancels) == 1


async def test_a_cancel_that_finds_no_server_closes_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(held(Fragment("text", "Once")))

    async def unreachable(self: Any, id: str) -> bool:
        raise TransportError("gone")

    monkeypatch.setattr("server.client.nap.Client.cancel", unreachable)
    _, result = await cancelled(server)
    assert result.stop_reason == "cancelled" and server.given_up.is_set()


@pytest.mark.parametrize("answered", [False, True])
async def test_a_cancel_that_leads_to_nothing_closes_the_stream(
    answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(held(Fragment("text", "Once")))

    async def idle(self: Any, id: str) -> bool:
        if not answered:
            await asyncio.Event().wait()
        return True

    monkeypatch.setattr("server.client.nap.Client.cancel", idle)
    monkeypatch.setattr("server.client.tool_loop.CANCEL_SECONDS", 0.01)
    _, result = await cancelled(server)
    assert result.stop_reason == "cancelled" and server.given_up.is_set()


async def test_cancelled_while_tools_run_lets_them_finish_and_asks_no_more() -> None:
    started, go_on = asyncio.Event(), asyncio.Event()
    done: list[str] = []

    async def slow() -> str:
        started.set()
        await go_on.wait()
        done.append("slow")
        return "slow result"

    conversation = talk(server := Server(calls(call("slow"))))
    turn = asyncio.create_task(conversation.send("Go.", tools=[slow]))
    await started.wait()
    conversation.cancel()
    go_on.set()
    result = await turn
    assert (result.stop_reason, result.rolled_back, done) == ("cancelled", True, ["slow"])
    assert untouched(conversation) and len(server.requests) == 1 and server.cancels == []
    assert result.messages[-1].content == (TextPart("slow result"),) and result.pending_tool_calls == ()


async def test_a_tool_may_cancel_from_its_own_thread() -> None:
    conversation = talk(server := Server(calls(call("stop"))))

    def stop() -> str:
        assert threading.current_thread() is not threading.main_thread()
        conversation.cancel()
        return "stopping"

    result = await conversation.send("Go.", tools=[stop])
    assert (result.stop_reason, result.rolled_back) == ("cancelled", True)
    assert len(server.requests) == 1


async def test_cancelled_when_the_calls_have_come_leaves_them_unrun() -> None:
    wanted = call("weather", city="Rome")
    server = Server(Reply(Generation((wanted,), "toolUse"), held=True))
    conversation, result = await cancelled(server)
    assert (result.stop_reason, result.rolled_back) == ("cancelled", True)
    assert result.pending_tool_calls == (wanted,) and untouched(conversation)


async def test_cancelled_takes_precedence_over_a_limit() -> None:
    fragments = (Fragment("text", "Half"), Fragment("toolCall", '{"ci', "weather"))
    conversation, result = await cancelled(Server(cut(*fragments, held=True)))
    assert (result.stop_reason, result.rolled_back) == ("cancelled", True)
    assert untouched(conversation) and result.partial_tool_calls == ()


async def test_a_cancel_that_comes_after_the_answer_changes_nothing() -> None:
    _, result = await cancelled(Server(Reply(Generation((TextPart("Whole."),), "stop"), held=True)))
    assert (result.stop_reason, result.text, result.rolled_back) == ("completed", "Whole.", False)


async def test_a_cancel_of_the_owner_is_one_too() -> None:
    reply = Reply(WireError("cancelled", "the owner stopped it"), (Fragment("text", "Once"),))
    result = await talk(Server(reply)).send("Go on.")
    assert (result.stop_reason, result.rolled_back, result.text) == ("cancelled", False, "Once")


async def test_a_cancelled_task_is_no_result_and_rolls_back() -> None:
    conversation = talk(server := Server(held(Fragment("text", "Once"))))
    turn = asyncio.create_task(conversation.send("Go on."))
    await server.streaming.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert server.given_up.is_set() and untouched(conversation) and not conversation.cancel()


# --- reset


@pytest.mark.parametrize("end", [WireError("cancelled", "cancelled"), Generation((TextPart("Once, whole."),), "stop")])
async def test_a_late_reply_is_no_part_of_the_chat_that_a_reset_began(end: Generation | WireError) -> None:
    """Neither half of it nor all, where it had ended before the cancel came."""
    server = Server(Reply(end, (Fragment("text", "Once"),), held=True), says("Hello."))
    conversation = talk(server)
    seen: list[Message] = []
    turn = asyncio.create_task(conversation.send("Tell me a story.", on_message=seen.append))
    await server.streaming.wait()
    conversation.reset()
    assert conversation.history == [] and not conversation.cancel()
    result = await turn
    assert (result.stop_reason, result.rolled_back) == ("cancelled", True)
    assert result.text.startswith("Once") and len(server.cancels) == 1
    assert conversation.history == [] and [message.role for message in seen] == ["user"]
    assert (await conversation.send("Hi.")).text == "Hello."
    assert texts(conversation) == ["Hi.", "Hello."]
    assert [len(request.messages) for request in server.requests] == [len(EARLIER) + 1, 1]


async def test_a_new_chat_begins_while_tools_of_the_old_one_run() -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        started.set()
        await go_on.wait()
        return "slow result"

    conversation = talk(server := Server(calls(call("slow")), says("Hello."), says("Still here.")))
    seen: list[Message] = []
    turn = asyncio.create_task(conversation.send("Go.", tools=[slow], on_message=seen.append))
    await started.wait()
    conversation.reset(EARLIER[:1])
    assert (await conversation.send("Hi.")).text == "Hello."
    go_on.set()
    result = await turn
    assert (result.stop_reason, result.rolled_back) == ("cancelled", True)
    assert result.messages[-1].content == (TextPart("slow result"),)
    assert [message.role for message in seen] == ["user"]
    assert texts(conversation) == ["Be brief.", "Hi.", "Hello."]
    # The turn that ended late leaves the new chat's own turns alone.
    assert (await conversation.send("And now?")).text == "Still here."
    assert len(server.requests) == 3


async def test_a_reset_chat_may_still_be_cancelled() -> None:
    """A turn that was discarded does not take the next one's place when it ends."""
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        started.set()
        await go_on.wait()
        return "slow result"

    conversation = talk(server := Server(calls(call("slow")), held(Fragment("text", "Once"))))
    old = asyncio.create_task(conversation.send("Go.", tools=[slow]))
    await started.wait()
    conversation.reset()
    new = asyncio.create_task(conversation.send("A story."))
    await server.streaming.wait()
    go_on.set()
    assert (await old).stop_reason == "cancelled"
    assert conversation.cancel()
    assert (await new).stop_reason == "cancelled" and texts(conversation) == ["A story.", "Once"]


# --- unhandled_tool_calls


async def test_unhandled_calls_run_none_of_the_reply_and_wait_in_the_history() -> None:
    ran: list[str] = []

    def noisy() -> None:
        ran.append("noisy")

    handled, by_hand = call("noisy"), call("ask_owner", what="lunch")
    conversation = talk(server := Server(calls(handled, by_hand)))
    result = await conversation.send("Lunch?", tools=[noisy, BY_HAND])
    assert (result.stop_reason, result.rolled_back, ran) == ("unhandled_tool_calls", False, [])
    assert result.pending_tool_calls == (handled, by_hand)
    assert conversation.history[-1] == Message("assistant", (handled, by_hand))

    # Until they are answered, no user turn is accepted; and the refused one leaves no trace.
    with pytest.raises(WireError, match="before every tool call"):
        await conversation.send("Well?")
    assert conversation.history[-1] == Message("assistant", (handled, by_hand))

    conversation.answer(by_hand, {"dish": "soup"})
    conversation.answer(handled, "declined", is_error=True)
    server.replies = [says("Soup.")]
    resumed = await conversation.resume(tools=[noisy, BY_HAND])
    assert (resumed.stop_reason, resumed.text) == ("completed", "Soup.")
    assert resumed.messages == tuple(conversation.history[3:]) and resumed.messages[0].role == "user"


async def test_on_tool_call_answers_what_has_no_handler() -> None:
    asked: list[ToolCallPart] = []

    def answer(each: ToolCallPart) -> str:
        asked.append(each)
        return "soup"

    wanted = call("ask_owner")
    conversation = talk(Server(calls(wanted, call("weather", city="Rome")), says("Soup.")))
    result = await conversation.send("Lunch?", tools=[BY_HAND, weather], on_tool_call=answer)
    assert result.stop_reason == "completed" and asked == [wanted]
    assert result.messages[2].content == (TextPart("soup"),)


# --- max_rounds


@pytest.mark.parametrize("rounds", [0, 2])
async def test_after_max_rounds_further_calls_are_returned_unrun(rounds: int) -> None:
    ran: list[str] = []

    def step(number: int) -> str:
        ran.append(str(number))
        return "more"

    wanted = [call("step", number=number) for number in range(rounds + 1)]
    conversation = talk(server := Server(*[calls(each) for each in wanted]))
    result = await conversation.send("Go.", tools=[step], max_rounds=rounds)
    assert (result.stop_reason, result.rolled_back, len(ran)) == ("max_rounds", True, rounds)
    assert untouched(conversation) and result.pending_tool_calls == (wanted[-1],)
    assert len(result.messages) == 2 + 2 * rounds

    # A rolled-back turn can be taken up again.
    conversation.add(*result.messages)
    conversation.answer(wanted[-1], "enough")
    server.replies = [says("Done.")]
    assert (await conversation.resume(tools=[step])).text == "Done."


# --- context_exceeded


@pytest.mark.parametrize("rounds", [0, 1])
async def test_a_prompt_that_does_not_fit_rolls_the_turn_back(rounds: int) -> None:
    script = [calls(call("weather", city="Rome"))] * rounds
    conversation = talk(Server(*script, Reply(WireError("quota-exceeded", "too long", reason="context"))))
    result = await conversation.send("Rome?", tools=[weather])
    assert (result.stop_reason, result.rolled_back) == ("context_exceeded", True)
    assert untouched(conversation) and result.pending_tool_calls == ()
    # What the tools did stays known.
    assert [m.role for m in result.messages] == ["user", *["assistant", "toolResult"] * rounds]


async def test_another_quota_is_an_error() -> None:
    conversation = talk(Server(Reply(WireError("quota-exceeded", "too many", reason="rate"))))
    with pytest.raises(WireError, match="too many"):
        await conversation.send("Rome?")
    assert untouched(conversation)


# --- truncated


@pytest.mark.parametrize("rounds", [0, 1])
async def test_a_truncated_reply_runs_nothing_and_rolls_the_whole_turn_back(rounds: int) -> None:
    ran: list[str] = []

    def note(text: str) -> str:
        ran.append(text)
        return "noted"

    fragments = (
        Fragment("thinking", "Hm"),
        Fragment("text", "I note"),
        Fragment("toolCall", '{"text": "whole"}', "note"),
        Fragment("toolCall", '{"text": "ha', "note"),
    )
    conversation = talk(Server(*[calls(call("note", text="earlier"))] * rounds, cut(*fragments)))
    result = await conversation.send("Note.", tools=[note])
    assert (result.stop_reason, result.rolled_back, len(ran)) == ("truncated", True, rounds)
    assert untouched(conversation) and result.pending_tool_calls == ()
    assert result.partial_tool_calls == (PartialCall("note", '{"text": "whole"}'), PartialCall("note", '{"text": "ha'))
    assert result.messages[-1] == Message("assistant", (ThinkingPart("Hm"), TextPart("I note")))
    assert result.generations[-1].finish == "length" and result.text == "I note"


async def test_calls_that_a_cut_reply_still_carries_are_withheld() -> None:
    """The wire forbids it; a server that does it anyway makes nothing run."""
    reply = Reply(Generation((TextPart("So"), call("weather", city="Rome")), "length"))
    result = await talk(Server(reply)).send("Rome?", tools=[weather])
    assert (result.stop_reason, result.pending_tool_calls) == ("truncated", ())
    assert result.messages[-1].content == (TextPart("So"),)


@pytest.mark.parametrize("finish", ["stop", "toolUse", "tool_calls"])
async def test_calls_run_on_the_word_tool_use_alone(finish: str) -> None:
    """And a reply of another finish than its content has is neither an answer nor a call."""
    ran: list[str] = []

    def note(text: str) -> str:
        ran.append(text)
        return "noted"

    content = (TextPart("So"),) if finish == "toolUse" else (TextPart("So"), call("note", text="x"))
    conversation = talk(server := Server(Reply(Generation(content, finish))))  # type: ignore[arg-type]
    with pytest.raises(TransportError, match="finish"):
        await conversation.send("Note.", tools=[note])
    assert ran == [] and untouched(conversation) and len(server.requests) == 1


async def test_an_unknown_finish_is_no_answer() -> None:
    conversation = talk(Server(Reply(Generation((TextPart("So"),), "done"))))  # type: ignore[arg-type]
    with pytest.raises(TransportError, match="finish"):
        await conversation.send("Rome?")
    assert untouched(conversation)


async def test_an_empty_cut_reply_and_a_refusal() -> None:
    for finish in ("length", "refusal"):
        conversation = talk(Server(Reply(Generation((), finish))))  # type: ignore[arg-type]
        result = await conversation.send("Rome?")
        assert (result.stop_reason, result.rolled_back, result.text) == ("truncated", True, "")
        assert result.generations[-1].finish == finish and untouched(conversation)


# --- errors


async def test_what_goes_wrong_in_a_tool_is_its_result() -> None:
    def broken() -> None:
        raise OSError("disk is full")

    def silent() -> None:
        raise ValueError

    def stops() -> None:
        next(iter(()))

    def odd() -> object:
        return object()

    def surrogate() -> str:
        return "\ud800"

    def endless() -> float:
        return float("inf")

    tools = [broken, silent, stops, odd, surrogate, endless, weather]
    misfit = ToolCallPart("call_list", "weather", ["Rome"])  # type: ignore[arg-type]
    wanted = [*[call(tool.__name__) for tool in tools[:-1]], call("weather", town="Rome"), call("unknown"), misfit]
    conversation = talk(server := Server(calls(*wanted), says("Well.")))
    result = await conversation.send("Try.", tools=tools)
    assert result.stop_reason == "completed"
    answers = [m for m in result.messages if m.role == "toolResult"]
    assert [m.tool_call_id for m in answers] == [each.tool_call_id for each in wanted]
    assert all(m.is_error for m in answers)
    told = [m.content[0].text for m in answers]  # type: ignore[union-attr]
    assert told[0] == '{"error": "disk is full"}' and told[1] == '{"error": "ValueError"}'
    assert "StopIteration" in told[2] and "JSON" in told[3] and "surrogate" in told[4] and "JSON" in told[5]
    assert "town" in told[6] and "no tool named unknown" in told[7] and "not a JSON object" in told[8]
    # What goes back to the server is within the wire's rules.
    assert server.requests[1].messages[4].content[-1] == ToolCallPart("call_list", "weather", {})


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_on_tool_error_chooses_the_result(asynchronous: bool) -> None:
    def broken() -> None:
        raise OSError("password is 1234")

    seen: list[tuple[str, str]] = []

    def redact(each: ToolCallPart, error: Exception) -> dict[str, str]:
        seen.append((each.name, str(error)))
        return {"error": "it failed"}

    async def redact_later(each: ToolCallPart, error: Exception) -> dict[str, str]:
        return redact(each, error)

    conversation = talk(server := Server(calls(call("broken")), says("Sorry.")))
    result = await conversation.send("Try.", tools=[broken], on_tool_error=redact_later if asynchronous else redact)
    assert seen == [("broken", "password is 1234")]
    assert result.messages[2].content == (TextPart('{"error": "it failed"}'),) and result.messages[2].is_error
    assert "1234" not in repr(server.requests) + repr(conversation.history)


async def test_raising_from_on_tool_error_fails_the_turn_once_all_have_finished() -> None:
    finished = asyncio.Event()
    raising = asyncio.Event()

    async def broken() -> None:
        raise OSError("disk is full")

    async def slow() -> str:
        await raising.wait()
        finished.set()
        return "slow"

    def rethrow(each: ToolCallPart, error: Exception) -> Any:
        loop.call_soon_threadsafe(raising.set)
        raise error

    loop = asyncio.get_running_loop()
    conversation = talk(server := Server(calls(call("broken"), call("slow"))))
    with pytest.raises(OSError, match="disk"):
        await conversation.send("Try.", tools=[broken, slow], on_tool_error=rethrow)
    assert finished.is_set() and untouched(conversation) and len(server.requests) == 1


async def test_an_error_of_the_wire_rolls_earlier_rounds_back_too() -> None:
    seen: list[Message] = []
    reply = Reply(WireError("provider-error", "the model is gone"))
    conversation = talk(Server(calls(call("weather", city="Rome")), reply))
    with pytest.raises(WireError, match="gone"):
        await conversation.send("Rome?", tools=[weather], on_message=seen.append)
    assert untouched(conversation) and [m.role for m in seen] == ["user", "assistant", "toolResult"]


async def test_what_a_callback_raises_rolls_back() -> None:
    def full(_: Any) -> None:
        raise BrokenPipeError

    for callback in ("on_delta", "on_message"):
        conversation = talk(Server(says("Hello.")))
        with pytest.raises(BrokenPipeError):
            await conversation.send("Hello.", **{callback: full})  # type: ignore[arg-type]
        assert untouched(conversation)


# --- rolling back


async def test_only_the_turns_own_messages_are_taken_out() -> None:
    conversation = talk(Server(calls(call("remark")), cut(Fragment("text", "Ha"))))
    # Equal to the turn's own question, and yet another message.
    other = Message("user", (TextPart("Go."),))

    def remark() -> str:
        conversation.add(other)
        return "remarked"

    result = await conversation.send("Go.", tools=[remark])
    assert result.rolled_back and conversation.history == [*EARLIER, other]
    assert conversation.history[-1] is other


async def test_a_resumed_turn_is_rolled_back_from_its_user_message_on() -> None:
    wanted = call("ask_owner")
    conversation = talk(server := Server(calls(wanted)))
    await conversation.send("Lunch?", tools=[BY_HAND])
    conversation.answer(wanted, "soup")
    server.replies = [cut(Fragment("text", "So"))]
    result = await conversation.resume(tools=[BY_HAND])
    assert (result.stop_reason, result.rolled_back) == ("truncated", True)
    assert untouched(conversation)
    assert [m.role for m in result.messages] == ["user", "assistant", "toolResult", "assistant"]


# --- options and values


async def test_options_that_make_no_sense_leave_the_history_alone() -> None:
    conversation = talk(server := Server())
    with pytest.raises(ValueError, match="same name"):
        await conversation.send("Go.", tools=[weather, FunctionTool.of(weather)])
    with pytest.raises(ValueError, match="max_rounds"):
        await conversation.send("Go.", max_rounds=-1)
    assert untouched(conversation) and server.requests == []
    # The failure does not block the next turn.
    server.replies = [says("Hello.")]
    assert (await conversation.send("Hello.")).text == "Hello."


async def test_one_turn_at_a_time() -> None:
    conversation = talk(server := Server(held(Fragment("text", "Once"))))
    turn = asyncio.create_task(conversation.send("Go on."))
    await server.streaming.wait()
    with pytest.raises(RuntimeError, match="running"):
        await conversation.send("Me too.")
    conversation.cancel()
    assert (await turn).stop_reason == "cancelled"


async def test_values_become_content() -> None:
    image = ImagePart("image/png", "aGk=")
    values: dict[str, Any] = {"words": "as is", "nothing": None, "numbers": [1, 2], "photo": image}
    values["both"] = [TextPart("a cat"), image]
    tools = [
        FunctionTool.of(lambda value=value: value, name=name, parameters={"type": "object"})
        for name, value in values.items()
    ]
    conversation = talk(Server(calls(*[call(name) for name in values]), says("Seen.")))
    result = await conversation.send([TextPart("Look."), image], tools=tools)
    assert result.messages[0].content == (TextPart("Look."), image)
    assert [m.content for m in result.messages if m.role == "toolResult"] == [
        (TextPart("as is"),),
        (TextPart("null"),),
        (TextPart("[1, 2]"),),
        (image,),
        (TextPart("a cat"), image),
    ]
    assert not any(m.is_error for m in result.messages)


async def test_deltas_are_told_as_they_come() -> None:
    told: list[str] = []
    conversation = talk(Server(says("Hello.")))
    await conversation.send("Hi.", on_delta=lambda delta: told.append(delta.event))
    assert told == ["start", "delta"]


async def test_the_conversations_settings_reach_every_request() -> None:
    server = Server(calls(call("weather", city="Rome")), says("{}"))
    conversation = Conversation(server.client(), MODEL, max_tokens=9, temperature=0.5, format="json")
    await conversation.send("Rome?", tools=[weather])
    assert {(r.max_tokens, r.temperature, r.format) for r in server.requests} == {(9, 0.5, "json")}
