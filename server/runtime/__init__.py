"""Runtime of NAP-LLM: endpoints, handles, selection, consent, generations, deadlines and deltas."""

from server.runtime.endpoint import Caller, Endpoint
from server.runtime.generation import LiveGeneration
from server.runtime.options import GenerationOptions
from server.runtime.runtime import Runtime
from server.runtime.served_model import ServedModel

__all__ = ["Caller", "Endpoint", "GenerationOptions", "LiveGeneration", "Runtime", "ServedModel"]
