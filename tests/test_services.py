"""The guide's commands that run the server as a service, with a stand-in for the service manager and for Docker.

What they start is our server, from the unit and the Dockerfile as they stand.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from server.weights import cache_directory
from tests.conftest import ROOT
from tests.fixtures import checkout
from tests.readme import Block, Shell, free_port, runs

pytestmark = pytest.mark.slow


def generates(url: str, token: str) -> bool:
    """Whether a shell with this token gets an answer."""
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, headers=headers, timeout=120) as client:
        selected = client.post("/nap/llm", json={"type": "llm.select", "id": "s"}).json()
        said = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
        request = {"handle": selected["model"]["handle"], "messages": [said], "maxTokens": 3}
        answer = client.post("/nap/llm", json={"type": "llm.generate", "id": "g", "request": request}).json()
    return answer["result"]["usage"]["outputTokens"] == 3


@runs("Running it as a service", 1, file="docs/guide.md")
def test_the_unit_is_installed_started_and_stopped(examples: tuple[Block, ...], tmp_path: Path, smollm2: Path) -> None:
    """The repository is set up, as the text before says. A drop-in chooses a port that is free, as an owner would."""
    (example,) = examples
    environment, port = checkout.home(tmp_path), free_port()
    home = tmp_path / "home"
    repository = checkout.copy(home / "nap-llm")
    checkout.stand_in(tmp_path / "tools" / "systemctl", "tests.fixtures.systemctl", tmp_path / "systemd")
    shell = Shell(repository, environment)
    shell.run("(. scripts/setup && setup runtime)")
    unit = (repository / "scripts/deploy/nap-llm.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    override = home / ".config/systemd/user/nap-llm.service.d/port.conf"
    override.parent.mkdir(parents=True)
    override.write_text(f"[Service]\nExecStart=\nExecStart={command} --port {port}\n")
    url = f"http://127.0.0.1:{port}"
    try:
        # The second returns once the server has said that it is ready.
        *nothing, link = (shell.run(line) for line in example.text.splitlines())
        assert nothing == ["", ""]
        assert httpx.get(f"{url}/readyz", timeout=60).json() == {"status": "ready"}
        enabled = home / ".config/systemd/user/default.target.wants/nap-llm.service"
        assert enabled.samefile(home / ".config/systemd/user/nap-llm.service")
        found = re.fullmatch(r"http://127\.0\.0\.1:8033/#token=(\w+)\n", link)
        assert found
        owner = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {found[1]}"}, timeout=60)
        assert owner.get("/owner/state").status_code == 200
        made = owner.post("/owner/tokens", json={"name": "shell", "consent": "always", "select": "default"}).json()
        assert generates(url, made["token"])
        state = home / ".local/state/nap-llm"
        assert all(not stat.S_IMODE(each.stat().st_mode) & 0o077 for each in (state, *state.iterdir()))
    finally:
        shell.run("systemctl --user stop nap-llm")
        shell.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
    journal = (tmp_path / "systemd" / "journal").read_text()
    assert "Traceback" not in journal and found[1] not in journal


NAME = "nap-llm-readme"
"""In the place of the container's name and the volume's: the owner's own may be there."""


@pytest.fixture(params=["stand-in", pytest.param("docker", marks=pytest.mark.timeout(7200))])
def docker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    """A shell in the repository, with a `docker`; the volume of the stand-in's has the model that is served."""
    environment = dict(os.environ)
    if request.param == "stand-in":
        environment = checkout.home(tmp_path)
        checkout.stand_in(tmp_path / "tools" / "docker", "tests.fixtures.docker", tmp_path / "docker")
        cache = tmp_path / "docker/volumes" / NAME / "cache"
        cache.mkdir(parents=True)
        (cache / "nap-llm").symlink_to(cache_directory())
        (tmp_path / "docker/images").mkdir()
    else:
        if not os.environ.get("NAP_LLM_DOCKER_TESTS"):
            pytest.skip("builds images for many minutes, with the network; NAP_LLM_DOCKER_TESTS=1 has it done")
        if not shutil.which("docker") or subprocess.run(["docker", "info"], capture_output=True).returncode:
            pytest.fail("NAP_LLM_DOCKER_TESTS is set, and no Docker daemon answers")
    shell = Shell(ROOT, environment)
    yield shell
    shell.run(f"docker rm -f {NAME} || true")
    shell.run(f"docker volume rm -f {NAME} || true")
    shell.close()


@runs("Running it as a service", 2, file="docs/guide.md")
def test_the_images_are_built_and_run(
    examples: tuple[Block, ...], docker: Shell, tmp_path: Path, smollm2: Path
) -> None:
    (example,) = examples
    port = free_port()
    here = example.text
    for shown, ours in (
        ("127.0.0.1:8033:8033", f"127.0.0.1:{port}:8033"),
        ("--name nap-llm ", f"--name {NAME} "),
        ("-v nap-llm:", f"-v {NAME}:"),
        ("docker exec nap-llm ", f"docker exec {NAME} "),
    ):
        assert here.count(shown) == 1
        here = here.replace(shown, ours)
    *building, running, executing = here.splitlines()
    for command in building:
        docker.run(command)
    docker.run(running)
    until = time.monotonic() + 600
    asking = f"docker inspect --format '{{{{.State.Status}}}} {{{{.State.Health.Status}}}}' {NAME}"
    while (state := docker.run(asking).strip()) != "running healthy":
        assert state.startswith("running") and time.monotonic() < until, state
        time.sleep(0.2)
    token = docker.run(executing).strip()
    assert generates(f"http://127.0.0.1:{port}", token)
    if (played := tmp_path / "docker").exists():
        asked = [
            (played / "images" / tag / "build/opt/nap-llm/.venv/bin/pip.log").read_text()
            for tag in ("nap-llm", "nap-llm_cuda")
        ]
        assert ["-DGGML_CUDA=on" in each for each in asked] == [False, True]
        assert (played / "volumes" / NAME / "state/nap-llm/tokens.json").is_file()
    docker.run(f"docker stop {NAME}")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}")
