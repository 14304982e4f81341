"""Unchecked keywords: where in the schema the grammar is wider than a keyword, so that validation has to judge it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from grammars.sets.strings import TextSet


class Unchecked:
    """The (path, keyword) pairs left to validation, in the order in which they were found.

    A limit is often met far from the keyword that asks for too much, so the places of such keywords and the origins of
    string sets are recorded on the way.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], None] = {}
        self._places: dict[str, list[str]] = {}
        self._origins: dict[TextSet, tuple[str, str]] = {}

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._found)

    def add(self, path: str, keyword: str) -> None:
        """The grammar is wider than this keyword of this schema."""
        self._found[path, keyword] = None

    def add_everywhere(self, *keywords: str) -> None:
        """The grammar is wider than these keywords, wherever they stand."""
        for keyword in keywords:
            for path in self._places.get(keyword, ()):
                self._found[path, keyword] = None

    def add_text_set(self, s: TextSet) -> None:
        """The grammar is wider than the keywords that a string formula comes from."""
        if s[0] in ("and", "or"):
            for part in s[1]:
                self.add_text_set(part)
        elif s[0] == "not":
            self.add_text_set(s[1])
        elif s in self._origins:
            self._found[self._origins[s]] = None
        else:
            self.add_everywhere("minLength", "maxLength") if s[0] == "length" else self.add_everywhere("enum", "const")

    def record_places(self, path: str, keywords: Iterable[str], present: Iterable[str]) -> None:
        """Remembers where those of the keywords stand that a schema has."""
        for keyword in keywords:
            if keyword in present:
                self._places.setdefault(keyword, []).append(path)

    def record_origin(self, atom: TextSet, path: str, keyword: str) -> None:
        """Remembers the first keyword that a pattern or format atom comes from."""
        self._origins.setdefault(atom, (path, keyword))

    def origin(self, atom: TextSet) -> tuple[str, str]:
        """Path and keyword of a recorded atom."""
        return self._origins.get(atom, ("", "pattern"))

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """Nothing found within counts: for questions whose answer leaves the grammar as it is."""
        before = dict(self._found)
        try:
            yield
        finally:
            self._found = before
