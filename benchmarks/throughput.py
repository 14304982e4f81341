"""Throughput and latency of a running server, alone or beside a peer.

    python benchmarks/throughput.py --target ours=nap:http://127.0.0.1:8033 --token "$TOKEN"
    python benchmarks/throughput.py --target ours=nap:… --target theirs=openai:… --concurrency 1 4 8 --rounds 5

With two targets the ratio first/second is taken round by round, and every other round begins with the second: a
machine that warms up or slows down does so for both. `--start NAME=COMMAND` starts a target's server for its part of
each round and ends it afterwards. So one server exists at a time (of two equal ones kept in memory in turn, the one
started first was 5 to 15 % slower), and each round meets another placement in memory. Tokens are counted from `usage`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from drive import Outcome, Server, Workload, ask, percentile, server
from rich.console import Console
from rich.table import Table

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Round:
    """Closed loop: as many callers as the concurrency says, each asking again as soon as it is answered."""

    outcomes: list[Outcome]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return sum(each.output_tokens for each in self.outcomes) / self.seconds


async def run_round(asked: Server, workload: Workload, number: int, concurrency: int, requests: int) -> Round:
    pending = iter(range(requests))
    outcomes: list[Outcome] = []

    async def caller() -> None:
        for index in pending:
            outcomes.append(await ask(asked, workload.request(number, index)))

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(concurrency)))
    return Round(outcomes, time.perf_counter() - began)


@asynccontextmanager
async def started(asked: Server, command: str | None, log: Path) -> AsyncIterator[None]:
    """The target's server, started for as long as this is open where there is a command; ready and selected."""
    if command is None:
        await asked.prepare()
        yield
        return
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command), stdout=output, stderr=output, start_new_session=True
        )
    try:
        await _ready(asked, process, log)
        yield
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        await process.wait()


async def _ready(asked: Server, process: asyncio.subprocess.Process, log: Path) -> None:
    deadline = time.monotonic() + 300
    trial = Workload("chat").request(0, 0)
    trial.max_tokens = 1
    while time.monotonic() < deadline and process.returncode is None:
        try:
            await asked.prepare()
            if not (await ask(asked, trial)).error:
                return
        except OSError:
            pass
        await asyncio.sleep(0.2)
    raise RuntimeError(f"{asked.url} did not become ready; see {log}")


def _values(outcomes: list[Outcome], workload: Workload) -> dict[str, Any]:
    """Figures over all requests of a target. Times in milliseconds."""
    good = [each for each in outcomes if each.events and not each.error]
    gaps = [later - former for each in good for former, later in zip(each.events, each.events[1:], strict=False)]
    per_token = [
        (each.events[-1] - each.events[0]) / (each.output_tokens - 1) for each in good if each.output_tokens > 1
    ]

    def milliseconds(values: list[float]) -> dict[str, float]:
        return {f"p{percent}": round(percentile(values, percent) * 1000, 2) for percent in PERCENTILES}

    return {
        "requests": len(outcomes),
        "errors": sorted({each.error for each in outcomes if each.error}),
        "prompt_tokens": _spread([each.prompt_tokens for each in good]),
        "cached_tokens": _spread([each.cached_tokens for each in good]),
        "output_tokens": _spread([each.output_tokens for each in good]),
        # Ratios of unequal work mean little: how many requests ended before their limit.
        "short": sum(each.output_tokens < workload.max_tokens for each in good),
        "ttft_ms": milliseconds([each.ttft for each in good]),
        "inter_token_ms": milliseconds(gaps),
        "per_token_ms": milliseconds(per_token),
        "request_ms": milliseconds([each.ended - each.began for each in good]),
    }


