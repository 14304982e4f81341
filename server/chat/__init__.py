"""Text in, blocks out: templates, tool-call formats, the streaming parser.

What needs Jinja, a vocabulary or a schema runs in helper processes (`HelperPool`); the web process parses.
"""

from server.chat.conversation import Capabilities, ChatSettings, Conversation, ImageLimits, Prepared
from server.chat.format import MOST_CALLS
from server.chat.helpers import HelperPool
from server.chat.parser import MalformedOutput, Parser, ParserSpec, make_parser

__all__ = [
    "MOST_CALLS",
    "Capabilities",
    "ChatSettings",
    "Conversation",
    "HelperPool",
    "ImageLimits",
    "MalformedOutput",
    "Parser",
    "ParserSpec",
    "Prepared",
    "make_parser",
]
