"""What a long prompt does to the answers that are running, and they to it.

    python benchmarks/mixed.py --target ours=nap:http://127.0.0.1:8033 --token "$TOKEN"
    python benchmarks/mixed.py --target ours=nap:… --target theirs=openai:… --rounds 5

Each round asks a fresh prompt of 2,000 tokens on an idle server, then lets a few answers run, undisturbed for a while,
and sends another such prompt. Compared are the p95 inter-token latency of the running answers while the prompt waits
for its first token with that before it came, and the prompt's TTFT with that on the idle server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import report
import uvloop
from drive import (
    Outcome,
    Request,
    Server,
    Stream,
    Workload,
    ask,
    ask_body,
    machine,
    percentile,
    save,
    spread,
    start_body,
)
from rich.console import Console
from rich.table import Table
from throughput import add_targets, milliseconds, parse_targets, started, turns

ANSWER_TOKENS = 1024
"""Of a running answer: enough to outlast a prefill. One that ends is followed by another."""


def prompt(number: int) -> Request:
    """About 2,000 tokens that no cache has seen: the long prompt's 1,660, and as much of it again as is missing."""
    request = Workload("long").request(number, 0)
    assert request.system is not None
    request.system += " " + request.system[: len(request.system) // 5]
    request.max_tokens = 4
    return request


def long_body(asked: Server, number: int) -> Mapping[str, Any]:
    return asked.body(prompt(number))


@dataclass(frozen=True, slots=True)
class Round:
    alone: Outcome
    beside: Outcome
    idle_gaps: list[float]
    """Inter-token latencies of the running answers before the prompt came, in seconds."""
    mixed_gaps: list[float]
    """Those that overlap the time from the prompt's departure to its first token."""

    @property
    def gap_ratio(self) -> float:
        return percentile(self.mixed_gaps, 95) / percentile(self.idle_gaps, 95)

    @property
    def ttft_ratio(self) -> float:
        return self.beside.ttft / self.alone.ttft


async def run_round(
    asked: Server, number: int, answers: int, idle: float, body: Callable[[Server, int], Mapping[str, Any]] = long_body
) -> Round:
    """`idle`: seconds in which the answers run undisturbed; `body`: what disturbs them then, fresh for each number.

    Raises RuntimeError where anything failed.
    """
    alone = await ask_body(asked, body(asked, 2 * number))
    # Before anything runs beside: making it takes time, of the same cores perhaps.
    disturbing = json.dumps(body(asked, 2 * number + 1)).encode()
    async with running(asked, number, answers) as streams:
        undisturbed = time.perf_counter()
        await asyncio.sleep(idle)
        sent = time.perf_counter()
        beside = await ask_body(asked, disturbing)
    for outcome in (alone, beside, *(each.outcome for each in streams if not each.given_up)):
        if not outcome.good:
            raise RuntimeError(outcome.error or "a request was answered with nothing")
    events = [each.outcome.events for each in streams]
    first = beside.events[0]
    found = Round(
        alone,
        beside,
        idle_gaps=_between(events, lambda former, later: undisturbed <= former and later <= sent),
        mixed_gaps=_between(events, lambda former, later: later > sent and former < first),
    )
    if not found.idle_gaps or not found.mixed_gaps:
        raise RuntimeError("the running answers brought no tokens to compare: let them run longer (--idle)")
    return found


def _between(streams: list[list[float]], counts: Callable[[float, float], bool]) -> list[float]:
    return [later - former for events in streams for former, later in pairwise(events) if counts(former, later)]


@asynccontextmanager
async def running(asked: Server, number: int, answers: int) -> AsyncIterator[list[Stream]]:
    """So many answers at a time, each with its first token when this opens; given up when it closes."""
    workload = Workload("chat")
    streams: list[Stream] = []

    async def caller(place: int, started: asyncio.Event) -> None:
        try:
            for again in range(sys.maxsize):
                request = workload.request(number, place + again * answers)
                request.max_tokens = ANSWER_TOKENS
                stream = await start_body(asked, asked.body(request))
                streams.append(stream)
                await stream.first.wait()
                started.set()
                await stream.done.wait()
                if stream.outcome.error:
                    return
        finally:
            started.set()

    events = [asyncio.Event() for _ in range(answers)]
    callers = [asyncio.create_task(caller(place, event)) for place, event in enumerate(events)]
    try:
        await asyncio.gather(*(event.wait() for event in events))
        yield streams
    finally:
        for task in callers:
            task.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        for stream in streams:
            stream.close()
        await asyncio.gather(*(stream.done.wait() for stream in streams))


async def measure(options: argparse.Namespace, targets: Mapping[str, Server]) -> dict[str, Any]:
    commands = dict(each.split("=", 1) for each in options.start)
    rounds: dict[str, list[Round]] = {name: [] for name in targets}
    for number, name in turns(targets, options.rounds):
        async with started(targets[name], commands.get(name), options.log):
            warm = await ask(targets[name], Workload("chat").request(0, 0))
            if warm.error:
                raise RuntimeError(warm.error)
            rounds[name].append(await run_round(targets[name], number, options.streams, options.idle))
        done = rounds[name][-1]
        print(f"round {number} {name}: gap × {done.gap_ratio:.2f}, TTFT × {done.ttft_ratio:.2f}", file=sys.stderr)
    return {
        "workload": "mixed",
        "rounds": options.rounds,
        "machine": machine(),
        "streams": options.streams,
        "targets": {name: figures(done) for name, done in rounds.items()},
    }


def figures(rounds: list[Round]) -> dict[str, Any]:
    return {
        "prompt_tokens": spread([each.prompt_tokens for done in rounds for each in (done.alone, done.beside)]),
        "cached_tokens": spread([each.cached_tokens for done in rounds for each in (done.alone, done.beside)]),
        "idle_inter_token_ms": milliseconds([gap for each in rounds for gap in each.idle_gaps]),
        "mixed_inter_token_ms": milliseconds([gap for each in rounds for gap in each.mixed_gaps]),
        "inter_token_p95_ratio": spread([each.gap_ratio for each in rounds]),
        "idle_ttft_ms": spread([each.alone.ttft * 1000 for each in rounds], 1),
        "mixed_ttft_ms": spread([each.beside.ttft * 1000 for each in rounds], 1),
        "ttft_ratio": spread([each.ttft_ratio for each in rounds]),
    }


def show(found: Mapping[str, Any], what: str = "a long prompt") -> None:
    table = Table(title=f"{found['streams']} answers, {what}, {found['rounds']} rounds: median (min to max), ms")
    for heading in ("target", "p95 gap idle", "beside it", "ratio", "TTFT idle", "beside answers", "ratio"):
        table.add_column(heading, justify="right")
    for name, figures in found["targets"].items():
        table.add_row(
            name,
            f"{figures['idle_inter_token_ms']['p95']:.1f}",
            f"{figures['mixed_inter_token_ms']['p95']:.1f}",
            report.ranged(figures["inter_token_p95_ratio"], 2),
            report.ranged(figures["idle_ttft_ms"], 0),
            report.ranged(figures["mixed_ttft_ms"], 0),
            report.ranged(figures["ttft_ratio"], 2),
        )
    console = Console()
    console.width = console.width if console.is_terminal else 140
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_targets(parser)
    parser.add_argument("--streams", type=int, default=4, help="answers that run (default: %(default)s)")
    parser.add_argument("--idle", type=float, default=5.0, help="seconds undisturbed (default: %(default)s)")
    options = parser.parse_args()
    targets = parse_targets(parser, options)
    try:
        found = uvloop.run(measure(options, targets))
    except (OSError, RuntimeError) as error:
        print(f"mixed: {error}", file=sys.stderr)
        return 1
    show(found)
    save(found, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
