"""A few killable processes that do chat's work from strangers: templates, schemas, validation.

A request has a time limit and each process a memory limit. Whoever exceeds one is killed and replaced, and the
request fails with `quota-exceeded`. The event loop only ever waits. Helpers are started as bare interpreters, so that
they import this room and those below it, and never the program that serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeVar, cast

from server.chat.types import Capabilities, ChatSettings, CompiledSchema, PreparedPrompt, PromptRequest
from server.engine.hugepages import huge_pages
from server.wire.records import Tool, WireError

log = logging.getLogger(__name__)

T = TypeVar("T")

ModelKey = tuple[str, ChatSettings]
"""A model's path and its connection's settings."""

_START_SECONDS = 60.0
"""How long an interpreter may take to import its modules on a busy machine."""

_GRACE_SECONDS = 0.2
"""How long abandoned work may go on before its process is killed: killing costs a start."""


class HelperPool:
    """`size` helper processes, each with one request at a time; further requests wait in line.

    `seconds` bounds one request, `memory` is what a helper may allocate beyond its own code, in bytes.
    """

    def __init__(self, *, size: int = 2, seconds: float = 10, memory: int = 2 << 30) -> None:
        self._size = size
        self._seconds = seconds
        self._memory = memory
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="chat-helper")
        self._idle: asyncio.LifoQueue[_Helper] = asyncio.LifoQueue()
        self._helpers: set[_Helper] = set()
        self._waiting = 0
        self._met: dict[ModelKey, None] = {}
        """The models that a helper has inspected and survived, in that order."""
        self._closed = False

    async def start(self) -> None:
        """Start the processes and wait until each has imported what it needs."""
        helpers = [_Helper(self._seconds, self._memory) for _ in range(self._size)]
        self._helpers.update(helpers)
        try:
            await asyncio.gather(*(self._in_thread(helper.start) for helper in helpers))
        except BaseException:
            await self.close()
            raise
        for helper in helpers:
            self._idle.put_nowait(helper)

    async def close(self) -> None:
        """Kill the processes. Requests in flight fail."""
        self._closed = True
        for helper in self._helpers:
            helper.end()
        await asyncio.to_thread(self._threads.shutdown)
        for helper in self._helpers:
            helper.stop()
        self._helpers.clear()

    async def inspect(self, model_path: str, settings: ChatSettings) -> Capabilities:
        """The capabilities of a model. The other helpers get ready for it too, when they are idle. Raises WireError."""
        model = (model_path, settings)
        helper = await self._next_idle()
        capabilities: Capabilities = await self._ask(helper, "inspect", *model)
        for other in self._helpers - {helper}:
            other.inspected.discard(model)  # its file may be another one by now
        self._met[model] = None
        self._get_ready()
        return capabilities

    async def prepare(self, model_path: str, settings: ChatSettings, conversation: PromptRequest) -> PreparedPrompt:
        """The conversation as tokens, with its constraint and parser. Raises WireError."""
        scope = conversation.scope
        prepared: PreparedPrompt = await self._request("prepare", model_path, settings, conversation, scope=scope)
        return prepared

    async def check_tools(self, tools: Sequence[Tool], scope: str) -> None:
        """Check that the schemas of tools are well-formed. Raises WireError naming tool, path and keyword."""
        await self._request("check_tools", tools, scope=scope)

    async def validate(self, tool: Tool, arguments: Mapping[str, Any], scope: str = "") -> None:
        """Check completed arguments. Raises WireError("provider-error") naming tool, path and keyword."""
        await self._request("validate", tool, arguments, scope=scope)

    async def validate_answer(self, schema: Mapping[str, Any] | bool, answer: Any, scope: str = "") -> None:
        """Check a completed JSON answer. Raises WireError("provider-error") naming path and keyword."""
        await self._request("validate_answer", schema, answer, scope=scope)

    async def grammar(self, schema: Mapping[str, Any]) -> CompiledSchema:
        """The grammar of a tool's schema. Raises WireError, with `path` and `keyword` where they are known."""
        grammar: CompiledSchema = await self._request("grammar", schema)
        return grammar

    async def check(self) -> None:
        """Raises WireError where requests could not be served: the pool is closed, or a helper does not start."""
        if self._closed or not self._helpers:
            raise WireError("provider-error", "there are no chat helpers")
        if self._idle.empty():
            return  # all are at work
        helper = self._idle.get_nowait()
        work = self._in_thread(helper.revive)
        work.add_done_callback(partial(self._release, helper))
        await asyncio.shield(work)

    async def _request(self, name: str, *arguments: Any, scope: str = "") -> Any:
        return await self._ask(await self._next_idle(), name, *arguments, scope=scope)

    async def _next_idle(self) -> _Helper:
        self._waiting += 1
        try:
            return await self._idle.get()
        finally:
            self._waiting -= 1

    def _get_ready(self) -> None:
        """Lets idle helpers inspect what others have met: a new process knows no model."""
        if self._closed or self._waiting:
            return  # whoever waits goes first
        for helper in [self._idle.get_nowait() for _ in range(self._idle.qsize())][::-1]:
            missing = next((model for model in self._met if model not in helper.inspected), None)
            if missing is None:
                self._idle.put_nowait(helper)
            else:
                self._set_to(helper, object(), "inspect", *missing, done=partial(self._forget_failed, missing))

    def _forget_failed(self, model: ModelKey, work: asyncio.Future[Any]) -> None:
        """Forget a model that has cost a helper: it is not tried on the next one."""
        if work.cancelled() or work.exception() is not None:
            self._met.pop(model, None)

    def _set_to(
        self,
        helper: _Helper,
        request: object,
        name: str,
        *arguments: Any,
        scope: str = "",
        done: Callable[[asyncio.Future[Any]], None] = lambda _: None,
    ) -> asyncio.Future[Any]:
        """`done` is called before the helper is idle again."""
        work = self._in_thread(partial(helper.call, request, name, arguments, scope))
        work.add_done_callback(done)
        work.add_done_callback(partial(self._release, helper))
        return work

    async def _ask(self, helper: _Helper, name: str, *arguments: Any, scope: str = "") -> Any:
        request = object()
        work = self._set_to(helper, request, name, *arguments, scope=scope)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if not work.done():
                asyncio.get_running_loop().call_later(_GRACE_SECONDS, helper.abandon, request)
            raise

    def _release(self, helper: _Helper, work: asyncio.Future[Any]) -> None:
        if not work.cancelled():
            work.exception()  # has been told to whoever waits; nobody may
        if not self._closed:
            self._idle.put_nowait(helper)
            self._get_ready()

    def _in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)


