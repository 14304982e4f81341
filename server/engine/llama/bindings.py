"""llama-cpp-python's ctypes bindings of llama.cpp's C API, loaded without its high-level package; llama.cpp's log."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def load_bindings(name: str) -> Any:
    """A module of `llama_cpp` alone: the package's `__init__` would import its high-level classes and all they need."""
    if "llama_cpp" in sys.modules:
        return importlib.import_module(f"llama_cpp.{name}")
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("llama-cpp-python is not installed")
    package = ModuleType("llama_cpp")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["llama_cpp"] = package
    try:
        return importlib.import_module(f"llama_cpp.{name}")
    finally:
        del sys.modules["llama_cpp"]  # who imports the package later gets the real one


C = load_bindings("llama_cpp")
libc = ctypes.CDLL(None)

LOG_WARN = 3
"""`GGML_LOG_LEVEL_WARN`."""


class LoadError(Exception):
    """llama.cpp could not load the model or make its context."""


def function(name: str, returns: Any, *arguments: Any) -> Any:
    """A function of llama.cpp's library, or of ggml's that it is linked to, by its C name.

    Apart from the one that the bindings declare: with addresses as plain integers, there is no pointer object a call.
    """
    found = C._lib[name]
    found.restype = returns
    if arguments:
        found.argtypes = arguments
    return found


_initialised = False
_log: Any = None
_loggers = [C.llama_log_set]
"""The functions that tell each of llama.cpp's libraries where to log to."""


def log_to(sink: Callable[[int, str], None] | None) -> None:
    """Send llama.cpp's log lines (level of ggml.h, text) to `sink`, or nowhere.

    "Nowhere" is libc's `abs`: called with the level, it does nothing, and no line costs a trip through Python.
    """
    global _log
    if sink is None:
        _log = ctypes.cast(libc.abs, C.llama_log_callback)
    else:
        _log = C.llama_log_callback(lambda level, text, _: sink(level, (text or b"").decode("utf-8", "replace")))
    for logger in _loggers:
        logger(_log, None)


def add_logger(logger: Any) -> None:
    """Another library of llama.cpp's logs to where `log_to` said and will say."""
    _loggers.append(logger)
    if _log is not None:
        logger(_log, None)


def initialise() -> None:
    """Start llama.cpp's backends, once a process."""
    global _initialised
    if not _initialised:
        if _log is None:
            log_to(None)
        C.llama_backend_init()
        _initialised = True
