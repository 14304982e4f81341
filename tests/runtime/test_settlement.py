"""First to arrive wins: completion, cancel, timeout, disconnect, revocation, the engine's failure, in every order."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from server.runtime import LiveGeneration
from server.wire.records import Generation, Requirements, WireError
from tests.runtime.doubles import Run, World, caller, request, tool
from tests.runtime.test_generation import CALL, begin, error, outcome, read


class Race:
    """One generation in a known stage, and the causes that may end it."""

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


SYNCHRONOUS = {"cancel": "cancelled", "timeout": "timeout", "disconnect": "cancelled", "revocation": "cancelled"}
FROM_ENGINE = {"completion": {"stop", "toolUse"}, "failure": {"provider-error"}}
STAGES = ("preparing", "consent", "loading", "submitted", "decoding", "checking")


async def reach(world: World, stage: str) -> Race:
    """A generation held in the stage."""
    who = caller("ask" if stage == "consent" else "always")
    model = await world.runtime.select(who, Requirements())
    world.chat.script["call"] = CALL  # type: ignore[assignment]
    world.chat.checked = frozenset({"weather"})
    if stage == "preparing":
        world.chat.gate.clear()
    if stage == "loading":
        world.start_gate.clear()
    live = world.runtime.generate(who, "g", request(model.handle, tools=(tool(),)))
    run = None
    if stage == "preparing":
        await world.chat.preparing.wait()
    elif stage == "consent":
        while not world.runtime.decisions.waiting():
            await asyncio.sleep(0)
    elif stage == "loading":
        await world.starting.wait()
    else:
        run = await world.engine.run()
    if stage in ("decoding", "checking"):
        assert run is not None
        run.say("call")
        await live.ready()
        live.take()
    if stage == "checking":
        assert run is not None
        world.chat.gate.clear()
        run.done()
        await world.chat.validating.wait()
    assert live.stage == stage
    return Race(world, live, run)


def name(result: Generation | WireError) -> str:
    return result.code if isinstance(result, WireError) else result.finish


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("order", [*itertools.permutations(SYNCHRONOUS)], ids="-".join)
async def test_the_first_cause_is_the_outcome(world: World, stage: str, order: tuple[str, ...]) -> None:
    race = await reach(world, stage)
    before = len(world.engine.runs)
    for cause in order:
        getattr(race, cause)()
        assert race.live.outcome is not None
        assert name(race.live.outcome) == SYNCHRONOUS[order[0]]
    settled = race.live.outcome
    world.chat.gate.set()
    world.start_gate.set()
    race.completion()
    race.failure()
    deltas, result = await read(race.live)
    assert deltas == [] and result is settled
    await asyncio.wait({race.live.task} if race.live.task else set())
    assert race.live.outcome is settled and race.live.take() == []
    assert len(world.engine.runs) == before
    if race.run is not None:
        await race.run.closed.wait()
    # The id is free again.
    again = await begin(world)
    assert again.outcome is None
    again.abandon()


@pytest.mark.parametrize("stage", ["submitted", "decoding"])
@pytest.mark.parametrize("engine", FROM_ENGINE)
@pytest.mark.parametrize("late", SYNCHRONOUS)
async def test_what_the_engine_ended_stays(world: World, stage: str, engine: str, late: str) -> None:
    race = await reach(world, stage)
    getattr(race, engine)()
    while race.live.outcome is None:
        await asyncio.sleep(0)
    settled = race.live.outcome
    assert name(settled) in FROM_ENGINE[engine]
    getattr(race, late)()
    assert race.live.outcome is settled
    deltas, result = await read(race.live)
    assert result is settled
    assert engine == "completion" or deltas == []


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
