"""What a NAP-LLM runtime owns: endpoints, handles, selection, consent, generations, deadlines and deltas."""

from server.runtime.endpoint import Caller, Endpoint
from server.runtime.generation import LiveGeneration
from server.runtime.options import Options
from server.runtime.runtime import Runtime

__all__ = ["Caller", "Endpoint", "LiveGeneration", "Options", "Runtime"]
