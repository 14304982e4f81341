"""Images through the client: as a user's message and as a tool's result."""

from __future__ import annotations

import asyncio
import base64
import re
from dataclasses import fields
from pathlib import Path

import pytest
from PIL import Image

from server.app import create_app
from server.client import Conversation, image
from server.config import Limits, load_config
from server.state import TokenStore
from server.wire.records import TextPart
from tests.client.scripted import MODEL, Server, call, calls, says
from tests.conftest import ROOT
from tests.fixtures.projectors import Seer
from tests.http.conftest import listening
from tests.hub_server import playing
from tests.pictures import JPEG, PNG, WEBP, saved
from tests.readme import Block, blocks, printed, runs


@pytest.mark.parametrize("mime_type", [PNG, JPEG, WEBP])
def test_the_type_is_the_bytes_own(mime_type: str, tmp_path: Path) -> None:
    data = saved(Image.new("RGB", (4, 4)), mime_type)
    file = tmp_path / "whatever.bin"
    file.write_bytes(data)
    part = image(data)
    assert part == image(file) == image(str(file))
    assert (part.mime_type, base64.b64decode(part.data), part.size) == (mime_type, data, len(data))


@pytest.mark.parametrize("data", [b"", b"GIF89a" + bytes(40), b"RIFF\0\0\0\0WAVE", b"\x89PN"])
def test_other_bytes_are_no_image(data: bytes) -> None:
    with pytest.raises(ValueError, match="no PNG, JPEG or WebP"):
        image(data)


async def test_a_tool_may_answer_with_an_image() -> None:
    part = image(saved(Image.new("RGB", (4, 4)), PNG))

    def camera() -> list[object]:
        """Looks into the hall."""
        return [TextPart("The hall:"), part]

    server = Server(calls(call("camera")), says("Dark."))
    result = await Conversation(server.client(), MODEL).send([TextPart("Compare with "), part], tools=[camera])
    assert result.text == "Dark."
    asked, told = server.requests
    assert asked.messages[0].content == (TextPart("Compare with "), part)
    assert told.messages[-1].content == (TextPart("The hall:"), part)


# --- the section of docs/guide.md


SECTION = (ROOT / "docs/guide.md").read_text(encoding="utf-8").split("\n## Images\n")[1].split("\n## ")[0]


@pytest.mark.slow
@runs("Images", 1, 2, file="docs/guide.md")
async def test_the_examples_of_the_guide_run(
    examples: tuple[Block, ...], seers: dict[str, Seer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is fetched from a server that plays the hub, where a tiny model is called Gemma; it looks."""
    configuration, program = examples
    (tmp_path / "models.toml").write_text(configuration.text)
    repo, file, mmproj = re.findall(r'huggingface = "(.+):(.+)"\n.*:(.+)"', configuration.text)[0]
    Path(tmp_path / "hall.jpg").write_bytes(saved(Image.new("RGB", (40, 30), "navy"), JPEG))
    monkeypatch.chdir(tmp_path)
    with playing(tmp_path, monkeypatch) as hub:
        hub.repo, seer = repo, seers["gemma3"]
        hub.files = {file: seer.model.read_bytes(), mmproj: seer.projector.read_bytes()}
        config, tokens = load_config(tmp_path / "models.toml"), TokenStore(tmp_path / "state")
        monkeypatch.setenv("TOKEN", tokens.create("shell", consent="always"))
        async with listening(create_app(config, tokens=tokens)) as port:
            said = await asyncio.to_thread(printed, program.at(f"http://127.0.0.1:{port}"), {"__name__": "example"})
    assert len(said) > 1 and hub.downloads == [None, None]


def test_the_tables_of_the_guide_are_connections(tmp_path: Path) -> None:
    table = blocks("docs/guide.md")["Images", 1].text
    rows = re.findall(r"^\| [^|]+ \| `([^`]+\.gguf)` \| `([^`]+\.gguf)` \|$", SECTION, re.MULTILINE)
    assert len(rows) == 3
    for number, (source, mmproj) in enumerate(rows):
        table += f'[models.m{number}]\nmodel = "m"\nsource.huggingface = "{source}"\nmmproj.huggingface = "{mmproj}"\n'
    (tmp_path / "models.toml").write_text(table)
    first, again, *_ = load_config(tmp_path / "models.toml").connections
    assert first.mmproj == again.mmproj is not None and first.source == again.source
    limits = re.search(r"\(`\[server.limits\]`: ([^)]+)\)", SECTION)
    assert limits is not None
    assert set(re.findall(r"`(\w+)`", limits[1])) == {each.name for each in fields(Limits) if "image" in each.name}
