"""First to arrive wins: completion, cancel, timeout, disconnect, revocation, the engine's failure, in every order."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from server.runtime import LiveGeneration
from server.wire.records import Delta, Generation, Requirements, WireError
from tests.runtime.doubles import Run, World, caller, request, tool
from tests.runtime.test_generation import CALL, begin, error, outcome


class Race:
    """One generation held in a stage, and the causes that may end it."""

    def __init__(self, world: World, live: LiveGeneration, run: Run | None) -> None:
        self.world, self.live, self.run = world, live, run

    def completion(self) -> None:
        if self.run is not None:
            self.run.done()

    def failure(self) -> None:
        if self.run is not None:
            self.run.fail()

    def cancel(self) -> None:
        self.world.runtime.cancel(self.live.endpoint, self.live.id)

    def timeout(self) -> None:
        self.world.clock.advance(60)

    def disconnect(self) -> None:
        self.live.abandon()

    def revocation(self) -> None:
        self.world.runtime.end_token(self.live.endpoint.token)


RESULTS = {
    "cancel": {"cancelled"},
    "timeout": {"timeout"},
    "disconnect": {"cancelled"},
    "revocation": {"cancelled"},
    "completion": {"stop", "toolUse"},
    "failure": {"provider-error"},
}
FROM_ENGINE = ("completion", "failure")
STAGES = ("preparing", "consent", "loading", "submitted", "decoding", "checking", "settled")
"""`submitted` is queued or in prefill, which the engine alone can tell apart; `settled` is an outcome in delivery."""


async def reach(world: World, stage: str) -> Race:
    """A generation held in the stage; `settled` is one whose result nobody has read yet."""
    chat = world.chat
    chat.script["call"] = CALL  # type: ignore[assignment]
    chat.checked = frozenset({"weather"})
    chat.preparing.clear(), chat.validating.clear(), world.starting.clear()
    chat.gate.set(), world.start_gate.set()
    who = caller("ask" if stage == "consent" else "always")
    model = await world.runtime.select(who, Requirements())
    if stage == "preparing":
        chat.gate.clear()
    if stage == "loading":
        world.runtime.unload(world.runtime.connections[0])
        world.start_gate.clear()
    submitted = len(world.engine.runs)
    live = world.runtime.generate(who, "g", request(model.handle, tools=(tool(),)))
    run = None
    if stage == "preparing":
        await chat.preparing.wait()
    elif stage == "consent":
        while not world.runtime.decisions.waiting():
            await asyncio.sleep(0)
    elif stage == "loading":
        await world.starting.wait()
    else:
        run = await world.engine.run(submitted)
    if stage in ("decoding", "checking"):
        assert run is not None
        run.say("call")
        await live.ready()
        live.take()
    if stage == "checking":
        assert run is not None
        chat.gate.clear()
        run.done()
        await chat.validating.wait()
    if stage == "settled":
        assert run is not None
        run.say("text")
        run.done()
        while live.outcome is None:
            await asyncio.sleep(0)
    assert live.stage == stage
    return Race(world, live, run)


def name(result: Generation | WireError) -> str:
    return result.code if isinstance(result, WireError) else result.finish


def winner(fired: list[str], stage: str, pause: int) -> str:
    """The first cause; but the engine's word counts only where a job runs, and once the event loop has read it."""
    heard = pause > 0 and stage in ("submitted", "decoding")
    return next(each for each in fired if heard or each not in FROM_ENGINE)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("pause", [0, 12], ids=["at once", "one after the other"])
