"""Conversation at a terminal, over the wire, as a shell holds it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import signal
import sys
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from server.client import Client, Conversation, TransportError, TurnResult
from server.wire.envelopes import DEFAULT_PARAMETERS
from server.wire.records import (
    Delta,
    Generation,
    Message,
    Model,
    NamedTool,
    Requirements,
    TextPart,
    Tool,
    ToolCallPart,
    ToolChoice,
    WireError,
)

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters kept from the terminal: they could move the cursor or write to the clipboard."""

INTERRUPTED = 130
"""Exit status of a program that SIGINT ended, as shells count it."""

_PROBLEMS = {"cancelled": "cancelled", "context_exceeded": "the conversation does not fit the model's context"}
"""Complaints about a turn by its stop reason."""


class Quit(Exception):
    """The person leaves in the middle of an answer."""


def talk(options: argparse.Namespace, token: str) -> int:
    """Runs the conversation. `options` are those of `nap-llm chat`. Returns the exit status."""
    screen = Screen()
    try:
        tools = _read_tools(options.tools) if options.tools else ()
        choice = _tool_choice(options.tool_choice, tools)
    except ValueError as error:
        screen.complain(str(error))
        return 2
    with asyncio.Runner() as runner:
        client = Client(options.url, token, identity="nap-llm-chat", consent=True)
        try:
            wanted = Requirements(model=options.model, json=options.json, tools=bool(tools))
            model = runner.run(client.select(wanted))
            conversation = ChatSession(client, model, options, tools, choice, screen)
            if options.prompt is not None or not sys.stdin.isatty():
                return runner.run(conversation.turn(options.prompt if options.prompt is not None else sys.stdin.read()))
            screen.note(f"{model.name} ({model.model}), {model.route}. Ctrl-C stops an answer, Ctrl-D ends.")
            while True:
                # The prompt is read outside the loop: there Ctrl-C interrupts `input` itself.
                answers = [screen.ask(f"result of {call.name}> ") for call in conversation.pending]
                runner.run(conversation.answer(answers) if answers else conversation.turn(screen.ask("> ")))
        except EOFError:
            return 0
        except (KeyboardInterrupt, Quit):
            return INTERRUPTED
        except WireError as error:
            screen.complain(f"{error.code}: {error.message}")
            return 1
        except TransportError as error:
            hint = "" if error.status else " (is it running? `nap-llm serve` starts it)"
            screen.complain(f"{options.url}: {error}{hint}")
            return 1
        finally:
            runner.run(client.close())


class ChatSession:
    """A conversation at a terminal. A turn that fails or is cancelled leaves its history as it was; an answer that was
    cut short stays in it, to go on from."""

    def __init__(
        self,
        client: Client,
        model: Model,
        options: argparse.Namespace,
        tools: tuple[Tool, ...],
        choice: ToolChoice | None,
        screen: Screen,
    ) -> None:
        self._conversation = Conversation(
            client,
            model,
            (Message("system", (TextPart(options.system),)),) if options.system else (),
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            format="json" if options.json else "text",
        )
        self._tools = tools
        self._choice = choice
        self._screen = screen
        self.pending: tuple[ToolCallPart, ...] = ()
        """Calls that wait for their results."""

    async def turn(self, text: str) -> int:
        """One question and its answer. Returns the exit status it would have by itself."""
        if not text.strip():
            return 0
        before = (*self._conversation.history,)
        turn = self._conversation.send(text, tools=self._tools, tool_choice=self._choice, on_delta=self._screen.delta)
        return await self._run(before, turn)

    async def answer(self, results: list[str]) -> int:
        """The results of the pending calls, and what the model makes of them."""
        before = (*self._conversation.history,)
        for call, result in zip(self.pending, results, strict=True):
            self._conversation.answer(call, result)
        turn = self._conversation.resume(tools=self._tools, on_delta=self._screen.delta)
        return await self._run(before, turn)

    async def _run(self, before: tuple[Message, ...], turn: Coroutine[Any, Any, TurnResult]) -> int:
        history, screen = self._conversation.history, self._screen
        began = time.monotonic()
        try:
            with self._interrupt_cancels():
                result = await turn
            problem = _PROBLEMS.get(result.stop_reason)
        except WireError as error:
            problem = f"{error.code}: {error.message}"
        screen.end_of_answer()
        generation = None if problem is not None else result.generations[-1]
        if generation is None or generation.finish != "toolUse":
            screen.discard()
        if problem is not None:
            history[:] = before
            screen.complain(problem)
            return INTERRUPTED if problem == "cancelled" else 1
        assert generation is not None
        screen.calls(generation)
        screen.summary(generation, time.monotonic() - began)
        self.pending = result.pending_tool_calls
        if not generation.content:
            history[:] = before
        elif result.rolled_back:  # for it was cut short
            history += result.messages
        return 0

    @contextlib.contextmanager
    def _interrupt_cancels(self) -> Iterator[None]:
        """Inside, the first Ctrl-C cancels the turn and the second leaves the program."""
        loop, answering = asyncio.get_running_loop(), asyncio.current_task()
        assert answering is not None
        interrupts = 0

        def interrupted() -> None:
            nonlocal interrupts
            interrupts += 1
            if interrupts == 1:
                self._conversation.cancel()
            else:
                answering.cancel()

        loop.add_signal_handler(signal.SIGINT, interrupted)
        try:
            yield
        except asyncio.CancelledError:
            if interrupts > 1:
                raise Quit from None
            raise
        finally:
            loop.remove_signal_handler(signal.SIGINT)


