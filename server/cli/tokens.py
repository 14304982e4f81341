"""`nap-llm token`: the tokens of shells, and their policies."""

from __future__ import annotations

import argparse
import time
from typing import get_args

from server.cli.arguments import Commands, add_command, add_state
from server.state import Consent, Select, TokenStore


def add_parser(commands: Commands) -> None:
    tokens = add_command(
        commands,
        "token",
        list_tokens,
        "make, list and revoke the tokens of shells",
        """\
Every shell has a token of its own. Its policy says who decides about a generation, and who chooses the model. A running
server notices at once.""",
        examples="""\
nap-llm token create editor --consent shell
nap-llm token create scripts --consent always
nap-llm token revoke editor
""",
    )
    actions = tokens.add_subparsers(required=True, metavar="ACTION", title="actions")
    creating = add_command(actions, "create", create, "make a token and print it; it is shown this once")
    creating.add_argument("name", metavar="NAME", help="1 to 64 of A-Z a-z 0-9 _ . -")
    creating.add_argument(
        "--consent",
        choices=get_args(Consent),
        default="ask",
        help="ask: the owner decides each time in the console; shell: the shell asks its user; always: nobody is asked"
        " (default: %(default)s)",
    )
    creating.add_argument(
        "--select",
        choices=get_args(Select),
        default="default",
        help="default: the first connection that meets the requirements; ask: the owner chooses (default: %(default)s)",
    )
    revoking = add_command(actions, "revoke", revoke, "revoke a token; what runs under it is cancelled")
    revoking.add_argument("name", metavar="NAME", help="the name it was made under")
    naming = add_command(actions, "list", list_tokens, "list the tokens' names and policies")
    for action in (creating, revoking, naming):
        add_state(action)


def create(options: argparse.Namespace) -> int:
    print(TokenStore(options.state).create(options.name, consent=options.consent, select=options.select))
    return 0


def revoke(options: argparse.Namespace) -> int:
    TokenStore(options.state).revoke(options.name)
    return 0


def list_tokens(options: argparse.Namespace) -> int:
    for each in TokenStore(options.state).list():
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.created))
        print(f"{each.name:24} consent={each.consent:7} select={each.select:8} {created}")
    return 0
