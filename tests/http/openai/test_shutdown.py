"""What OpenAI's client is told by a server that is about to end."""

from __future__ import annotations

import asyncio

import openai
import pytest

from tests.http.openai.conftest import HELLO, Api


@pytest.mark.parametrize("stream", [False, True])
async def test_new_work_is_refused_and_old_work_finishes(api: Api, stream: bool) -> None:
    create = api.client.chat.completions.create
    old = asyncio.create_task(create(model="first-1", messages=HELLO))
    run = await api.run()
    drained = asyncio.create_task(api.world.runtime.drain(60))
    while not api.world.runtime.draining:
        await asyncio.sleep(0)
    with pytest.raises(openai.InternalServerError) as refused:
        await create(model="first-1", messages=HELLO, stream=stream)
    assert refused.value.status_code == 503
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
    run.say("All of it.")
    run.done()
    assert (await old).choices[0].message.content == "All of it."
    assert await drained is True
