"""Text in, blocks out: templates, tool-call formats, the streaming parser.

What needs Jinja, a vocabulary or a schema runs in helper processes (`HelperPool`); the web process parses.
"""

from server.chat.conversation import Capabilities, ChatSettings, Conversation, ImageLimits, Prepared
from server.chat.helpers import HelperPool
from server.chat.parser import MalformedOutput, Parser, ParserSpec, make_parser

__all__ = [
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
