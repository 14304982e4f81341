"""Images: encoder, embedding cache and placeholders in prompts. `vision.projector` alone loads llama.cpp."""

from server.engine.vision.base import Chunk, Embeddings, ImageChunk, ImageModel, ProjectorError
from server.engine.vision.encoder import EncoderCacheKey, EncoderResult, ImageEncoder
from server.engine.vision.placeholders import ImageSpan, PlaceholderExpander

__all__ = [
    "Chunk",
    "Embeddings",
    "EncoderCacheKey",
    "EncoderResult",
    "ImageChunk",
    "ImageEncoder",
    "ImageModel",
    "ImageSpan",
    "PlaceholderExpander",
    "ProjectorError",
]
