"""llama.cpp's RPC backend: built once, from its sources."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM
from typing import Any

import psutil
import pytest

from server.cli import rpc
from server.cli.main import main
from server.weights import WeightsError, cache_directory
from tests.chat.standin import write_model
from tests.cli.test_drain import Shell
from tests.cli.test_serve import start, stop
from tests.conftest import ROOT
from tests.readme import Block, free_port, runs

pytestmark = pytest.mark.slow

PARTS = ("ggml/include", "ggml/src/ggml-rpc", "ggml/src/ggml-impl.h", "ggml/src/ggml-backend-impl.h", "tools/rpc")


@pytest.fixture(scope="module")
def published(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Takes the place of the download: an archive of what is compiled. What was asked for, by all tests here."""
    asked: list[str] = []

    def download(requirement: str, *_: str, into: Path, **__: Any) -> Path:
        asked.append(requirement)
        archive = into / "llama_cpp_python.tar.gz"
        with tarfile.open(archive, "w:gz") as packed:
            for part in PARTS:
                packed.add(sdist / "vendor/llama.cpp" / part, f"{sdist.name}/vendor/llama.cpp/{part}")
        return archive

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rpc, "download", download)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield asked


def test_lending_builds_what_it_needs_once_and_becomes_the_server(
    published: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], str]] = []

    class Started(Exception):
        pass

    def execve(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        assert os.access(path, os.X_OK) and arguments[0] == path
        started.append((arguments[1:], environment["GGML_BACKEND_PATH"]))
        raise Started

    monkeypatch.setattr(os, "execve", execve)
    for name in ("rpc-server", "lend"):  # its name in 0.1
        with pytest.raises(Started):
            main([name, "--host", "10.0.0.2", "--port", "50053"])
    assert len(published) == 1, "built once"
    (arguments, library), again = started
    assert again == (arguments, library) and arguments == ["--host", "10.0.0.2", "--port", "50053"]
    assert Path(library).is_relative_to(cache_directory()) and Path(library).is_file()


@runs("One model over several machines", 1, 2, file="docs/guide.md")
def test_a_model_over_two_machines(
    examples: tuple[Block, ...], published: list[str], sdist: Path, tmp_path: Path
) -> None:
    """Both are this one, each with a port of its own: they lend, and a server of a tiny model names them."""
    lending, naming = examples
    machines = re.findall(r"[\d.]+:50052", naming.text)
    command = lending.text.partition("#")[0].strip()
    assert len(machines) == 2 and machines[0] == f"{command.split()[-1]}:50052"
    write_model(
        tmp_path / "model.gguf",
        sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf",
        ["<|im_start|>", "<|im_end|>"],
        size=600,
        layers=6,
        template="{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
        plain=True,
    )
    rpc.built()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    lenders: list[subprocess.Popen[bytes]] = []
    model, running = naming.text, None
    try:
        for machine in machines:
            port = free_port()
            here = f"{command.replace(machines[0].split(':')[0], '127.0.0.1')} --port {port}"
            lenders.append(subprocess.Popen(["bash", "-c", f"exec {here}"], env=environment, stdout=subprocess.DEVNULL))
            answers(port, lenders[-1])
            model = model.replace(machine, f"127.0.0.1:{port}")
        running = start(tmp_path, tmp_path / "model.gguf", model=model)
        shell = Shell(running)
        route = shell.post({"type": "llm.select", "id": "s"}).json()["model"]["route"]
        assert all(each in route for each in re.findall(r"127\.0\.0\.1:\d+", model)), route
        said = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
        request = {"handle": shell.handle, "messages": [said], "maxTokens": 5}
        answer = shell.post({"type": "llm.generate", "id": "g", "request": request}).json()
        assert answer["result"]["usage"]["outputTokens"] == 5
        for lender in lenders:
            assert any(each.status == "ESTABLISHED" for each in psutil.Process(lender.pid).net_connections())
        assert stop(running, SIGTERM) == 0
    finally:
        for process in [*lenders, *([running.process] if running else [])]:
            process.kill()
            process.wait()


def answers(port: int, process: subprocess.Popen[bytes]) -> None:
    """Waits until somebody listens."""
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < until


def test_a_build_that_fails_says_so_and_leaves_nothing(
    published: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = len(published)
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(WeightsError, match="cannot be built"):
        rpc.built()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WeightsError, match="compiler is needed"):
        rpc.built()
    assert len(published) == before + 2
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == [".lock"]
