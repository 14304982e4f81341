"""Limits hold for an endpoint, and for all endpoints that one token names (`[server.limits]`)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from server.chat import Capabilities
from server.config import Limits
from server.runtime import Endpoint
from server.runtime.limits import RateLimiter, Rates, check_places
from server.wire.records import Requirements, WireError
from tests.runtime.doubles import World, caller
from tests.runtime.test_generation import begin
from tests.runtime.test_selection import failing


async def test_a_token_holds_so_many_generations_whatever_endpoints_it_names(tmp_path: Path) -> None:
    world = World(tmp_path / "m", limits=Limits(concurrent_per_token=3, concurrent_per_endpoint=2))
    lives = [await begin(world, who=caller(endpoint=str(number))) for number in range(3)]
    for endpoint in ("0", "another"):
        refused = await failing(begin(world, id="more", who=caller(endpoint=endpoint)))
        assert (refused.code, refused.extra) == ("quota-exceeded", {"reason": "concurrency"})
        assert "of this token" in refused.message
    other = await begin(world, who=caller(token="other"))
    lives[0].abandon()
    again = await begin(world, who=caller(endpoint="another"))
    assert other.outcome is None and again.outcome is None
    await world.runtime.close()


async def test_by_default_no_token_takes_every_place() -> None:
    limits = Limits()
    assert limits.concurrent_per_endpoint < limits.concurrent_per_token < limits.concurrent
    taken = [Endpoint("shell", endpoint=str(number)) for number in range(limits.concurrent_per_token)]
    with pytest.raises(WireError):
        check_places(taken, Endpoint("shell", endpoint="new"), limits, "generations")
    check_places(taken, Endpoint("other"), limits, "generations")


@pytest.mark.parametrize("awaited", ["helper", "owner"])
async def test_a_token_holds_so_many_selections_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, awaited: str
) -> None:
    world = World(tmp_path / "m", limits=Limits(concurrent_per_token=3, concurrent_per_endpoint=2))
    gate = asyncio.Event()

    async def inspect(*_: Any) -> Capabilities:
        await gate.wait()
        return world.chat.capabilities

    if awaited == "helper":
        monkeypatch.setattr(world.chat, "inspect", inspect)
    select = "ask" if awaited == "owner" else "default"

    def selecting(token: str, endpoint: str) -> asyncio.Task[Any]:
        return asyncio.create_task(
            world.runtime.select(caller(token=token, endpoint=endpoint, select=select), Requirements())
        )

    waiting = [selecting("shell", endpoint) for endpoint in ("one", "one", "two")]
    while len([*world.runtime.registry.operations.endpoints()]) < 3:
        await asyncio.sleep(0)
    for endpoint, whose in (("one", "endpoint"), ("three", "token")):
        refused = await failing(selecting("shell", endpoint))
        assert (refused.code, refused.extra) == ("quota-exceeded", {"reason": "concurrency"})
        assert f"of this {whose}" in refused.message
    waiting.append(selecting("other", "one"))
    gate.set()
    while awaited == "owner" and len(world.runtime.decisions.waiting()) < 4:
        await asyncio.sleep(0)
    for question in world.runtime.decisions.waiting():
        world.runtime.decisions.settle_selection(question.id, "first")
    assert {each.name for each in await asyncio.gather(*waiting)} == {"First"}
    assert [*world.runtime.registry.operations.endpoints()] == []
    await world.runtime.close()


async def test_the_rate_of_a_token_is_that_of_all_its_endpoints(tmp_path: Path) -> None:
    world = World(tmp_path / "m", limits=Limits(requests_per_minute=3, requests_per_minute_per_token=5))
    for number in range(5):
        await world.runtime.select(caller(endpoint=str(number)), Requirements())
    for refused in (
        await failing(world.runtime.select(caller(endpoint="new"), Requirements())),
        await failing(begin(world, who=caller(endpoint="0"))),
        await failing(world.runtime.describe(caller(endpoint="0"), "any")),
    ):
        assert (refused.code, refused.extra) == ("quota-exceeded", {"reason": "rate"})
    assert len(world.runtime.registry.rates.endpoints) == 5, "who is refused is not remembered"
    await world.runtime.select(caller(token="other"), Requirements())
    world.clock.advance(60)
    await world.runtime.select(caller(endpoint="new"), Requirements())
    assert len(world.runtime.registry.rates.endpoints) == len(world.runtime.registry.rates.tokens) == 1
    await world.runtime.close()


def test_either_rate_may_be_without_limit() -> None:
    free = Rates(Limits(requests_per_minute=0, requests_per_minute_per_token=0))
    for now in range(5000):
        free.admit(Endpoint("shell"), now / 1000)
    assert len(free.endpoints) == len(free.tokens) == 0
    bound = Rates(Limits(requests_per_minute=0, requests_per_minute_per_token=2))
    bound.admit(Endpoint("shell", endpoint="a"), 0)
    bound.admit(Endpoint("shell", endpoint="b"), 0)
    with pytest.raises(WireError):
        bound.admit(Endpoint("shell", endpoint="c"), 59)
    bound.admit(Endpoint("shell", endpoint="c"), 60)


def test_who_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.runtime.limits.MAX_ASKERS", 3)
    rate: RateLimiter[str] = RateLimiter(1)
    for asker in "abcd":
        assert not rate.full(asker, 0)
        rate.count(asker, 0)
    assert len(rate) == 3
    assert [rate.full(asker, 1) for asker in "abcd"] == [False, True, True, True]
