"""Completion scripts, in the shells they are for; and the help, as a person meets it."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.cli.arguments import every_parser
from server.cli.main import build_parser
from tests.cli.test_cli import run


def needs(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    return found


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Path:
    status, out, err = run(capsys, "completion", request.param)
    assert (status, err) == (0, "")
    file = tmp_path / f"nap-llm.{request.param}"
    file.write_text(out)
    return file


def completed(shell: str, script: Path, line: str, directory: Path) -> set[str]:
    """What the shell offers at the end of the line."""
    words = line.split(" ")
    if shell == "bash":
        # As readline does: the words, the number of the one under the cursor, then the function registered for them.
        code = f"""
            source {script}
            COMP_WORDS=({" ".join(each or "''" for each in words)}) COMP_CWORD={len(words) - 1} COMP_LINE='{line}'
            COMP_POINT={len(line)}
            $(complete -p nap-llm | sed 's/.*-F \\([^ ]*\\).*/\\1/') nap-llm "{words[-1]}" "{words[-2]}"
            printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        command = [needs(shell), "--norc", "-c", code]
    else:
        command = [needs(shell), "--no-config", "-c", f"source {script}; complete --do-complete '{line}'"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=directory, timeout=60)
    assert not done.stderr.strip(), done.stderr
    return {each.split("\t")[0].strip() for each in re.split(r"\n|  +", done.stdout) if each.strip()}


def commands(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices


@pytest.mark.parametrize("script", ["bash", "fish"], indirect=True)
def test_every_command_and_option_is_completed(script: Path, tmp_path: Path) -> None:
    shell = script.suffix[1:]
    parser = build_parser()
    assert set(commands(parser)) >= {"serve", "chat", "models", "token", "completion"}
    offered = completed(shell, script, "nap-llm ", tmp_path)
    assert set(commands(parser)) <= offered
    for each in list(every_parser(parser))[1:]:
        path = each.prog.removeprefix("nap-llm ")
        options = {text for action in each._actions for text in action.option_strings if text.startswith("--")}
        assert options <= completed(shell, script, f"nap-llm {path} --", tmp_path), path
    assert {"ask", "shell", "always"} <= completed(shell, script, "nap-llm token create --consent ", tmp_path)
    assert "serve" not in completed(shell, script, "nap-llm token ", tmp_path)


@pytest.mark.parametrize("script", ["bash", "fish"], indirect=True)
def test_files_and_directories_are_completed(script: Path, tmp_path: Path) -> None:
    (tmp_path / "models-of-mine.toml").touch()
    (tmp_path / "state-of-mine").mkdir()
    shell = script.suffix[1:]
    assert "models-of-mine.toml" in completed(shell, script, "nap-llm serve --models models-of", tmp_path)
    offered = completed(shell, script, "nap-llm serve --state ", tmp_path)
    assert {each.rstrip("/") for each in offered} >= {"state-of-mine"}
    assert "models-of-mine.toml" not in offered


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
def test_zsh_loads_it(script: Path, tmp_path: Path) -> None:
    subprocess.run([needs("zsh"), "-n", str(script)], check=True)
    script.rename(tmp_path / "_nap-llm")
    code = f"fpath=({tmp_path} $fpath); autoload -U compinit; compinit -u -D; print -r -- $_comps[nap-llm]"
    done = subprocess.run([needs("zsh"), "-f", "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("_nap-llm\n", "")
    text = (tmp_path / "_nap-llm").read_text()
    for each in list(every_parser(build_parser()))[1:]:
        assert each.prog.rsplit(" ", 1)[-1] in text
        assert all(text_ in text for action in each._actions for text_ in action.option_strings)


@pytest.mark.parametrize("parser", list(every_parser(build_parser())), ids=lambda parser: parser.prog)
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_help_is_complete_and_fits(
    parser: argparse.ArgumentParser, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = parser.format_help()
    for action in parser._actions:
        assert action.help or action.choices, f"{parser.prog} {action.dest} is explained"
    assert parser.description and parser.description.rstrip()[-1] in ".:"
    width = max(columns, 80)  # examples are not broken
    assert all(len(line) <= width for line in text.splitlines() if not line.startswith("  nap-llm")), text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--version")
    assert status == 0 and re.fullmatch(r"nap-llm \d+\.\d+\.\d+\S*\n", out)


def test_examples_of_the_help_are_command_lines() -> None:
    seen = 0
    for parser in every_parser(build_parser()):
        for line in (parser.epilog or "").splitlines():
            if not (parser.epilog or "").startswith("examples:") or "nap-llm " not in line:
                continue
            words = shlex.split(line[line.index("nap-llm") :], comments=True)[1:]
            end = next((at for at, each in enumerate(words) if each in (">", "2>>", "|")), len(words))
            build_parser().parse_args(words[:end])  # or it ends with status 2
            seen += 1
    assert seen > 8
