"""Prompts with images as arrays of tokens."""

from __future__ import annotations

from array import array

import numpy as np

from server.engine import EngineRequest, RgbImage, Sampling
from server.engine.scheduler.scheduler import Sequence, Slot, common_prefix
from server.engine.vision.placeholders import ImageSpan, PlaceholderExpander
from server.engine.vision.projector import Chunk, ImageChunk
from tests.fixtures.projectors import picture

A, B = picture(1), picture(2)


def patch(tokens: int, advance: int) -> ImageChunk:
    return ImageChunk(tokens, advance, np.zeros((1, tokens), np.int32), np.ones((1, tokens), np.int32))


class Projector:
    """Two patches a picture, with text around and between."""

    def layout(self, width: int, height: int) -> list[Chunk]:
        return [array("i", [90]), patch(3, 2), array("i", [91]), patch(2, 2), array("i", [92])]


def lay_out(
    layouts: PlaceholderExpander, tokens: list[int], *pictures: tuple[int, RgbImage]
) -> tuple[list[int], tuple[ImageSpan, ...]]:
    job = EngineRequest(1, array("i", tokens), Sampling(), "s", 0, images=pictures)
    found, images = layouts.expand(job)
    return found.tolist(), images


def test_images_stand_where_they_were_put() -> None:
    layouts = PlaceholderExpander(Projector())
    tokens, images = lay_out(layouts, [1, 2, 3], (0, A), (2, B), (2, A))
    first = [90, -1, -1, -1, 91, -2, -2, 92]
    second = [90, -3, -3, -3, 91, -4, -4, 92]
    assert tokens == [*first, 1, 2, *second, *first, 3]
    assert [(image.start, image.end, image.index) for image in images][:3] == [(1, 4, 0), (5, 7, 1), (11, 14, 0)]
    assert [image.image for image in images] == [A, A, B, B, A, A]
    assert lay_out(layouts, [1, 2], (1, B))[0] == [1, *second, 2], "the same picture is the same wherever it stands"


def test_a_picture_forgotten_gets_another_number() -> None:
    layouts = PlaceholderExpander(Projector())
    before, _ = lay_out(layouts, [1], (0, A))
    for number in range(4200):
        layouts._number(str(number), 2)
    after, _ = lay_out(layouts, [1], (0, A))
    assert len(layouts._numbers) == 4096
    assert common_prefix(array("i", before), array("i", after)) == 1


def test_tokens_and_positions_are_counted_apart() -> None:
    tokens, images = lay_out(PlaceholderExpander(Projector()), [1, 2], (1, A))
    assert tokens == [1, 90, -1, -1, -1, 91, -2, -2, 92, 2]
    sequence = Sequence(EngineRequest(1, array("i"), Sampling(), "s", 0), Slot(0), 1, array("i", tokens), images=images)
    for past, position, remaining, at in [
        (0, 0, 2, False),
        (1, 1, 1, False),
        (2, 2, 0, True),
        (5, 4, 1, False),
        (6, 5, 0, True),
        (8, 7, 2, False),
        (10, 9, 0, False),
    ]:
        sequence.set_computed(past)
        assert (sequence.position, sequence.num_new_tokens, sequence.image is not None) == (position, remaining, at)
        assert sequence.position_of(past) == position
    assert [sequence.floor_to_image(count) for count in range(10)] == [0, 1, 2, 2, 2, 5, 6, 6, 8, 9]
    sequence.set_computed(3)
    assert sequence.image is images[0] and sequence.num_new_tokens <= 0 and sequence.next_image_start == 2


def test_without_images_all_is_as_it_was() -> None:
    sequence = Sequence(EngineRequest(1, array("i"), Sampling(), "s", 0), Slot(0), 1, array("i", range(5)))
    sequence.set_computed(3)
    assert (sequence.num_computed_tokens, sequence.position, sequence.num_new_tokens, sequence.image) == (3, 3, 2, None)
    assert sequence.floor_to_image(4) == sequence.position_of(4) == 4
