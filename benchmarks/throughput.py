"""Throughput and latency of a running server, alone or beside a peer.

    python benchmarks/throughput.py --target ours=nap:http://127.0.0.1:8033 --token "$TOKEN"
    python benchmarks/throughput.py --target ours=nap:… --target theirs=openai:… --concurrency 1 4 8 --rounds 5
    python benchmarks/throughput.py --target ours=nap:… --rate 0.5 1 2 --ttft-target 500 --gap-target 100

Closed loop: so many callers, each asking again as soon as it is answered. Open loop (`--rate`): requests arrive as a
Poisson process whether or not the former are answered. With two targets the ratios first/second are taken round by
round, and every other round begins with the second: a machine that warms up or slows down does so for both. `--start
NAME=COMMAND` starts a target's server for its part of each round and ends it afterwards. So one server exists at a time
(of two equal ones kept in memory in turn, the one started first was 5 to 15 % slower), and each round meets another
placement in memory. Tokens are counted from `usage`.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import shlex
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import report
import uvloop
from drive import Outcome, Server, Workload, ask, machine, percentile, save, server, spread
from rich.console import Console
from rich.table import Table

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Load:
    """How requests come: `concurrency` callers in a closed loop, or Poisson arrivals at `rate` a second."""

    concurrency: int = 0
    rate: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.rate:g}" if self.rate else str(self.concurrency)

    def requests(self, workload: Workload) -> int:
        """Of one round, where nothing else is asked for. A fresh prefix that a round shares is fresh only once, so
        there its requests arrive together."""
        if self.rate:
            return 32
        return self.concurrency if workload.fresh == "round" else max(4, 2 * self.concurrency)

    def warming(self) -> int:
        return self.concurrency or 1


@dataclass(frozen=True, slots=True)
class Round:
    outcomes: list[Outcome]
    seconds: float

    @property
    def good(self) -> list[Outcome]:
        return [each for each in self.outcomes if each.good]

    @property
    def tokens_per_second(self) -> float:
        return sum(each.output_tokens for each in self.outcomes) / self.seconds


@dataclass(frozen=True, slots=True)
class Target:
    """The latency a request must keep to count as good, in milliseconds; infinite where none is asked for.

    `ttft`: until its first output. `gap`: the 95th percentile of its own inter-token latencies.
    """

    ttft: float
    gap: float

    def met(self, outcome: Outcome) -> bool:
        gap = percentile(outcome.gaps, 95) if outcome.gaps else 0.0
        return outcome.good and outcome.ttft * 1000 <= self.ttft and gap * 1000 <= self.gap


async def run_round(asked: Server, workload: Workload, number: int, load: Load, requests: int) -> Round:
    began = time.perf_counter()
    ways = open_loop if load.rate else closed_loop
    outcomes = await ways(asked, workload, number, load, requests)
    return Round(outcomes, time.perf_counter() - began)


async def closed_loop(asked: Server, workload: Workload, number: int, load: Load, requests: int) -> list[Outcome]:
    pending = iter(range(requests))
    outcomes: list[Outcome] = []

    async def caller() -> None:
        for index in pending:
            outcomes.append(await ask(asked, workload.request(number, index)))

    await asyncio.gather(*(caller() for _ in range(load.concurrency)))
    return outcomes


async def open_loop(asked: Server, workload: Workload, number: int, load: Load, requests: int) -> list[Outcome]:
    began = time.perf_counter()

    async def caller(index: int, due: float) -> Outcome:
        await asyncio.sleep(began + due - time.perf_counter())
        return await ask(asked, workload.request(number, index))

    return await asyncio.gather(
        *(caller(index, due) for index, due in enumerate(arrivals(number, load.rate, requests)))
    )


def arrivals(number: int, rate: float, requests: int) -> list[float]:
    """Seconds from a round's beginning to each request of a Poisson process: the same for every target."""
    draw = random.Random(f"round {number}")
    due, found = 0.0, []
    for _ in range(requests):
        due += draw.expovariate(rate)
        found.append(due)
    return found


def turns(names: Iterable[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Rounds from 1 on, each with every target; the other one begins every other round."""
    order = list(names)
    for number in range(1, rounds + 1):
        for name in order if number % 2 else reversed(order):
            yield number, name


@asynccontextmanager
async def started(asked: Server, command: str | None, log: Path) -> AsyncIterator[None]:
    """The target's server, started for as long as this is open where there is a command; ready and selected."""
    if command is None:
        await asked.prepare()
        yield
        return
    with suppress(OSError):
        _, writer = await asyncio.open_connection(*asked.address)
        writer.close()
        raise RuntimeError(f"another server answers at {asked.url} already: it would be measured instead")
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command), stdout=output, stderr=output, start_new_session=True
        )
    # Ended from outside, this must not leave a server behind.
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await _ready(asked, process, log)
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
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


