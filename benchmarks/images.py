"""What an image does to the answers that are running, and how quickly one that is given up is settled.

    python benchmarks/images.py --target ours=nap:http://127.0.0.1:8033 --token "$TOKEN"

Each round asks about a fresh image (noise, so that no cache has it) on an idle server, then lets a few answers run,
undisturbed for a while, and asks about another one. Compared are the p95 inter-token latency of the running answers
from the image's departure to the first token about it with that before, and the TTFT with that on the idle server.
After the rounds, images are cancelled at moments spread over that TTFT: the time until the stream has its terminal
result, as the caller sees it, and by the server's own clock (`Server-Timing: settle;dur=…`).

The server must serve a model with a projector. For SmolLM2-135M, one whose images take two seconds to encode on a small
CPU, and few tokens, which go whole or not at all, and one whose many tokens take longer to read than the image to
encode:

    python -m tests.fixtures.projectors gemma3 576 mmproj.gguf --side 8 --pool 4 --hidden 384 --layers 32
    python -m tests.fixtures.projectors mlp 576 mmproj.gguf --side 24 --hidden 384 --layers 8
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import struct
import sys
import time
import zlib
from collections.abc import Mapping
from typing import Any

import mixed
import numpy as np
import uvloop
from drive import RUN, Nap, Server, Workload, ask, ask_body, machine, percentile, save, start_body, timed_post
from throughput import add_targets, parse_targets, started, turns

SIDE = 336
"""Pixels: what the first LLaVA projectors take as it is."""


def png(number: int) -> bytes:
    """Noise of this number, in this run."""
    pixels = np.random.default_rng([int(RUN), number]).integers(0, 256, (SIDE, 1 + 3 * SIDE), np.uint8)
    pixels[:, 0] = 0  # each line's filter: none
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(pixels.tobytes(), 1)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def body(asked: Server, number: int) -> dict[str, Any]:
    """A question about a fresh image."""
    request = Workload("chat").request(0, 0)
    request.system, request.user, request.max_tokens = None, "What is in this picture?", 4
    made = asked.body(request)
    data = base64.b64encode(png(number)).decode()
    if isinstance(asked, Nap):
        made["request"]["messages"][-1]["content"].append({"type": "image", "mimeType": "image/png", "data": data})
    else:
        url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        made["messages"][-1]["content"] = [{"type": "text", "text": request.user}, url]
    return made


async def give_up(asked: Nap, number: int, after: float) -> dict[str, Any]:
    """Ask about an image and cancel that after so many seconds."""
    asking = body(asked, number)
    stream = await start_body(asked, asking)
    await asyncio.sleep(after)
    began = time.perf_counter()
    answer, timings = await timed_post(asked, {"type": "llm.cancel", "id": asked.id(), "requestId": asking["id"]})
    await stream.done.wait()
    if not answer["cancelled"]:  # it had ended by itself
        return {}
    return {"settled": (stream.outcome.ended - began) * 1000, "server_settled": timings.get("settle")}


async def cancels(asked: Nap, ttft: float, trials: int) -> dict[str, Any]:
    found = [await give_up(asked, 100_000 + trial, ttft * trial / trials) for trial in range(trials)]
    after = await ask(asked, Workload("chat").request(0, 0))
    summary: dict[str, Any] = {"trials": trials, "cancelled": sum(map(bool, found)), "error_after": after.error}
    for key in ("settled", "server_settled"):
        values = [each[key] for each in found if each.get(key) is not None]
        summary[f"{key}_ms"] = {f"p{p}": round(percentile(values, p), 1) for p in (50, 95)} | {
            "max": round(max(values), 1) if values else None
        }
    return summary


async def measure(options: argparse.Namespace, targets: Mapping[str, Server]) -> dict[str, Any]:
    commands = dict(each.split("=", 1) for each in options.start)
    rounds: dict[str, list[mixed.Round]] = {name: [] for name in targets}
    given_up: dict[str, Any] = {}
    for number, name in turns(targets, options.rounds):
        asked = targets[name]
        async with started(asked, commands.get(name), options.log):
            warm = await ask_body(asked, body(asked, 0))
            if warm.error:
                raise RuntimeError(warm.error)
            rounds[name].append(await mixed.run_round(asked, number, options.streams, options.idle, body))
            if number == options.rounds and options.cancels and isinstance(asked, Nap):
                given_up[name] = await cancels(asked, rounds[name][-1].alone.ttft, options.cancels)
        done = rounds[name][-1]
        print(f"round {number} {name}: gap × {done.gap_ratio:.2f}, TTFT × {done.ttft_ratio:.2f}", file=sys.stderr)
    return {
        "workload": "images",
        "rounds": options.rounds,
        "machine": machine(),
        "streams": options.streams,
        "targets": {name: mixed.figures(done) for name, done in rounds.items()},
        "cancels": given_up,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_targets(parser)
    parser.add_argument("--streams", type=int, default=4, help="answers that run (default: %(default)s)")
    parser.add_argument("--idle", type=float, default=5.0, help="seconds undisturbed (default: %(default)s)")
    parser.add_argument("--cancels", type=int, default=20, help="images given up (default: %(default)s)")
    options = parser.parse_args()
    targets = parse_targets(parser, options)
    try:
        found = uvloop.run(measure(options, targets))
    except (OSError, RuntimeError) as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    mixed.show(found, "an image")
    print(json.dumps(found["cancels"], indent=1))
    save(found, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
