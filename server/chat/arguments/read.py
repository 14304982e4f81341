"""Reading a call's arguments, a syntax a module: whatever it is, JSON fragments come out as the text comes in."""

from __future__ import annotations

from collections.abc import Callable

from server.chat.arguments.json import read_object
from server.chat.arguments.literals import read_pairs
from server.chat.arguments.nested import read_nested
from server.chat.arguments.tagged import read_elements
from server.chat.formats.spec import ArgumentSyntax, LiteralArguments, NestedArguments, TaggedArguments, Types
from server.chat.reader import Reader, Steps


def read_arguments(
    reader: Reader, emit: Callable[[str], None], syntax: ArgumentSyntax, types: Types, after: str, end: str = ""
) -> Steps[str]:
    """One call's arguments; `after` is the literal that follows them, `end` what follows that if it may be the turn's
    only call. What of `after` is still to be read is returned: syntaxes that know their end only by it have read it."""
    match syntax:
        case TaggedArguments() as tags:
            yield from read_elements(reader, emit, tags, types, after)
            return ""
        case LiteralArguments() as notation:
            yield from read_pairs(reader, emit, notation, types, notation.close or after, end)
            return after if notation.close else ""
        case NestedArguments():
            yield from read_nested(reader, emit, syntax, types, after)
            return ""
        case _:
            yield from read_object(reader, emit)
            return after
