"""`nap-llm serve`: fetches the models' files, takes the port, and starts the server."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from server.cli import rpc
from server.cli.arguments import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    CommandError,
    Commands,
    add_command,
    add_models,
    add_state,
    port,
)
from server.cli.models import fetch_shown
from server.config import Config, ModelSource, load_config
from server.logs import LogFormat, start_logging
from server.state import owner_token
from server.weights import cached, fetch, label

log = logging.getLogger(__name__)


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "serve",
        run,
        "serve the configured models",
        """\
Fetches what is missing, then answers until SIGTERM or Ctrl-C, and prints the link of the owner's console. Whoever has
that link is the owner. Models are loaded when they are first used.

Told to end, it accepts nothing new, lets running generations finish for as long as `[server] drain` says, and settles
the rest. Told again, it ends at once. /healthz and /readyz are for supervisors, /metrics for Prometheus (with the
owner's token).""",
        examples="""\
nap-llm serve
nap-llm serve --models ~/models.toml --port 0
nap-llm serve --log-format json 2>> nap-llm.log
""",
    )
    add_models(parser)
    add_state(parser)
    parser.add_argument("--host", default=DEFAULT_HOST, help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=port, default=DEFAULT_PORT, help="port to listen on; 0: any free one (default: %(default)s)"
    )
    parser.add_argument(
        "--log-format",
        choices=get_args(LogFormat),
        help="lines to read, or a JSON object a line, on standard error (default: `[server] log_format`, else console)",
    )


def run(options: argparse.Namespace) -> int:
    config = load_config(options.models)
    listener = _listen(options.host, options.port)
    host, port = listener.getsockname()[:2]
    log_format = options.log_format or config.server.log_format
    if any(connection.rpc for connection in config.connections):
        os.environ.setdefault("GGML_BACKEND_PATH", str(rpc.built() / rpc.LIBRARY))
    fetch_one: Callable[[ModelSource], Path] = fetch_shown
    if log_format == "json":
        start_logging(log_format)
        fetch_one = _fetch_logged
    for connection in config.connections:
        for source in connection.sources:
            fetch_one(source)

    # No other command needs these imports: they answer at once.
    from server.cli.http_server import serve

    served = serve(
        config,
        listener,
        host=options.host,
        state=options.state,
        log_format=log_format,
        announce=lambda: _announce(config, host, port, owner_token(options.state)),
    )
    return 0 if served else 1


def _fetch_logged(source: ModelSource) -> Path:
    """For a log that nothing but records may stand in."""
    if source.path is None and cached(source) is None:
        log.info("fetching %s", label(source))
    return fetch(source)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CommandError(f"port {port} of {host} is in use; choose another with --port") from error
        raise CommandError(f"cannot listen on {host} port {port}: {error.strerror}") from error


def _announce(config: Config, host: str, port: int, token: str) -> None:
    shown = {"0.0.0.0": DEFAULT_HOST, "::": "::1"}.get(host, host)
    url = f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
    names = ", ".join(connection.name for connection in config.connections)
    print(f"Serving {names} at {url}/nap/llm\nConsole: {url}/#token={token}", flush=True)
