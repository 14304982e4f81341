"""The readers of each kind of value in a request: strict, and naming the field (`at`) in what they refuse.

All raise `invalid-request`; no message holds a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from server.wire.records import Tool, WireError

T = TypeVar("T")

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_PRINTABLE_NAME = re.compile(r"[A-Za-z0-9_.$-]{1,64}")


def invalid(message: str) -> WireError:
    return WireError("invalid-request", message)


def members(
    value: Any, at: str, required: tuple[str, ...], optional: tuple[str, ...] = (), nullable: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The members of a record; only those of `nullable` may be null."""
    if not isinstance(value, dict):
        raise invalid(f"{at} must be an object")
    for key, member in value.items():
        if key not in required and key not in optional:
            named = f"{at}.{key} is not a known field" if _PRINTABLE_NAME.fullmatch(key) else f"{at} has unknown fields"
            raise invalid(named)
        if member is None and key not in nullable:
            raise invalid(f"{at}.{key} must not be null")
    for key in required:
        if key not in value:
            raise invalid(f"{at}.{key} is missing")
    return value


def text(value: Any, at: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty):
        raise invalid(f"{at} must be text" if empty else f"{at} must be non-empty text")
    return value


def boolean(value: Any, at: str) -> bool:
    if not isinstance(value, bool):
        raise invalid(f"{at} must be true or false")
    return value


def number(value: Any, at: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(f"{at} must be a number")
    return float(value)


def positive_integer(value: Any, at: str) -> int:
    # JSON does not tell 128 from 128.0; both are the integer.
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 1:
        raise invalid(f"{at} must be a positive integer")
    return int(value)


def one_of(value: Any, at: str, words: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in words:
        raise invalid(f"{at} must be one of {', '.join(words)}")
    return value


def items(value: Any, at: str, read: Callable[[Any, str], T], *, empty: bool = False) -> tuple[T, ...]:
    if not isinstance(value, list) or not (value or empty):
        raise invalid(f"{at} must be a list" if empty else f"{at} must be a non-empty list")
    return tuple(read(item, f"{at}[{index}]") for index, item in enumerate(value))


def mapping(value: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise invalid(f"{at} must be an object")
    return value


def base64(value: Any, at: str) -> str:
    data = text(value, at)
    # A repeated group of four would take seconds and hundreds of megabytes on a large image.
    if len(data) % 4 or not _BASE64.fullmatch(data):
        raise invalid(f"{at} must be standard padded base64 without white space or prefix")
    return data


def tool_name(value: Any, at: str) -> str:
    name = text(value, at)
    if not _TOOL_NAME.fullmatch(name):
        raise invalid(f"{at} must match ^[A-Za-z0-9_-]{{1,64}}$")
    return name


def tool_parameters(value: Any, at: str) -> Mapping[str, Any]:
    parameters = mapping(value, at)
    if parameters.get("type") != "object":
        raise invalid(f'{at} must be a JSON Schema with root type "object"')
    return parameters


def check_tool_names(tools: tuple[Tool, ...], at: str) -> None:
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            raise invalid(f"{at}[{index}].name stands twice")
        seen.add(tool.name)
