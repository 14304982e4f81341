from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grammars.judge import Judge


@pytest.fixture(scope="session")
def judge(sdist: Path) -> Iterator[Judge]:
    """llama.cpp's grammar sampler over the vocabulary of Qwen 2."""
    judge = Judge(sdist / "vendor/llama.cpp/models/ggml-vocab-qwen2.gguf")
    yield judge
    judge.close()
