"""Schemas of tools and answers: checked and compiled, and completed values validated; every fault a `WireError`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from grammars import Compiled, InvalidInstance, InvalidSchema, UnsupportedSchema, check_schema
from server.chat.arguments import ArgumentSyntax, ToolArguments
from server.chat.arguments.syntax import compile_schema
from server.chat.types import CompiledSchema
from server.wire.records import Format, Tool, WireError

ANY_OBJECT: dict[str, Any] = {"type": "object"}


def tool_arguments(tool: Tool, syntaxes: Iterable[ArgumentSyntax]) -> ToolArguments:
    """A tool's arguments as a format writes them. Raises WireError naming tool, path and keyword."""
    with _named(f"tool {tool.name}"):
        found = ToolArguments(tool.parameters, syntaxes)
    if not found.satisfiable:
        raise WireError("unsupported", f"tool {tool.name}: no arguments satisfy its schema")
    return found


def check_tools(tools: Iterable[Tool]) -> None:
    """Raise WireError, naming tool, path and keyword, for a tool's schema that is malformed.

    Every schema is checked, be it supported or not, and called or not (NAP-LLM, "Tools").
    """
    for tool in tools:
        with _named(f"tool {tool.name}"):
            check_schema(tool.parameters)


def compile_answer(format: Format, schema: Mapping[str, Any] | bool | None) -> Compiled | None:
    """The grammar of a JSON answer; None where the answer is text. Raises WireError naming path and keyword."""
    if schema is None:
        return compile_schema(ANY_OBJECT) if format == "json" else None
    with _named("the answer's schema"):
        found = compile_schema(schema)
    if not found.satisfiable:
        raise WireError("unsupported", "the answer's schema: no value satisfies it")
    return found


@contextmanager
def _named(owner: str) -> Iterator[None]:
    try:
        yield
    except UnsupportedSchema as error:
        raise WireError("unsupported", f"{owner}: {error}") from None
    except InvalidSchema as error:
        raise WireError("invalid-request", f"{owner}: {error}") from None


def grammar(schema: Mapping[str, Any]) -> CompiledSchema:
    """The grammar of arguments of this schema as JSON, for a person to read. Raises WireError."""
    try:
        found = compile_schema(schema)
    except UnsupportedSchema as error:
        raise WireError("unsupported", str(error), path=error.path, keyword=error.keyword) from None
    except InvalidSchema as error:
        raise WireError("invalid-request", str(error), path=error.path, keyword=error.keyword) from None
    if not found.satisfiable:
        raise WireError("unsupported", "no value satisfies this schema")
    return CompiledSchema(found.gbnf, tuple((check.path, check.keyword) for check in found.unchecked))


def validate(tool: Tool, arguments: Mapping[str, Any]) -> None:
    """Check completed arguments against all of the tool's schema. Raises WireError("provider-error")."""
    try:
        compile_schema(tool.parameters).validate(arguments)
    except InvalidInstance as error:
        raise WireError("provider-error", f"tool {tool.name}: arguments violate its schema: {error}") from None


def validate_answer(schema: Mapping[str, Any] | bool, answer: Any) -> None:
    """Check a completed answer against all of its schema. Raises WireError("provider-error")."""
    try:
        compile_schema(schema).validate(answer)
    except InvalidInstance as error:
        raise WireError("provider-error", f"the answer violates its schema: {error}") from None
