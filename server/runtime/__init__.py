"""What a NAP-LLM runtime owns: endpoints, handles, selection, consent, generations, deadlines and deltas."""

from server.runtime.endpoint import Caller, Endpoint
from server.runtime.generation import LiveGeneration
from server.runtime.options import GenerationOptions
from server.runtime.runtime import Runtime

__all__ = ["Caller", "Endpoint", "GenerationOptions", "LiveGeneration", "Runtime"]
