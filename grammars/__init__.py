"""JSON Schema in, GBNF grammar out."""

from grammars.compiler import Compiled, UncheckedKeyword, check_schema, compile_schema
from grammars.errors import InvalidInstance, InvalidSchema, UnsupportedSchema
from grammars.memo import scoped
from grammars.rules.syntax import TaggedSyntax

__all__ = [
    "Compiled",
    "InvalidInstance",
    "InvalidSchema",
    "TaggedSyntax",
    "UncheckedKeyword",
    "UnsupportedSchema",
    "check_schema",
    "compile_schema",
    "scoped",
]
