"""llama.cpp behind a thin typed layer over its C API, as llama-cpp-python binds it.

Nothing here decides anything: objects own what llama.cpp allocates, methods return what it returned. llama.cpp
ends the process on a failed assertion, so a context belongs in a worker process; a vocabulary alone
(`LlamaModel(path, vocab_only=True)`) is safe anywhere. Facts of the C API are those of llama.cpp's `include/llama.h`.
"""

from __future__ import annotations

from server.engine.llama.bindings import LOG_WARN, C, LoadError, add_logger, initialise, load_bindings, log_to
from server.engine.llama.context import ABORTED, KV_TYPES, NO_SLOT, OK, Batch, Context, shows_hidden
from server.engine.llama.devices import attach, backends, features, list_devices, offloads
from server.engine.llama.model import LlamaModel
from server.engine.llama.samplers import (
    CandidateArray,
    CandidateMask,
    Sampler,
    SingleCandidate,
    grammar_sampler,
    sampler_chain,
)

__all__ = [
    "ABORTED",
    "KV_TYPES",
    "LOG_WARN",
    "NO_SLOT",
    "OK",
    "Batch",
    "C",
    "CandidateArray",
    "CandidateMask",
    "Context",
    "LlamaModel",
    "LoadError",
    "Sampler",
    "SingleCandidate",
    "add_logger",
    "attach",
    "backends",
    "features",
    "grammar_sampler",
    "initialise",
    "list_devices",
    "load_bindings",
    "log_to",
    "offloads",
    "sampler_chain",
    "shows_hidden",
]