def _spread(values: list[float] | list[int]) -> dict[str, float]:
    if not values:
        return {}
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _rounded(values: list[float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in _spread(values).items()}


async def measure(options: argparse.Namespace, targets: Mapping[str, Server]) -> dict[str, Any]:
    workload = Workload(options.workload)
    commands = dict(each.split("=", 1) for each in options.start)
    rounds: dict[int, dict[str, list[Round]]] = {each: {name: [] for name in targets} for each in options.concurrency}
    for number in range(1, options.rounds + 1):
        for name in list(targets)[:: 1 if number % 2 else -1]:
            asked = targets[name]
            async with started(asked, commands.get(name), options.log):
                for concurrency, done in rounds.items():
                    # One pass beside the measurement: caches and clocks are warm, on both sides alike.
                    await run_round(asked, workload, 0, concurrency, concurrency)
                    requests = options.requests or max(4, 2 * concurrency)
                    done[name].append(await run_round(asked, workload, number, concurrency, requests))
                    print(
                        f"concurrency {concurrency} round {number} {name}:"
                        f" {done[name][-1].tokens_per_second:.1f} tokens/s",
                        file=sys.stderr,
                    )
    return {
        "workload": options.workload,
        "rounds": options.rounds,
        "concurrency": {str(each): _entry(done, workload) for each, done in rounds.items()},
    }


def _entry(rounds: Mapping[str, list[Round]], workload: Workload) -> dict[str, Any]:
    entry: dict[str, Any] = {"targets": {}}
    for name, done in rounds.items():
        speeds = [each.tokens_per_second for each in done]
        outcomes = [outcome for each in done for outcome in each.outcomes]
        entry["targets"][name] = {
            "tokens_per_second": _rounded(speeds),
            "tokens_per_second_rounds": [round(each, 2) for each in speeds],
            **_values(outcomes, workload),
        }
    if len(rounds) == 2:
        first, second = rounds.values()
        entry["ratio"] = _rounded(
            [a.tokens_per_second / b.tokens_per_second for a, b in zip(first, second, strict=True)]
        )
    return entry


def show(report: Mapping[str, Any]) -> None:
    table = Table(title=f"{report['workload']}, {report['rounds']} rounds: median (min to max), percentiles in ms")
    for heading in ("concurrency", "target", "tokens/s", "TTFT p50/95/99", "inter-token p50/95/99", "output", "short"):
        table.add_column(heading, justify="right")
    for concurrency, entry in report["concurrency"].items():
        for name, figures in entry["targets"].items():
            speed, output = figures["tokens_per_second"], figures["output_tokens"]
            table.add_row(
                concurrency,
                name,
                f"{speed['median']:.1f} ({speed['min']:.1f} to {speed['max']:.1f})",
                " / ".join(f"{value:.0f}" for value in figures["ttft_ms"].values()),
                " / ".join(f"{value:.1f}" for value in figures["inter_token_ms"].values()),
                f"{output.get('median', 0):.0f} tokens",
                f"{figures['short']} of {figures['requests']}",
            )
        if ratio := entry.get("ratio"):
            words = f"{ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})"
            table.add_row(concurrency, "ratio", words)
    console = Console()
    # Piped, there is no terminal whose width would matter.
    console.width = console.width if console.is_terminal else 140
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", required=True, metavar="NAME=KIND:URL", help="nap or openai")
    parser.add_argument("--start", action="append", default=[], metavar="NAME=COMMAND", help="starts a target's server")
    parser.add_argument("--token", default=os.environ.get("NAP_LLM_TOKEN", ""), help="default: $NAP_LLM_TOKEN")
    parser.add_argument("--model", help="model identifier to ask for")
    parser.add_argument("--workload", default="chat", help="a name of workloads.json (default: %(default)s)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, help="per round (default: twice the concurrency, at least 4)")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="what started servers print")
    options = parser.parse_args()
    try:
        targets = {}
        for each in options.target:
            name, _, where = each.partition("=")
            targets[name] = server(where, options.token, options.model)
    except ValueError as error:
        parser.error(str(error))
    if len(targets) > 2:
        parser.error("one target, or two to compare")
    try:
        report = uvloop.run(measure(options, targets))
    except (OSError, RuntimeError) as error:
        print(f"throughput: {error}", file=sys.stderr)
        return 1
    show(report)
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    errors = {
        error
        for entry in report["concurrency"].values()
        for figures in entry["targets"].values()
        for error in figures["errors"]
    }
    for complaint in sorted(errors):
        print(f"error: {complaint}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
