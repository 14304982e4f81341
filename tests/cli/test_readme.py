"""The examples of health, metrics and the log in docs/api.md, as they stand, against a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from signal import SIGKILL
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from server.config import ServerConfig
from tests.cli.test_drain import Shell
from tests.cli.test_serve import Running, start, stop
from tests.conftest import ROOT
from tests.readme import ADDRESS, Block, runs

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs/api.md").read_text(encoding="utf-8")
SECTION = PAGE.split("\n## Health, metrics, log\n")[1].split("\n## ")[0]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[Running]:
    made = start(tmp_path_factory.mktemp("readme"), smollm2)
    yield made
    if made.process.poll() is None:
        stop(made, SIGKILL)


MARK = "--- next ---"


def printed(commands: list[str], running: Running, home: Path) -> list[str]:
    """What each command prints now, at the address and in the home of this server; all in one shell."""
    program = f"\necho; echo '{MARK}'\n".join(commands).replace(ADDRESS, running.url)
    environment = {**os.environ, "HOME": str(home)}
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return [each.strip() for each in done.stdout.replace("\r", "").split(f"{MARK}\n")]


@runs("Health, metrics, log", 1, 2, 4, file="docs/api.md")
def test_the_examples_print_what_they_say(examples: tuple[Block, ...], running: Running, tmp_path: Path) -> None:
    (tmp_path / ".local" / "state").mkdir(parents=True)
    (tmp_path / ".local" / "state" / "nap-llm").symlink_to(running.state)
    shell = Shell(running)
    said = {"role": "user", "content": [{"type": "text", "text": "Say hello in one short sentence."}]}
    request = {"handle": shell.handle, "messages": [said], "temperature": 0}
    assert shell.post({"type": "llm.generate", "id": "g", "request": request}).json()["result"]["finish"] == "stop"
    shell.begin(shell.switches("given up", 400))
    shell.http.close()
    owner = httpx.Client(base_url=running.url, headers={"Authorization": f"Bearer {running.owner}"}, timeout=60)
    while owner.get("/owner/state").json()["generations"]:
        pass
    commands, expected = zip(*(exchange for example in examples for exchange in example.exchanges()), strict=True)
    said = printed([*commands], running, tmp_path)
    assert [each.replace('"smol"', '"smollm2"') for each in said] == [each.strip() for each in expected]
    assert len(expected) == 5 and len(list(filter(None, expected))) == 4


@runs("Health, metrics, log", 3, file="docs/api.md")
def test_prometheus_is_told_all(examples: tuple[Block, ...], running: Running, tmp_path: Path) -> None:
    """Scraped as Prometheus does, by what the example says and by its defaults for what it does not."""
    (tmp_path / ".local" / "state").mkdir(parents=True)
    (tmp_path / ".local" / "state" / "nap-llm").symlink_to(running.state)
    (example,) = examples
    here = example.text.replace("/home/me", str(tmp_path)).replace(
        urlsplit(ADDRESS).netloc, urlsplit(running.url).netloc
    )
    (job,) = yaml.safe_load(here)["scrape_configs"]
    assert set(job) == {"job_name", "authorization", "static_configs"}
    ((target,),) = (each["targets"] for each in job["static_configs"])
    credentials = Path(job["authorization"]["credentials_file"]).read_text().strip()
    answer = httpx.get(f"http://{target}/metrics", headers={"Authorization": f"Bearer {credentials}"}, timeout=60)
    assert answer.status_code == 200
    families = {each.name + "_total" * (each.type == "counter") for each in text_string_to_metric_families(answer.text)}
    assert set(re.findall(r"`((?:nap_llm|process)_\w+)`", SECTION)) == families


def test_the_console_s_link(running: Running) -> None:
    command = running.command("console", "--url", running.url)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{running.url}/#token={running.owner}\n"


def test_models_toml_shows_every_key_of_the_server() -> None:
    shown = (ROOT / "models.toml").read_text().split("[server.limits]")[0]
    for each in fields(ServerConfig):
        assert each.name == "limits" or re.search(rf"^# {each.name} = ", shown, re.MULTILINE), each.name


def test_the_commands_are_in_the_virtual_environment() -> None:
    assert Path(sys.executable).with_name("nap-llm").exists()
