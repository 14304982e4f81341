"""Placeholders of images: characters in a conversation, found again in the prompt that a template makes of it.

While a template runs, a media character stands in the text for each image, as llama.cpp's server puts a marker there:
templates never see an image. What a model wants around one (`<start_of_image>`, `<|vision_start|>` …) its projector
adds; the text that a template writes around an image item of its own would stand twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from server.chat.template.provenance import MAX_MEDIA, media
from server.chat.types import PromptRequest
from server.wire.records import ImagePart, Message, Part, Role, TextPart, WireError

_CALLED: dict[Role, str] = {
    "system": "a system message",
    "user": "a user message",
    "assistant": "an assistant message",
    "toolResult": "a tool result",
}


@dataclass(frozen=True, slots=True)
class ImagePlaceholder:
    """One image of a conversation."""

    part: ImagePart
    at: str
    """The field it stands in."""
    role: Role

    def refused(self, why: str) -> WireError:
        """The error that names the image's field and the role of its message."""
        return WireError("unsupported", f"{self.at}: {why} in {_CALLED[self.role]}")


def insert_placeholders(
    conversation: PromptRequest, roles: frozenset[Role]
) -> tuple[tuple[Message, ...], list[ImagePlaceholder]]:
    """The messages with a media character for each image, and the images by its number.

    Raises WireError: `unsupported` where one stands in a message of another role than these.
    """
    places: list[ImagePlaceholder] = []
    marked = []
    for index, message in enumerate(conversation.messages):
        parts: list[Part] = []
        for position, part in enumerate(message.content):
            if isinstance(part, ImagePart):
                place = ImagePlaceholder(part, f"{conversation.name(index)}.content[{position}]", message.role)
                if message.role not in roles:
                    raise place.refused("this connection takes no image")
                if len(places) == MAX_MEDIA:
                    raise WireError("quota-exceeded", f"the request has more than {MAX_MEDIA} images", reason="images")
                part = TextPart(media(len(places)))
                places.append(place)
            parts.append(part)
        marked.append(replace(message, content=tuple(parts)))
    return tuple(marked), places


def check_placeholders(order: Sequence[int], places: Sequence[ImagePlaceholder]) -> None:
    """Raises WireError: `unsupported` where the template did not write each image once. `order`: the images' numbers as
    they stand in the prompt."""
    written = Counter(order)
    for number, place in enumerate(places):
        if written[number] != 1:
            times = "does not write" if not written[number] else "writes more than once"
            raise place.refused(f"this model's chat template {times} an image")