class Screen:
    """Output of a conversation: colours and notes on a terminal; when piped, text and calls alone on stdout."""

    def __init__(self) -> None:
        self._out = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
        self._err = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)
        self._rich = self._out.is_terminal
        self._open = False
        self._begun: list[str] = []
        """Tools whose calls have begun to appear, and are still provisional."""

    def ask(self, prompt: str) -> str:
        return input(prompt)

    def note(self, text: str) -> None:
        if self._rich:
            self._err.print(text, style="dim")

    def complain(self, text: str) -> None:
        self._err.print(f"nap-llm: {text}", style="red")

    def delta(self, delta: Delta) -> None:
        """Text as it comes; thinking and calls apart from it."""
        if delta.block == "text":
            if delta.text:
                self._write(delta.text, "")
        elif self._rich:
            style = "dim italic" if delta.block == "thinking" else "cyan"
            if delta.event == "start":
                if delta.block == "toolCall":
                    self._begun.append(delta.name or "")
                self.end_of_answer()
                self._write("thinking: " if delta.block == "thinking" else f"call {delta.name}: ", style)
            elif delta.event == "delta":
                self._write(delta.text or "", style)
            else:
                self.end_of_answer()
        elif delta.block == "thinking" and delta.text:
            # stdout holds the answer alone, for the program that reads it.
            sys.stderr.write(delta.text)

    def calls(self, generation: Generation) -> None:
        """Piped: the authoritative calls, one JSON object a line. A terminal has seen them stream."""
        self._begun.clear()
        if not self._rich and generation.finish == "toolUse":
            for part in generation.content:
                if isinstance(part, ToolCallPart):
                    print(json.dumps({"name": part.name, "arguments": part.arguments}, ensure_ascii=False))

    def discard(self) -> None:
        """Says that the calls on the screen are none: their turn was cut short, refused or failed."""
        for name in self._begun:
            self._err.print(f"(the call of {_printable(name)} was discarded)", style="yellow")
        self._begun.clear()

    def end_of_answer(self) -> None:
        if self._open:
            self._open = False
            self._out.print()
            self._out.file.flush()

    def summary(self, generation: Generation, seconds: float) -> None:
        if generation.finish in ("length", "refusal"):
            self._err.print(f"({'cut short' if generation.finish == 'length' else 'refused'})", style="yellow")
        if (usage := generation.usage) is not None:
            cached = f", {usage.cache_read_tokens} cached" if usage.cache_read_tokens else ""
            self.note(f"{usage.input_tokens} tokens in{cached}, {usage.output_tokens} out, {seconds:.1f} s")

    def _write(self, text: str, style: str) -> None:
        self._open = True
        if self._rich:
            self._out.print(_printable(text), style=style, end="")
        else:
            sys.stdout.write(text)
        sys.stdout.flush()


def _printable(text: str) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def _read_tools(path: Path) -> tuple[Tool, ...]:
    """Tools as the wire writes them. The server judges their schemas; here only shape and names are looked at."""
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
        tools = tuple(
            Tool(each["name"], each.get("description"), each.get("parameters", DEFAULT_PARAMETERS)) for each in listed
        )
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: no JSON list of tools, each with name, description, parameters") from error
    if len({tool.name for tool in tools}) < len(tools):
        raise ValueError(f"{path}: two tools have the same name")
    return tools


def _tool_choice(text: str | None, tools: tuple[Tool, ...]) -> ToolChoice | None:
    if text is None:
        return None
    if not tools:
        raise ValueError("--tool-choice needs --tools")
    modes: tuple[Literal["auto", "none", "required"], ...] = ("auto", "none", "required")
    for mode in modes:
        if text == mode:
            return mode
    if text not in {tool.name for tool in tools}:
        raise ValueError(f"--tool-choice: no tool is named {text}")
    return NamedTool(text)
