"""The commands about model files: `nap-llm pull | list | rm`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from server.config import Config, Source, hub_file, load_config
from server.models import ModelError, cached, fetch, held, label, remove


def fetch_shown(source: Source, *, refresh: bool = False) -> Path:
    """The source's file, with a progress bar on a terminal while it is downloaded. Raises ModelError."""
    if source.path is not None or (cached(source) is not None and not refresh):
        return fetch(source)
    if not sys.stderr.isatty():
        print(f"Fetching {label(source)}", file=sys.stderr)
        return fetch(source, refresh=refresh)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(f"Fetching {label(source)}", total=None)
        return fetch(
            source,
            refresh=refresh,
            progress=lambda done, total: bar.update(task, completed=done, total=max(done, total) if total else None),
        )


def pull(options: argparse.Namespace) -> int:
    """Fetch the named files, or all that the configuration names; print their paths."""
    named = [_source(each, options.models) for each in options.what]
    for source in named or _sources(load_config(options.models)):
        print(fetch_shown(source, refresh=True))
    return 0


def listing(options: argparse.Namespace) -> int:
    """The files on this machine and those that connections name, with their bytes and the connections' keys."""
    users: dict[str, list[str]] = {}
    sizes: dict[str, int | None] = {**held()}
    if options.models.exists():
        for connection in load_config(options.models).connections:
            name = label(connection.source)
            users.setdefault(name, []).append(connection.key)
            path = cached(connection.source)
            sizes.setdefault(name, path.stat().st_size if path is not None else None)
    for name, size in sizes.items():
        shown = "not here" if size is None else f"{size / 1e6:,.1f} MB"
        print(f"{shown:>12}  {name}  {', '.join(users.get(name, []))}".rstrip())
    return 0


def rm(options: argparse.Namespace) -> int:
    """Remove fetched files. A connection that names one fetches it again when it is next used."""
    for each in options.what:
        source = _source(each, options.models)
        print(f"{label(source)}: {remove(source) / 1e6:,.1f} MB freed")
    return 0


def _source(what: str, models: Path) -> Source:
    """A connection's key, or `owner/repo:file`."""
    try:
        return Source(huggingface=hub_file(what))
    except ValueError:
        pass
    if models.exists():
        for connection in load_config(models).connections:
            if what == connection.key:
                return connection.source
    raise ModelError(f"{what} is neither owner/repo:file nor the key of a connection in {models}")


def _sources(config: Config) -> list[Source]:
    return [connection.source for connection in config.connections]
