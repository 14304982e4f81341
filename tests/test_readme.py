"""Every fenced block of the READMEs and docs is run by a test; here those about what `./scripts/serve` has started."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.app import create_app
from server.cli.arguments import every_parser
from server.cli.main import build_parser
from server.client import Client, Conversation
from server.config import load_config
from server.engine import Engine
from server.state import TokenStore
from server.wire.records import Model, Requirements
from tests.cli.test_completion import commands, completed
from tests.cli.test_serve import read_until
from tests.conftest import ROOT
from tests.fixtures import checkout
from tests.fixtures.projectors import Seer
from tests.http.conftest import listening
from tests.readme import ADDRESS, Block, Shell, blocks, printed, runs

pytestmark = pytest.mark.slow

# --- every block has its test


def readmes() -> list[str]:
    places = (ROOT / each for each in ("benchmarks", "docs", "grammars", "scripts", "server", "tests"))
    found = [*ROOT.glob("*.md"), *(file for place in places for file in place.rglob("*.md"))]
    return sorted(file.relative_to(ROOT).as_posix() for file in found)


def claims() -> dict[tuple[str, str, int], str]:
    """Which block is run by which test, by the tests' decorators."""
    found = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        source = path.read_text(encoding="utf-8")
        if "import" not in source or "tests.readme" not in source:
            continue
        for function in ast.walk(ast.parse(source)):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or not function.name.startswith(
                "test_"
            ):
                continue
            for each in function.decorator_list:
                if isinstance(each, ast.Call) and ast.unparse(each.func) == "runs":
                    heading, *numbers = (ast.literal_eval(argument) for argument in each.args)
                    file = {word.arg: ast.literal_eval(word.value) for word in each.keywords}.get("file", "README.md")
                    test = f"{path.relative_to(ROOT).as_posix()}::{function.name}"
                    assert function.name.startswith("test"), test
                    found |= {(file, heading, number): test for number in numbers}
    return found


def test_every_block_is_run_by_a_test() -> None:
    there = {(file, *place) for file in readmes() for place in blocks(file)}
    assert len(there) > 35 and there == set(claims())


def test_a_block_is_found_wherever_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text(
        "# One\n\n```sh\n# no heading\n```\n\n1. In a list:\n\n   ~~~~toml\n   a = 1\n   ~~~~\n\n### Two\n```\nb\n```\n"
    )
    assert blocks(str(file)) == {
        ("One", 1): Block("sh", "# no heading\n"),
        ("One", 2): Block("toml", "   a = 1\n"),
        ("Two", 1): Block("", "b\n"),
    }


# --- set up and served


@dataclass(frozen=True)
class Served:
    directory: Path
    environment: dict[str, str]
    url: str
    owner: str
    announced: str


MOST_TOKENS = 200
"""Of one answer, for otherwise a small model may go on for long."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[Served]:
    """The first block's first command, in a fresh copy of the repository, on a port that is free."""
    directory = tmp_path_factory.mktemp("readme")
    environment, repository = checkout.home(directory), checkout.copy(directory / "nap-llm")
    configuration = repository / "models.toml"
    text = configuration.read_text()
    assert text.count("\n# max_tokens = 0 ") == 1
    configuration.write_text(text.replace("\n# max_tokens = 0 ", f"\nmax_tokens = {MOST_TOKENS} "))
    serve = blocks()["nap-llm", 1].text.splitlines()[0].partition("#")[0]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {serve} --port 0"],
            cwd=repository,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        announced = process.stdout.readline() + process.stdout.readline()
        found = re.search(r"^Console: (http://127\.0\.0\.1:\d+)/#token=(\S+)$", announced, re.MULTILINE)
        assert found, (announced, (directory / "log").read_text())
        yield Served(repository, environment, found[1], found[2], announced)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (directory / "log").read_text()
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def shell(served: Served) -> Iterator[Shell]:
    """Stands in the repository, where `.venv/bin/nap-llm` is."""
    shell = Shell(served.directory, served.environment)
    yield shell
    shell.close()


