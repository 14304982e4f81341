"""The OpenAI API over the same runtime: models, chat completions and stateless responses."""

from server.http.openai.api import OpenAIApi

__all__ = ["OpenAIApi"]
