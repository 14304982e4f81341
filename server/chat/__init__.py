"""Chat: templates, tool-call formats, the streaming parser; conversations in, prompts out, and text in, blocks out.

Work with Jinja, a vocabulary or a schema runs in helper processes (`HelperPool`); the web process parses.
"""

from server.chat.formats.spec import MOST_CALLS
from server.chat.parser import MalformedOutput, OutputParser, ParserSpec, make_parser
from server.chat.pool import HelperPool
from server.chat.types import Capabilities, ChatSettings, ImageLimits, PreparedPrompt, PromptRequest

__all__ = [
    "MOST_CALLS",
    "Capabilities",
    "ChatSettings",
    "HelperPool",
    "ImageLimits",
    "MalformedOutput",
    "OutputParser",
    "ParserSpec",
    "PreparedPrompt",
    "PromptRequest",
    "make_parser",
]
