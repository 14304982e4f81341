"""What ends a wait or a generation is told by one rule, at whatever stage it comes (`server.runtime.runtime`)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.chat import Capabilities
from server.config import ModelConfig, ModelSource
from server.engine import EngineError
from server.runtime import GenerationOptions
from server.wire.records import Model, Requirements, WireError
from tests.runtime.doubles import World, caller, request
from tests.runtime.test_generation import begin, error
from tests.runtime.test_settlement import Race, reach

WHO = caller(endpoint="window", account="alice")


async def failing(awaitable: Awaitable[Any]) -> WireError:
    with pytest.raises(WireError) as caught:
        await awaitable
    return caught.value


def revoke_token(world: World) -> None:
    world.runtime.end_token("shell")


def end_account(world: World) -> None:
    world.runtime.end_account("shell", "alice")


def end_endpoint(world: World) -> None:
    world.runtime.end_endpoint(WHO.endpoint)


def disable(world: World) -> None:
    world.runtime.disable(world.runtime.connections[0])


def replace_file(world: World) -> None:
    """Its replacement is noticed by whoever looks next, here another endpoint."""
    world.file.write_bytes(b"another model")
    world.runtime.connections[0].refresh_file()


def time_out(world: World) -> None:
    world.clock.advance(60)


def shut_down(world: World) -> None:
    world.closing = asyncio.create_task(world.runtime.close())  # type: ignore[attr-defined]


class Looking:
    """Holds every look at a model's file until it is told to go on."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.began, self.gate = asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(world.chat, "inspect", self.inspect)

    async def inspect(self, *_: Any) -> Capabilities:
        self.began.set()
        seen = self.world.file.read_bytes()
        await self.gate.wait()
        return replace(self.world.chat.capabilities, json=seen == b"model")


CAUSES: list[tuple[Callable[[World], None], str, str]] = [
    (revoke_token, "cancelled", ""),
    (end_account, "cancelled", ""),
    (end_endpoint, "cancelled", ""),
    (time_out, "timeout", ""),
    (shut_down, "provider-error", "shutdown"),
    (disable, "selection-expired", ""),
    (replace_file, "selection-expired", ""),
]


def named(value: Any) -> str | None:
    return value.__name__ if callable(value) else None


@pytest.mark.parametrize(("cause", "code", "reason"), CAUSES, ids=named)
async def test_a_description_that_waits_ends_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, cause: Callable[[World], None], code: str, reason: str
) -> None:
    handle = (await world.runtime.select(WHO, Requirements())).handle
    world.runtime.connections[0]._capabilities = None
    looking = Looking(world, monkeypatch)
    waiting = asyncio.create_task(world.runtime.describe(WHO, handle))
    await looking.began.wait()
    cause(world)
    failure = await failing(waiting)
    assert (failure.code, failure.extra.get("reason", "")) == (code, reason)
    assert not looking.gate.is_set(), "nobody waited for what it waited for"


@pytest.mark.parametrize(("cause", "code", "reason"), CAUSES[:5], ids=named)
@pytest.mark.parametrize("awaited", ["file", "helper", "owner"])
async def test_a_selection_that_waits_ends_at_once(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    awaited: str,
    cause: Callable[[World], None],
    code: str,
    reason: str,
) -> None:
    gate, fetching = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def fetch(source: ModelSource) -> Path:
        loop.call_soon_threadsafe(fetching.set)
        gate.wait()
        return world.file

    if awaited == "file":
        monkeypatch.setattr(world.runtime.connections[0], "_fetch_file", fetch)
    looking = Looking(world, monkeypatch)
    if awaited == "owner":
        looking.gate.set()
    who = replace(WHO, select="ask") if awaited == "owner" else WHO
    waiting = asyncio.create_task(world.runtime.select(who, Requirements()))
    try:
        if awaited == "file":
            await fetching.wait()
        await looking.began.wait() if awaited == "helper" else None
        while awaited == "owner" and not world.runtime.decisions.waiting():
            await asyncio.sleep(0)
        cause(world)
        failure = await failing(waiting)
        assert (failure.code, failure.extra.get("reason", "")) == (code, reason)
        assert world.runtime.decisions.waiting() == () and world.runtime.handles.endpoints() == {}
    finally:
        gate.set()


async def test_a_file_is_fetched_once_for_all_that_wait_and_for_those_that_have_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, began = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    fetched: list[ModelSource] = []

    def fetch(source: ModelSource) -> Path:
        fetched.append(source)
        loop.call_soon_threadsafe(began.set)
        gate.wait()
        return world.file

    monkeypatch.setattr(world.runtime.connections[0], "_fetch_file", fetch)
    first = [asyncio.create_task(world.runtime.select(WHO, Requirements())) for _ in range(2)]
    await began.wait()
    time_out(world)
    for each in first:
        assert (await failing(each)).code == "timeout"
    again = asyncio.create_task(world.runtime.select(WHO, Requirements()))
    while not [*world.runtime.registry.operations.endpoints()]:
        await asyncio.sleep(0)
    gate.set()
    assert (await again).name == "First" and len(fetched) == 1


