"""Tokens of thinking as every projection reports them, over Qwen's templates."""

from __future__ import annotations

import asyncio
from array import array
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from server.chat import HelperPool, make_parser
from server.config import ModelConfig, ModelSource
from server.engine import Finished, TextChunk, Vocab
from server.engine.types import Segment
from tests.http.conftest import serving, site_of

pytestmark = pytest.mark.asyncio

ASK = [{"role": "user", "content": [{"type": "text", "text": "Why are there tides?"}]}]
TEMPLATES = Path("vendor/llama.cpp/models/templates")


async def test_a_thought_that_the_prompt_opens_and_the_limit_cuts_is_all_reasoning(
    sdist: Path, smollm2: Path, tmp_path: Path
) -> None:
    """A real engine, which drafts, and appends what a grammar forces."""
    template = (sdist / TEMPLATES / "Qwen-QwQ-32B.jinja").read_text()
    connection = ModelConfig(
        "one", "One", "one", ModelSource(path=smollm2), template=template, context_length=1024, temperature=0
    )
    async with serving(tmp_path, connection) as (client, _):

        async def post(path: str, body: Any) -> Any:
            return (await client.post(path, json=body)).json()

        handle = (await post("/nap/llm", {"type": "llm.select", "id": "s"}))["model"]["handle"]
        request = {"handle": handle, "messages": ASK, "maxTokens": 24, "format": "json"}
        told = await post("/nap/llm", {"type": "llm.generate", "id": "g", "request": request})
        usage = told["result"]["usage"]
        assert told["result"]["finish"] == "length" and usage["reasoningTokens"] == usage["outputTokens"] == 24
        told = await post("/llm/complete", {"messages": ASK, "options": {"maxTokens": 24}})
        assert told["usage"]["reasoning_output_tokens"] == told["usage"]["output_tokens"] == 24
        told = await post("/v1/chat/completions", {"model": "one", "messages": ASK, "max_tokens": 24})
        assert told["usage"]["completion_tokens_details"]["reasoning_tokens"] == 24
        told = await post("/v1/responses", {"model": "one", "input": "Why are there tides?", "max_output_tokens": 24})
        assert told["usage"]["output_tokens_details"]["reasoning_tokens"] == 24


@pytest.mark.parametrize(
    ("said", "thought"),
    [
        (("<think>\nThe moon.\n</think>\n\nIt pulls.",), "\nThe moon.\n"),
        (("It pulls.",), ""),
        (("<think>", "\nThe moon", ".\n</think>\n\nIt", " pulls."), "\nThe moon.\n"),
    ],
)
async def test_a_piece_of_text_may_hold_many_tokens(
    sdist: Path, smollm2: Path, tmp_path: Path, said: tuple[str, ...], thought: str
) -> None:
    template = (sdist / TEMPLATES / "Qwen-Qwen3-0.6B.jinja").read_text()
    connection = ModelConfig("one", "One", "one", ModelSource(path=smollm2), template=template)
    vocab, helpers = Vocab.load(str(smollm2)), HelperPool(size=1)

    def tokens_of(text: str) -> array[int]:
        return vocab.tokenize([Segment(text, control=False)], begins=False, follows=True)

    tokens = tokens_of("".join(said))
    ends = array("i", accumulate(len(vocab.piece(token)) for token in tokens))
    inside = [token for token, end in zip(tokens, [0, *ends], strict=False) if 7 <= end < 7 + len(thought)]
    async with site_of(
        tmp_path, connections=(connection,), chat=helpers, helpers=helpers, make_parser=make_parser, file=smollm2
    ) as site:
        call = asyncio.create_task(site.call(await site.generation()))
        run = await site.world.engine.run()
        for text in said:
            run.events.put_nowait(TextChunk(text, len(tokens_of(text))))
        run.events.put_nowait(Finished("stop", 9, len(tokens), 0, tokens=tokens, ends=ends))
        usage = (await call)["result"]["usage"]
    assert usage.get("reasoningTokens", 0) == len(inside)
    assert not thought or 0 < len(inside) < len(tokens) - 3