async def test_one_cause_wins_in_every_order(world: World, stage: str, pause: int) -> None:
    """All 720 orders of the six causes, all in one turn of the event loop or with time for each to take effect."""
    for order in itertools.permutations(RESULTS):
        race = await reach(world, stage)
        live, submitted = race.live, len(world.engine.runs)
        read: list[Delta] = []
        expected = live.outcome
        fired: list[str] = []
        for cause in order:
            getattr(race, cause)()
            fired.append(cause)
            for _ in range(pause):
                await asyncio.sleep(0)
            if expected is None and live.outcome is not None:
                expected = live.outcome
                assert name(expected) in RESULTS[winner(fired, stage, pause)], order
            assert live.outcome is expected, order
        assert expected is not None
        read += live.take()
        world.chat.gate.set()
        world.start_gate.set()
        assert live.task is not None
        await asyncio.wait({live.task})
        assert live.outcome is expected and live.take() == []
        assert await live.result() is expected
        assert isinstance(expected, Generation) or read == []
        assert len(world.engine.runs) == submitted
        if race.run is not None:
            await race.run.closed.wait()
        assert [*world.runtime.live()] == [] and world.runtime.decisions.waiting() == ()


async def test_cancel_says_whether_it_won(world: World) -> None:
    live = await begin(world)
    assert world.runtime.cancel(live.endpoint, "g") is True
    assert world.runtime.cancel(live.endpoint, "g") is False
    assert (await error(live)).code == "cancelled"
    live = await begin(world)
    (await world.engine.run()).done()
    await outcome(live)
    assert world.runtime.cancel(live.endpoint, "g") is False


async def test_cancel_reaches_the_engine_at_once(world: World) -> None:
    live = await begin(world)
    run = await world.engine.run()
    world.runtime.cancel(live.endpoint, "g")
    assert run.cancelled
    await run.closed.wait()


async def test_a_duplicate_id_is_refused_and_the_first_goes_on(world: World) -> None:
    live = await begin(world)
    run = await world.engine.run()
    with pytest.raises(WireError) as refused:
        await begin(world)
    assert refused.value.code == "invalid-request"
    run.say("still here")
    run.done()
    assert (await outcome(live)).finish == "stop"
    assert len(world.engine.runs) == 1


async def test_endpoints_share_neither_ids_nor_cancellation(world: World) -> None:
    mine = await begin(world, who=caller(endpoint="a"))
    theirs = await begin(world, who=caller(endpoint="b"))
    assert world.runtime.cancel(caller(endpoint="c").endpoint, "g") is False
    assert world.runtime.cancel(theirs.endpoint, "g") is True
    assert mine.outcome is None
    mine.abandon()


@pytest.mark.parametrize(
    ("end", "survivors"),
    [
        (lambda w: w.runtime.end_endpoint(caller(endpoint="e", account="x").endpoint), {"s/e/y", "s/f/x", "t/e/x"}),
        (lambda w: w.runtime.end_account("shell", "x"), {"s/e/y", "t/e/x"}),
        (lambda w: w.runtime.end_token("shell"), {"t/e/x"}),
    ],
    ids=["endpoint", "account", "token"],
)
async def test_ends_cancel_work_and_handles(world: World, end: Callable[[World], None], survivors: set[str]) -> None:
    lives, handles = {}, {}
    for place in ("s/e/x", "s/e/y", "s/f/x", "t/e/x"):
        token, endpoint, account = place.split("/")
        who = caller(token={"s": "shell", "t": "other"}[token], endpoint=endpoint, account=account)
        handles[place] = who, (await world.runtime.select(who, Requirements())).handle
        lives[place] = world.runtime.generate(who, "g", request(handles[place][1]))
    end(world)
    assert {place for place, live in lives.items() if live.outcome is None} == survivors
    for place, (who, handle) in handles.items():
        if place in survivors:
            assert (await world.runtime.describe(who, handle)).handle == handle
        else:
            assert (await error(lives[place])).code == "cancelled"
            with pytest.raises(WireError) as gone:
                await world.runtime.describe(who, handle)
            assert gone.value.code == "selection-expired"


async def test_closing_settles_everything_and_unloads(world: World) -> None:
    live = await begin(world)
    await world.engine.run()
    await world.runtime.close()
    assert (await error(live)).code == "provider-error"
    assert world.engine.closed
    with pytest.raises(WireError):
        await begin(world, id="late")
