"""System messages behind the first on templates that take but one, as each projection has them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.chat import HelperPool, make_parser
from server.config import ModelConfig, ModelSource
from server.engine import Vocab
from tests.http.conftest import Site, site_of

pytestmark = pytest.mark.asyncio

GEMMA, QWEN, OSS = "google-gemma-2-2b-it", "Qwen3.5-4B", "openai-gpt-oss-120b"
WORDS = [("system", "First."), ("user", "Hi."), ("assistant", "Hello."), ("system", "Later."), ("user", "Now?")]


def typed() -> list[dict[str, Any]]:
    return [{"role": role, "content": [{"type": "text", "text": words}]} for role, words in WORDS]


def plain(later: str = "system") -> list[dict[str, str]]:
    return [{"role": later if words == "Later." else role, "content": words} for role, words in WORDS]


class Rooms:
    """A server over SmolLM2's vocabulary and a family's template, with an engine that does as it is told."""

    def __init__(self, site: Site, vocab: Vocab) -> None:
        self.site, self.vocab = site, vocab

    async def answered(self, request: Any) -> str:
        """The prompt of this request, which gets an answer."""
        number = len(self.site.world.engine.runs)
        call = asyncio.create_task(request)
        run = await self.site.world.engine.run(number)
        run.done()
        response = await call
        assert not isinstance(response, httpx.Response) or response.status_code == 200, response.text
        return b"".join(map(self.vocab.piece, run.job.tokens)).decode()


def rooms_of(tmp_path: Path, sdist: Path, smollm2: Path, name: str, **settings: Any) -> Any:
    template = (sdist / f"vendor/llama.cpp/models/templates/{name}.jinja").read_text()
    connection = ModelConfig("one", "One", "one", ModelSource(path=smollm2), template=template, **settings)
    helpers = HelperPool(size=1)
    return site_of(
        tmp_path, connections=(connection,), chat=helpers, helpers=helpers, make_parser=make_parser, file=smollm2
    )


@pytest.mark.parametrize("name", [GEMMA, QWEN, OSS])
async def test_it_is_refused_where_projections_are_strict_and_a_users_turn_on_v1(
    tmp_path: Path, sdist: Path, smollm2: Path, name: str
) -> None:
    async with rooms_of(tmp_path, sdist, smollm2, name) as site:
        rooms = Rooms(site, Vocab.load(str(smollm2)))
        envelope = await site.generation()
        envelope["request"]["messages"] = typed()
        error = (await site.call(envelope))["error"]
        assert error["code"] == "unsupported" and error["message"].startswith("messages[3]: ")
        assert "system_messages" in error["message"] and "Later" not in error["message"]
        response = await site.client.post("/llm/complete", json={"messages": typed()})
        assert response.status_code == 422 and response.json()["error"]["message"].startswith("messages[3]: ")
        assert site.world.engine.runs == [] and site.world.starts == []
        for role in ("system", "developer"):
            prompt = await rooms.answered(
                site.client.post("/v1/chat/completions", json={"model": "one", "messages": plain(role)})
            )
            assert prompt.index("First.") < prompt.index("Hello.") < prompt.index("Later.\n\nNow?")
            prompt = await rooms.answered(
                site.client.post(
                    "/v1/responses", json={"model": "one", "input": plain(role)[1:], "instructions": "First."}
                )
            )
            assert prompt.index("First.") < prompt.index("Hello.") < prompt.index("Later.\n\nNow?")


@pytest.mark.parametrize("name", [GEMMA, QWEN, OSS])
async def test_it_joins_the_first_where_the_owner_lets_it(
    tmp_path: Path, sdist: Path, smollm2: Path, name: str
) -> None:
    async with rooms_of(tmp_path, sdist, smollm2, name, system_messages="merge") as site:
        rooms = Rooms(site, Vocab.load(str(smollm2)))
        envelope = await site.generation()
        envelope["request"]["messages"] = typed()
        prompts = [
            await rooms.answered(site.call(envelope)),
            await rooms.answered(site.client.post("/llm/complete", json={"messages": typed()})),
            await rooms.answered(site.client.post("/v1/chat/completions", json={"model": "one", "messages": plain()})),
        ]
        assert len(set(prompts)) == 1
        assert prompts[0].index("First.\n\nLater.") < prompts[0].index("Hi.") < prompts[0].index("Hello.")


async def test_a_template_that_takes_it_has_it_in_its_place(tmp_path: Path, sdist: Path, smollm2: Path) -> None:
    async with rooms_of(tmp_path, sdist, smollm2, "Qwen-Qwen2.5-7B-Instruct") as site:
        rooms = Rooms(site, Vocab.load(str(smollm2)))
        envelope = await site.generation()
        envelope["request"]["messages"] = typed()
        prompt = await rooms.answered(site.call(envelope))
        assert "Hello.<|im_end|>\n<|im_start|>system\nLater.<|im_end|>\n<|im_start|>user\nNow?" in prompt
