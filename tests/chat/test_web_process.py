"""The process that serves loads nothing of chat that is for the helper processes."""

from __future__ import annotations

import subprocess
import sys


def test_the_web_process_loads_neither_grammars_nor_templates() -> None:
    """They are for the helpers, whose time and memory are bounded."""
    program = "import sys, server.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "server" in loaded and not loaded & {"grammars", "lark", "jinja2", "PIL"}
