"""`nap-llm chat`: a conversation with a running server, as a shell would hold it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

from rich.console import Console

from server.client import Client, TransportError
from server.wire.envelopes import DEFAULT_PARAMETERS
from server.wire.records import (
    Delta,
    Generation,
    GenerationRequest,
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
"""What a model must not send to a terminal: it could move the cursor or write to the clipboard."""

INTERRUPTED = 130
"""Exit status of a program that SIGINT ended, as shells count it."""


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
            conversation = Conversation(client, model, options, tools, choice, screen)
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


class Conversation:
    """The messages so far. A turn that fails or is cancelled leaves them as they were."""

    def __init__(
        self,
        client: Client,
        model: Model,
        options: argparse.Namespace,
        tools: tuple[Tool, ...],
        choice: ToolChoice | None,
        screen: Screen,
    ) -> None:
        self._client = client
        self._model = model
        self._options = options
        self._tools = tools
        self._choice = choice
        self._screen = screen
        system = (Message("system", (TextPart(options.system),)),) if options.system else ()
        self._messages: tuple[Message, ...] = system
        self.pending: tuple[ToolCallPart, ...] = ()
        """Calls that wait for their results."""

    async def turn(self, text: str) -> int:
        """One question and its answer. Returns the exit status it would have by itself."""
        if not text.strip():
            return 0
        return await self._generate((Message("user", (TextPart(text),)),))

    async def answer(self, results: list[str]) -> int:
        """The results of the pending calls, and what the model makes of them."""
        messages = tuple(
            Message("toolResult", (TextPart(result),), tool_call_id=call.tool_call_id, tool_name=call.name)
            for call, result in zip(self.pending, results, strict=True)
        )
        return await self._generate(messages)

    async def _generate(self, added: tuple[Message, ...]) -> int:
        id = secrets.token_hex(8)
        request = GenerationRequest(
            handle=self._model.handle,
            messages=(*self._messages, *added),
            format="json" if self._options.json else "text",
            max_tokens=self._options.max_tokens,
            temperature=self._options.temperature,
            tools=self._tools,
            # A forced call has been made once its results are there; forcing it again would never end.
            tool_choice=self._choice if added[0].role == "user" else None,
        )
        began = time.monotonic()
        generation: Generation | None = None
        try:
            async with self._interrupt_cancels(id):
                async for each in self._client.generate(request, id=id):
                    if isinstance(each, Delta):
                        self._screen.delta(each)
                    else:
                        generation = each
        except WireError as error:
            self._screen.end_of_answer()
            self._screen.complain("cancelled" if error.code == "cancelled" else f"{error.code}: {error.message}")
            return INTERRUPTED if error.code == "cancelled" else 1
        assert generation is not None, "a stream ends with a result or raises"
        self._screen.end_of_answer()
        self._screen.calls(generation)
        self._screen.summary(generation, time.monotonic() - began)
        self.pending = tuple(part for part in generation.content if isinstance(part, ToolCallPart))
        if generation.content:
            self._messages = (*self._messages, *added, Message("assistant", generation.content))
        return 0

    @contextlib.asynccontextmanager
    async def _interrupt_cancels(self, id: str) -> AsyncIterator[None]:
        """Inside, the first Ctrl-C cancels the generation and the second leaves the program."""
        loop = asyncio.get_running_loop()
        answering = asyncio.current_task()
        assert answering is not None
        cancelling: asyncio.Task[bool] | None = None
        leaving = False

        def interrupted() -> None:
            nonlocal cancelling, leaving
            if cancelling is None:
                cancelling = loop.create_task(self._client.cancel(id))
            else:
                leaving = True
                answering.cancel()

        loop.add_signal_handler(signal.SIGINT, interrupted)
        try:
            yield
        except asyncio.CancelledError:
            if leaving:
                raise Quit from None
            raise
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            if cancelling is not None:
                if leaving:
                    cancelling.cancel()
                # Whether it came in time shows in how the generation ended.
                await asyncio.gather(cancelling, return_exceptions=True)


class Screen:
    """What the person sees: colours and notes on a terminal; when piped, text and calls alone on stdout."""

    def __init__(self) -> None:
        self._out = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
        self._err = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)
        self._rich = self._out.is_terminal
        self._open = False

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
        if not self._rich:
            for part in generation.content:
                if isinstance(part, ToolCallPart):
                    print(json.dumps({"name": part.name, "arguments": part.arguments}, ensure_ascii=False))

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
            self._out.print(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text), style=style, end="")
        else:
            sys.stdout.write(text)
        sys.stdout.flush()


def _read_tools(path: Path) -> tuple[Tool, ...]:
    """Tools as the wire writes them. The server judges their schemas; here only the shape is looked at."""
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
        return tuple(
            Tool(each["name"], each.get("description"), each.get("parameters", DEFAULT_PARAMETERS)) for each in listed
        )
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: no JSON list of tools, each with name, description, parameters") from error


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
