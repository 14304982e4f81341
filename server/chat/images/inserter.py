"""A conversation's images: taken out of its messages before a template renders them, and put into its prompt."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from server.chat.images.placeholders import ImagePlaceholder, check_placeholders, insert_placeholders
from server.chat.template.replay import PromptPart
from server.chat.types import ImageLimits, PromptRequest
from server.engine import Vocab
from server.engine.types import RgbImage
from server.wire.records import ImagePart, Role


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """A prompt's tokens, its images each with the offset in `tokens` before which it stands, and the fields that these
    come from."""

    tokens: array[int]
    images: tuple[tuple[int, RgbImage], ...]
    places: tuple[str, ...]


class ImageInserter:
    """The images of one conversation. Raises WireError where a message of another role than `roles` holds one."""

    def __init__(self, conversation: PromptRequest, roles: frozenset[Role]) -> None:
        messages, self._places = insert_placeholders(conversation, roles)
        self.conversation = replace(conversation, messages=messages)
        """The conversation with a placeholder for each image."""

    def tokenize(self, parts: Sequence[PromptPart], vocab: Vocab, limits: ImageLimits) -> TokenizedPrompt:
        """The prompt that a template made of `conversation`, with its images.

        Texts between images are tokenized apart, as llama.cpp does (`mtmd_tokenize`). Raises WireError where the
        template did not write each image once, or an image cannot be decoded within the limits.
        """
        tokens: array[int] = array("i")
        order: list[int] = []
        offsets: list[int] = []
        for number, part in enumerate(parts):
            if isinstance(part, array):
                tokens += part
                continue
            (first, *others), images = part.split_images()
            order += images
            tokens += vocab.tokenize(first.segments(), begins=number == 0, follows=number > 0)
            for text in others:
                offsets.append(len(tokens))
                tokens += vocab.tokenize(text.segments(), begins=False)
        self._check(order, offsets, len(tokens))
        decoded = decode_images([(place.at, place.part) for place in self._places], limits) if self._places else []
        images_at = tuple((offset, decoded[number]) for offset, number in zip(offsets, order, strict=True))
        return TokenizedPrompt(tokens, images_at, tuple(self._places[number].at for number in order))

    def _check(self, order: Sequence[int], offsets: Sequence[int], size: int) -> None:
        check_placeholders(order, self._places)
        if offsets and offsets[-1] == size:
            last: ImagePlaceholder = self._places[order[-1]]
            raise last.refused("this model's chat template ends the prompt with the image")


def decode_images(images: Sequence[tuple[str, ImagePart]], limits: ImageLimits) -> list[RgbImage]:
    """The pixels of images, each with the field it stands in. Raises WireError."""
    from server.chat.images.decode import decode  # a helper that sees no images need not load what decodes them

    return decode(images, limits)
