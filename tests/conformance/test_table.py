"""Each MUST of NAP-LLM is mapped to tests that exist, and the runtime has no hands but those it needs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = (ROOT / "docs/conformance.md").read_text(encoding="utf-8")


def rows() -> list[tuple[str, list[tuple[str, str]]]]:
    """What the specification says, and file and name of each test that holds it."""
    section = PAGE.split("\n## Every MUST and its tests\n")[1].split("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [(says, re.findall(r"`(?:(tests/[\w/]+\.py)::)?(test_\w+)`", tests)) for says, tests in cells[2:]]


def test_every_must_has_tests_and_every_test_of_the_table_exists() -> None:
    table = rows()
    assert len(table) >= 45 and len({says for says, _ in table}) == len(table)
    for says, tests in table:
        assert tests, says
        for file, name in tests:
            source = (ROOT / (file or "tests/conformance/test_llm.py")).read_text(encoding="utf-8")
            assert re.search(rf"^(?:async )?def {name}\(", source, re.MULTILINE), (says, file, name)


def test_every_case_has_its_id() -> None:
    source = (HERE / "test_llm.py").read_text(encoding="utf-8")
    names = re.findall(r"^async def (test_\w+)\(", source, re.MULTILINE)
    assert {name[:12] for name in names} == {f"test_llm_c{number:02}" for number in range(1, 24)}
    assert re.findall(r"^\| LLM-C(\d\d) \|", PAGE, re.MULTILINE) == [f"{number:02}" for number in range(1, 24)]


def test_nothing_but_the_servers_own_parts_is_ever_started() -> None:
    """A tool call is a request to its napplet: nothing here could carry one out."""
    starters = {"subprocess", "multiprocessing", "pty", "runpy"}
    found = set()
    for path in [*(ROOT / "server").rglob("*.py"), *(ROOT / "grammars").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            called = isinstance(node, ast.Call) and ast.unparse(node.func) in ("eval", "exec", "os.system", "os.popen")
            if called or {each.partition(".")[0] for each in names} & starters:
                found.add(str(path.relative_to(ROOT)))
    # The last starts a compiler and llama.cpp's own server for a model that is spread over machines.
    assert found == {"server/engine/process.py", "server/chat/pool.py", "server/weights/wheel.py", "server/cli/rpc.py"}
