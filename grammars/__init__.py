"""JSON Schema in, GBNF grammar out."""

from .compiler import Compiled, UncheckedKeyword, check_schema, compile_schema
from .errors import InvalidInstance, InvalidSchema, UnsupportedSchema
from .memo import scoped
from .spelling import TaggedSyntax

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
