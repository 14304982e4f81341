"""The NAP-LLM wire: records, envelopes, history and completion rules. Pure: no I/O, no web framework, no engine."""

from server.wire.completion import check_generation
from server.wire.envelopes import BadEnvelope, Cancel, Describe, Envelope, Generate, Select, read_envelope
from server.wire.history import check_history
from server.wire.results import (
    cancel_result,
    describe_result,
    encode,
    error_result,
    generate_result,
    quoted,
    select_result,
    write_delta,
    write_error,
    write_generation,
    write_model,
    write_part,
)

__all__ = [
    "BadEnvelope",
    "Cancel",
    "Describe",
    "Envelope",
    "Generate",
    "Select",
    "cancel_result",
    "check_generation",
    "check_history",
    "describe_result",
    "encode",
    "error_result",
    "generate_result",
    "quoted",
    "read_envelope",
    "select_result",
    "write_delta",
    "write_error",
    "write_generation",
    "write_model",
    "write_part",
]
