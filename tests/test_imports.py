"""Imports run one way: no room knows what is above it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

ALLOWED = {
    "grammars": set(),
    "server.wire": set(),
    "server.engine": {"server.wire"},
    "server.chat": {"server.wire", "server.engine", "grammars"},
    "server.runtime": {"server.wire", "server.engine", "server.chat", "server.config", "server.logs"},
    "server.http": {
        "server.wire",
        "server.engine",
        "server.chat",
        "server.runtime",
        "server.config",
        "server.logs",
        "server.state",
    },
    "server.client": {"server.wire"},
    "server.config": {"server.wire", "server.engine", "server.logs"},
    "server.weights": {"server.config"},
    "server.logs": set(),
    "server.state": set(),
}
"""Room → what it may import of this project beside itself. `server.app` and the commands of `server.cli` put the house
together and stand above everything."""

ABOVE = {"server.app", "server.cli", "server"}


def module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Absolute names of every module imported anywhere in the file."""
    own = module(path).split(".")
    package = own if path.name == "__init__.py" else own[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield origin
            # `from server import chat` names a room too, and `from server.engine import llama` one of the engine's.
            yield from (f"{origin}.{alias.name}" for alias in node.names if origin in ("server", "server.engine"))


def room(name: str) -> str:
    """`server.chat.parser` → `server.chat`; `grammars.rules.rules` → `grammars`."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "server" else parts[0]


FILES = sorted([*ROOT.glob("server/**/*.py"), *ROOT.glob("grammars/**/*.py")])


def test_the_house_has_the_rooms_that_are_judged() -> None:
    rooms = {room(module(path)) for path in FILES}
    assert rooms - ABOVE == set(ALLOWED)


@pytest.mark.parametrize("path", FILES, ids=module)
def test_no_file_imports_upwards(path: Path) -> None:
    own = room(module(path))
    if own in ABOVE:
        return
    foreign = {room(name) for name in imports(path) if name.split(".")[0] in ("server", "grammars")} - {own, "server"}
    assert foreign <= ALLOWED[own]


def test_an_upward_import_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_imports.ROOT", tmp_path)
    file = tmp_path / "server" / "engine" / "wrong.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "def f():\n    from server import http\n    from ..runtime import x\n    import server.chat.parser\n"
    )
    assert {room(name) for name in imports(file)} == {"server", "server.http", "server.runtime", "server.chat"}


WITHOUT_LLAMA = [
    "server.engine",
    "server.engine.types",
    "server.engine.counters",
    "server.engine.sampling.params",
    "server.engine.scheduler.scheduler",
    "server.engine.memory.plan",
    "server.engine.vision.encoder",
    "server.engine.vision.placeholders",
]
"""Rooms of the engine that decide without llama.cpp, each by the module that imports the others of it."""


def loads_llama(name: str) -> bool:
    """True where a module, imported alone in a process of its own, brings the layer over llama.cpp with it."""
    code = f"import sys, {name}; sys.exit(3 if 'server.engine.llama' in sys.modules else 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode in (0, 3)
    return bool(done.returncode)


@pytest.mark.parametrize("name", WITHOUT_LLAMA)
def test_policy_loads_no_llama_layer(name: str) -> None:
    assert not loads_llama(name)


def test_the_llama_layer_would_be_found() -> None:
    assert loads_llama("server.engine.memory.device")


def test_only_the_report_of_devices_names_the_llama_layer() -> None:
    """Imports inside functions, too."""
    engine = ROOT / "server" / "engine"
    rooms = [*engine.glob("scheduler/*.py"), *engine.glob("memory/*.py"), engine / "sampling" / "params.py"]
    found = {module(path) for path in rooms if any(name.startswith("server.engine.llama") for name in imports(path))}
    assert found == {"server.engine.memory.device"}
