"""What the owner sets for a connection's conversations reaches the chat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from server.chat import Capabilities, ChatSettings, Conversation, Prepared
from server.config import ConnectionConfig, Source
from tests.runtime.doubles import ChatDouble, World
from tests.runtime.test_generation import begin


class _Listening(ChatDouble):
    def __init__(self) -> None:
        super().__init__()
        self.settings: list[Any] = []

    async def inspect(self, model_path: str, settings: Any) -> Capabilities:
        self.settings.append(settings)
        return await super().inspect(model_path, settings)

    async def prepare(self, model_path: str, settings: Any, conversation: Conversation) -> Prepared:
        self.settings.append(settings)
        return await super().prepare(model_path, settings, conversation)


async def test_settings_reach_the_chat(tmp_path: Path) -> None:
    chat = _Listening()
    connection = ConnectionConfig(
        "a",
        "A",
        "a",
        Source(path=tmp_path / "m"),
        template="{{ x }}",
        thinking=False,
        reasoning_effort="low",
        reasoning_continuation="required",
    )
    world = World(tmp_path / "m", connections=(connection,), chat=chat)
    await begin(world, "Hello")
    await chat.preparing.wait()
    assert set(chat.settings) == {ChatSettings("{{ x }}", False, "low", "required")}
    assert len(chat.settings) == 2
    await world.runtime.close()
