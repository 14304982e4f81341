"""Real races over real sockets, and malformed requests at every route. `NAP_LLM_MANY=1` runs the large counts."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import random
import re
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.chat import HelperPool
from server.config import Limits, ServerConfig
from server.runtime import Endpoint
from tests.conformance.conftest import check_stream
from tests.http.conftest import Site, events, site_of

MANY = os.environ.get("NAP_LLM_MANY") == "1"
RACES = 2000 if MANY else 150
REQUESTS = 5000 if MANY else 150

CAUSES = ("done", "length", "fail", "cancel", "deadline", "end", "revoke", "leave")


@pytest.mark.slow
async def test_every_race_has_one_result_and_nothing_after_it(tmp_path: Path) -> None:
    """Completion, cancel, deadline, disconnect, revocation and the engine's death, at random moments of random
    generations. The sockets are real; the clock is not, so that each generation has a deadline of its own."""
    async with site_of(tmp_path, real_clock=False) as site:
        await race_all(site)


async def race_all(site: Site) -> None:
    chance = random.Random(7)
    world = site.world
    endings: dict[str, int] = {}

    async def race(number: int) -> None:
        endpoint = f"e{number}"
        headers = {"napplet_endpoint": endpoint}
        envelope = await site.generation(headers=headers)
        causes = chance.sample(CAUSES, 3)
        pauses = [chance.choice((0, 0, 0.001, 0.003)) for _ in causes]
        received: list[dict[str, Any]] = []
        gone = asyncio.Event()

        async def read() -> None:
            async with site.stream(envelope, **headers) as response:
                stream = events(response)
                while not gone.is_set():
                    following = asyncio.ensure_future(anext(stream, None))
                    leaving = asyncio.ensure_future(gone.wait())
                    await asyncio.wait({following, leaving}, return_when=asyncio.FIRST_COMPLETED)
                    leaving.cancel()
                    if not following.done():
                        following.cancel()
                        await asyncio.gather(following, return_exceptions=True)
                        return
                    if following.result() is None:
                        return
                    received.append(following.result())

        reading = asyncio.create_task(read())
        while (run := next((r for r in world.engine.runs if scopes[r.job.cache_salt] == endpoint), None)) is None:
            await asyncio.sleep(0)
        run.say("some", "text")
        cancels = []
        for cause, pause in zip(causes, pauses, strict=True):
            if cause == "done":
                run.done()
            elif cause == "length":
                run.done("length")
            elif cause == "fail":
                run.fail()
            elif cause == "cancel":
                cancel = {"type": "llm.cancel", "id": "c", "requestId": "g"}
                cancels.append(asyncio.create_task(site.call(cancel, **headers)))
            elif cause == "deadline":
                for live in [each for each in world.runtime.live() if each.endpoint.endpoint == endpoint]:
                    live.timer.callback()  # type: ignore[union-attr]
            elif cause == "end":
                cancels.append(
                    asyncio.create_task(site.client.delete("/nap/llm/endpoint", headers={"napplet-endpoint": endpoint}))
                )
            elif cause == "revoke":
                scope = Endpoint("shell", endpoint=endpoint).scope
                cancels.append(asyncio.create_task(site.owner.post(f"/owner/endpoints/{scope}/revoke")))
            elif cause == "leave":
                gone.set()
            await asyncio.sleep(pause)
        await reading
        await asyncio.gather(*cancels)
        terminal = [each for each in received if each["type"] != "llm.delta"]
        assert len(terminal) <= 1 and (not terminal or received[-1] is terminal[0])
        if terminal:
            check_stream("g", received[:-1], terminal[0])
            body = terminal[0]
            ending = body["error"]["code"] if "error" in body else body["result"]["finish"]
        else:
            ending = "left"
        endings[ending] = endings.get(ending, 0) + 1
        await run.closed.wait()
        world.engine.runs.remove(run)

    scopes = {Endpoint("shell", endpoint=f"e{number}").scope: f"e{number}" for number in range(RACES)}
    for start in range(0, RACES, 10):
        await asyncio.gather(*(race(number) for number in range(start, min(start + 10, RACES))))
    assert sum(endings.values()) == RACES
    assert {"stop", "length", "provider-error", "cancelled", "timeout", "left"} <= set(endings), endings
    assert [*world.runtime.live()] == []
    print(f"{RACES} races: {endings}")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
MEMBERS = ["type", "id", "requirements", "handle", "request", "requestId", "messages", "tools", "model"]
NAMES = st.sampled_from([*MEMBERS, "schema", "decision", "connection", "name", "token", "account"])
TYPES = st.sampled_from(["llm.select", "llm.describe", "llm.generate", "llm.cancel", "llm.embed", ""])
PARTS = st.fixed_dictionaries({"type": st.sampled_from(["text", "image", "toolCall", "thinking"])}) | ANYTHING
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": st.lists(PARTS)})
MESSAGES = st.lists(MESSAGE | ANYTHING)
ENVELOPES = st.fixed_dictionaries(
    {"type": TYPES, "id": st.text(max_size=5) | ANYTHING},
    optional={
        "request": st.fixed_dictionaries({}, optional={"handle": ANYTHING, "messages": MESSAGES, "tools": ANYTHING}),
        "requirements": ANYTHING,
        "handle": ANYTHING,
        "requestId": ANYTHING,
    },
) | st.dictionaries(NAMES, ANYTHING)
CONTENT = st.lists(
    PARTS
    | st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "image", "artifact", "tool_call", "tool_result"])},
        optional=dict.fromkeys(("text", "image", "uri", "mime_type", "id", "call_id", "result", "name"), ANYTHING),
    )
)
SAID = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": CONTENT},
    optional={"continuation": ANYTHING},
)
# What is whole goes nowhere: no use case is served.
COMPLETIONS = st.fixed_dictionaries(
    {"messages": st.lists(SAID | ANYTHING), "useCase": st.just("nobody's")},
    optional=dict.fromkeys(("mode", "tools", "constraints", "responseFormat", "options", "diagnostics"), ANYTHING),
)
BODIES = (ENVELOPES | COMPLETIONS | ANYTHING).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40)
HEADERS = st.dictionaries(
    st.sampled_from([f"napplet-{name}" for name in ("identity", "endpoint", "account", "consent")] + ["accept"]),
    st.binary(max_size=20).map(lambda value: bytes(b for b in value if b >= 32 and b != 127).strip()),
    max_size=3,
)


def routes(site: Site) -> list[tuple[str, str]]:
    """Method and path of every route there is, with `{}` where something varies; and some that are none."""
    known = [
        (method, re.sub(r"\{[^}]*\}", "{}", route.path))
        for route in site.routes
        for method in sorted(route.methods - {"HEAD"})
    ]
    assert len(known) > 20
    return [*known, ("GET", "/{}"), ("PUT", "/nap/llm")]


@pytest.mark.slow
@pytest.mark.timeout(3600 if MANY else 300)
async def test_no_malformed_request_harms(tmp_path: Path) -> None:
    """No 5xx, no hang, no growth, nothing left behind. The large count sends every request to every route."""
    server = ServerConfig(limits=Limits(requests_per_minute=0))
    async with site_of(tmp_path, server, helpers=HelperPool(size=1)) as site:
        await send_all(site)


async def send_all(site: Site) -> None:
    cases: list[tuple[str, bytes, dict[str, bytes], bool]] = []

    @settings(
        max_examples=REQUESTS, deadline=None, database=None, derandomize=True, suppress_health_check=[*HealthCheck]
    )
    @given(
        st.sampled_from(["first", "1"]) | st.text(max_size=6), BODIES, HEADERS, st.sampled_from([False] * 9 + [True])
    )
    def collect(name: str, body: bytes, headers: dict[str, bytes], stranger: bool) -> None:
        cases.append(("".join(f"%{byte:02X}" for byte in name.encode()), body, headers, stranger))

    await asyncio.get_running_loop().run_in_executor(None, collect)
    paths = routes(site)
    requests = [*itertools.product(paths, cases)] if MANY else [*zip(itertools.cycle(paths), cases, strict=False)] * 2
    random.Random(1).shuffle(requests)  # both halves meet every route alike
    statuses: dict[int, int] = {}
    halfway = 0
    for number, ((method, path), (name, body, headers, stranger)) in enumerate(requests):
        client = site.owner if path.startswith("/owner") != stranger else site.client
        own = {"content-type": "application/json", "authorization": client.headers["authorization"]}
        sent: Any = [*own.items(), *headers.items()]
        request = httpx.Request(method, f"{client.base_url}{path.format(name)}", content=body, headers=sent)
        # The owner's events would go on for ever; nothing else may: the test's own time is the bound.
        response = await client.send(request, stream=path == "/owner/events")
        await response.aclose()
        assert response.status_code < 500, (method, path, body, headers)
        statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
        if number == len(requests) // 2:
            halfway = held()
    assert {200, 204, 400, 401, 404, 405} <= set(statuses)
    assert [*site.world.runtime.live()] == [] and site.world.runtime.decisions.waiting() == ()
    assert site.world.engine.runs == []
    # The last to leave are just being noticed.
    async with asyncio.timeout(60):
        while any("watching" in repr(task) or "_drive" in repr(task) for task in asyncio.all_tasks()):
            await asyncio.sleep(0.001)
    grown = held() - halfway
    # What the first half has not made yet are caches that are full soon.
    assert grown < 2000, grown
    print(f"{len(requests)} requests: {statuses}; {grown:+} objects; {psutil.Process().memory_info().rss >> 20} MiB")


def held() -> int:
    """Objects that this process holds, the server in it."""
    gc.collect()
    return len(gc.get_objects())