def test_serve_sets_up_and_prints_the_console_s_link(served: Served) -> None:
    asked = (served.directory / ".venv" / "bin" / "pip.log").read_text()
    assert re.search(r"-m pip .*install .*--no-binary llama-cpp-python .*llama-cpp-python$", asked, re.MULTILINE)
    project = re.escape(f"{served.directory}[server]")
    assert re.search(rf"-m pip .*--constraint \S+ --editable {project}$", asked, re.MULTILINE)
    assert served.announced.startswith(f"Serving SmolLM2 135M Instruct at {served.url}/nap/llm\n")
    assert "<title>" in httpx.get(f"{served.url}/").text
    headers = {"Authorization": f"Bearer {served.owner}"}
    assert httpx.get(f"{served.url}/owner/state", headers=headers, timeout=60).status_code == 200


@runs("nap-llm", 1)
def test_the_two_commands_at_the_top(examples: tuple[Block, ...], served: Served, tmp_path: Path) -> None:
    """`serve` is what all tests here stand on; `test` finds what is wrong with a project of one module and one test."""
    (example,) = examples
    serve, test = (line.partition("#")[0].strip() for line in example.text.splitlines())
    assert serve == "./scripts/serve" and served.url
    environment = checkout.home(tmp_path)
    project = checkout.copy(tmp_path / "nap-llm", ("scripts", "pyproject.toml", "constraints.txt"))
    ours = (project / "pyproject.toml").read_text()
    good = {
        "pyproject.toml": re.sub(r"(?ms)^(dependencies|server) = \[\n.*?^\]", r"\1 = []", ours),
        "benchmarks/__init__.py": "",
        "server/__init__.py": "def double(number: int) -> int:\n    return 2 * number\n",
        "grammars/__init__.py": "",
        "tests/test_double.py": "from server import double\n\n\ndef test() -> None:\n    assert double(2) == 4\n",
    }
    bad = {
        "server/__init__.py": "import httpx\ndef double(number: int) -> str:\n    return 3*number\n",
    }
    for files, status, words in (
        (good, 0, "lint, format, types, imports and tests passed"),
        (bad, 1, "failed: lint format types imports tests"),
    ):
        for name, text in files.items():
            (project / name).parent.mkdir(exist_ok=True)
            (project / name).write_text(text)
        done = subprocess.run(
            ["bash", "-c", test], cwd=project, env=environment, capture_output=True, text=True, timeout=250
        )
        assert (done.returncode, done.stderr.splitlines()[-1]) == (status, words), done.stdout + done.stderr
    assert "1 failed" in done.stdout


