"""Whether forced calls obey their schema in every kind of tool-call format, and whether `auto` leaves text alone.

    python benchmarks/formats.py [--calls 100] [--prompts 20] [--out FILE]

Starts a server of its own with the connections of formats.toml: SmolLM2 with the calls of Hermes, of Llama 3 and of
LFM2, and in the generic format. Forces the tool of workloads.json over HTTP and counts as `forced.py` does. Then asks
what needs no tool with the tool offered (`auto`) and counts the answers that are text.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drive import HERE, save
from forced import call
from jsonschema import Draft202012Validator

from server.client import Client
from server.config import load_config
from server.state import TokenStore
from server.wire.records import (
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

MODELS = HERE / "formats.toml"
PLAIN = (
    "What is the capital of France?",
    "Name three colors.",
    "Write a sentence about the sea.",
    "How many legs has a spider?",
    "Explain what a cloud is.",
    "What is the opposite of hot?",
    "Tell me a short joke.",
    "What do bees make?",
    "Who wrote Hamlet?",
    "What is seven times eight?",
)
"""What needs no tool."""


@contextlib.contextmanager
def serving(state: Path) -> Iterator[str]:
    """A server of its own process on a free port; its URL."""
    command = "from server.cli.main import main; raise SystemExit(main())"
    arguments = ["serve", "--models", str(MODELS), "--state", str(state), "--port", "0"]
    with subprocess.Popen(
        [sys.executable, "-c", command, *arguments], stdout=subprocess.PIPE, text=True, cwd=HERE.parent
    ) as process:
        assert process.stdout is not None
        try:
            announced = next((line for line in process.stdout if " at http" in line), None)
            if announced is None:
                raise SystemExit("the server did not start; its own words stand above")
            yield announced.rsplit(" at ", 1)[1].strip().removesuffix("/nap/llm")
        finally:
            process.terminate()


def request(handle: str, prompt: str, tool: Tool, *, forced: bool, tokens: int) -> GenerationRequest:
    return GenerationRequest(
        handle=handle,
        messages=(Message("user", (TextPart(prompt),)),),
        temperature=0.8,
        max_tokens=tokens,
        tools=(tool,),
        tool_choice=NamedTool(tool.name) if forced else "auto",
    )


async def answered(client: Client, asked: GenerationRequest) -> str:
    """What became of a request that needs no tool; `text` is the expected answer."""
    try:
        async for each in client.generate(asked):
            if isinstance(each, Generation):
                called = any(isinstance(part, ToolCallPart) for part in each.content)
                return "call" if called else "text" if each.finish in ("stop", "length") else f"finish {each.finish}"
    except WireError as error:
        return f"{error.code}: {error.message}"
    return "no result"


async def measure(url: str, token: str, options: argparse.Namespace) -> dict[str, Any]:
    document = json.loads((HERE / "workloads.json").read_text(encoding="utf-8"))
    facts, prompts = document["tool"], document["workloads"]["forced"]["prompts"]
    tool = Tool(facts["name"], facts["description"], facts["parameters"])
    validator = Draft202012Validator(facts["parameters"], format_checker=Draft202012Validator.FORMAT_CHECKER)
    report = {}
    async with Client(url, token, consent=True) as client:
        for connection in load_config(MODELS).connections:
            model = await client.select(Requirements(model=connection.model, tools=True))
            forced: Counter[str] = Counter()
            for number in range(options.calls):
                prompt = prompts[number % len(prompts)]
                asked = request(model.handle, prompt, tool, forced=True, tokens=1000)
                forced[await call(client, asked, validator)] += 1
            auto: Counter[str] = Counter()
            for number in range(options.prompts):
                asked = request(model.handle, PLAIN[number % len(PLAIN)], tool, forced=False, tokens=80)
                auto[await answered(client, asked)] += 1
            report[connection.key] = {"calls": options.calls, "forced": dict(forced), "auto": dict(auto)}
            print(connection.key, json.dumps(report[connection.key]), flush=True)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100, help="forced calls a format")
    parser.add_argument("--prompts", type=int, default=20, help="requests a format that need no tool")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as state, serving(Path(state)) as url:
        token = TokenStore(Path(state)).create("formats", consent="always")
        report = asyncio.run(measure(url, token, options))
    save(report, options.out)
    return 0 if all(each["forced"].get("valid", 0) == each["calls"] for each in report.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