def milliseconds(values: list[float]) -> dict[str, float]:
    """Percentiles of seconds, in milliseconds; nothing where there is no value."""
    return {f"p{percent}": round(percentile(values, percent) * 1000, 2) for percent in PERCENTILES} if values else {}


def _values(outcomes: list[Outcome], workload: Workload) -> dict[str, Any]:
    """Figures over all requests of a target. Times in milliseconds."""
    good = [each for each in outcomes if each.good]
    per_token = [
        (each.events[-1] - each.events[0]) / (each.output_tokens - 1) for each in good if each.output_tokens > 1
    ]
    per_byte = [each.seconds / each.output_bytes for each in good if each.output_bytes]
    return {
        "requests": len(outcomes),
        "errors": sorted({each.error for each in outcomes if each.error}),
        "prompt_tokens": spread([each.prompt_tokens for each in good]),
        "cached_tokens": spread([each.cached_tokens for each in good]),
        "output_tokens": spread([each.output_tokens for each in good]),
        "output_bytes": spread([each.output_bytes for each in good]),
        # Ratios of unequal work mean little: how many requests ended before their limit.
        "short": sum(each.output_tokens < workload.max_tokens for each in good),
        "ttft_ms": milliseconds([each.ttft for each in good]),
        "inter_token_ms": milliseconds([gap for each in good for gap in each.gaps]),
        "per_token_ms": milliseconds(per_token),
        "per_byte_ms": milliseconds(per_byte),
        "request_ms": milliseconds([each.seconds for each in good]),
    }


def _goodput(rounds: list[Round], target: Target) -> dict[str, float]:
    """Of all requests the share that kept the target, and what these alone brought a second."""
    outcomes = [each for done in rounds for each in done.outcomes]
    met = [each for each in outcomes if target.met(each)]
    seconds = sum(each.seconds for each in rounds)
    return {
        "share": round(len(met) / len(outcomes), 4),
        "requests_per_second": round(len(met) / seconds, 3),
        "tokens_per_second": round(sum(each.output_tokens for each in met) / seconds, 2),
    }


RATIOS: dict[str, Callable[[Round], float]] = {
    "tokens_per_second": lambda done: done.tokens_per_second,
    "ttft": lambda done: _median(each.ttft for each in done.good),
    "request": lambda done: _median(each.seconds for each in done.good),
    "per_byte": lambda done: _median(each.seconds / each.output_bytes for each in done.good if each.output_bytes),
}
"""What is compared between two targets: for each round one figure, the median of its requests' times."""


