"""Artifacts of `/llm/complete` (complete-binding): files of one directory of the owner's, by their names below it."""

from __future__ import annotations

from pathlib import Path

from server.wire.complete import ReadArtifact
from server.wire.records import WireError


class Artifacts:
    """`most` bounds the bytes that one request takes of them, all together."""

    def __init__(self, directory: Path, most: int) -> None:
        self._directory = directory.resolve()
        self._most = most

    def reader(self) -> ReadArtifact:
        """The reader of one request. It blocks, as files do."""
        taken = 0

        def read(name: str) -> bytes:
            nonlocal taken
            try:
                with self._path(name).open("rb") as file:
                    data = file.read(self._most - taken + 1)
            except (OSError, ValueError) as error:  # a name too long for a file, for instance
                raise LookupError from error
            taken += len(data)
            if taken > self._most:
                message = f"the request's artifacts have more than {self._most} bytes"
                raise WireError("quota-exceeded", message, reason="artifacts")
            return data

        return read

    def _path(self, name: str) -> Path:
        """Raises LookupError where there is no such file, or where a link leads out of the directory to it."""
        path = (self._directory / name).resolve()
        if not path.is_relative_to(self._directory) or not path.is_file():
            raise LookupError
        return path
