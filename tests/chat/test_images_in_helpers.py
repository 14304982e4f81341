"""Images from strangers in the helper processes: each has its answer, and the processes stay as they were."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from PIL import Image

from server.chat import ChatSettings, HelperPool, ImageLimits, PromptRequest
from server.wire.records import ImagePart, Message, TextPart, WireError
from tests.chat.test_images import HOSTILE, scanned
from tests.pictures import JPEG, PNG, image, part, png, raw_png, saved, zeros

pytestmark = pytest.mark.slow

SEEING = ChatSettings(projector="a projector")
FLAT = 24 << 20
"""Bytes that a helper's memory may differ by: pages that its allocator keeps."""


@pytest.fixture
async def pool() -> AsyncIterator[HelperPool]:
    pool = HelperPool(size=1, seconds=20)
    await pool.start()
    yield pool
    await pool.close()


def helper() -> psutil.Process:
    (process,) = [p for p in psutil.Process().children() if "server.chat.pool" in " ".join(p.cmdline())]
    return process


def asked(*images: ImagePart) -> PromptRequest:
    return PromptRequest((Message("user", (*images, TextPart("What is it?"))),))


async def code(pool: HelperPool, model: Path, image: ImagePart, settings: ChatSettings = SEEING) -> str:
    try:
        return "decoded" if (await pool.prepare(str(model), settings, asked(image))).images else "lost"
    except WireError as error:
        return error.code


async def test_hostile_images_leave_the_helper_and_its_memory_as_they_were(pool: HelperPool, smollm2: Path) -> None:
    large = saved(Image.new("RGBA", (4000, 4000)), PNG)
    corpus = [(part(make(), mime_type), code) for make, mime_type, code in HOSTILE.values()]
    corpus += [
        (part(large), "decoded"),
        (part(saved(Image.new("CMYK", (3000, 3000)), JPEG), JPEG), "decoded"),
        (part(raw_png(3000, 3000, zeros(3000 * (8 * 3000 + 1)), depth=16, colour=6)), "decoded"),
    ]
    sizes = []
    process = helper()
    for _ in range(3):
        assert [await code(pool, smollm2, each) for each, _ in corpus] == [want for _, want in corpus]
        assert await code(pool, smollm2, image()) == "decoded"
        sizes.append(process.memory_info().rss)
    assert helper().pid == process.pid
    assert sizes[-1] - sizes[0] < FLAT, sizes


async def test_an_image_that_takes_for_ever_ends_with_its_helper(smollm2: Path) -> None:
    """As many scans over as many pixels as the limits allow: a file of 200 kB that takes seconds."""
    slow = scanned(saved(Image.new("RGB", (5700, 5700)), JPEG, progressive=True, quality=10), 80)
    pool = HelperPool(size=1, seconds=60)
    await pool.start()
    try:
        assert await code(pool, smollm2, image()) == "decoded"
        (one,) = pool._helpers
        before, one._seconds = helper().pid, 0.3
        assert await code(pool, smollm2, part(slow, JPEG)) == "quota-exceeded"
        one._seconds = 60
        assert await code(pool, smollm2, image()) == "decoded"
        assert helper().pid != before
    finally:
        await pool.close()


async def test_an_image_too_large_for_the_helpers_memory_is_refused(smollm2: Path) -> None:
    pool = HelperPool(size=1, seconds=20, memory=512 << 20)
    await pool.start()
    try:
        generous = ChatSettings(projector="a projector", images=ImageLimits(pixels=1 << 30))
        data = raw_png(20_000, 20_000, zeros(1 << 20))
        assert await code(pool, smollm2, part(data), generous) == "quota-exceeded"
        assert await code(pool, smollm2, image()) == "decoded"
    finally:
        await pool.close()


async def test_pictures_come_back_with_their_places(pool: HelperPool, smollm2: Path) -> None:
    prepared = await pool.prepare(str(smollm2), SEEING, asked(part(png(5, 7)), image(40)))
    (first, one), (second, other) = prepared.images
    assert 0 < first == second < len(prepared.tokens)
    assert (one.width, one.height, other.width, other.height) == (5, 7, 4, 3)
