"""Images as data URIs, through the official client to a tiny vision model."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from server.app import create_app
from server.config import Config, Limits, ModelConfig, ModelSource, ServerConfig
from server.state import TokenStore
from tests.fixtures.projectors import Seer
from tests.http.conftest import listening
from tests.pictures import png

MODEL = "seer"


def uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory, seers: dict[str, Seer]) -> AsyncIterator[openai.AsyncOpenAI]:
    seer = seers["mlp"]
    projector = ModelSource(path=seer.projector)
    connection = ModelConfig(
        MODEL, MODEL, MODEL, ModelSource(path=seer.model), projector, context_length=1024, slots=2, threads=1
    )
    tokens = TokenStore(tmp_path_factory.mktemp("state"))
    token = tokens.create("test", consent="always")
    app = create_app(Config(ServerConfig(limits=Limits(images=2)), (connection,)), tokens=tokens)
    async with (
        listening(app) as port,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=token, max_retries=0) as made,
    ):
        yield made


pytestmark = pytest.mark.asyncio(loop_scope="module")

ONE, OTHER = uri(png(40, 30)), uri(png(40, 30, seed=50))


async def chat(client: openai.AsyncOpenAI, *images: str) -> Any:
    parts: list[Any] = [{"type": "text", "text": "What is this?"}]
    parts += [{"type": "image_url", "image_url": {"url": each}} for each in images]
    return await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": parts}], temperature=0, max_tokens=12
    )


async def test_an_image_is_seen(client: openai.AsyncOpenAI) -> None:
    blind, seen, again, other = [await chat(client, *images) for images in ([], [ONE], [ONE], [OTHER])]
    assert seen.usage.prompt_tokens > blind.usage.prompt_tokens
    assert seen.choices[0].message.content == again.choices[0].message.content
    assert seen.choices[0].message.content != other.choices[0].message.content


async def test_an_image_in_a_response(client: openai.AsyncOpenAI) -> None:
    parts = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": ONE, "detail": "auto"},
    ]
    asked: Any = [{"role": "user", "content": parts}]
    response = await client.responses.create(model=MODEL, input=asked, temperature=0, max_output_tokens=12)
    assert response.output_text == (await chat(client, ONE)).choices[0].message.content


async def test_what_is_no_image_or_one_too_many_is_refused(client: openai.AsyncOpenAI) -> None:
    for images in ([uri(b"no image")], [ONE, ONE, ONE]):
        with pytest.raises(openai.BadRequestError):
            await chat(client, *images)
    # Nothing is fetched, from wherever.
    with pytest.raises(openai.BadRequestError) as raised:
        await chat(client, str(Path(__file__).as_uri()))
    assert raised.value.param == "messages[0].content[1].image_url.url"
