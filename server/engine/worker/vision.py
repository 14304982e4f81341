"""Images of requests: their place in prompts, and the embeddings that the encoder makes of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from server.engine.scheduler.scheduler import Sequence
from server.engine.types import EngineRequest, Failed
from server.engine.vision.encoder import EncoderResult, ImageEncoder
from server.engine.vision.placeholders import ImageSpan, PlaceholderExpander
from server.engine.vision.projector import ImageChunk, Projector, ProjectorError


class VisionState:
    """A projector at work: prompts with images go in as tokens, embeddings are given to the sequences that wait."""

    def __init__(self, projector: Projector, encoder: ImageEncoder, *, batch: int, context_length: int) -> None:
        self.projector = projector
        self.encoder = encoder
        self.batch = batch
        """Embeddings that one step takes at most."""
        self.images: dict[int, tuple[ImageSpan, ...]] = {}
        """Of the requests in the queue."""
        self._context_length = context_length
        self._expander = PlaceholderExpander(projector)

    def expand_images(self, request: EngineRequest) -> EngineRequest | Failed:
        """The request with its images as tokens, or why the model cannot take them."""
        sizes = [(image.width, image.height) for _, image in request.images]
        if (refusal := self.refusal(len(request.tokens), sizes)) is not None:
            return refusal
        tokens, self.images[request.id] = self._expander.expand(request)
        return replace(request, tokens=tokens, images=())

    def refusal(self, tokens: int, sizes: Iterable[tuple[int, int]]) -> Failed | None:
        """Why so many tokens of text and images of these sizes, in pixels, are no prompt for this model."""
        for index, size in enumerate(sizes):
            extra = {"reason": "image", "image": str(index)}
            try:
                chunks = self.projector.layout(*size)
            except ProjectorError as error:
                return Failed("unsupported", str(error), extra)
            for chunk in chunks:
                count = chunk.tokens if isinstance(chunk, ImageChunk) else len(chunk)
                if isinstance(chunk, ImageChunk) and not self.projector.causal and count > self.batch:
                    return Failed("unsupported", "an image takes more tokens than fit one step", extra)
                tokens += count
        if tokens >= self._context_length:
            return Failed("quota-exceeded", "the prompt does not fit the context", {"reason": "context"})
        return None

    def request_images(self, sequence: Sequence) -> None:
        """Get the embeddings of the images still to be decoded, except those of a prefix it waits for."""
        request = sequence.request
        first = sequence.num_computed_tokens if sequence.prefix_owner is None else sequence.num_shared_tokens
        for image in sequence.images:
            if (
                image.start >= first
                and image.embeddings is None
                and (found := self.encoder.request(request.id, request.cache_salt, image.image)) is not None
            ):
                image.embeddings = found[image.index]

    def complete(self, result: EncoderResult, running: Collection[Sequence]) -> list[Sequence]:
        """Give an encoded image to the sequences that wait for it; those for which it could not be encoded."""
        waiting = self.encoder.complete(result)
        sequences = [sequence for sequence in running if sequence.request.id in waiting]
        if result.embeddings is None:
            return sequences
        for sequence in sequences:
            for image in sequence.images:
                if image.image.digest == result.key.digest and image.start >= sequence.num_computed_tokens:
                    image.embeddings = result.embeddings[image.index]
        return []
