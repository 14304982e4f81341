"""`nap-llm console`: the link of the owner's console."""

from __future__ import annotations

import argparse

from server.cli.arguments import Commands, add_command, add_state, add_url
from server.state import owner_token


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "console",
        run,
        "print the link of the owner's console",
        "For servers that run where nobody reads what they print. Whoever has the link is the owner.",
        examples="nap-llm console --url http://127.0.0.1:8033",
    )
    add_url(parser)
    add_state(parser)


def run(options: argparse.Namespace) -> int:
    print(f"{options.url.rstrip('/')}/#token={owner_token(options.state)}")
    return 0