@runs("Connect a client", 1, 2)
def test_a_client_is_connected(
    examples: tuple[Block, ...], served: Served, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, program = examples
    answer = json.loads(shell.run(command.at(served.url)))
    assert answer["choices"][0]["message"]["content"]
    monkeypatch.setenv("TOKEN", shell.run("echo $TOKEN").strip())
    assert {*json.loads(printed(program.at(served.url), {"__name__": "example"}))} >= {"city"}


# --- on the wire

VARIES = {"handle", "toolCallId", "text", "arguments", "inputTokens", "outputTokens", "cacheReadTokens"}
"""What another run, or another machine's numerics, says otherwise."""


def shape(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: shape(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value]
    return type(value) if key in VARIES else value


def messages(text: str) -> list[Any]:
    """The envelopes of a transcript, with `…` as it stands; without the comments that a stream that waits sends."""
    lines = (line.removeprefix("data: ") for line in text.splitlines() if line.strip() and not line.startswith(":"))
    return [line if line == "…" else json.loads(line) for line in lines]


def agree(said: str, expected: str) -> list[Any]:
    """What was said has the form that the page shows; for a `…` stands any number of deltas."""
    told, shown = messages(said), messages(expected)
    if "…" not in shown:
        assert shape(told) == shape(shown)
        return told
    at = shown.index("…")
    first, last = shown[:at], shown[at + 1 :]
    assert shape(told[:at]) == shape(first)
    numbered = [{**each, "sequence": 0} if "sequence" in each else each for each in (*told[-len(last) :], *last)]
    assert shape(numbered[: len(last)]) == shape(numbered[len(last) :])
    deltas = [each for each in told if each["type"] == "llm.delta"]
    assert [each["sequence"] for each in deltas] == [*range(len(deltas))]
    assert "".join(each.get("text", "") for each in deltas)
    return told


@runs("NAP-LLM", 1, 2, 3, 4, 5, file="docs/api.md")
def test_the_transcript_on_the_wire(examples: tuple[Block, ...], served: Served, shell: Shell) -> None:
    """Under the handle that this server gives."""
    preparing, selecting, generating, forcing, cancelling = (each.exchanges() for each in examples)
    for command, expected in preparing:
        assert shell.run(command.replace(ADDRESS, served.url)) == expected == ""

    (select, expected), (assign, nothing) = selecting
    shown = json.loads(expected)["model"]["handle"]
    (selected,) = agree(shell.run(select), expected)
    assert assign == f"H={shown}"
    assert shell.run(f"H={selected['model']['handle']}") == nothing == ""

    ((generate, expected),) = generating
    *_, result = agree(shell.run(generate), expected)
    assert result["result"]["content"][0]["text"]

    ((force, expected),) = forcing
    *deltas, result = agree(shell.run(force), expected)
    arguments = result["result"]["content"][0]["arguments"]
    assert set(arguments) == {"city", "unit"} and arguments["unit"] in ("celsius", "fahrenheit")
    assert json.loads("".join(each.get("text", "") for each in deltas)) == arguments

    (start, nothing), (cancel, expected) = cancelling
    assert start.endswith("&") and not nothing
    said = shell.run(start)
    if '"event":"delta"' not in said:
        said += "".join(shell.until('"event":"delta"'))
    said += shell.run(cancel)
    if "llm.generate.result" not in said:
        said += "".join(shell.until("llm.generate.result"))
    # Which of the two ends first is not said. The answer to the cancel is the only one without a line's end.
    *streamed, cancelled = expected.splitlines(keepends=True)
    assert said.count(cancelled.strip()) == 1
    agree(said.replace(cancelled.strip(), ""), "".join(streamed))


# --- the command line


def test_the_list_of_commands_is_the_parser_s() -> None:
    section = (ROOT / "docs/guide.md").read_text(encoding="utf-8").split("\n## Command line\n")[1].split("\n## ")[0]
    parsers = {each.prog: each for each in every_parser(build_parser())}
    assert set(re.findall(r"[a-z-]+", " ".join(re.findall(r"`([^`]+)`", section)))) >= {*commands(parsers["nap-llm"])}
    synopses = re.findall(r"`(nap-llm [a-z]+(?:[ -][a-z]+)*)([^`]*)`", section)
    assert len(synopses) >= 8
    for name, rest in synopses:
        options = {text: action for action in parsers[name]._actions for text in action.option_strings}
        for option, values in re.findall(r"\[?(--[\w-]+)(?: ([^\]]+))?\]?", rest):
            choices = options[option].choices
            assert values.split("|") == [*choices] if choices else "|" not in values, (name, option)


@runs("Command line", 1, file="docs/guide.md")
def test_chat(examples: tuple[Block, ...], served: Served, shell: Shell) -> None:
    """With the server's address; in a repository that holds a change, and beside a list of the tools shown above."""
    (example,) = examples
    *_, (_, expected) = example.exchanges()
    talk, ask, pipe, force = (
        command.replace("nap-llm chat", f"nap-llm chat --url {served.url}") for command, _ in example.exchanges()
    )
    shell.run("export PATH=$PWD/.venv/bin:$PATH")

    mine, theirs = pty.openpty()
    environment = {**served.environment, "TERM": "xterm", "COLUMNS": "200"}
    environment["PATH"] = f"{served.directory}/.venv/bin:{environment['PATH']}"
    terminal = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with subprocess.Popen(["bash", "-c", f"exec {talk}"], cwd=served.directory, env=environment, **terminal) as chat:
        os.close(theirs)
        try:
            read_until(mine, "Ctrl-C", "> ")
            os.write(mine, b"Tell a long story about the sea.\n")
            read_until(mine, "sea.", "\n", "a")
            chat.send_signal(signal.SIGINT)
            read_until(mine, "cancelled", "> ")
            os.write(mine, b"\x04")
            assert chat.wait(30) == 0
        finally:
            chat.kill()
            os.close(mine)

    answer = shell.run(ask)
    assert len(answer.split()) > 3 and "\x1b" not in answer
    shell.run("git init -q . && git add README.md && echo 'One more line.' >>README.md")
    assert "One more line." in shell.run("git diff")
    assert shell.run(pipe).strip()

    ((on_the_wire, _),) = blocks("docs/api.md")["NAP-LLM", 4].exchanges()
    tools = json.loads(shlex.split(on_the_wire)[-1])["request"]["tools"]
    (served.directory / "tools.json").write_text(json.dumps(tools))
    call, shown = json.loads(shell.run(force)), json.loads(expected)
    assert call["name"] == shown["name"] and {*call["arguments"]} == {*shown["arguments"]}


@runs("Command line", 2, file="docs/guide.md")
def test_completion(examples: tuple[Block, ...], served: Served, shell: Shell, tmp_path: Path) -> None:
    (example,) = examples
    shell.run("export PATH=$PWD/.venv/bin:$PATH")
    assert shell.run(example.text) == ""
    script = Path(served.environment["HOME"]) / ".local/share/bash-completion/completions/nap-llm"
    assert {"serve", "chat"} <= completed("bash", script, "nap-llm ", tmp_path)


# --- another model


@contextlib.asynccontextmanager
async def asked(directory: Path, models: str, name: str) -> AsyncIterator[tuple[Model, Engine]]:
    """A model of this configuration, once it has answered, and its engine."""
    (directory / "models.toml").write_text(models)
    config, tokens = load_config(directory / "models.toml"), TokenStore(directory / "state")
    app = create_app(config, tokens=tokens)
    async with listening(app) as port:
        token = tokens.create("shell", consent="always")
        async with Client(f"http://127.0.0.1:{port}", token) as client:
            model = await client.select(Requirements(model=name))
            conversation = Conversation(client, model, max_tokens=20)
            assert (await conversation.send("Hello")).text
        (connection,) = app.state.runtime.connections
        yield model, connection.loaded


@runs("Configuration", 1, file="docs/guide.md")
async def test_another_model_is_another_table(
    examples: tuple[Block, ...], tmp_path: Path, seers: dict[str, Seer]
) -> None:
    """Where the example has a file of one's own, there is a tiny one."""
    (example,) = examples
    (path,) = re.findall(r'source.path = "(.+)"', example.text)
    async with asked(tmp_path, example.text.replace(path, str(seers["mlp"].model)), "my-model-7b-q4") as (
        model,
        engine,
    ):
        assert (model.name, model.model) == ("My model", "my-model-7b-q4")
        assert engine.info.context_length == 8192


# --- conformance


@runs("Speculative decoding", 1, file="docs/guide.md")
async def test_a_draft_model_is_a_file_more(
    examples: tuple[Block, ...], tmp_path: Path, seers: dict[str, Seer]
) -> None:
    """Where the example has files of the hub, there is a tiny one, which drafts for itself."""
    (example,) = examples
    files = re.sub(r'(source|draft)\.huggingface = ".+"', rf'\1.path = "{seers["mlp"].model}"', example.text)
    assert files.count(str(seers["mlp"].model)) == 2
    async with asked(tmp_path, files, "qwen3-32b") as (_, engine):
        assert engine._config.draft_model_path == str(seers["mlp"].model)


@runs("Running the cases", 1, file="docs/conformance.md")
def test_the_cases_against_a_running_server(examples: tuple[Block, ...], served: Served) -> None:
    """One case for each token, and one that such a server cannot be made to show; all run by themselves elsewhere."""
    (example,) = examples
    tokens = TokenStore(Path(served.environment["HOME"]) / ".local/state/nap-llm")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ALWAYS": tokens.create("conformance-always", consent="always"),
        "SHELL_TOKEN": tokens.create("conformance-shell", consent="shell"),
        "OWNER": served.owner,
    }
    cases = "c01_select or c04_the_shell or c04_the_owner or c07_cancel_while_it or c01_absent"
    command = f'{example.at(served.url).strip()} -p no:cacheprovider -q -rs -k "{cases}"'
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stdout
    counted = re.search(r"^(\d+) passed, (\d+) skipped", done.stdout, re.MULTILINE)
    assert counted and int(counted[1]) >= 5 and "LLM-C01 needs" in done.stdout, done.stdout
