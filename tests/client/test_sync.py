"""The client for threads: the same core, waited for."""

from __future__ import annotations

import inspect
import signal
import threading
from typing import Any

import pytest

from server.client import Client, Conversation, Stream, SyncClient, SyncConversation, SyncStream
from server.wire.records import Delta, Generation, GenerationRequest, Message, TextPart, WireError
from tests.client.scripted import MODEL, Fragment, Server, call, calls, held, says

REQUEST = GenerationRequest("h1", (Message("user", (TextPart("Hi."),)),))


def client(server: Server) -> SyncClient:
    return SyncClient("http://server", "secret", transport=server.transport())


def test_generate() -> None:
    with client(Server(says("Hello."), says("Again."))) as nap:
        *deltas, generation = nap.generate(REQUEST)
        assert all(isinstance(each, Delta) for each in deltas) and len(deltas) == 2
        assert isinstance(generation, Generation) and generation.content == (TextPart("Hello."),)
        stream = nap.generate(REQUEST)
        assert stream.result().content == (TextPart("Again."),)
        assert list(stream) == []


def test_leaving_a_stream_gives_it_up() -> None:
    server = Server(held(Fragment("text", "Once")))
    with client(server) as nap, nap.generate(REQUEST) as stream:
        next(stream)
    assert server.given_up.is_set() and server.requests


def test_a_stream_is_cancelled_from_another_thread() -> None:
    server = Server(held(Fragment("text", "Once")))
    with client(server) as nap:
        stream = nap.generate(REQUEST, id="mine")
        for _ in range(2):
            next(stream)
        thread = threading.Thread(target=stream.cancel)
        thread.start()
        with pytest.raises(WireError, match="cancelled"):
            stream.result()
        thread.join()
        assert server.cancels == ["mine"] and stream.partial == (TextPart("Once"),)
        assert stream.partial_tool_calls == ()


def test_the_tool_loop() -> None:
    def weather(city: str) -> str:
        return f"warm in {city}"

    wanted = call("weather", city="Rome")
    server = Server(calls(wanted), says("Warm."))
    with client(server) as nap:
        conversation = SyncConversation(nap, MODEL, temperature=0)
        result = conversation.send("Rome?", tools=[weather])
        assert (result.stop_reason, result.text) == ("completed", "Warm.")
        assert result.messages[2].content == (TextPart("warm in Rome"),)
        assert conversation.history == list(result.messages)
        assert not conversation.cancel()


def test_pending_calls_are_answered_by_hand() -> None:
    wanted = call("ask")
    server = Server(calls(wanted))
    with client(server) as nap:
        conversation = SyncConversation(nap, MODEL)

        def ask() -> None: ...

        conversation.add(Message("system", (TextPart("Be brief."),)))
        result = conversation.send("Lunch?", tools=[ask], max_rounds=0)
        assert result.stop_reason == "max_rounds" and result.rolled_back
        conversation.add(*result.messages)
        conversation.answer(result.pending_tool_calls[0], "soup")
        server.replies = [says("Soup.")]
        assert conversation.resume(tools=[ask]).text == "Soup."


def test_a_turn_is_cancelled_from_a_tool() -> None:
    def stop() -> str:
        assert conversation.cancel()
        return "stopping"

    with client(Server(calls(call("stop")))) as nap:
        conversation = SyncConversation(nap, MODEL)
        result = conversation.send("Go.", tools=[stop])
    assert (result.stop_reason, result.rolled_back) == ("cancelled", True)


def test_a_tool_may_begin_a_new_chat() -> None:
    def forget() -> str:
        conversation.reset()
        return "forgotten"

    with client(Server(calls(call("forget")), says("Hello."))) as nap:
        conversation = SyncConversation(nap, MODEL)
        result = conversation.send("Go.", tools=[forget])
        assert (result.stop_reason, result.rolled_back, conversation.history) == ("cancelled", True, [])
        assert conversation.send("Hi.").text == "Hello." and len(conversation.history) == 2


def test_an_interrupt_ends_the_turn_and_rolls_it_back() -> None:
    server = Server(held(Fragment("text", "Once")))
    main = threading.main_thread().ident
    assert main is not None

    def interrupt(delta: Delta) -> None:
        if delta.event == "delta":
            signal.pthread_kill(main, signal.SIGINT)

    with client(server) as nap:
        conversation = SyncConversation(nap, MODEL)
        with pytest.raises(KeyboardInterrupt):
            conversation.send("Go on.", on_delta=interrupt)
        assert conversation.history == [] and server.given_up.is_set()
        # The client lives on.
        server.replies = [says("Hello.")]
        assert conversation.send("Hello.").text == "Hello."


def test_a_callback_on_the_clients_thread_cannot_wait_for_it() -> None:
    with client(Server(says("Hello."))) as nap:
        conversation = SyncConversation(nap, MODEL)
        with pytest.raises(RuntimeError, match="own thread"):
            conversation.send("Hello.", on_delta=lambda _: nap.cancel("x"))


@pytest.mark.parametrize("pair", [(Client, SyncClient), (Conversation, SyncConversation), (Stream, SyncStream)])
def test_both_offer_the_same(pair: tuple[Any, Any]) -> None:
    def offered(kind: Any) -> set[str]:
        return {name.removeprefix("a") if name == "aclose" else name for name in vars(kind) if not name.startswith("_")}

    asynchronous, sync = pair
    assert offered(asynchronous) <= offered(sync)
    for name in offered(asynchronous) - {"close", "partial", "partial_tool_calls"}:
        assert inspect.signature(vars(asynchronous)[name]).parameters == inspect.signature(vars(sync)[name]).parameters


def test_nothing_is_left_running() -> None:
    before = threading.active_count()
    with client(Server(says("Hello."))) as nap:
        SyncConversation(nap, MODEL).send("Hello.")
    assert threading.active_count() == before
