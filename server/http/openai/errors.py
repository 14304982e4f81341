"""Errors in the OpenAI API's shape: `{"error": {message, type, param, code}}`, under a status that clients act on."""

from __future__ import annotations

from typing import Any

from server.http.asgi import ErrorResponse, Headers, HttpError, NoRoute
from server.wire.records import WireError

_STATUS = {
    "invalid-request": 400,
    "unsupported": 400,
    "user-cancelled": 403,
    "cancelled": 403,
    # A client that asks again selects anew, which is all that is needed.
    "selection-expired": 409,
    "quota-exceeded": 400,
    "provider-error": 502,
    "timeout": 504,
}
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}

_RATES = ("rate", "concurrency", "queue")
_NO_RETRY = (b"x-should-retry", b"false")
"""Header that keeps OpenAI's clients from trying a status again."""


class ApiError(ErrorResponse):
    """A request that fails. `param` names the parameter it is about."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, headers: Headers = ()
    ) -> None:
        super().__init__(status, message, headers)
        self.code = code
        self.param = param

    @property
    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def bad(message: str, param: str | None, code: str | None = None) -> ApiError:
    """A request that is wrong in a parameter."""
    return ApiError(400, message, code=code, param=param)


def failed(error: WireError, *, retry_after: int = 0) -> ApiError:
    """A generation's failure. `retry_after`: seconds after which a server that ends may be back."""
    reason = error.extra.get("reason")
    if reason == "context":
        return ApiError(400, error.message, code="context_length_exceeded")
    if reason in _RATES:
        return ApiError(429, error.message, code="rate_limit_exceeded")
    if reason == "shutdown":
        return ApiError(503, error.message, headers=[(b"retry-after", b"%d" % retry_after)])
    headers = [_NO_RETRY] if error.code == "timeout" else []
    return ApiError(_STATUS[error.code], error.message, code=error.code.replace("-", "_"), headers=headers)


def refused(given: HttpError) -> ApiError:
    """An error that all APIs have alike: authentication, size, unknown paths."""
    code = {401: "invalid_api_key", 413: "request_too_large"}.get(given.status)
    if isinstance(given, NoRoute):
        code = "unknown_url"
    return ApiError(given.status, given.message, code=code, headers=given.headers)