def _median(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.median(found) if found else math.nan


def _ratios(first: list[Round], second: list[Round]) -> dict[str, dict[str, float]]:
    found = {}
    for name, figure in RATIOS.items():
        ratios = [figure(a) / figure(b) if figure(b) else math.nan for a, b in zip(first, second, strict=True)]
        found[name] = spread([each for each in ratios if not math.isnan(each)])
    return found


async def measure(options: argparse.Namespace, targets: Mapping[str, Server]) -> dict[str, Any]:
    workload = Workload(options.workload)
    commands = dict(each.split("=", 1) for each in options.start)
    loads = [Load(rate=each) for each in options.rate] or [Load(each) for each in options.concurrency]
    kind = "rate" if options.rate else "concurrency"
    rounds: dict[Load, dict[str, list[Round]]] = {each: {name: [] for name in targets} for each in loads}
    for number, name in turns(targets, options.rounds):
        asked = targets[name]
        async with started(asked, commands.get(name), options.log):
            for place, (load, done) in enumerate(rounds.items()):
                # Each load of a round meets prompts of its own where they are to be fresh.
                fresh = number * len(loads) + place
                # One pass beside the measurement: caches and clocks are warm, on both sides alike.
                await closed_loop(asked, workload, place, Load(load.warming()), load.warming())
                requests = options.requests or load.requests(workload)
                done[name].append(await run_round(asked, workload, fresh, load, requests))
                print(
                    f"{kind} {load.name} round {number} {name}: {done[name][-1].tokens_per_second:.1f} tokens/s",
                    file=sys.stderr,
                )
    target = Target(options.ttft_target or math.inf, options.gap_target or math.inf)
    return {
        "workload": options.workload,
        "rounds": options.rounds,
        "machine": machine(),
        "ttft_target_ms": options.ttft_target,
        "gap_target_ms": options.gap_target,
        kind: {load.name: _entry(done, workload, target) for load, done in rounds.items()},
    }


def _entry(rounds: Mapping[str, list[Round]], workload: Workload, target: Target) -> dict[str, Any]:
    entry: dict[str, Any] = {"targets": {}}
    for name, done in rounds.items():
        speeds = [each.tokens_per_second for each in done]
        outcomes = [outcome for each in done for outcome in each.outcomes]
        entry["targets"][name] = {
            "tokens_per_second": spread(speeds),
            "tokens_per_second_rounds": [round(each, 2) for each in speeds],
            **_values(outcomes, workload),
            "goodput": _goodput(done, target),
        }
    if len(rounds) == 2:
        entry["ratios"] = _ratios(*rounds.values())
    return entry


def show(found: Mapping[str, Any]) -> None:
    kind, entries = report.loads(found)
    table = Table(title=f"{found['workload']}, {found['rounds']} rounds: median (min to max), percentiles in ms")
    percentiles = ("TTFT p50/95/99", "inter-token p50/95/99", "request p50/95/99")
    for heading in (kind, "target", "tokens/s", *percentiles, "µs/byte", "cached", "output", "short", "good"):
        table.add_column(heading, justify="right")
    for load, entry in entries.items():
        for name, figures in entry["targets"].items():
            table.add_row(
                load,
                name,
                report.ranged(figures["tokens_per_second"], 1),
                " / ".join(f"{value:.0f}" for value in figures["ttft_ms"].values()),
                " / ".join(f"{value:.1f}" for value in figures["inter_token_ms"].values()),
                " / ".join(f"{value:.0f}" for value in figures["request_ms"].values()),
                f"{figures['per_byte_ms'].get('p50', 0) * 1000:.0f}",
                f"{figures['cached_tokens'].get('median', 0):.0f}",
                f"{figures['output_tokens'].get('median', 0):.0f}",
                f"{figures['short']} of {figures['requests']}",
                f"{figures['goodput']['share']:.0%}",
            )
    console = Console()
    # Piped, there is no terminal whose width would matter.
    console.width = console.width if console.is_terminal else 180
    console.print(table)
    for load, entry in entries.items():
        if ratios := entry.get("ratios"):
            words = [f"{name} {report.ranged(ratios[key], 3)}" for key, name in report.RATIO_NAMES.items()]
            console.print(f"{kind} {load}, {'/'.join(entry['targets'])}: {', '.join(words)}", highlight=False)


def add_targets(parser: argparse.ArgumentParser) -> None:
    """The options that every paired measurement has."""
    parser.add_argument("--target", action="append", required=True, metavar="NAME=KIND:URL", help="nap or openai")
    parser.add_argument("--start", action="append", default=[], metavar="NAME=COMMAND", help="starts a target's server")
    parser.add_argument("--token", default=os.environ.get("NAP_LLM_TOKEN", ""), help="default: $NAP_LLM_TOKEN")
    parser.add_argument("--model", help="model identifier to ask for")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="what started servers print")


def parse_targets(parser: argparse.ArgumentParser, options: argparse.Namespace) -> dict[str, Server]:
    try:
        targets = {}
        for each in options.target:
            name, _, where = each.partition("=")
            targets[name] = server(where, options.token, options.model)
    except ValueError as error:
        parser.error(str(error))
    if len(targets) > 2:
        parser.error("one target, or two to compare")
    return targets


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_targets(parser)
    parser.add_argument("--workload", default="chat", help="a name of workloads.json (default: %(default)s)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 8], help="callers of the closed loop")
    parser.add_argument("--rate", type=float, nargs="+", default=[], help="open loop instead: requests a second")
    parser.add_argument(
        "--requests",
        type=int,
        help="per round (default: twice the concurrency, at least 4; the concurrency where a round shares a fresh"
        " prefix; 32 in the open loop)",
    )
    parser.add_argument("--ttft-target", type=float, metavar="MS", help="goodput: until the first output")
    parser.add_argument(
        "--gap-target", type=float, metavar="MS", help="goodput: p95 of a request's inter-token latencies"
    )
    parser.add_argument("--plot", type=Path, help="draw the figures (PNG or SVG; needs matplotlib)")
    parser.add_argument("--readme", type=Path, help="write the table between this file's throughput markers")
    options = parser.parse_args()
    if any(each <= 0 for each in (*options.rate, *options.concurrency)):
        parser.error("rates and concurrencies are above 0")
    targets = parse_targets(parser, options)
    try:
        found = uvloop.run(measure(options, targets))
    except (OSError, RuntimeError, ValueError) as error:
        print(f"throughput: {error}", file=sys.stderr)
        return 1
    show(found)
    save(found, options.out)
    if options.plot:
        report.plot(found, options.plot)
    if options.readme:
        report.insert(options.readme, "throughput", report.table([found]))
    errors = {
        error
        for entry in report.loads(found)[1].values()
        for figures in entry["targets"].values()
        for error in figures["errors"]
    }
    for complaint in sorted(errors):
        print(f"error: {complaint}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
