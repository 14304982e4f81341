"""Images and the runtime: what a connection with a projector offers, limits, disclosure, the way to the engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from server.chat import ImageLimits
from server.config import CapabilityLimits, Limits, ModelConfig, ModelSource
from server.engine.types import Failed, RgbImage
from server.runtime import LiveGeneration
from server.wire.records import ImagePart, Message, Requirements, TextPart, WireError
from tests.runtime.doubles import World, caller, request
from tests.runtime.test_generation import begin, error, outcome

SEE = Message("user", (TextPart("see"), ImagePart("image/png", "AAAA")))
PICTURE = RgbImage.of(2, 1, bytes(6))


def seeing(directory: Path, *, vision: bool = True, limits: Limits | None = None, **config: object) -> World:
    """A world whose one connection has a projector that says it sees; `vision`: what its loading shows."""
    for name in ("model", "eyes"):
        (directory / name).write_bytes(name.encode())
    source, mmproj = (ModelSource(path=directory / name) for name in ("model", "eyes"))
    connection = ModelConfig("a", "A", "a-1", source, mmproj=mmproj, **config)  # type: ignore[arg-type]
    world = World(directory / "model", connections=(connection,), limits=limits)
    world.chat.capabilities = replace(world.chat.capabilities, images=True)
    world.chat.pictures = ((1, PICTURE), (3, PICTURE))
    world.engine.info = replace(world.engine.info, vision=vision)
    return world


async def refused(world: World, **requirements: bool) -> str:
    with pytest.raises(WireError) as caught:
        await world.runtime.select(caller(), Requirements(**requirements))
    return caught.value.code


async def test_pictures_go_to_the_engine_with_their_places(tmp_path: Path) -> None:
    world = seeing(tmp_path, limits=Limits(image_pixels=99, image_frames=3))
    assert (await world.runtime.select(caller(), Requirements(images=True))).images
    live = await begin(world, messages=(SEE,))
    run = await world.engine.run()
    assert run.job.images == world.chat.pictures
    assert world.starts[0].mmproj_path == str(tmp_path / "eyes")
    assert {(each.projector, each.images) for each in world.chat.settings} == {
        (str(tmp_path / "eyes"), ImageLimits(pixels=99, frames=3))
    }
    run.say("a cat")
    run.done()
    assert (await outcome(live)).finish == "stop"
    model = await world.runtime.describe(caller(), live.request.handle)
    assert model.images
    await world.runtime.close()


async def test_a_projector_that_turns_out_not_to_see_ends_the_selection(tmp_path: Path) -> None:
    world = seeing(tmp_path, vision=False)
    live = await begin(world, messages=(SEE,))
    assert (await error(live)).code == "selection-expired"
    assert world.engine.runs == []
    assert await refused(world, images=True) == "unsupported"
    again = await begin(world, messages=(SEE,))
    assert (await error(again)).code == "unsupported"
    text = await begin(world, "hello")
    run = await world.engine.run()
    run.say("hi")
    run.done()
    assert (await outcome(text)).finish == "stop"
    # Another file may see.
    world.engine.info = replace(world.engine.info, vision=True)
    (tmp_path / "eyes").write_bytes(b"better ones")
    assert (await world.runtime.select(caller(), Requirements(images=True))).images
    await world.runtime.close()


async def test_the_owner_may_keep_images_from_a_model_that_sees(tmp_path: Path) -> None:
    world = seeing(tmp_path, capabilities=CapabilityLimits(images=False))
    assert await refused(world, images=True) == "unsupported"
    live = await begin(world, messages=(SEE,))
    assert (await error(live)).message == "this connection does not accept images"
    assert world.chat.conversations == []
    await world.runtime.close()


async def test_a_refused_image_never_reaches_the_engine_nor_the_owner(tmp_path: Path) -> None:
    world = seeing(tmp_path)
    world.chat.refusal = WireError("invalid-request", "messages[0].content[1] is no image/png")
    live = await begin(world, who=caller("ask"), messages=(SEE,))
    assert (await error(live)).code == "invalid-request"
    assert world.starts == [] and world.runtime.decisions.waiting() == ()
    await world.runtime.close()


async def test_images_take_room_in_the_context(tmp_path: Path) -> None:
    world = seeing(tmp_path, context_length=10)
    live = await begin(world, "x" * 8, messages=(replace(SEE, content=(TextPart("x" * 8), SEE.content[1])),))
    failure = await error(live)
    assert (failure.code, failure.extra) == ("quota-exceeded", {"reason": "context"})
    await world.runtime.close()


@pytest.mark.parametrize("consent", ["ask", "always"])
@pytest.mark.parametrize(
    ("refusal", "code", "words", "extra"),
    [
        (Failed("quota-exceeded", "canary", {"reason": "context"}), "quota-exceeded", "context", {"reason": "context"}),
        (Failed("unsupported", "canary", {"reason": "image", "image": "1"}), "unsupported", "place 1: ", {}),
    ],
)
async def test_images_that_the_engine_does_not_take_are_refused_by_name(
    tmp_path: Path, consent: str, refusal: Failed, code: str, words: str, extra: dict[str, str]
) -> None:
    """Before the owner is asked, where he is; else when they are submitted."""
    world = seeing(tmp_path)
    world.engine.refusal = refusal
    live = await begin(world, who=caller(consent), messages=(SEE,))
    if consent == "always":
        (await world.engine.run()).fail(refusal.code, refusal.reason, **refusal.extra)
    failure = await error(live)
    assert (failure.code, failure.extra) == (code, extra) and words in failure.message
    assert "canary" not in failure.message
    if consent == "ask":
        assert world.engine.runs == [] and "consent" not in live.entered
        # Of what is not yet authorized, the engine has learned these numbers alone.
        assert world.engine.checks == [(len("see"), [(2, 1), (2, 1)])]
    await world.runtime.close()


async def test_images_that_fit_are_asked_about(tmp_path: Path) -> None:
    world = seeing(tmp_path)
    live = await begin(world, who=caller("ask"), messages=(SEE,))
    while not world.runtime.decisions.waiting():
        await world.runtime.changes.since(world.runtime.changes.version)
    assert world.engine.checks and world.engine.runs == []
    world.runtime.decisions.settle_consent(world.runtime.decisions.waiting()[0].id, True)
    (await world.engine.run()).done()
    assert (await outcome(live)).finish == "stop"
    await world.runtime.close()


async def test_a_selection_that_ends_while_the_model_is_loaded_to_count_images(tmp_path: Path) -> None:
    world = seeing(tmp_path)
    world.start_gate.clear()
    live = await begin(world, who=caller("ask"), messages=(SEE,))
    await world.starting.wait()
    world.runtime.connections[0]._end_selections()
    world.start_gate.set()
    assert (await error(live)).code == "selection-expired"
    assert world.engine.checks == [] and "consent" not in live.entered
    await world.runtime.close()


async def test_images_are_bounded_before_anything_looks_at_them(tmp_path: Path) -> None:
    world = World(tmp_path / "m", limits=Limits(images=2, image_bytes=4))
    handle = (await world.runtime.select(caller(), Requirements())).handle

    def begun(*images: str) -> LiveGeneration:
        parts = tuple(ImagePart("image/png", each) for each in images)
        return world.runtime.generate(caller(), "g", request(handle, messages=(Message("user", parts),)))

    for images in (["AAAA"] * 3, ["AAAAAAA="]):
        with pytest.raises(WireError) as refused:
            begun(*images)
        assert (refused.value.code, refused.value.extra) == ("quota-exceeded", {"reason": "images"})
    # Four bytes are allowed; that this model cannot see is another matter.
    assert (await error(begun("AAAAAA==", "AAAA"))).code == "unsupported"
    assert world.chat.conversations == []
    await world.runtime.close()


async def test_images_are_counted(world: World) -> None:
    world.chat.capabilities = replace(world.chat.capabilities, images=True)
    message = Message("user", (*SEE.content, ImagePart("image/png", "AA==")))
    live = await begin(world, who=caller("ask"), messages=(message,))
    while not world.runtime.decisions.waiting():
        await asyncio.sleep(0)
    disclosed = world.runtime.decisions.waiting()[0].disclosure  # type: ignore[union-attr]
    assert (disclosed.images.count, disclosed.images.bytes) == (2, 4)
    live.abandon()
