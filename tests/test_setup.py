"""`scripts/setup`: what it chooses on machines of different kinds, played by stand-ins for their tools."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
TOOLS = ("bash", "dirname", "uname", "grep", "cut", "cksum", "awk", "sysctl", "df", "sed")
GPU = "echo 'GPU 0: A Card (UUID: GPU-1)'"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A directory that is the whole PATH: a few tools of this machine, to which a test adds stand-ins."""
    path = tmp_path / "bin"
    path.mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool):
            (path / tool).symlink_to(found)
    return path


def stand_in(machine: Path, name: str, does: str) -> None:
    file = machine / name
    file.unlink(missing_ok=True)
    file.write_text(f"#!{shutil.which('bash')}\n{does}\n")
    file.chmod(0o755)


def call(machine: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(machine / "bash"), "-euc", f'. "{ROOT}/scripts/setup"; {script}'],
        env={"PATH": str(machine), "HOME": "/home/me", "CUDA_HOME": "/nowhere", **environment},
        capture_output=True,
        text=True,
    )


def choose(machine: Path, **environment: str) -> tuple[str, str, str, str]:
    done = call(machine, 'choose_backend; printf "%s|" "$backend" "$CMAKE_ARGS" "$cache"', **environment)
    assert done.returncode == 0, done.stderr
    backend, arguments, cache, _ = done.stdout.split("|")
    return backend, arguments, cache, done.stderr


@pytest.mark.parametrize("smi", [None, "exit 9", "echo 'No devices were found'"])
def test_nvcc_without_a_gpu_gets_the_cpu_build(machine: Path, smi: str | None) -> None:
    stand_in(machine, "nvcc", "true")
    if smi:
        stand_in(machine, "nvidia-smi", smi)
    backend, arguments, _, said = choose(machine)
    assert backend == "cpu"
    assert "CUDA" not in arguments
    assert said == ""


def test_a_gpu_with_nvcc_gets_the_cuda_build(machine: Path) -> None:
    stand_in(machine, "nvidia-smi", GPU)
    stand_in(machine, "nvcc", "true")
    backend, arguments, _, _ = choose(machine)
    assert backend == "cuda"
    assert arguments.startswith("-DGGML_CUDA=on")


def test_nvcc_is_found_where_the_toolkit_puts_it(machine: Path, tmp_path: Path) -> None:
    stand_in(machine, "nvidia-smi", GPU)
    (tmp_path / "cuda" / "bin").mkdir(parents=True)
    stand_in(tmp_path / "cuda" / "bin", "nvcc", "true")
    assert choose(machine, CUDA_HOME=str(tmp_path / "cuda"))[0] == "cuda"


def test_a_gpu_without_nvcc_gets_the_cpu_build_and_hears_why(machine: Path) -> None:
    stand_in(machine, "nvidia-smi", GPU)
    backend, _, _, said = choose(machine)
    assert backend == "cpu"
    assert "no nvcc" in said


def test_macos_has_metal(machine: Path) -> None:
    stand_in(machine, "uname", "echo Darwin")
    backend, arguments, cache, _ = choose(machine)
    assert (backend, arguments) == ("metal", "")
    assert cache.startswith("/home/me/Library/Caches/nap-llm/pip-metal-")


def test_the_callers_own_arguments_win(machine: Path) -> None:
    stand_in(machine, "nvidia-smi", GPU)
    stand_in(machine, "nvcc", "true")
    backend, arguments, _, _ = choose(machine, CMAKE_ARGS="-DGGML_VULKAN=on")
    assert backend.startswith("custom-")
    assert arguments == "-DGGML_VULKAN=on"


def test_every_way_of_building_has_a_cache_of_its_own(machine: Path) -> None:
    caches = {choose(machine)[2], choose(machine, CMAKE_ARGS="-DA=1")[2], choose(machine, CMAKE_ARGS="-DA=2")[2]}
    stand_in(machine, "nvidia-smi", GPU)
    stand_in(machine, "nvcc", "true")
    caches.add(choose(machine)[2])
    assert len(caches) == 4
    assert choose(machine, XDG_CACHE_HOME="/else")[2].startswith("/else/nap-llm/pip-cuda-")


@pytest.mark.skipif(
    not Path("/proc/cpuinfo").exists() or "amx_int8" not in Path("/proc/cpuinfo").read_text(),
    reason="a machine without AMX builds no AMX kernels",
)
@pytest.mark.parametrize(("compiler", "kept"), [("12", True), ("13", False), ("14", False)])
def test_gcc_before_13_must_keep_the_stores_of_the_tile_configuration(machine: Path, compiler: str, kept: bool) -> None:
    stand_in(machine, "c++", f"echo '#define __GNUC__ {compiler}'")
    assert ("-fno-dse" in choose(machine)[1]) is kept


def test_clang_is_no_old_gcc(machine: Path) -> None:
    stand_in(machine, "c++", "echo '#define __GNUC__ 4'; echo '#define __clang__ 1'")
    assert "-fno-dse" not in choose(machine)[1]


