"""Whether forced tool calls obey their schema.

    python benchmarks/forced.py --url http://127.0.0.1:8033 --token "$TOKEN" --calls 50

Forces the tool of workloads.json by name. Counts the results with `toolUse` whose arguments `jsonschema` accepts, with
formats asserted, and whose streamed fragments parse to the same object; and the others by what became of them. With
`--owner-token` also which share of the output tokens the grammar left no choice about.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from drive import HERE, owner_state, percentile, save, server
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from server.client import Client
from server.wire.records import (
    Delta,
    Generation,
    GenerationRequest,
    Message,
    NamedTool,
    Requirements,
    TextPart,
    Tool,
    ToolCallPart,
    WireError,
)


async def call(client: Client, request: GenerationRequest, validator: Draft202012Validator) -> str:
    """What became of one forced call; `valid` is the one good answer."""
    fragments: dict[int, str] = {}
    generation: Generation | None = None
    try:
        async for each in client.generate(request):
            if isinstance(each, Generation):
                generation = each
            elif isinstance(each, Delta) and each.block == "toolCall" and each.text:
                fragments[each.block_index] = fragments.get(each.block_index, "") + each.text
    except WireError as error:
        return f"{error.code}: {error.message}"
    assert generation is not None
    if generation.finish != "toolUse":
        return f"finish {generation.finish}"
    for index, part in enumerate(generation.content):
        if isinstance(part, ToolCallPart):
            try:
                validator.validate(part.arguments)
            except ValidationError as error:
                return f"invalid: {error.validator} at {error.json_path}"
            if json.loads(fragments[index]) != part.arguments:
                return "fragments differ from the result"
    return "valid"


async def counted(options: argparse.Namespace) -> Counter[str]:
    """What the server has counted of its models' output, where the owner's token lets us see."""
    if not options.owner_token:
        return Counter()
    state = await owner_state(server(f"nap:{options.url}", options.token, None), options.owner_token)
    found: Counter[str] = Counter()
    for connection in state["connections"]:
        for key in ("outputTokens", "forcedTokens"):
            found[key] += connection.get(key, 0)
    return found


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    document = json.loads((HERE / "workloads.json").read_text(encoding="utf-8"))
    facts, prompts = document["tool"], document["workloads"]["forced"]["prompts"]
    tool = Tool(facts["name"], facts["description"], facts["parameters"])
    validator = Draft202012Validator(facts["parameters"], format_checker=Draft202012Validator.FORMAT_CHECKER)
    outcomes: Counter[str] = Counter()
    seconds: list[float] = []
    before = await counted(options)
    async with Client(options.url, options.token, consent=True) as client:
        model = await client.select(Requirements(tools=True))
        numbers = iter(range(options.calls))

        async def caller() -> None:
            for number in numbers:
                request = GenerationRequest(
                    handle=model.handle,
                    messages=(Message("user", (TextPart(prompts[number % len(prompts)]),)),),
                    temperature=options.temperature,
                    tools=(tool,),
                    tool_choice=NamedTool(tool.name),
                )
                began = time.perf_counter()
                outcomes[await call(client, request, validator)] += 1
                seconds.append(time.perf_counter() - began)

        await asyncio.gather(*(caller() for _ in range(options.concurrency)))
    more = await counted(options)
    more.subtract(before)
    return {
        "calls": options.calls,
        "temperature": options.temperature,
        "concurrency": options.concurrency,
        "valid": outcomes["valid"],
        "forced_share": round(more["forcedTokens"] / more["outputTokens"], 3) if more["outputTokens"] else None,
        "outcomes": dict(outcomes.most_common()),
        "seconds": {f"p{p}": round(percentile(seconds, p), 2) for p in (50, 95, 99)},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8033")
    parser.add_argument("--token", default=os.environ.get("NAP_LLM_TOKEN", ""), help="default: $NAP_LLM_TOKEN")
    parser.add_argument("--owner-token", default=os.environ.get("NAP_LLM_OWNER_TOKEN", ""))
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    report = asyncio.run(measure(options))
    print(json.dumps(report, indent=1))
    save(report, options.out)
    return 0 if report["valid"] == report["calls"] else 1


if __name__ == "__main__":
    sys.exit(main())
