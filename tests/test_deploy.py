"""What runs the server as a service: read by the programs that will read it, as far as they are here."""

from __future__ import annotations

import fnmatch
import os
import plistlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from server.cli.http_server import GRACE_SECONDS
from server.config import ServerConfig
from tests.conftest import ROOT

DEPLOY = ROOT / "scripts" / "deploy"


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "nap-llm.service"
    command = Path(sys.executable).with_name("nap-llm")
    text, count = re.subn("%h/nap-llm/.venv/bin/nap-llm", str(command), (DEPLOY / "nap-llm.service").read_text())
    assert count == 1
    for content, accepted in ((text, True), (text.replace("KillMode=mixed", "KillMood=mixed"), False)):
        unit.write_text(content)
        done = subprocess.run(
            [analyze, "verify", "--user", "--man=no", str(unit)],
            capture_output=True,
            text=True,
            env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        )
        assert (done.returncode == 0 and not done.stderr) is accepted, done.stderr


def test_the_unit_and_the_server_agree() -> None:
    lines = dict(
        line.split("=", 1)
        for line in (DEPLOY / "nap-llm.service").read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    assert lines["Type"] == "notify", "the server says when it is ready"
    assert lines["KillMode"] == "mixed", "workers do not die of the signal that drains"
    assert lines["StandardOutput"] == "null", "where the owner's token is printed"
    assert float(lines["TimeoutStopSec"]) > GRACE_SECONDS


def test_launchd_gives_the_server_its_time() -> None:
    with (DEPLOY / "nap-llm.plist").open("rb") as file:
        job = plistlib.load(file)
    assert job["ExitTimeOut"] > ServerConfig().drain + GRACE_SECONDS
    assert job["KeepAlive"] == {"SuccessfulExit": False} and job["Umask"] == 0o077
    shell, option, script = job["ProgramArguments"]
    assert (shell, option) == ("/bin/sh", "-c")
    subprocess.run([shell, "-n", option, script], check=True)
    assert shlex.split(script)[0] == "exec" and ">/dev/null" in script


def test_a_linter_accepts_the_dockerfile(tmp_path: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint is not installed")
    file = DEPLOY / "Dockerfile"
    done = subprocess.run([hadolint, "--no-color", str(file)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout
    wrong = tmp_path / "Dockerfile"
    wrong.write_text(file.read_text().replace("STOPSIGNAL SIGTERM", "STOPSIGNAL SIGTERM\nUSER root"))
    assert subprocess.run([hadolint, str(wrong)], capture_output=True).returncode != 0


def test_the_image_gets_what_the_server_needs_and_no_more(tmp_path: Path) -> None:
    kept = [line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")]
    assert all((ROOT / each).exists() for each in kept)
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    sent = {path for path in tracked.stdout.split() for each in kept if path == each or path.startswith(f"{each}/")}
    assert {"pyproject.toml", "README.md", "constraints.txt", "scripts/setup", "server/cli/main.py"} <= sent
    assert not fnmatch.filter(sent, "tests/*")
    # What scripts/setup reads must be there.
    for name in re.findall(r"\$root/(\w+\.\w+)", (ROOT / "scripts/setup").read_text()):
        assert name in sent, name
    for path in sent:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    imported = "server.cli.http_server, server.engine.worker.main, server.chat.prompt_builder"
    program = f"import {imported}; print(server.cli.http_server.__file__)"
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(tmp_path / "server" / "cli" / "http_server.py"), done.stderr


def test_the_healthcheck_is_a_program(tmp_path: Path) -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    found = re.search(r'CMD \["python", "-c", "(.*)"\]', text)
    assert found
    compile(found[1], "healthcheck", "exec")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_set_up_takes_what_the_image_says(tmp_path: Path, device: str) -> None:
    """Under the image's own shell options, up to the build itself."""
    text = (DEPLOY / "Dockerfile").read_text()
    arguments = re.search(rf'AS build-{device}\n(?:#.*\n)*ENV CMAKE_ARGS="(.*)"', text)
    shell = re.search(r'SHELL \["/bin/bash", "(.*)", "(.*)", "-c"\]', text)
    assert arguments and shell and "RUN --mount=type=cache,target=/root/.cache . scripts/setup && setup runtime" in text
    done = subprocess.run(
        ["bash", *shell.groups(), "-c", '. scripts/setup && choose_backend && echo "$root|$backend|$CMAKE_ARGS"'],
        cwd=ROOT,
        env={**os.environ, "CMAKE_ARGS": arguments[1], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    root, backend, given = done.stdout.strip().split("|")
    assert (root, given) == (str(ROOT), arguments[1]) and backend.startswith("custom-"), done.stderr
    assert ("-DGGML_CUDA=on" in given) is (device == "cuda")
