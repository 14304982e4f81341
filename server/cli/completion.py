"""`nap-llm completion`: scripts that complete the commands in a shell."""

from __future__ import annotations

import argparse
from pathlib import Path

from server.cli.arguments import Commands, add_command, every_parser


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "completion",
        run,
        "print a script that completes these commands in a shell",
        examples="""\
nap-llm completion bash > ~/.local/share/bash-completion/completions/nap-llm
nap-llm completion zsh > ~/.zfunc/_nap-llm        # a directory of $fpath
nap-llm completion fish > ~/.config/fish/completions/nap-llm.fish
""",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="for which shell")


def run(options: argparse.Namespace) -> int:
    import shtab

    parser: argparse.ArgumentParser = options.parser
    for each in every_parser(parser):
        for action in each._actions:
            if action.type is Path:
                # shtab reads what to complete from here.
                action.complete = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=options.shell))
    return 0
