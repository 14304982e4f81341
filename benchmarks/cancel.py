"""What a caller who gives up costs the next one, and whether anything of him stays behind.

    python benchmarks/cancel.py --target nap:http://127.0.0.1:8033 --token "$TOKEN" --owner-token "$OWNER" --trials 200

Each trial starts a generation, gives it up at some moment, and then asks a short question. By default every other
generation has a fresh long prompt and is given up within its prefill, the rest within their decode, at moments drawn
uniformly; `--after` gives them all up so many seconds into the prefill. `cancel` sends llm.cancel and waits for the
stream's terminal result; `disconnect` closes the connection and asks the short question under the same id, which the
wire refuses for as long as the first generation lives. `server_settled_ms` is the time by the server's own clock,
where its answer to a cancel tells it (`Server-Timing: settle;dur=…`). Of a peer with the OpenAI API only the short
question's TTFT after a disconnect can be taken.

With the owner's token the server's counters are compared: once all is over nothing may be active or queued, no
generation live, and every slot must be free for a generation at the same time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from drive import (
    Nap,
    Outcome,
    Request,
    Server,
    Stream,
    Workload,
    owner_state,
    percentile,
    save,
    server,
    start_body,
    timed_post,
)
from throughput import started

DUPLICATE = "invalid-request"
PATIENCE = 10.0
"""Seconds in which a server must have let go of what nobody waits for any more."""

HELD = ("active", "queued", "workerActive", "workerQueued")
"""The owner's counters of what a model holds for generations, as far as a server has them; 0 once all are over."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When a generation of this workload is given up: after so many seconds, from its first token on if `decoding`."""

    workload: str
    decoding: bool
    after: float


def moments(whole: Mapping[str, Outcome], trials: int) -> list[Moment]:
    """Every other one within the prefill of a long prompt, the rest within the decode of an answer; the same each run.

    `whole`: an undisturbed generation of either workload, which tells how long these take.
    """
    draw = random.Random("moments")
    prefill = whole["long"].ttft
    decode = whole["chat"].events[-1] - whole["chat"].events[0]
    return [
        Moment("chat", True, draw.uniform(0, decode)) if trial % 2 else Moment("long", False, draw.uniform(0, prefill))
        for trial in range(trials)
    ]


def _short(round: int) -> Request:
    question = Workload("chat").request(round, 0)
    question.system, question.user, question.max_tokens = "Be brief.", f"Say {round}.", 4
    return question


async def _given_up(asked: Server, round: int, moment: Moment) -> tuple[Stream, dict[str, Any]]:
    body = asked.body(Workload(moment.workload).request(round, round))
    stream = await start_body(asked, body)
    if moment.decoding:
        await stream.first.wait()
    await asyncio.sleep(moment.after)
    return stream, body


async def cancel(asked: Nap, round: int, moment: Moment) -> dict[str, Any]:
    stream, body = await _given_up(asked, round, moment)
    in_prefill, over = not stream.outcome.events, stream.done.is_set()
    began = time.perf_counter()
    asking = {"type": "llm.cancel", "id": asked.id(), "requestId": body["id"]}
    cancelling = asyncio.create_task(timed_post(asked, asking))
    next_one = await start_body(asked, asked.body(_short(round)))
    await stream.done.wait()
    answer, timings = await cancelling
    await next_one.done.wait()
    return {
        "in_prefill": in_prefill,
        "over": over,
        "cancelled": answer["cancelled"] and stream.outcome.error.startswith("cancelled"),
        # One that ended by itself before the cancel came was not settled by it.
        "settled_ms": (stream.outcome.ended - began) * 1000 if answer["cancelled"] else None,
        "server_settled_ms": timings.get("settle"),
        **_next(next_one.outcome, began),
    }


async def disconnect(asked: Server, round: int, moment: Moment) -> dict[str, Any]:
    stream, body = await _given_up(asked, round, moment)
    in_prefill, over = not stream.outcome.events, stream.done.is_set()
    began = time.perf_counter()
    stream.close()
    question = asked.body(_short(round))
    if isinstance(asked, Nap):
        question["id"] = body["id"]
    while True:
        sent = time.perf_counter()
        next_one = await start_body(asked, question)
        await next_one.first.wait()
        if not next_one.outcome.error.startswith(DUPLICATE):
            break
    await next_one.done.wait()
    result = {"in_prefill": in_prefill, "over": over, **_next(next_one.outcome, began)}
    if isinstance(asked, Nap) and not over:
        # The first generation's id was free again by then.
        result["settled_ms"] = (sent - began) * 1000
    return result


def _next(outcome: Outcome, began: float) -> dict[str, Any]:
    return {
        "next_prompt_tokens": outcome.prompt_tokens,
        "next_error": outcome.error,
        "next_ttft_ms": (outcome.events[0] - began) * 1000 if outcome.events else None,
    }


def held(state: Mapping[str, Any]) -> dict[str, int]:
    """What the server holds for generations by the owner's counters, all models together."""
    loaded = [each for each in state["connections"] if each["state"] == "loaded"]
    found = {name: sum(each[name] for each in loaded) for name in HELD if all(name in each for each in loaded)}
    return {"generations": len(state["generations"]), **found}


