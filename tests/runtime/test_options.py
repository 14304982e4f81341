"""What projections beside NAP-LLM may ask of one generation: a connection by its key, and sampling."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from server.config import ConnectionConfig, ServerConfig, Source
from server.engine.messages import Sampling
from server.runtime import LiveGeneration, Options
from server.wire.records import Generation, Requirements, TextPart, WireError
from tests.runtime.doubles import World, caller, request


def two(tmp_path: Path, **fields: Any) -> World:
    source = Source(path=tmp_path / "model.gguf")
    connections = tuple(
        ConnectionConfig(key=key, name=key, model=f"{key}-1", source=source, sampling=Sampling(top_k=7, seed=3))
        for key in ("first", "second")
    )
    return World(tmp_path / "model.gguf", connections=connections, **fields)


def begin(world: World, options: Options, *, who: Any = None, **fields: Any) -> LiveGeneration:
    return world.runtime.generate(who or caller(), "g", request("", **fields), options)


async def test_a_connection_by_its_key_takes_the_place_of_a_handle(tmp_path: Path) -> None:
    world = two(tmp_path)
    live = begin(world, Options(connection="second"))
    run = await world.engine.run()
    assert live.connection == "second"
    run.say("hi")
    run.done()
    result = await live.result()
    assert isinstance(result, Generation) and result.content == (TextPart("hi"),)
    # The endpoint has selected it, as the owner sees, and its handle works on the wire of NAP-LLM too.
    assert world.runtime.handles.endpoints() == {caller().endpoint: 1}
    await world.runtime.close()


async def test_a_connection_that_is_unknown_or_disabled_is_unsupported(tmp_path: Path) -> None:
    world = two(tmp_path)
    world.runtime.disable(world.runtime.connections[0])
    for key in ("first", "third"):
        result = await begin(world, Options(connection=key)).result()
        assert isinstance(result, WireError) and result.code == "unsupported"
    await world.runtime.close()


async def test_sampling_takes_the_place_of_the_connections_own(tmp_path: Path) -> None:
    world = two(tmp_path)
    begin(world, Options(connection="first", sampling={"top_p": 0.5, "seed": 9}), temperature=0.25)
    assert (await world.engine.run()).job.sampling == Sampling(temperature=0.25, top_k=7, top_p=0.5, seed=9)
    await world.runtime.close()


async def test_an_owner_who_chooses_is_asked_once_for_a_connection(tmp_path: Path) -> None:
    world = two(tmp_path, server=ServerConfig(deadline=60))
    who = caller(select="ask")
    live = begin(world, Options(connection="second"), who=who)
    while not world.runtime.decisions.waiting():
        await world.runtime.changes.since(world.runtime.changes.version)
    (decision,) = world.runtime.decisions.waiting()
    assert decision.kind == "selection" and decision.choices == ("second",)
    assert world.runtime.decisions.settle_selection(decision.id, "second")
    (await world.engine.run()).done()
    assert isinstance(await live.result(), Generation)
    begin(world, Options(connection="second"), who=who)
    await world.engine.run(1)
    await world.runtime.close()


async def test_an_owner_who_declines_or_takes_too_long_ends_it(tmp_path: Path) -> None:
    world = two(tmp_path, server=ServerConfig(deadline=60))
    who = caller(select="ask")
    for end in ("declined", "deadline"):
        live = begin(world, Options(connection="first"), who=who)
        while not world.runtime.decisions.waiting():
            await world.runtime.changes.since(world.runtime.changes.version)
        (decision,) = world.runtime.decisions.waiting()
        if end == "declined":
            world.runtime.decisions.settle_selection(decision.id, None)
        else:
            world.clock.advance(61)
        result = await live.result()
        assert isinstance(result, WireError) and result.code == ("user-cancelled" if end == "declined" else "timeout")
        assert live.task is not None
        await asyncio.wait([live.task])
        assert not world.runtime.decisions.waiting() and not world.engine.runs
    await world.runtime.close()


async def test_a_file_that_changes_while_the_owner_consents_ends_the_selection(tmp_path: Path) -> None:
    world = two(tmp_path)
    live = begin(world, Options(connection="first"), who=caller(consent="ask"))
    while not world.runtime.decisions.waiting():
        await world.runtime.changes.since(world.runtime.changes.version)
    (decision,) = world.runtime.decisions.waiting()
    world.file.write_bytes(b"another model")
    world.runtime.decisions.settle_consent(decision.id, True)
    result = await live.result()
    assert isinstance(result, WireError) and result.code == "selection-expired"
    assert await world.runtime.select(caller(), Requirements())
    await world.runtime.close()
