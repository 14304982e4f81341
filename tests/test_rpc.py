"""llama.cpp's RPC backend: built once, from its sources."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from server import rpc
from server.cli import main
from server.models import ModelError

PARTS = ("ggml/include", "ggml/src/ggml-rpc", "ggml/src/ggml-impl.h", "ggml/src/ggml-backend-impl.h", "tools/rpc")


@pytest.fixture
def published(sdist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Takes the place of the download: an archive of what is compiled. What was asked for."""
    asked: list[str] = []

    def download(requirement: str, *_: str, into: Path, **__: Any) -> Path:
        asked.append(requirement)
        archive = into / "llama_cpp_python.tar.gz"
        with tarfile.open(archive, "w:gz") as packed:
            for part in PARTS:
                packed.add(sdist / "vendor/llama.cpp" / part, f"{sdist.name}/vendor/llama.cpp/{part}")
        return archive

    monkeypatch.setattr(rpc, "download", download)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return asked


def test_lending_builds_what_it_needs_once_and_becomes_the_server(
    published: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], str]] = []

    class Started(Exception):
        pass

    def execve(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        assert os.access(path, os.X_OK) and arguments[0] == path
        started.append((arguments[1:], environment["GGML_BACKEND_PATH"]))
        raise Started

    monkeypatch.setattr(os, "execve", execve)
    for _ in range(2):
        with pytest.raises(Started):
            main(["lend", "--host", "10.0.0.2", "--port", "50053"])
    assert len(published) == 1, "built once"
    (arguments, library), again = started
    assert again == (arguments, library) and arguments == ["--host", "10.0.0.2", "--port", "50053"]
    assert Path(library).is_relative_to(tmp_path / "cache") and Path(library).is_file()


def test_a_build_that_fails_says_so_and_leaves_nothing(
    published: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(ModelError, match="cannot be built"):
        rpc.built()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ModelError, match="compiler is needed"):
        rpc.built()
    assert len(published) == 2
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == [".lock"]
