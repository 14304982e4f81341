"""Values of a request by kind: each reader raises ApiError(400) with the name of the parameter (`at`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from server.http.openai.errors import bad
from server.wire import fields
from server.wire.records import WireError

T = TypeVar("T")


def text(value: Any, at: str, *, empty: bool = False) -> str:
    return named(at, lambda: fields.text(value, at, empty=empty))


def boolean(value: Any, at: str) -> bool:
    return named(at, lambda: fields.boolean(value, at))


def count(value: Any, at: str) -> int:
    return named(at, lambda: fields.positive_integer(value, at))


def integer(value: Any, at: str, least: int, most: int) -> int:
    whole = not isinstance(value, bool) and isinstance(value, int | float) and value == int(value)
    if not whole or not least <= value <= most:
        raise bad(f"{at} must be an integer from {least} to {most}", at)
    return int(value)


def number(value: Any, at: str, least: float, most: float) -> float:
    found = named(at, lambda: fields.number(value, at))
    if not least <= found <= most:
        raise bad(f"{at} must be from {least:g} to {most:g}", at)
    return found


def one_of(value: Any, at: str, words: tuple[str, ...]) -> str:
    return named(at, lambda: fields.one_of(value, at, words))


def items(value: Any, at: str, read: Callable[[Any, str], T], *, empty: bool = True) -> tuple[T, ...]:
    return named(at, lambda: fields.items(value, at, read, empty=empty))


def members(value: Any, at: str, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    """A record's members that are given; null is as good as absent. What it may not have is refused by name."""
    if not isinstance(value, dict):
        raise bad(f"{at} must be an object", at)
    given = {key: member for key, member in value.items() if member is not None}
    found = named(at, lambda: fields.members(given, at, (), (*required, *optional)))
    for key in required:
        if key not in found:
            raise bad(f"{at}.{key} is missing", f"{at}.{key}")
    return found


def named(at: str, read: Callable[[], T]) -> T:
    """Result of a reader of the wire, whose errors become this API's, about the parameter `at`."""
    try:
        return read()
    except WireError as error:
        # Messages begin with the field they are about.
        field, _, rest = error.message.partition(" ")
        raise bad(error.message, field if rest and field.startswith(at) else at) from None
