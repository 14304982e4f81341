"""Strings with the provenance of each character: written by the template, or come with the conversation.

A chat template is rendered over `ProvenanceStr` values. Characters written by the template itself are *control*: they
may become control tokens. Characters that came in with the conversation are *content* and never may. Every string
operation a template can use keeps the two apart; one that is not covered here returns an ordinary `str`, and an
ordinary `str` counts as content, so that a gap can only ever cost a control token, never grant one.

A third provenance marks the place of an image: one *media* character in the text, which no text can spell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex

from server.engine.types import Segment

_CONTENT = b"\0"
_CONTROL = b"\1"
_MEDIA = b"\2"

_FIRST_MEDIA = 0xF0000
"""The character that stands for the first image while a template runs: of private use, so that no operation of a
template changes it. What tells it from the same character in a text is its provenance."""

MAX_MEDIA = 1 << 16
"""Images one prompt can tell apart."""


class ProvenanceStr(str):
    """A `str` with one byte of provenance per character; equal to and hashed as the plain string."""

    _mask: bytes

    def __new__(cls, value: str = "", mask: bytes | None = None) -> ProvenanceStr:
        self = super().__new__(cls, value)
        self._mask = _CONTENT * len(self) if mask is None else mask
        return self

    def __str__(self) -> str:
        return self

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: SupportsIndex | slice) -> ProvenanceStr:
        if not isinstance(key, slice):
            index = range(len(self))[key]
            key = slice(index, index + 1)
        return ProvenanceStr(super().__getitem__(key), self._mask[key])

    def __add__(self, other: str) -> ProvenanceStr:
        return (
            ProvenanceStr(super().__add__(other), self._mask + _mask(other))
            if isinstance(other, str)
            else NotImplemented
        )

    def __radd__(self, other: str) -> ProvenanceStr:
        return (
            ProvenanceStr(str.__add__(other, self), _mask(other) + self._mask)
            if isinstance(other, str)
            else NotImplemented
        )

    def __mul__(self, count: SupportsIndex) -> ProvenanceStr:
        return ProvenanceStr(super().__mul__(count), self._mask * int(count))

    __rmul__ = __mul__

    def strip(self, chars: str | None = None, /) -> ProvenanceStr:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> ProvenanceStr:
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None, /) -> ProvenanceStr:
        return self[: len(super().rstrip(chars))]

    def removeprefix(self, prefix: str, /) -> ProvenanceStr:
        return self[len(self) - len(super().removeprefix(prefix)) :]

    def removesuffix(self, suffix: str, /) -> ProvenanceStr:
        return self[: len(super().removesuffix(suffix))]

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        return self._pieces(super().split(sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        return self._pieces(super().rsplit(sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[Any]:
        whole = self._pieces(super().splitlines(True), "")
        return whole if keepends else [piece[: len(str.splitlines(piece)[0])] for piece in whole]

    def partition(self, sep: str, /) -> tuple[Any, Any, Any]:
        head, middle, tail = self._pieces(list(super().partition(sep)), "")
        return head, middle, tail

    def rpartition(self, sep: str, /) -> tuple[Any, Any, Any]:
        head, middle, tail = self._pieces(list(super().rpartition(sep)), "")
        return head, middle, tail

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        if not old:
            return super().replace(old, new, count)
        return ProvenanceStr.join(ProvenanceStr(new, _mask(new)), self.split(old, count))

    def join(self, parts: Iterable[str], /) -> ProvenanceStr:
        pieces = list(parts)
        return ProvenanceStr(super().join(pieces), self._mask.join(map(_mask, pieces)))

    def upper(self) -> ProvenanceStr:
        return self._same(super().upper())

    def lower(self) -> ProvenanceStr:
        return self._same(super().lower())

    def title(self) -> ProvenanceStr:
        return self._same(super().title())

    def capitalize(self) -> ProvenanceStr:
        return self._same(super().capitalize())

    def _same(self, value: str) -> ProvenanceStr:
        """`value` is this text mapped character by character; where a character became two, all is content."""
        return ProvenanceStr(value, self._mask if len(value) == len(self) else None)

    def _pieces(self, pieces: list[str], sep: str | None) -> list[Any]:
        """These pieces of this text, in order, with their provenance; `sep` stands between two of them."""
        found: list[Any] = []
        at = 0
        for piece in pieces:
            if sep is None:
                at = self.find(piece, at)  # pieces hold no white space: the first match is the piece
            found.append(self[at : at + len(piece)])
            at += len(piece) + len(sep or "")
        return found

    def is_from_template(self) -> bool:
        """True where the template wrote every character."""
        return self._mask.count(_CONTROL) == len(self)

    def split_images(self) -> tuple[list[ProvenanceStr], list[int]]:
        """The texts before, between and behind the images, and the images' numbers."""
        at = [index for index, mask in enumerate(self._mask) if mask == _MEDIA[0]] if _MEDIA in self._mask else []
        texts = [self[start:end] for start, end in zip([0, *(i + 1 for i in at)], [*at, len(self)], strict=True)]
        return texts, [ord(str.__getitem__(self, index)) - _FIRST_MEDIA for index in at]

    def segments(self) -> list[Segment]:
        """The text as runs of one provenance each. Their concatenation is the text, which holds no image."""
        runs: list[Segment] = []
        at = 0
        while at < len(self):
            control = self._mask[at] == 1
            end = self._mask.find(_CONTENT if control else _CONTROL, at)
            end = len(self) if end < 0 else end
            runs.append(Segment(str.__getitem__(self, slice(at, end)), control))
            at = end
        return runs


def _mask(text: str) -> bytes:
    return text._mask if isinstance(text, ProvenanceStr) else _CONTENT * len(text)


def from_template(text: str) -> ProvenanceStr:
    """Text that the template wrote."""
    return ProvenanceStr(text, _CONTROL * len(text))


def media(number: int) -> ProvenanceStr:
    """The place of an image."""
    return ProvenanceStr(chr(_FIRST_MEDIA + number), _MEDIA)


def join(parts: Iterable[str]) -> ProvenanceStr:
    """The parts one after the other, each with its provenance."""
    return ProvenanceStr().join(parts)


def from_user(value: Any) -> Any:
    """A JSON value with every string in it, keys included, as content."""
    if isinstance(value, str):
        return value if isinstance(value, ProvenanceStr) else ProvenanceStr(value)
    if isinstance(value, dict):
        return {from_user(key): from_user(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [from_user(item) for item in value]
    return value