class _Helper:
    """One process and the pipe to it.

    `start`, `call` and `stop` block and belong to one thread at a time; `abandon` and `end` come from the event loop.
    """

    def __init__(self, seconds: float, memory: int) -> None:
        self._lock = threading.Lock()
        self._request: object | None = None
        self._ended = False
        self._seconds = seconds
        self._memory = memory
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self.inspected: set[ModelKey] = set()
        """The models that its process has got ready for."""

    def start(self) -> None:
        """Start the process and wait until it is ready. Raises WireError."""
        ours, theirs = Pipe()
        code = f"from server.chat.pool import serve; serve({theirs.fileno()}, {self._memory})"
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        with self._lock:
            if self._ended:
                raise WireError("provider-error", "the server is closing")
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**huge_pages(os.environ), "PYTHONPATH": path, "GGML_NO_BACKTRACE": "1"},
                start_new_session=True,  # the terminal's Ctrl-C is for the server, which closes the pool
            )
        theirs.close()
        self._pipe = ours
        try:
            greeted = ours.poll(_START_SECONDS) and ours.recv()
        except (EOFError, OSError):
            greeted = False
        if not greeted:
            self.stop()
            raise WireError("provider-error", "a chat helper does not start")

    def abandon(self, request: object) -> None:
        """Nobody waits for this request any more: if it still runs, the process goes."""
        with self._lock:
            if self._request is request and self._process is not None:
                self._process.kill()

    def end(self) -> None:
        """End the process for good. A request in flight sees the end of the pipe."""
        with self._lock:
            self._ended = True
            if self._process is not None:
                self._process.kill()

    def revive(self) -> None:
        """See that the process is there. Raises WireError where it does not start."""
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self.start()

    def call(self, request: object, name: str, arguments: tuple[Any, ...], scope: str) -> Any:
        """Do one request. Raises WireError: its own, or `quota-exceeded` where the process had to go."""
        self.revive()
        with self._lock:
            self._request = request
        try:
            done, value = self._answer(name, arguments, scope)
        except (EOFError, OSError):
            self.stop()
            raise WireError("quota-exceeded", "preparing the request took more memory than it may") from None
        finally:
            with self._lock:
                self._request = None
        if done:
            if name == "inspect":
                self.inspected.add(cast(ModelKey, arguments))
            return value
        code, message, extra, *fault = value
        if fault:
            log.error("chat helper: %s", *fault)
        raise WireError(code, message, **extra)

    def _answer(self, name: str, arguments: tuple[Any, ...], scope: str) -> tuple[bool, Any]:
        assert self._pipe is not None
        deadline = time.monotonic() + self._seconds
        self._pipe.send((name, arguments, scope))
        if not self._pipe.poll(deadline - time.monotonic()):
            self.stop()
            raise WireError("quota-exceeded", f"preparing the request took more than {self._seconds:g} s")
        done, value = self._pipe.recv()
        return done, value

    def stop(self) -> None:
        """Kill the process and wait for its end, which comes at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self.inspected.clear()
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None


def serve(descriptor: int, memory: int) -> None:
    """A helper's life: answer requests until the pipe ends."""
    for module in set(_WORK.values()):
        import_module(f"server.chat.{module}")  # now, so that no request waits for it

    pipe = Connection(descriptor)
    _bound(memory)
    # What llama.cpp prints when it ends its process may quote what it was given.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    pipe.send("ready")
    while True:
        try:
            name, arguments, scope = pipe.recv()
        except EOFError:
            return
        pipe.send(_work(name, arguments, scope))


def _work(name: str, arguments: tuple[Any, ...], scope: str) -> tuple[bool, Any]:
    """One request's result, or the code, message and members of its error, with what the log is told of a fault.

    What is kept of schemas is found again in the same scope alone.
    """
    from grammars import scoped  # here, so that the web process needs none of it

    try:
        with scoped(scope):
            return True, getattr(import_module(f"server.chat.{_WORK[name]}"), name)(*arguments)
    except WireError as error:
        return False, (error.code, error.message, error.extra)
    except MemoryError:
        return False, ("quota-exceeded", "preparing the request took more memory than it may", {})
    except RecursionError:
        return False, ("unsupported", "the request is nested too deeply to prepare", {})
    except Exception as error:
        # A fault of ours. Its text may hold content, so only its kind and place are told, to the log alone.
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "?"
        fault = f"{type(error).__name__} at {place}"
        return False, ("provider-error", "preparing the request failed inside the server", {}, fault)


_WORK = {
    "inspect": "prompt_builder",
    "prepare": "prompt_builder",
    "check_tools": "schemas",
    "grammar": "schemas",
    "validate": "schemas",
    "validate_answer": "schemas",
}
"""Functions that helpers run, and the modules of this room that have them."""


def _bound(memory: int) -> None:
    """Limit the address space to what is in use now and `memory` more, where the system can."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, resource.RLIM_INFINITY))