async def test_a_connection_disabled_while_it_is_looked_at_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ModelSource(path=tmp_path / "m")
    world = World(tmp_path / "m", connections=(ModelConfig("a", "A", "a", source), ModelConfig("b", "B", "b", source)))
    looking = Looking(world, monkeypatch)
    waiting = [asyncio.create_task(world.runtime.select(WHO, Requirements(model=model))) for model in (None, "a")]
    await looking.began.wait()
    disable(world)
    # At once, though its file is still being looked at.
    assert (await failing(waiting[1])).code == "unsupported"
    looking.gate.set()
    assert (await waiting[0]).name == "B"
    await world.runtime.close()


async def test_what_is_selected_is_what_its_file_is_when_the_answer_is_given(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = Looking(world, monkeypatch)
    waiting = asyncio.create_task(world.runtime.select(WHO, Requirements()))
    await looking.began.wait()
    world.file.write_bytes(b"another model")
    looking.gate.set()
    model = await waiting
    assert model.json is False, "of the old file"
    assert await world.runtime.describe(WHO, model.handle) == model
    # And by a look of another's, which does not let the first write down what it saw.
    looking.gate.clear(), looking.began.clear()
    world.file.write_bytes(b"model")
    waiting = asyncio.create_task(world.runtime.select(WHO, Requirements()))
    await looking.began.wait()
    replace_file(world)
    looking.gate.set()
    assert (await waiting).json is False


@pytest.mark.parametrize(("cause", "code"), [(end_endpoint, "cancelled"), (disable, "selection-expired")], ids=named)
async def test_an_answer_is_not_given_from_before_what_came_before_it(
    world: World, cause: Callable[[World], None], code: str
) -> None:
    """The work is done, and nobody has taken it up yet."""
    select: Callable[[], Awaitable[Model]] = lambda: world.runtime.select(WHO, Requirements())  # noqa: E731
    handle = (await select()).handle
    issue = world.runtime.handles.issue

    def issued(*arguments: Any) -> str:
        asyncio.get_running_loop().call_soon(cause, world)
        return issue(*arguments)

    world.runtime.handles.issue = issued  # type: ignore[method-assign]
    assert (await failing(select())).code == code
    assert (await failing(world.runtime.describe(WHO, handle))).code == "selection-expired"


async def test_nobody_is_asked_about_a_selection_that_has_ended(world: World) -> None:
    live = await begin_held(world)
    asked: list[Any] = []
    consent = world.runtime.decisions.consent

    async def recorded(decision: Any) -> bool:
        asked.append(decision)
        return await consent(decision)

    world.runtime.decisions.consent = recorded  # type: ignore[method-assign]
    world.file.write_bytes(b"another model")
    world.chat.gate.set()
    assert (await error(live)).code == "selection-expired"
    assert asked == [] and world.starts == []


async def begin_held(world: World) -> Any:
    """A generation whose prompt is being prepared, and which the owner is to be asked about."""
    world.chat.gate.clear()
    live = await begin(world, who=caller("ask"))
    await world.chat.preparing.wait()
    return live


# --- generations


def unload(world: World) -> None:
    world.runtime.unload(world.runtime.connections[0])


def revoke(world: World) -> None:
    world.runtime.end_token("shell")


STAGES = ("preparing", "consent", "loading", "submitted", "decoding", "checking")
RULE: list[tuple[Callable[[World], None], str, str, str | None]] = [
    (revoke, "cancelled", "", "revoked"),
    (disable, "cancelled", "", "disabled"),
    (unload, "cancelled", "", "unloaded"),
    (replace_file, "selection-expired", "", None),
    (shut_down, "provider-error", "shutdown", None),
    (time_out, "timeout", "", None),
]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("cause", "code", "reason", "why"), RULE, ids=named)
async def test_one_rule_at_every_stage(
    world: World, stage: str, cause: Callable[[World], None], code: str, reason: str, why: str | None
) -> None:
    race: Race = await reach(world, stage)
    submitted = len(world.engine.runs)
    cause(world)
    failure = await error(race.live)
    assert (failure.code, failure.extra.get("reason", ""), race.live.cause) == (code, reason, why)
    world.chat.gate.set(), world.start_gate.set()
    assert race.live.task is not None
    await asyncio.wait({race.live.task})
    assert len(world.engine.runs) == submitted and world.runtime.decisions.waiting() == ()
    if race.run is not None:
        await race.run.closed.wait()


async def test_a_worker_that_dies_and_a_model_that_cannot_be_loaded_are_the_providers_failure(world: World) -> None:
    for stage in ("submitted", "decoding"):
        race = await reach(world, stage)
        race.failure()
        failure = await error(race.live)
        assert (failure.code, failure.extra) == ("provider-error", {"reason": "engine"})
    unload(world)
    world.start_failure = EngineError("not enough memory")
    failure = await error(await begin(world))
    assert (failure.code, failure.extra) == ("provider-error", {"reason": "load"})
    world.file.unlink()
    failure = await error(world.runtime.generate(caller(), "g", request(""), GenerationOptions(connection="first")))
    assert (failure.code, failure.extra) == ("provider-error", {"reason": "load"})
