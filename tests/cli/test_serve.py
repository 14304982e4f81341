"""`nap-llm serve` as a person starts it, and the other commands against it. One real server for the module."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

pytestmark = pytest.mark.slow

TOOLS = [
    {
        "name": "set_light",
        "description": "Switch a light",
        "parameters": {
            "type": "object",
            "properties": {"room": {"enum": ["kitchen", "hall"]}, "on": {"type": "boolean"}},
            "required": ["room", "on"],
            "additionalProperties": False,
        },
    }
]


@dataclass(frozen=True)
class Running:
    process: subprocess.Popen[str]
    url: str
    owner: str
    state: Path

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "server.cli.main", *arguments, "--state", str(self.state)]

    def chat(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command("chat", *arguments, "--url", self.url),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=280,
        )


def start(
    directory: Path, smollm2: Path, *options: str, server: str = "", model: str = "", **environment: str
) -> Running:
    """A server; `server` and `model` hold lines of its `[server]` table and of its model's."""
    file = directory / "models.toml"
    table = f'[models.smol]\nmodel = "smol"\nsource.path = "{smollm2}"\ncontext_length = 1024\nslots = 2\n'
    file.write_text(f"[server]\n{server}\n{table}{model}")
    state = directory / "state"
    command = [
        sys.executable,
        "-m",
        "server.cli.main",
        "serve",
        "--port",
        "0",
        "--models",
        str(file),
        "--state",
        str(state),
    ]
    process = subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        stderr=(directory / "log").open("w"),
        text=True,
    )
    assert process.stdout is not None
    announced = process.stdout.readline() + process.stdout.readline()
    found = re.search(r"at (http://127\.0\.0\.1:\d+)/nap/llm\nConsole: \1/#token=(\S+)\n", announced)
    assert found, (announced, (directory / "log").read_text())
    return Running(process, found[1], found[2], state)


def client(running: Running, token: str) -> httpx.Client:
    """A shell, as patient as a busy machine needs."""
    return httpx.Client(base_url=running.url, headers={"Authorization": f"Bearer {token}"}, timeout=120)


def stop(running: Running, how: signal.Signals) -> int:
    running.process.send_signal(how)
    return running.process.wait(timeout=30)


@pytest.fixture
def started(tmp_path: Path, smollm2: Path) -> Iterator[Running]:
    """A server of the test's own, whatever becomes of the test."""
    made = start(tmp_path, smollm2)
    yield made
    if made.process.poll() is None:
        stop(made, signal.SIGKILL)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[Running]:
    started = start(tmp_path_factory.mktemp("serve"), smollm2)
    yield started
    if started.process.poll() is None:
        stop(started, signal.SIGKILL)


def test_the_domain_answers_and_the_owner_has_a_token(running: Running) -> None:
    assert httpx.get(f"{running.url}/nap/llm").json() == {"domain": "llm"}
    file = running.state / "owner-token"
    assert file.read_text().strip() == running.owner
    assert file.stat().st_mode & 0o077 == 0


def test_a_token_made_while_it_runs_works_at_once_and_until_it_is_revoked(running: Running) -> None:
    made = subprocess.run(
        running.command("token", "create", "shell", "--consent", "always"), capture_output=True, text=True, check=True
    )
    headers = {"Authorization": f"Bearer {made.stdout.strip()}"}

    def selected() -> httpx.Response:
        return httpx.post(f"{running.url}/nap/llm", json={"type": "llm.select", "id": "s"}, headers=headers)

    answer = selected()
    assert answer.status_code == 200
    assert answer.json()["model"]["model"] == "smol"
    subprocess.run(running.command("token", "revoke", "shell"), check=True)
    assert selected().status_code == 401


@pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes are told by Linux alone")
def test_no_process_leaves_a_core_behind(tmp_path: Path, smollm2: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        made = start(tmp_path, smollm2)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    try:
        assert made.chat("Say hello.", "--max-tokens", "1").returncode == 0
        processes = [psutil.Process(made.process.pid), *psutil.Process(made.process.pid).children()]
        assert len(processes) == 4  # with two helpers and a worker
        assert {each.rlimit(resource.RLIMIT_CORE)[0] for each in processes} == {0}
    finally:
        stop(made, signal.SIGTERM)


def test_piped_chat_is_plain_text(running: Running) -> None:
    answered = running.chat("Say hello.", "--max-tokens", "8", "--temperature", "0")
    assert answered.returncode == 0, answered.stderr
    assert answered.stdout.strip()
    assert "\x1b" not in answered.stdout + answered.stderr


def test_chat_takes_its_question_from_stdin(running: Running) -> None:
    answered = running.chat("--max-tokens", "8", "--temperature", "0", stdin="Say hello.")
    assert answered.returncode == 0, answered.stderr
    assert answered.stdout == running.chat("Say hello.", "--max-tokens", "8", "--temperature", "0").stdout


def test_chat_shows_a_forced_call(running: Running, tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps(TOOLS))
    answered = running.chat("Light in the hall!", "--tools", str(file), "--tool-choice", "set_light")
    assert answered.returncode == 0, answered.stderr
    call = json.loads(answered.stdout)
    assert call["name"] == "set_light"
    assert call["arguments"]["room"] in ("kitchen", "hall")
    assert isinstance(call["arguments"]["on"], bool)


def test_chat_asks_for_the_model_by_its_exact_name(running: Running) -> None:
    answered = running.chat("hello", "--model", "other")
    assert answered.returncode == 1
    assert "unsupported" in answered.stderr


def test_a_wrong_token_is_said(running: Running) -> None:
    answered = running.chat("hello", "--token", "wrong")
    assert answered.returncode == 1
    assert "token" in answered.stderr


def test_an_interrupt_cancels_the_answer(running: Running) -> None:
    command = running.command("chat", "Count from one to one thousand.", "--url", running.url, "--temperature", "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as chat:
        assert chat.stdout is not None and chat.stderr is not None
        # The answer has begun: it can only be cut short now.
        assert chat.stdout.read(1)
        chat.send_signal(signal.SIGINT)
        assert "cancelled" in chat.stderr.read()
        assert chat.wait() == 130


def test_a_conversation_on_a_terminal(running: Running) -> None:
    mine, theirs = pty.openpty()
    with subprocess.Popen(
        running.command("chat", "--url", running.url, "--max-tokens", "8", "--temperature", "0"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    ) as chat:
        os.close(theirs)
        try:
            greeting = read_until(mine, "> ")
            assert "smol" in greeting and "Ctrl-C" in greeting
            os.write(mine, b"Say hello.\n")
            assert "tokens in" in read_until(mine, " out, ", "> ")
            os.write(mine, b"\x04")
            assert chat.wait(timeout=30) == 0
        finally:
            chat.kill()
            os.close(mine)


def read_until(terminal: int, *words: str) -> str:
    """What the terminal shows up to these words, one behind the other: one read may bring several of them."""
    shown, at = "", 0
    deadline = time.monotonic() + 240
    for word in words:
        while (found := shown.find(word, at)) < 0:
            ready, _, _ = select.select([terminal], [], [], deadline - time.monotonic())
            assert ready, shown
            shown += os.read(terminal, 4096).decode(errors="replace")
        at = found + len(word)
    return shown


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_the_end_is_clean_and_leaves_no_process(started: Running, tmp_path: Path, how: signal.Signals) -> None:
    assert started.chat("hi", "--max-tokens", "1").returncode == 0
    children = psutil.Process(started.process.pid).children(recursive=True)
    assert children, "a model is loaded in a process of its own"
    assert stop(started, how) == 0, (tmp_path / "log").read_text()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


@pytest.mark.parametrize("reads", [True, False], ids=["reading", "not reading"])
def test_the_end_does_not_wait_for_a_console(started: Running, tmp_path: Path, reads: bool) -> None:
    address = httpx.URL(started.url)
    made = subprocess.run(
        started.command("token", "create", "shell", "--consent", "always"), capture_output=True, text=True, check=True
    )
    with socket.socket() as console:
        console.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        console.connect((address.host, address.port))
        head = f"GET /owner/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {started.owner}\r\n\r\n"
        console.sendall(head.encode())
        assert console.recv(100).startswith(b"HTTP/1.1 200")
        if not reads:
            # More state, again and again, than the sockets between them hold.
            with httpx.Client(
                base_url=started.url, headers={"Authorization": f"Bearer {made.stdout.strip()}"}
            ) as shell:
                for number in range(400):
                    long = {
                        f"Napplet-{name}": f"{number} " + "x" * 1000 for name in ("Identity", "Endpoint", "Account")
                    }
                    selected = shell.post("/nap/llm", json={"type": "llm.select", "id": "s"}, headers=long)
                    assert "model" in selected.json()
        assert stop(started, signal.SIGTERM) == 0
        rest = b""
        while reads and (chunk := console.recv(4096)):
            rest += chunk
    assert not reads or rest.endswith(b"\r\n0\r\n\r\n"), "the stream ends properly"
    log = (tmp_path / "log").read_text()
    assert "ERROR" not in log and "Traceback" not in log
