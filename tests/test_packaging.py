"""The wheel and its requirements: all files are in it, and the client needs no server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.conftest import ROOT
from tests.fixtures.checkout import copy

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SHIPPED = {".py", ".html", ".css", ".js", ".svg", ".typed"}

BLOCKED = """
import json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in allowed and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

allowed = set(json.loads(sys.argv.pop(1)))
sys.meta_path.insert(0, Blocker())
"""
"""A program begins so: nothing but the standard library and the packages of its first argument can be imported."""


def installed_with(requirements: Iterable[str]) -> set[str]:
    """Distributions that an installer brings for these requirements."""
    found: set[str] = set()
    waiting = [*requirements]
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        try:
            waiting += requires(name) or []
        except PackageNotFoundError:  # for other platforms or older Pythons
            continue
    return found


@pytest.fixture(scope="module")
def base() -> list[str]:
    """Top-level modules of an installation without extras."""
    distributions = installed_with(PROJECT["dependencies"])
    mapped = packages_distributions()
    modules = [each for each, names in mapped.items() if {canonicalize_name(name) for name in names} & distributions]
    return ["server", "grammars", *modules]


def blocked(base: list[str], program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED + program, json.dumps(base), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("module", ["server.client", "server.wire", "server.cli.main", "server.cli.terminal"])
def test_the_client_and_its_commands_need_the_base_alone(base: list[str], module: str) -> None:
    done = blocked(base, f"import {module}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["fastapi", "llama_cpp", "jsonschema", "numpy"])
def test_the_base_holds_no_server(base: list[str], module: str) -> None:
    assert f"No module named '{module}'" in blocked(base, f"import {module}").stderr


def test_a_command_that_needs_the_server_says_so(base: list[str], tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    file = tmp_path / "models.toml"
    file.write_text('[models.m]\nmodel = "m"\nsource.path = "m.gguf"\n')
    program = "from server.cli.main import main; main(sys.argv[1:])"
    done = blocked(base, program, "serve", "--models", str(file), "--port", "0", "--state", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"nap-llm: \w+ is not installed; this command needs nap-llm\[server\]\n", done.stderr)


def test_the_extra_of_the_client_adds_nothing() -> None:
    assert PROJECT["optional-dependencies"]["client"] == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of a checkout, built as an installer builds it."""
    if Version(version("setuptools")) < Version("70.1"):
        pytest.skip("this setuptools builds wheels with another package's help only")
    directory = copy(tmp_path_factory.mktemp("wheel") / "checkout")
    program = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", program, "."], cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = directory.glob("*.whl")
    return zipfile.ZipFile(built)


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_packages(wheel: zipfile.ZipFile) -> None:
    files = {
        path.relative_to(ROOT).as_posix()
        for package in ("server", "grammars")
        for path in (ROOT / package).rglob("*")
        if path.suffix in SHIPPED
    }
    assert {"server/py.typed", "grammars/py.typed", "server/console/index.html", "server/cli/main.py"} <= files
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == files


@pytest.mark.slow
def test_the_wheel_has_the_command_and_the_extras(wheel: zipfile.ZipFile) -> None:
    told = {Path(name).name: name for name in wheel.namelist() if ".dist-info/" in name}
    assert b"nap-llm = server.cli.main:main" in wheel.read(told["entry_points.txt"])
    metadata = wheel.read(told["METADATA"]).decode()
    assert {"client", "server", "dev"} <= set(re.findall(r"^Provides-Extra: (.*)$", metadata, re.MULTILINE))
    needed = [line for line in re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE) if "extra ==" not in line]
    assert sorted(needed) == sorted(PROJECT["dependencies"])
