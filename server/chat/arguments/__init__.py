"""Syntaxes of a tool call's arguments: each with its grammar, its reader and its renderer."""

from server.chat.arguments.json import JsonArguments
from server.chat.arguments.literals import GEMMA, PYTHON, LiteralArguments
from server.chat.arguments.nested import NestedArguments
from server.chat.arguments.schema_types import ANY_TYPE, ArgumentTypes, Types, argument_types
from server.chat.arguments.syntax import ArgumentGrammar, ArgumentSyntax
from server.chat.arguments.tagged import TaggedArguments
from server.chat.arguments.tool import ToolArguments

__all__ = [
    "ANY_TYPE",
    "GEMMA",
    "PYTHON",
    "ArgumentGrammar",
    "ArgumentSyntax",
    "ArgumentTypes",
    "JsonArguments",
    "LiteralArguments",
    "NestedArguments",
    "TaggedArguments",
    "ToolArguments",
    "Types",
    "argument_types",
]
