"""Whether a server's memory stays flat: many mixed generations, and what its processes hold meanwhile.

    python benchmarks/soak.py --target nap:http://127.0.0.1:8033 --token "$TOKEN" --pid "$(pgrep -of 'nap-llm serve')"

Chats, JSON answers and forced calls of a few tokens, one in eight given up on its way; resident memory of the server's
processes (MiB; what they share is counted once for each) at every eighth of the run: of all together, of the web
process, and of those that it started.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
from collections import Counter

import psutil
import uvloop
from drive import Server, Stream, Workload, server, start_body

KINDS = ("chat", "json", "forced", "shared")


def resident(pid: int) -> list[float]:
    """MiB of a process and all that it started: together, and each."""
    tree = psutil.Process(pid)
    each = [process.memory_info().rss / 2**20 for process in [tree, *tree.children(recursive=True)]]
    return [round(size, 1) for size in (sum(each), *each)]


async def generate(asked: Server, workloads: list[Workload], number: int, chance: random.Random) -> str:
    request = chance.choice(workloads).request(number % 16, number, temperature=0.8)
    request.max_tokens = chance.randint(1, 24)
    stream: Stream = await start_body(asked, asked.body(request))
    if number % 8 == 0:
        await stream.first.wait()
        stream.close()
        return "given up"
    await stream.done.wait()
    return stream.outcome.error or stream.outcome.finish


async def run(options: argparse.Namespace) -> dict[str, object]:
    asked = server(options.target, options.token, options.model)
    await asked.prepare()
    chance = random.Random(7)
    workloads = [Workload(kind) for kind in KINDS]
    numbers = iter(range(options.generations))
    ends: Counter[str] = Counter()
    held: dict[int, list[float]] = {}
    every = max(1, options.generations // 8)

    async def caller() -> None:
        for number in numbers:
            ends[await generate(asked, workloads, number, chance)] += 1
            if number % every == every - 1:
                held[number + 1] = resident(options.pid)

    await asyncio.gather(*(caller() for _ in range(options.concurrency)))
    return {"generations": options.generations, "ends": dict(ends), "resident_mib": held}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, metavar="KIND:URL", help="nap:URL or openai:URL")
    parser.add_argument("--token", default=os.environ.get("NAP_LLM_TOKEN", ""), help="default: $NAP_LLM_TOKEN")
    parser.add_argument("--model", help="model identifier to ask for")
    parser.add_argument("--pid", type=int, required=True, help="the server's process")
    parser.add_argument("--generations", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=8)
    options = parser.parse_args()
    try:
        report = uvloop.run(run(options))
    except (OSError, RuntimeError, ValueError, psutil.Error) as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
