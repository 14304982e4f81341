"""Tool runner: the calls of a reply, run side by side, and their results."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from server.client.tools import Toolbox
from server.wire.records import ImagePart, Message, Part, TextPart, ToolCallPart

OnToolCall = Callable[[ToolCallPart], Any]
"""Answers a call whose tool has no handler. Plain or async."""

OnToolError = Callable[[ToolCallPart, Exception], Any]
"""Chooses the result for the model instead of the exception's text. Plain or async; raising ends the turn."""


class ToolCallError(Exception):
    """A call that cannot be run: its tool is unknown, or its arguments are no JSON object."""


class ToolRunner:
    """Runs the calls of one round after another, by the tools and callbacks of a turn."""

    def __init__(self, tools: Toolbox, on_tool_call: OnToolCall | None, on_tool_error: OnToolError | None) -> None:
        self._tools = tools
        self._on_tool_call = on_tool_call
        self._on_tool_error = on_tool_error

    def runs(self, call: ToolCallPart) -> bool:
        """True where a handler or callback answers the call. One to an unknown tool is answered too: with an error."""
        known = self._tools.knows(call)
        return not known or self._tools.handler(call) is not None or self._on_tool_call is not None

    async def run(self, calls: Sequence[ToolCallPart]) -> tuple[Message, ...]:
        """The results in the order of the calls.

        All have finished when it returns, or when it raises what `on_tool_error` raised.
        """
        # A thread for each: a call that waits for another must not keep it from starting.
        pool = ThreadPoolExecutor(max_workers=len(calls), thread_name_prefix="tool")
        try:
            results = await asyncio.gather(*(self._answer(call, pool) for call in calls), return_exceptions=True)
        finally:
            pool.shutdown(wait=False)
        messages: list[Message] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            messages.append(result)
        return tuple(messages)

    async def _answer(self, call: ToolCallPart, pool: ThreadPoolExecutor) -> Message:
        try:
            return result_message(call, await self._call(call, pool))
        except Exception as error:
            if self._on_tool_error is None:
                return result_message(call, {"error": str(error) or type(error).__name__}, is_error=True)
            told = await _invoke(functools.partial(self._on_tool_error, call, error), pool)
            return result_message(call, told, is_error=True)

    async def _call(self, call: ToolCallPart, pool: ThreadPoolExecutor) -> Any:
        if not self._tools.knows(call):
            raise ToolCallError(f"there is no tool named {call.name}")
        if not isinstance(call.arguments, Mapping):
            raise ToolCallError("the arguments are not a JSON object")
        if (handler := self._tools.handler(call)) is not None:
            return await _invoke(functools.partial(handler, **call.arguments), pool)
        assert self._on_tool_call is not None, "a call that nobody answers stops the turn before its round"
        return await _invoke(functools.partial(self._on_tool_call, call), pool)


def result_message(call: ToolCallPart, value: Any, *, is_error: bool = False) -> Message:
    """The message that answers the call: parts as they are, text as it is, any other value as JSON.

    Raises TypeError or ValueError where JSON cannot say the value.
    """
    return Message("toolResult", _content(value), call.tool_call_id, call.name, is_error)


def _content(value: Any) -> tuple[Part, ...]:
    if isinstance(value, TextPart | ImagePart):
        return (value,)
    if isinstance(value, list | tuple) and value and all(isinstance(each, TextPart | ImagePart) for each in value):
        return tuple(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()  # A lone surrogate has no place on the wire; it is the tool's failure, not the turn's.
    return (TextPart(text),)


async def _invoke(function: functools.partial[Any], pool: ThreadPoolExecutor) -> Any:
    called = function.func
    if inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(getattr(called, "__call__", None)):  # noqa: B004
        return await function()
    context = contextvars.copy_context()
    value = await asyncio.get_running_loop().run_in_executor(pool, context.run, _call_plain, function)
    # A plain function may hand out a coroutine, as a lambda over an async one does.
    return await value if inspect.isawaitable(value) else value


def _call_plain(function: functools.partial[Any]) -> Any:
    try:
        return function()
    except StopIteration as error:
        # A future cannot carry it: the turn would wait for ever.
        raise RuntimeError("the tool raised StopIteration") from error