def test_a_python_that_is_too_old_is_refused(machine: Path) -> None:
    stand_in(machine, "python3", "exit 1")
    done = call(machine, "find_python")
    assert done.returncode == 1
    assert "Python 3.11, 3.12 or 3.13 is needed" in done.stderr


def test_a_newer_python_beside_an_old_one_is_taken(machine: Path) -> None:
    stand_in(machine, "python3", "exit 1")
    stand_in(machine, "python3.12", "exit 0")
    assert call(machine, "find_python").stdout == f"{machine}/python3.12\n"


def test_too_little_disk_is_said(machine: Path) -> None:
    stand_in(machine, "df", "printf 'Filesystem 1024-blocks Used Available\\n/dev/x 9 9 102400 1%% /\\n'")
    done = call(machine, "enough_disk /tmp 2000")
    assert done.returncode == 1
    assert "100 MB free; about 2000 MB are needed" in done.stderr


def test_no_compiler_is_said_before_the_build(machine: Path) -> None:
    done = call(machine, "pip() { :; }; cache=/none backend=cpu; install_engine")
    assert done.returncode == 1
    assert "compiler is needed" in done.stderr


def test_the_scripts_are_executable_and_parse() -> None:
    for name in ("scripts/serve", "scripts/test", ".ci/run"):
        assert os.access(ROOT / name, os.X_OK), name
        subprocess.run(["bash", "-n", str(ROOT / name)], check=True)


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ("=========== 5514 passed, 24 skipped in 123.45s (0:02:03) ===========", 0),
        ("1 passed in 0.01s", 0),
        ("=========== 24 skipped in 3.45s ===========", 1),
        ("=========== no tests ran in 0.12s ===========", 1),
        ("=========== 0 passed in 0.12s ===========", 1),
    ],
)
def test_ci_fails_where_no_test_has_passed(machine: Path, tmp_path: Path, last: str, status: int) -> None:
    done = run_ci(machine, tmp_path, f"echo '{last}'")
    assert (done.returncode, "no test ran" in done.stdout) == (status, bool(status)), done.stderr


def test_ci_fails_where_a_check_does(machine: Path, tmp_path: Path) -> None:
    assert run_ci(machine, tmp_path, "echo '1 failed, 3 passed in 1.00s'; exit 1").returncode == 1


def test_ci_reports_coverage_and_requires_a_browser(machine: Path, tmp_path: Path) -> None:
    done = run_ci(machine, tmp_path, 'echo "$NAP_LLM_BROWSER_TESTS $* 1 passed"')
    assert "required --cov --cov-report= 1 passed" in done.stdout
    assert done.stdout.splitlines()[-1] == "coverage of the tests' own processes: 87 %"


def test_ci_installs_a_browser_where_there_is_none(machine: Path, tmp_path: Path) -> None:
    stand_in(machine, "apt-get", f'echo "$*" >>"{tmp_path}/apt"')
    assert run_ci(machine, tmp_path, "echo '1 passed'", browser=False).returncode == 0
    assert "chromium-driver" in (tmp_path / "apt").read_text()


def run_ci(machine: Path, directory: Path, tests: str, *, browser: bool = True) -> subprocess.CompletedProcess[str]:
    """`.ci/run` of a project whose tests are a stand-in."""
    for tool in ("mktemp", "rm", "tee", "env"):
        if not (machine / tool).exists():
            (machine / tool).symlink_to(shutil.which(tool) or "")
    for name in ("chromium", "chromedriver") if browser else ():
        stand_in(machine, name, "")
    project = directory / "project"
    for part in (".ci", "scripts", ".venv/bin"):
        (project / part).mkdir(parents=True)
    shutil.copy(ROOT / ".ci/run", project / ".ci/run")
    stand_in(project / "scripts", "test", tests)
    stand_in(project / ".venv/bin", "python", '[ "$*" = "-m coverage report --format=total" ] && echo 87')
    return subprocess.run(
        [str(machine / "bash"), str(project / ".ci/run")], env={"PATH": str(machine)}, capture_output=True, text=True
    )


def checks() -> dict[str, list[str]]:
    """What `scripts/test` runs, by name."""
    lines = (ROOT / "scripts/test").read_text().splitlines()
    found = [shlex.split(line)[1:] for line in lines if line.startswith("check ")]
    return {name: command for name, *command in found}


def test_a_commit_is_held_to_what_ci_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    entries = {hook["id"]: shlex.split(hook["entry"]) for hook in hooks}
    wanted = {name: [".venv/bin/python", "-m", *command] for name, command in checks().items()}
    tests = wanted.pop("tests")
    assert tests[-1] == "${1+$@}"
    wanted["tests"] = [*tests[:-1], "-m", "not slow"]
    assert entries == wanted
    stages = {hook["id"]: hook.get("stages", ["pre-commit"]) for hook in hooks}
    assert {name for name, given in stages.items() if given != ["pre-commit"]} == {"tests"}


def test_markers_follow_from_fixtures(smollm2: Path, request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("model") is not None
    assert request.node.get_closest_marker("browser") is None


def test_a_test_without_a_model_is_not_marked(request: pytest.FixtureRequest) -> None:
    assert not {"model", "browser", "slow"} & {mark.name for mark in request.node.iter_markers()}
