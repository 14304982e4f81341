"""Selection, handles, consent and limits (NAP-LLM, "API Surface", "Shell Behavior")."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.chat import Capabilities
from server.config import CapabilityLimits, Limits, ModelConfig, ModelSource
from server.engine import EngineError
from server.wire.records import Message, Requirements, TextPart, ToolCallPart, WireError
from tests.runtime.doubles import World, caller, request, tool
from tests.runtime.test_generation import begin, error, outcome


async def failing(awaitable: Any) -> WireError:
    with pytest.raises(WireError) as caught:
        await awaitable
    return caught.value


def two(file: Path) -> tuple[ModelConfig, ...]:
    source = ModelSource(path=file)
    return (
        ModelConfig("a", "A", "small", source, capabilities=CapabilityLimits(json=False, tools=False)),
        ModelConfig("b", "B", "large", source, capabilities=CapabilityLimits(tool_choice_modes=("auto", "none"))),
    )


async def test_the_first_connection_that_meets_the_requirements(tmp_path: Path) -> None:
    world = World(tmp_path / "m", connections=two(tmp_path / "m"), machine="workstation")
    who = caller()
    first = await world.runtime.select(who, Requirements())
    assert (first.name, first.model, first.json, first.tools, first.tool_choice_modes) == (
        "A",
        "small",
        False,
        False,
        (),
    )
    assert "workstation" in first.route
    second = await world.runtime.select(who, Requirements(json=True))
    assert (second.name, second.tool_choice_modes) == ("B", ("auto", "none"))
    assert (await world.runtime.select(who, Requirements(model="large"))).handle == second.handle != first.handle
    for impossible in (
        Requirements(model="huge"),
        Requirements(model="small", json=True),
        Requirements(model="small", tools=True),
        Requirements(images=True),
    ):
        assert (await failing(world.runtime.select(who, impossible))).code == "unsupported"
    await world.runtime.close()


async def test_handles_look_alike_whether_foreign_or_invented(world: World) -> None:
    mine, theirs = caller(endpoint="a"), caller(endpoint="b")
    handle = (await world.runtime.select(mine, Requirements())).handle
    assert (await world.runtime.select(mine, Requirements())).handle == handle
    foreign = await failing(world.runtime.describe(theirs, handle))
    invented = await failing(world.runtime.describe(theirs, "invented"))
    assert (foreign.code, foreign.message) == (invented.code, invented.message)
    assert foreign.code == "selection-expired"
    generation = world.runtime.generate(theirs, "g", request(handle))
    assert (await error(generation)).code == "selection-expired"
    assert world.starts == [] and world.chat.conversations == []


async def test_describe_loads_nothing(world: World) -> None:
    model = await world.runtime.select(caller(), Requirements())
    assert await world.runtime.describe(caller(), model.handle) == model
    assert world.starts == [] and world.chat.inspected == 1


async def test_a_changed_file_ends_handles_and_engine(world: World) -> None:
    model = await world.runtime.select(caller(), Requirements())
    live = world.runtime.generate(caller(), "g", request(model.handle))
    (await world.engine.run()).done()
    await outcome(live)
    world.file.write_bytes(b"another model")
    assert (await failing(world.runtime.describe(caller(), model.handle))).code == "selection-expired"
    again = await world.runtime.select(caller(), Requirements())
    assert again.handle != model.handle and world.chat.inspected == 2
    # Of the same size, its time set back: still another file.
    before = world.file.stat()
    world.file.write_bytes(b"ANOTHER model")
    os.utime(world.file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (await failing(world.runtime.describe(caller(), again.handle))).code == "selection-expired"
    again = await world.runtime.select(caller(), Requirements())
    world.file.unlink()
    assert (await failing(world.runtime.describe(caller(), again.handle))).code == "selection-expired"
    assert (await failing(world.runtime.select(caller(), Requirements()))).code == "provider-error"


async def test_a_removed_file_is_fetched_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[ModelSource] = []

    def fetch(source: ModelSource) -> Path:
        fetched.append(source)
        world.file.write_bytes(b"fetched")
        return world.file

    monkeypatch.setattr(world.runtime.connections[0], "_fetch_file", fetch)
    first = await world.runtime.select(caller(), Requirements())
    assert (await world.runtime.select(caller(), Requirements())).handle == first.handle
    world.file.unlink()
    assert (await world.runtime.select(caller(), Requirements())).handle != first.handle
    assert len(fetched) == 2


async def test_a_disabled_connection_ends_its_handles(world: World) -> None:
    model = await world.runtime.select(caller(), Requirements())
    world.runtime.connections[0].enabled = False
    assert (await failing(world.runtime.describe(caller(), model.handle))).code == "selection-expired"
    assert (await failing(world.runtime.select(caller(), Requirements()))).code == "unsupported"


async def test_handles_of_one_token_are_bounded(tmp_path: Path) -> None:
    world = World(tmp_path / "m", limits=Limits(handles_per_token=2))
    other = caller(token="other")
    kept = (await world.runtime.select(other, Requirements())).handle
    callers = [caller(endpoint=str(number)) for number in range(3)]
    handles = [(await world.runtime.select(who, Requirements())).handle for who in callers]
    assert (await failing(world.runtime.describe(callers[0], handles[0]))).code == "selection-expired"
    assert (await world.runtime.describe(callers[2], handles[2])).handle == handles[2]
    assert (await world.runtime.describe(other, kept)).handle == kept, "another token's are not counted"
    # Those of a connection as it was are not kept beside those of what it is.
    for number in range(5):
        world.file.write_bytes(b"another model" * number)
        await world.runtime.select(callers[0], Requirements())
    assert world.runtime.handles.endpoints() == {each.endpoint: 1 for each in (callers[0], callers[2], other)}
    await world.runtime.close()


@pytest.mark.parametrize(("policy", "granted", "code"), [("shell", True, None), ("shell", False, "user-cancelled")])
async def test_the_shells_consent(world: World, policy: str, granted: bool, code: str | None) -> None:
    live = await begin(world, who=caller(policy, granted=granted))
    if code is None:
        (await world.engine.run()).done()
        assert (await outcome(live)).finish == "stop"
    else:
        assert (await error(live)).code == code
        assert world.starts == [] and world.engine.runs == []


async def test_a_granted_header_does_not_answer_for_the_owner(world: World) -> None:
    live = await begin(world, who=caller("ask", granted=True))
    while not world.runtime.decisions.waiting():
        await asyncio.sleep(0)
    assert live.stage == "consent" and world.starts == []
    live.abandon()


async def test_who_is_asked_is_told_over_which_machines_a_model_is_spread(tmp_path: Path) -> None:
    source = ModelSource(path=tmp_path / "m")
    connection = ModelConfig("a", "A", "small", source, rpc=("10.0.0.2:50052", "gpu.example:50052"))
    world = World(tmp_path / "m", connections=(connection,))
    live = await begin(world, who=caller("ask"))
    while not world.runtime.decisions.waiting():
        await asyncio.sleep(0)
    (decision,) = world.runtime.decisions.waiting()
    assert decision.kind == "consent"
    model = await world.runtime.select(caller(), Requirements())
    for route in (decision.disclosure.route, model.route):
        assert route == "llama.cpp on this machine, 10.0.0.2:50052, gpu.example:50052"
    assert world.runtime.decisions.settle_consent(decision.id, True)
    (await world.engine.run()).done()
    await outcome(live)
    assert world.starts[0].rpc == connection.rpc
    await world.runtime.close()


@pytest.mark.parametrize("allow", [True, False])
async def test_the_owner_decides(world: World, allow: bool) -> None:
    messages = (
        Message("system", (TextPart("äbc"),)),
        Message("user", (TextPart("hi"),)),
        Message("assistant", (ToolCallPart("c", "weather", {"city": "Oslo"}),)),
        Message("toolResult", (TextPart("rain"),), "c", "weather"),
    )
    live = await begin(world, who=caller("ask", identity="app;hash"), messages=messages, tools=(tool(),))
    while not world.runtime.decisions.waiting():
        await asyncio.sleep(0)
    (decision,) = world.runtime.decisions.waiting()
    assert decision.kind == "consent"
    disclosed = decision.disclosure
    assert (decision.endpoint.identity, disclosed.connection, disclosed.model) == ("app;hash", "First", "first-1")
    assert {role: (a.count, a.bytes) for role, a in disclosed.messages.items()} == {
        "system": (1, 4),
        "user": (1, 2),
        "assistant": (1, 22),
    }
    assert (disclosed.tool_results.count, disclosed.tool_results.bytes) == (1, 4)
    assert (disclosed.tool_definitions.count, disclosed.tool_names) == (1, ("weather",))
    assert disclosed.tool_definitions.bytes > 40 and disclosed.images.count == 0
    assert "charge" in disclosed.charge
    assert world.starts == []
    assert world.runtime.decisions.settle_consent(decision.id, allow) is True
    assert world.runtime.decisions.settle_consent(decision.id, not allow) is False
    if allow:
        (await world.engine.run()).done()
        assert (await outcome(live)).finish == "stop"
    else:
        assert (await error(live)).code == "user-cancelled"
        assert world.engine.runs == []
    assert world.runtime.decisions.waiting() == ()


async def test_an_undecided_consent_ends_with_the_deadline(world: World) -> None:
    live = await begin(world, who=caller("ask"))
    while not world.runtime.decisions.waiting():
        await asyncio.sleep(0)
    (decision,) = world.runtime.decisions.waiting()
    world.clock.advance(60)
    assert (await error(live)).code == "timeout"
    await asyncio.wait({live.task})  # type: ignore[arg-type]
    assert world.runtime.decisions.waiting() == ()
    assert world.runtime.decisions.settle_consent(decision.id, True) is False
    assert world.engine.runs == []


async def test_a_selection_that_changed_during_consent_is_not_used(world: World) -> None:
    live = await begin(world, who=caller("ask"))
    while not world.runtime.decisions.waiting():
        await asyncio.sleep(0)
    world.file.write_bytes(b"another model")
    world.runtime.decisions.settle_consent(world.runtime.decisions.waiting()[0].id, True)
    assert (await error(live)).code == "selection-expired"
    assert world.engine.runs == []


async def test_a_change_that_is_noticed_during_consent_withdraws_the_question(world: World) -> None:
    live = await begin(world, who=caller("ask"))
    while not world.runtime.decisions.waiting():
        await asyncio.sleep(0)
    world.file.write_bytes(b"another model")
    await world.runtime.select(caller(endpoint="another"), Requirements())
    assert (await error(live)).code == "selection-expired"
    await asyncio.wait({live.task})  # type: ignore[arg-type]
    assert world.runtime.decisions.waiting() == () and world.engine.runs == []


async def pending_selection(world: World) -> tuple[asyncio.Task[Any], Any]:
    task = asyncio.create_task(world.runtime.select(caller(select="ask"), Requirements()))
    while not world.runtime.decisions.waiting():
        await asyncio.sleep(0)
    return task, world.runtime.decisions.waiting()[0]


async def test_the_owner_chooses(tmp_path: Path) -> None:
    world = World(tmp_path / "m", connections=two(tmp_path / "m"))
    task, decision = await pending_selection(world)
    assert decision.choices == ("a", "b")
    assert world.runtime.decisions.settle_selection(decision.id, "c") is False
    assert world.runtime.decisions.settle_selection(decision.id, "b") is True
    assert (await task).name == "B"
    task, decision = await pending_selection(world)
    world.runtime.decisions.settle_selection(decision.id, None)
    assert (await failing(task)).code == "user-cancelled"
    task, _ = await pending_selection(world)
    world.clock.advance(60)
    assert (await failing(task)).code == "timeout"
    task, _ = await pending_selection(world)
    world.runtime.end_token("shell")
    assert (await failing(task)).code == "cancelled"
    assert world.runtime.decisions.waiting() == ()
    await world.runtime.close()


async def test_the_questions_that_wait_for_the_owner_are_bounded(tmp_path: Path) -> None:
    world = World(tmp_path / "m", limits=Limits(concurrent=3, concurrent_per_endpoint=2))

    def select(endpoint: str) -> asyncio.Task[Any]:
        return asyncio.create_task(world.runtime.select(caller(select="ask", endpoint=endpoint), Requirements()))

    waiting = [select("one"), select("one")]
    while len(world.runtime.decisions.waiting()) < 2:
        await asyncio.sleep(0)
    refused = await failing(select("one"))
    assert (refused.code, refused.extra) == ("quota-exceeded", {"reason": "concurrency"})
    waiting.append(select("two"))
    while len(world.runtime.decisions.waiting()) < 3:
        await asyncio.sleep(0)
    assert (await failing(select("three"))).code == "quota-exceeded"
    world.runtime.decisions.settle_selection(world.runtime.decisions.waiting()[0].id, "first")
    assert (await waiting[0]).name == "First"
    waiting.append(select("three"))
    while len(world.runtime.decisions.waiting()) < 3:
        await asyncio.sleep(0)
    await world.runtime.close()
    for each in waiting[1:]:
        assert (await failing(each)).code == "provider-error"


async def test_what_the_owner_chooses_must_still_meet_the_requirements(tmp_path: Path) -> None:
    world = World(tmp_path / "m", connections=two(tmp_path / "m"))
    task = asyncio.create_task(world.runtime.select(caller(select="ask"), Requirements(json=True)))
    while not world.runtime.decisions.waiting():
        await asyncio.sleep(0)
    world.file.write_bytes(b"another model")
    world.chat.capabilities = replace(world.chat.capabilities, json=False)
    assert world.runtime.decisions.settle_selection(world.runtime.decisions.waiting()[0].id, "b")
    assert (await failing(task)).code == "unsupported"
    await world.runtime.close()


async def test_a_selection_under_way_ends_with_its_endpoint(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    inspecting, seen = asyncio.Event(), asyncio.Event()

    async def inspect(*_: Any) -> Capabilities:
        inspecting.set()
        await seen.wait()
        return world.chat.capabilities

    monkeypatch.setattr(world.chat, "inspect", inspect)
    ended = asyncio.create_task(world.runtime.select(caller(account="a"), Requirements()))
    other = asyncio.create_task(world.runtime.select(caller(account="b"), Requirements()))
    await inspecting.wait()
    world.runtime.end_account("shell", "a")
    seen.set()
    assert (await failing(ended)).code == "cancelled"
    assert (await other).name == "First"
    assert {each.account for each in world.runtime.endpoints()} == {"b"}


async def test_concurrency_is_bounded(tmp_path: Path) -> None:
    world = World(tmp_path / "m", limits=Limits(concurrent=3, concurrent_per_endpoint=2))
    a, b = caller(endpoint="a"), caller(endpoint="b")
    lives = [await begin(world, who=a, id="1"), await begin(world, who=a, id="2")]
    refused = await failing(begin(world, who=a, id="3"))
    assert (refused.code, refused.extra) == ("quota-exceeded", {"reason": "concurrency"})
    lives.append(await begin(world, who=b, id="1"))
    assert (await failing(begin(world, who=b, id="2"))).code == "quota-exceeded"
    lives[0].abandon()
    await begin(world, who=b, id="2")
    await world.runtime.close()


async def test_the_rate_of_one_endpoint_is_bounded_in_any_minute(tmp_path: Path) -> None:
    world = World(tmp_path / "m", limits=Limits(requests_per_minute=3))
    a, b = caller(endpoint="a"), caller(endpoint="b")
    for _ in range(3):
        await world.runtime.select(a, Requirements())
        world.clock.advance(10)
    refused = await failing(world.runtime.select(a, Requirements()))
    assert (refused.code, refused.extra) == ("quota-exceeded", {"reason": "rate"})
    await world.runtime.select(b, Requirements())
    world.clock.advance(29)
    assert (await failing(world.runtime.select(a, Requirements()))).code == "quota-exceeded"
    world.clock.advance(1)
    await world.runtime.select(a, Requirements())
    assert world.runtime.cancel(a.endpoint, "g") is False
    world.clock.advance(600)
    await world.runtime.select(b, Requirements())
    assert len(world.runtime.registry.rates.endpoints) == len(world.runtime.registry.rates.tokens) == 1
    await world.runtime.close()


async def test_an_idle_model_gives_its_memory_back_but_never_under_a_generation(world: World) -> None:
    model = await world.runtime.select(caller(), Requirements())
    live = world.runtime.generate(caller(), "g", request(model.handle))
    run = await world.engine.run()
    world.clock.advance(50)
    connection = world.runtime.connections[0]
    assert connection.loaded is not None and not connection.lease.idle
    run.done()
    await outcome(live)
    await asyncio.wait({live.task})  # type: ignore[arg-type]
    world.clock.advance(connection.config.unload_after - 1)
    assert connection.loaded is not None
    live = world.runtime.generate(caller(), "g", request(model.handle))
    run = await world.engine.run(1)
    world.clock.advance(30)
    run.done()
    await outcome(live)
    await asyncio.wait({live.task})  # type: ignore[arg-type]
    world.clock.advance(connection.config.unload_after)
    assert connection.loaded is None
    await connection.release()
    assert world.engine.closed
    assert (await world.runtime.describe(caller(), model.handle)).handle == model.handle
    live = world.runtime.generate(caller(), "g", request(model.handle))
    (await world.engine.run(2)).done()
    assert (await outcome(live)).finish == "stop" and len(world.starts) == 2


@pytest.mark.parametrize("seconds", [0, 7])
async def test_the_owner_says_how_long_an_idle_model_stays(tmp_path: Path, seconds: float) -> None:
    source = ModelSource(path=tmp_path / "m")
    world = World(tmp_path / "m", connections=(ModelConfig("a", "A", "a", source, unload_after=seconds),))
    connection = world.runtime.connections[0]
    await connection.load()
    world.clock.advance(6)
    assert connection.loaded is not None
    world.clock.advance(1_000_000)
    assert (connection.loaded is not None) == (seconds == 0)
    await world.runtime.close()


async def test_a_model_that_does_not_load_makes_idle_ones_give_way(tmp_path: Path) -> None:
    world = World(tmp_path / "m", connections=two(tmp_path / "m"))
    first, second = world.runtime.connections
    await first.load()
    world.start_failure = EngineError("not enough memory")
    release = first.release

    async def released() -> None:
        world.start_failure = None
        await release()

    first.release = released  # type: ignore[method-assign]
    await second.load()
    assert first.loaded is None and second.loaded is not None and len(world.starts) == 3
    async with second.in_use():
        world.start_failure = EngineError("not enough memory")
        assert (await failing(first.load())).code == "provider-error"
        assert second.loaded is not None
    await world.runtime.close()


async def test_a_model_that_others_crowd_is_loaded_again_where_they_give_way(tmp_path: Path) -> None:
    world = World(tmp_path / "m", connections=two(tmp_path / "m"))
    first, second = world.runtime.connections
    await first.load()
    world.crowded = True
    release = first.release

    async def released() -> None:
        world.crowded = False
        await release()

    first.release = released  # type: ignore[method-assign]
    engine = await second.load()
    assert first.loaded is None and not engine.info.gpu_contended and len(world.starts) == 3
    world.crowded = True
    async with second.in_use():
        assert (await first.load()).info.gpu_contended
        assert second.loaded is engine, "whom it serves keeps its memory"
    await world.runtime.close()


async def test_what_is_known_to_be_too_long_is_refused_before_anyone_is_asked(tmp_path: Path) -> None:
    source = ModelSource(path=tmp_path / "m")
    connection = ModelConfig("a", "A", "small", source, context_length=5)
    world = World(tmp_path / "m", connections=(connection,))
    live = await begin(world, "12345", who=caller("ask"))
    failure = await error(live)
    assert (failure.code, failure.extra) == ("quota-exceeded", {"reason": "context"})
    assert world.starts == []
    await world.runtime.close()


async def test_a_draft_model_is_loaded_beside_and_counts_as_the_models_own(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.write_bytes(b"small")
    source = ModelSource(path=tmp_path / "m")
    world = World(tmp_path / "m", connections=(ModelConfig("a", "A", "a-1", source, draft=ModelSource(path=small)),))
    live = await begin(world)
    (await world.engine.run()).done()
    await outcome(live)
    assert world.starts[0].draft_model_path == str(small)
    small.write_bytes(b"another")
    assert (await error(world.runtime.generate(caller(), "g2", live.request))).code == "selection-expired"
    await world.runtime.close()
