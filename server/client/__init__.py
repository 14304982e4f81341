"""A NAP-LLM client for Python programs. Imports `wire` alone."""

from server.client.nap import Client, TransportError

__all__ = ["Client", "TransportError"]
