"""What the tests of chat share: a real vocabulary, its matcher, and the templates of llama.cpp."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.engine import Vocab
from tests.chat.matching import Matcher

TEMPLATES = 70


@pytest.fixture(scope="session")
def matcher(smollm2: Path) -> Matcher:
    return Matcher(smollm2)


@pytest.fixture(scope="session")
def vocab(matcher: Matcher) -> Vocab:
    return matcher.vocab


@pytest.fixture(scope="session")
def templates(sdist: Path) -> dict[str, str]:
    """llama.cpp's chat templates by their file's name."""
    found = sorted((sdist / "vendor/llama.cpp/models/templates").glob("*.jinja"))
    assert len(found) == TEMPLATES
    return {path.stem: path.read_text() for path in found}
