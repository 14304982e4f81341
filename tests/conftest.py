"""What several rooms' tests share."""

from __future__ import annotations

import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from server.config import Config, load_config
from server.models import cache_directory, download, fetch, locked_directory

ROOT = Path(__file__).parent.parent


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
