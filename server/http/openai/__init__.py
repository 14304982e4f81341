"""The OpenAI API over the same runtime: models, chat completions and stateless responses."""

from server.http.openai.api import OpenAI

__all__ = ["OpenAI"]
