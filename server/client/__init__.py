"""NAP-LLM client for Python programs, with a tool loop. It needs httpx and `server.wire`, and no server."""

from server.client.blocks import PartialCall
from server.client.conversation import Conversation
from server.client.images import image
from server.client.nap import Client
from server.client.stream import Stream
from server.client.sync import SyncClient, SyncConversation, SyncStream
from server.client.tool_loop import StopReason, TurnOptions, TurnResult
from server.client.tools import FunctionTool
from server.client.transport import TransportError

__all__ = [
    "Client",
    "Conversation",
    "FunctionTool",
    "PartialCall",
    "StopReason",
    "Stream",
    "SyncClient",
    "SyncConversation",
    "SyncStream",
    "TransportError",
    "TurnOptions",
    "TurnResult",
    "image",
]