async def leaks(asked: Server, owner_token: str) -> dict[str, Any]:
    """What is left when nobody waits for anything any more, and whether all slots can still be had.

    The server gets a moment: a worker learns of a cancel within a step.
    """
    until = time.perf_counter() + PATIENCE
    state = await owner_state(asked, owner_token)
    while any(held(state).values()) and time.perf_counter() < until:
        await asyncio.sleep(0.05)
        state = await owner_state(asked, owner_token)
    slots = max(each.get("slots", 0) for each in state["connections"])
    streams = [await start_body(asked, asked.body(Workload("chat").request(0, place))) for place in range(slots)]
    for stream in streams:
        await stream.first.wait()
    full = held(await owner_state(asked, owner_token))
    for stream in streams:
        await stream.done.wait()
    return {
        "left": held(state),
        "slots": slots,
        "active_with_all_slots": full.get("active", 0),
        "restarts": sum(each.get("restarts", 0) for each in state["connections"]),
        "none": not any(held(state).values())
        and full.get("active", 0) == slots
        and not any(each.outcome.error for each in streams),
    }


async def measure(options: argparse.Namespace, asked: Server) -> dict[str, Any]:
    async with started(asked, options.start, options.log):
        return await _measure(options, asked)


async def _measure(options: argparse.Namespace, asked: Server) -> dict[str, Any]:
    found: dict[str, Any] = {"after_s": options.after, "trials": options.trials}
    ways: dict[str, Callable[[int, Moment], Awaitable[dict[str, Any]]]] = {"disconnect": partial(disconnect, asked)}
    if isinstance(asked, Nap):
        ways["cancel"] = partial(cancel, asked)
    # What generations take when nobody gives them up; also warms the server.
    whole = {}
    for name in ("chat", "long"):
        stream = await start_body(asked, asked.body(Workload(name).request(0, 0)))
        await stream.done.wait()
        if not stream.outcome.good:
            raise RuntimeError(stream.outcome.error or "the generation was empty")
        whole[name] = stream.outcome
    found["prompt_tokens"] = whole["long"].prompt_tokens
    found["prefill_ms"] = round(whole["long"].ttft * 1000, 1)
    found["decode_ms"] = round((whole["chat"].events[-1] - whole["chat"].events[0]) * 1000, 1)
    when = moments(whole, options.trials)
    if options.after is not None:
        when = [Moment("long", False, options.after)] * options.trials
    for number, (name, way) in enumerate(ways.items()):
        trials = [await way(1 + number * options.trials + place, moment) for place, moment in enumerate(when)]
        found[name] = _summary(trials)
    if options.owner_token:
        found["leaks"] = await leaks(asked, options.owner_token)
    return found


def _summary(trials: list[dict[str, Any]]) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "in_prefill": sum(each["in_prefill"] for each in trials),
        "over_before": sum(each["over"] for each in trials),
        "errors": sorted({each["next_error"] for each in trials if each["next_error"]}),
        "next_prompt_tokens": max(each["next_prompt_tokens"] for each in trials),
    }
    if "cancelled" in trials[0]:
        summary["cancelled"] = sum(each["cancelled"] for each in trials)
    for key in ("settled_ms", "server_settled_ms", "next_ttft_ms"):
        values = [each[key] for each in trials if each.get(key) is not None]
        if values:
            summary[key] = {f"p{p}": round(percentile(values, p), 1) for p in (50, 95, 99)} | {
                "max": round(max(values), 1)
            }
    return summary


def failed(found: Mapping[str, Any]) -> bool:
    """Whether a short question failed, or something stayed behind."""
    errors = any(found[way]["errors"] for way in ("disconnect", "cancel") if way in found)
    return errors or not found.get("leaks", {"none": True})["none"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, metavar="KIND:URL", help="nap:URL or openai:URL")
    parser.add_argument("--token", default=os.environ.get("NAP_LLM_TOKEN", ""), help="default: $NAP_LLM_TOKEN")
    parser.add_argument(
        "--owner-token",
        default=os.environ.get("NAP_LLM_OWNER_TOKEN", ""),
        help="compares the server's counters (default: $NAP_LLM_OWNER_TOKEN)",
    )
    parser.add_argument("--model", help="model identifier to ask for")
    parser.add_argument("--after", type=float, help="seconds into the prefill (default: random moments)")
    parser.add_argument("--trials", type=int, default=20, help="of each way (default: %(default)s)")
    parser.add_argument("--start", metavar="COMMAND", help="starts the server for as long as this runs")
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="what a started server prints")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    try:
        asked = server(options.target, options.token, options.model)
    except ValueError as error:
        parser.error(str(error))
    if options.trials < 1:
        parser.error("at least one trial")
    try:
        found = uvloop.run(measure(options, asked))
    except (OSError, RuntimeError) as error:
        print(f"cancel: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=1))
    save(found, options.out)
    return 1 if failed(found) else 0


if __name__ == "__main__":
    sys.exit(main())
