"""Tools that this program runs: a definition for the model, and the function behind it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from server.client.schema import parameters_of, read_docstring
from server.wire.records import Tool, ToolCallPart

Handler = Callable[..., Any]
"""Called with the call's arguments by name. Plain functions run in threads, async ones on the loop."""


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A tool with a function of this program behind it."""

    definition: Tool
    handler: Handler

    @classmethod
    def of(
        cls,
        function: Handler,
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> FunctionTool:
        """A tool of `function`; name, description and parameters that are not given are read from it.

        Raises TypeError where the signature cannot be said in JSON Schema.
        """
        name = name or str(getattr(function, "__name__", type(function).__name__))
        told, _ = read_docstring(inspect.getdoc(function) or "")
        try:
            parameters = parameters_of(function) if parameters is None else parameters
        except TypeError as error:
            raise TypeError(f"tool {name}: {error}") from None
        return cls(Tool(name, description or told or None, parameters), function)


AnyTool = FunctionTool | Tool | Handler
"""A Tool of the wire has no handler: its calls go to `on_tool_call`, or to the caller."""


class Toolbox:
    """The tools of one turn by name. Raises ValueError where two have one name."""

    def __init__(self, tools: Iterable[AnyTool]) -> None:
        listed = [tool if isinstance(tool, Tool | FunctionTool) else FunctionTool.of(tool) for tool in tools]
        self.definitions = tuple(tool if isinstance(tool, Tool) else tool.definition for tool in listed)
        self._handlers = {tool.definition.name: tool.handler for tool in listed if isinstance(tool, FunctionTool)}
        self._names = {tool.name for tool in self.definitions}
        if len(self._names) != len(self.definitions):
            raise ValueError("two tools have the same name")

    def knows(self, call: ToolCallPart) -> bool:
        return call.name in self._names

    def handler(self, call: ToolCallPart) -> Handler | None:
        return self._handlers.get(call.name)
