"""The commands of docs/benchmarks.md, as they stand but on few requests, against a tiny model that sees images.

What they find here says nothing; that they find it, and write it down, does.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from server.app import create_app
from server.config import Config, Limits, ModelConfig, ModelSource, ServerConfig
from server.state import TokenStore, owner_token
from tests.conftest import ROOT
from tests.fixtures.projectors import Seer
from tests.http.conftest import listening
from tests.readme import ADDRESS, Block, blocks, runs

pytestmark = pytest.mark.slow

# The last is run by tests/test_benchmarks.py.
COMMANDS = blocks("docs/benchmarks.md")["Measuring", 1].text.splitlines()
HEAD, *PROGRAMS, ON_GPUS = (line.partition(" #")[0].strip() for line in COMMANDS)
SHORT = {
    "throughput.py": "--model tiny --rounds 1 --concurrency 1 --requests 2",
    "mixed.py": "--rounds 1 --streams 1 --idle 0.2",
    "images.py": "--rounds 1 --streams 1 --idle 0.2 --cancels 2",
    "cancel.py": "--trials 2",
    "overhead.py": "--concurrency 1 --steps 3",
    "forced.py": "--calls 2 --url URL",
    "formats.py": "--calls 1 --prompts 1",
    "replay.py": "--tokens 1200 --passes 1 --templates generic",
}
"""What a command is given in addition; the last of two words about the same thing counts."""


def found(program: str, figures: dict[str, Any], arguments: list[str]) -> bool:
    """Whether the figures are those of a measurement that took place."""
    match program:
        case "throughput.py":
            entries = figures["rate" if "--rate" in arguments else "concurrency"].values()
            targets = [target for entry in entries for target in entry["targets"].values()]
            return len(targets) == arguments.count("--target") * len(entries) and all(
                each["tokens_per_second"]["median"] > 0 and not each["errors"] for each in targets
            )
        case "mixed.py" | "images.py":
            return figures["targets"]["ours"]["mixed_ttft_ms"]["median"] > 0
        case "cancel.py":
            return figures["leaks"]["none"] and all(figures[way]["settled_ms"] for way in ("cancel", "disconnect"))
        case "overhead.py":
            return figures["answers"]["chat"]["1"]["steps"] == 3
        case "forced.py":
            return figures["valid"] == figures["calls"] == 2
        case "formats.py":
            return len(figures) == 4 and all(each["forced"] == {"valid": 1} for each in figures.values())
    return False


@pytest.mark.parametrize("command", PROGRAMS, ids=lambda command: command.split()[1])
@runs("Measuring", 1, file="docs/benchmarks.md")
async def test_a_command_measures(
    examples: tuple[Block, ...], command: str, tmp_path: Path, seers: dict[str, Seer]
) -> None:
    (example,) = examples
    assert command in example.text and ON_GPUS.startswith("./gpu.sh ")
    seer = seers["gemma3"]
    connection = ModelConfig(
        "tiny",
        "Tiny",
        "tiny",
        ModelSource(path=seer.model),
        ModelSource(path=seer.projector),
        context_length=16384,
        slots=2,
    )
    tokens = TokenStore(tmp_path / "state")
    config = Config(ServerConfig(limits=Limits(requests_per_minute=0)), (connection,))
    async with listening(create_app(config, tokens=tokens)) as port:
        url = f"http://127.0.0.1:{port}"
        program = command.split()[1]
        short = SHORT[program].replace("URL", url)
        here = command.replace(ADDRESS, url).replace("nap:…", f"nap:{url}").replace("openai:…", f"openai:{url}")
        here = f"{here.replace('model.gguf', str(seer.model))} {short}"
        if program != "replay.py":  # which prints what it finds
            here += f" --out {tmp_path / 'found.json'}"
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            f"{HEAD.replace('…', tokens.create('bench', consent='always'))}\n{here}",
            cwd=ROOT,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "OWNER": owner_token(tokens.directory),
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
    said = out.decode()
    if program == "replay.py":
        assert json.loads(said.splitlines()[-1])["call_tokens"] > 0, said
    else:
        assert process.returncode == 0, said
        assert found(program, json.loads((tmp_path / "found.json").read_text()), shlex.split(here)), said
