"""What a caller who gives up costs the next one.

    python benchmarks/cancel.py --target nap:http://127.0.0.1:8033 --token "$TOKEN"

Each trial starts a generation with a fresh long prompt, gives it up some time into its prefill, and at that moment
asks a short question. `cancel` sends llm.cancel and waits for the stream's terminal result; `disconnect` closes the
connection and asks the short question under the same id, which the wire refuses for as long as the first generation
lives. Of a peer with the OpenAI API only the short question's TTFT after a disconnect can be taken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from drive import Nap, Outcome, Request, Server, Stream, Workload, percentile, post, server, start_body

DUPLICATE = "invalid-request"


def _short(round: int) -> Request:
    question = Workload("chat").request(round, 0)
    question.system, question.user, question.max_tokens = "Be brief.", f"Say {round}.", 4
    return question


async def _given_up(asked: Server, round: int, after: float) -> tuple[Stream, dict[str, Any]]:
    body = asked.body(Workload("long").request(round, 0))
    stream = await start_body(asked, body)
    await asyncio.sleep(after)
    return stream, body


async def cancel(asked: Nap, round: int, after: float) -> dict[str, Any]:
    stream, body = await _given_up(asked, round, after)
    in_prefill = not stream.outcome.events
    began = time.perf_counter()
    cancelling = asyncio.create_task(post(asked, {"type": "llm.cancel", "id": asked.id(), "requestId": body["id"]}))
    next_one = await start_body(asked, asked.body(_short(round)))
    await stream.done.wait()
    answer = await cancelling
    await next_one.done.wait()
    return {
        "in_prefill": in_prefill,
        "cancelled": answer["cancelled"] and stream.outcome.error.startswith("cancelled"),
        "settled_ms": (stream.outcome.ended - began) * 1000,
        **_next(next_one.outcome, began),
    }


async def disconnect(asked: Server, round: int, after: float) -> dict[str, Any]:
    stream, body = await _given_up(asked, round, after)
    in_prefill = not stream.outcome.events
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
    result = {"in_prefill": in_prefill, **_next(next_one.outcome, began)}
    if isinstance(asked, Nap):
        # The first generation's id was free again by then.
        result["settled_ms"] = (sent - began) * 1000
    return result


def _next(outcome: Outcome, began: float) -> dict[str, Any]:
    return {
        "next_prompt_tokens": outcome.prompt_tokens,
        "next_error": outcome.error,
        "next_ttft_ms": (outcome.events[0] - began) * 1000 if outcome.events else None,
    }


async def measure(options: argparse.Namespace, asked: Server) -> dict[str, Any]:
    await asked.prepare()
    report: dict[str, Any] = {"after_s": options.after, "trials": options.trials}
    ways: dict[str, Callable[[int, float], Awaitable[dict[str, Any]]]] = {"disconnect": partial(disconnect, asked)}
    if isinstance(asked, Nap):
        ways["cancel"] = partial(cancel, asked)
    # What the long prompt takes when nobody gives it up; also warms the server.
    whole = await start_body(asked, asked.body(Workload("long").request(0, 0)))
    await whole.done.wait()
    if whole.outcome.error:
        raise RuntimeError(whole.outcome.error)
    report["prompt_tokens"] = whole.outcome.prompt_tokens
    report["prefill_ms"] = round(whole.outcome.ttft * 1000, 1)
    for number, (name, way) in enumerate(ways.items()):
        trials = []
        for trial in range(options.trials):
            trials.append(await way(1 + number * options.trials + trial, options.after))
        report[name] = _summary(trials)
    return report


def _summary(trials: list[dict[str, Any]]) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "in_prefill": sum(each["in_prefill"] for each in trials),
        "errors": sorted({each["next_error"] for each in trials if each["next_error"]}),
        "next_prompt_tokens": max(each["next_prompt_tokens"] for each in trials),
    }
    if "cancelled" in trials[0]:
        summary["cancelled"] = sum(each["cancelled"] for each in trials)
    for key in ("settled_ms", "next_ttft_ms"):
        values = [each[key] for each in trials if each.get(key) is not None]
        if values:
            summary[key] = {f"p{p}": round(percentile(values, p), 1) for p in (50, 95, 99)} | {
                "max": round(max(values), 1)
            }
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, metavar="KIND:URL", help="nap:URL or openai:URL")
    parser.add_argument("--token", default=os.environ.get("NAP_LLM_TOKEN", ""), help="default: $NAP_LLM_TOKEN")
    parser.add_argument("--model", help="model identifier to ask for")
    parser.add_argument("--after", type=float, default=0.5, help="seconds into the prefill (default: %(default)s)")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    try:
        asked = server(options.target, options.token, options.model)
    except ValueError as error:
        parser.error(str(error))
    report = uvloop.run(measure(options, asked))
    print(json.dumps(report, indent=1))
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if any(way["errors"] for way in report.values() if isinstance(way, dict)) else 0


if __name__ == "__main__":
    sys.exit(main())
