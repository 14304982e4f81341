"""Reader of TOML tables: each key is taken once, checked by the dataclass field of its name, and none is left over."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


class ConfigError(Exception):
    """The configuration cannot be used: which file, table and key, and why."""

    def __init__(self, table: str, key: str, message: str, file: Path | None = None) -> None:
        self.table = table
        self.key = key
        self.message = message
        place = " ".join(part for part in (str(file) if file else "", f"[{table}]" if table else "", key) if part)
        super().__init__(f"{place}: {message}" if place else message)


class Table:
    """A TOML table being read; paths in it are relative to `directory`. All methods raise ConfigError."""

    def __init__(self, name: str, values: Mapping[str, Any], directory: Path) -> None:
        self.name = name
        self.unread = dict(values)
        self.directory = directory

    def __contains__(self, key: str) -> bool:
        return key in self.unread

    def error(self, key: str, message: str) -> ConfigError:
        return ConfigError(self.name, key, message)

    def finish(self) -> None:
        """Refuses the first key that nothing has read."""
        for key in self.unread:
            raise self.error(key, "unknown key")

    def take(self, key: str) -> Any:
        if key not in self.unread:
            raise self.error(key, "is missing")
        return self.unread.pop(key)

    def table(self, key: str, *, required: bool = False) -> Table:
        """The table under `key`; empty where it is missing and not required."""
        value = self.take(key) if required or key in self else {}
        if not isinstance(value, dict):
            raise self.error(key, "must be a table")
        return Table(f"{self.name}.{key}" if self.name else key, value, self.directory)

    def boolean(self, key: str) -> bool:
        value = self.take(key)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value

    def integer(self, key: str, low: int = 0, high: int = 2**53) -> int:
        value = self.take(key)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(key, f"must be a whole number from {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float) -> float:
        value = self.take(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(key, f"must be a number from {low:g} to {high:g}")
        return float(value)

    def text(self, key: str, pattern: str | None = None) -> str:
        value = self.take(key)
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, "must be a text that is not empty")
        if pattern is not None and not re.fullmatch(pattern, value):
            raise self.error(key, f"must match {pattern}")
        return value

    def path(self, key: str) -> Path:
        return self.directory / Path(self.text(key)).expanduser()

    def choice(self, key: str, among: tuple[str, ...]) -> str:
        value = self.text(key)
        if value not in among:
            raise self.error(key, f"must be one of {', '.join(among)}")
        return value

    def texts(self, key: str, parse: Callable[[str], T]) -> tuple[T, ...]:
        """A list of texts, each made a value by `parse`, whose ValueError says what is wrong with one."""
        value = self.take(key)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.error(key, "must be a list of texts")
        parsed = []
        for each in value:
            try:
                parsed.append(parse(each))
            except ValueError as error:
                raise self.error(key, f"{each!r} {error}") from None
        return tuple(parsed)

    def record(self, kind: type[T], **given: Any) -> T:
        """The whole table as dataclass `kind`; `given` are fields read already. Keys left over are refused."""
        types = get_type_hints(kind)
        for each in fields(kind):  # type: ignore[arg-type]
            absent = each.name not in self and (each.default is not MISSING or each.default_factory is not MISSING)
            if each.name not in given and not absent:
                given[each.name] = self._value(each.name, types[each.name], each.metadata)
        self.finish()
        return kind(**given)

    def _value(self, key: str, wanted: Any, told: Mapping[str, Any]) -> Any:
        """The value under `key` as type `wanted`, within the field's metadata."""
        if NoneType in get_args(wanted):
            (wanted,) = (each for each in get_args(wanted) if each is not NoneType)
        if is_dataclass(wanted):
            return self.table(key).record(wanted)  # type: ignore[arg-type]
        if get_origin(wanted) is Literal:
            return self.choice(key, get_args(wanted))
        if get_origin(wanted) is tuple:
            element = get_args(wanted)[0]
            return self.texts(key, one_of(get_args(element)) if get_origin(element) is Literal else told["parse"])
        read: Callable[..., Any] = _READERS[wanted]
        return read(self, key, **{name: told[name] for name in ("low", "high", "pattern") if name in told})


_READERS: Mapping[Any, Callable[..., Any]] = {
    bool: Table.boolean,
    int: Table.integer,
    float: Table.number,
    str: Table.text,
    Path: Table.path,
}


def one_of(among: tuple[str, ...]) -> Callable[[str], str]:
    """A parser that takes the texts of `among` alone."""

    def parse(text: str) -> str:
        if text not in among:
            raise ValueError(f"is none of {', '.join(among)}")
        return text

    return parse
