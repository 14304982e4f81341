"""JSON Schema in, GBNF grammar out."""

from .compiler import Check, Compiled, compile_schema
from .errors import InvalidInstance, InvalidSchema, UnsupportedSchema

__all__ = ["Check", "Compiled", "InvalidInstance", "InvalidSchema", "UnsupportedSchema", "compile_schema"]
