"""llama.cpp's backends and the devices that models are laid over, those of RPC servers among them."""

from __future__ import annotations

import ctypes
import os
import re
import socket
from collections.abc import Sequence

from server.engine.llama.bindings import C, LoadError, function, initialise

_GPU, _INTEGRATED = 1, 2
"""`enum ggml_backend_dev_type`."""

_REACH = 5.0
"""Seconds within which an RPC server must take a connection."""


def backends() -> tuple[str, ...]:
    """The compute backends this build of llama.cpp brings, as its system information names them."""
    initialise()
    info = (C.llama_print_system_info() or b"").decode("utf-8", "replace")
    names = [part.split(":")[0].strip() for part in info.split("|") if ":" in part]
    return tuple(dict.fromkeys(name for name in names if name))


def offloads() -> bool:
    """True where this build of llama.cpp can put layers on a GPU."""
    return bool(C.llama_supports_gpu_offload())


def attach(servers: Sequence[str]) -> None:
    """Add the devices of RPC servers (`host:port`) to those that models are laid over. Raises LoadError.

    The RPC backend is built in, or in the library that `GGML_BACKEND_PATH` names. It ends the process where a server
    does not answer, so that is tried first.
    """
    if not servers:
        return
    initialise()
    for server in servers:
        host, port = server.rsplit(":", 1)
        try:
            socket.create_connection((host, int(port)), timeout=_REACH).close()
        except OSError as error:
            raise LoadError("a machine that the model is spread over does not answer") from error
    find = function("ggml_backend_reg_by_name", ctypes.c_void_p)
    registry = find(b"RPC")
    if not registry and (path := os.environ.get("GGML_BACKEND_PATH")):
        function("ggml_backend_load", ctypes.c_void_p)(path.encode())
        registry = find(b"RPC")
    if not registry:
        raise LoadError("this build of llama.cpp has no RPC backend")
    get = function("ggml_backend_reg_get_proc_address", ctypes.c_void_p)
    address = get(ctypes.c_void_p(registry), b"ggml_backend_rpc_add_server")
    add = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(address)
    for server in servers:
        added = add(server.encode())
        if not added:
            raise LoadError("a machine that the model is spread over has no device")
        function("ggml_backend_register", None)(ctypes.c_void_p(added))


def list_devices() -> list[tuple[str, int, int]]:
    """The GPUs that this build of llama.cpp uses: name, bytes of memory and of these free ones. Integrated ones count
    where there are no others. On Metal the memory is the working set that the system recommends. Those of attached
    servers, called by host and port, come first, as llama.cpp has them."""
    initialise()
    found: dict[int, list[tuple[str, int, int]]] = {}
    servers: set[str] = set()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    for index in range(function("ggml_backend_dev_count", ctypes.c_size_t)()):
        device = ctypes.c_void_p(function("ggml_backend_dev_get", ctypes.c_void_p)(ctypes.c_size_t(index)))
        kind = function("ggml_backend_dev_type", ctypes.c_int)(device)
        function("ggml_backend_dev_memory", None)(device, ctypes.byref(free), ctypes.byref(total))
        name = function("ggml_backend_dev_description", ctypes.c_char_p)(device).decode("utf-8", "replace")
        remote = function("ggml_backend_dev_name", ctypes.c_char_p)(device).startswith(b"RPC")
        listed = found.setdefault(kind, [])
        at = sum(name in servers for name, _, _ in listed) if remote else len(listed)
        servers |= {name} if remote else set()
        listed.insert(at, (name, total.value, free.value))
    return found.get(_GPU) or found.get(_INTEGRATED) or []


def features() -> frozenset[str]:
    """The instruction sets that llama.cpp's CPU backend was built for and may use here, as its system information names
    them."""
    info = (C.llama_print_system_info() or b"").decode("utf-8", "replace")
    return frozenset(re.findall(r"(\w+) = 1\b", info))
