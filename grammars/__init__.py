"""JSON Schema in, GBNF grammar out."""

from .compiler import Check, Compiled, check_schema, compile_schema
from .errors import InvalidInstance, InvalidSchema, UnsupportedSchema
from .memo import scoped
from .spelling import Elements

__all__ = [
    "Check",
    "Compiled",
    "Elements",
    "InvalidInstance",
    "InvalidSchema",
    "UnsupportedSchema",
    "check_schema",
    "compile_schema",
    "scoped",
]
