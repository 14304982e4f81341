"""Failures of generations and operations in the server's own words: what an engine or a file says reaches no caller."""

from __future__ import annotations

from server.chat import PreparedPrompt
from server.engine.types import Failed
from server.wire.records import WireError

_FAILURES = {
    "constraint": "the engine failed to hold the model to the form of this output",
    "decode": "the engine failed to compute a step of this generation",
    "encode": "the engine failed to encode an image",
    "memory": "the engine failed for want of memory for this generation",
    "worker": "the engine failed during this generation: the model's process ended",
}
"""Message of each kind of a provider's error (`Failed`)."""


def engine_failure(failed: Failed, prepared: PreparedPrompt) -> WireError:
    """Error of a generation that the engine refused or failed."""
    reason = failed.extra.get("reason", "")
    match failed.code, reason:
        case "quota-exceeded", "context":
            return too_long()
        case "quota-exceeded", "queue":
            return WireError("quota-exceeded", "too many generations wait for this model", reason="queue")
        case "unsupported", "vision":
            return blind()
        case "unsupported", "image":
            place = prepared.places[int(failed.extra["image"])]
            return WireError("unsupported", f"{place}: this connection does not accept an image of this size or shape")
        case "timeout", _:
            return timed_out()
        case "cancelled", _:
            return WireError("cancelled", "the generation was cancelled")
        case "provider-error", _:
            said = _FAILURES.get(reason, "the engine failed during this generation")
            return WireError("provider-error", said, reason="engine")
    return WireError(failed.code, "the engine refused this generation")


def malformed() -> WireError:
    return WireError("provider-error", "the model's output breaks its own format")


def revoked() -> WireError:
    return WireError("cancelled", "the authorization of this endpoint has ended")


def shutdown() -> WireError:
    return WireError("provider-error", "the server is shutting down", reason="shutdown")


def blind() -> WireError:
    return WireError("unsupported", "this connection does not accept images")


def too_long() -> WireError:
    return WireError("quota-exceeded", "the prompt does not fit the model's context", reason="context")


def timed_out() -> WireError:
    return WireError("timeout", "the deadline of the request has passed")
