from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.runtime.doubles import World


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path / "model.gguf")
    yield made
    await made.runtime.close()
