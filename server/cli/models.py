"""The commands about models and their files: `nap-llm models | pull | list | rm | show`.

Files are read by our own reader, and by llama.cpp in a helper process alone: a damaged one ends no command.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from server.cli.arguments import Commands, add_command, add_models
from server.config import HuggingFaceFile, ModelConfig, ModelSource, load_config
from server.engine import EngineError
from server.engine.memory import gguf
from server.engine.memory.hparams import HParams
from server.weights import WeightsError, cached, fetch, held, label, remove

if TYPE_CHECKING:
    from server.engine.memory.plan import MemoryPlan


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "models",
        models,
        "list the configured connections and their files",
        "Reads the headers of the files that are here: size, architecture, context, chat template.",
    )
    parser.add_argument(
        "--plan", action="store_true", help="also how each model is laid over this machine's memory, with every figure"
    )
    pulling = add_command(commands, "pull", pull, "fetch models, or what is new of them, and print their paths")
    listing = add_command(
        commands, "list", list_files, "list the model files on this machine, and those still to fetch"
    )
    removing = add_command(commands, "rm", rm, "remove fetched model files")
    showing = add_command(
        commands, "show", show, "show what a model's file says, what it can do, and how it would be loaded"
    )
    model = "a connection's key, or owner/repo:file on the Hugging Face Hub"
    pulling.add_argument("what", nargs="*", metavar="WHAT", help=f"{model} (default: all connections)")
    removing.add_argument("what", nargs="+", metavar="WHAT", help=model)
    showing.add_argument("what", metavar="WHAT", help=f"{model}, or the path of a GGUF")
    for each in (parser, pulling, listing, removing, showing):
        add_models(each)


def fetch_shown(source: ModelSource, *, refresh: bool = False) -> Path:
    """The source's file, with a progress bar on a terminal while it is downloaded. Raises WeightsError."""
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


def models(options: argparse.Namespace) -> int:
    """The configured connections, and what their files say."""
    for connection in load_config(options.models).connections:
        _print(connection.key, style="bold", end="")
        _print(f"  {connection.name} ({connection.model})")
        path = cached(connection.source)
        if path is None:
            _print(f"  file      not here yet: {label(connection.source)}")
            continue
        try:
            file = gguf.read(path)
        except EngineError as error:
            _print(f"  file      {path}: {error.reason}")
            continue
        _describe(path, file, connection)
        if options.plan:
            _print_plan(_planned(path, file, connection), connection)
    return 0


def show(options: argparse.Namespace) -> int:
    """One model in full: what its file says, what it can do, how it would be loaded."""
    connection = _connection(options.what, options.models)
    path = cached(connection.source)
    if path is None:
        if connection.source.path is not None:
            raise WeightsError(f"no model file at {connection.source.path}")
        raise WeightsError(f"{label(connection.source)} is not here yet; `nap-llm pull {options.what}` fetches it")
    file = gguf.read(path)
    _describe(path, file, connection)
    for line in asyncio.run(_abilities(path, connection)):
        _print(line)
    _print_plan(_planned(path, file, connection), connection)
    _print("  metadata")
    for key, value in sorted(file.metadata.items()):
        _print(f"    {key}  {_shown(value)}")
    return 0


def pull(options: argparse.Namespace) -> int:
    """Fetch the named files, or all that the configuration names; print their paths."""
    named = [source for each in options.what for source in _connection(each, options.models).sources]
    for source in named or [each for one in load_config(options.models).connections for each in one.sources]:
        print(fetch_shown(source, refresh=True))
    return 0


def list_files(options: argparse.Namespace) -> int:
    """The files on this machine and those that connections name, with their bytes and the connections' keys."""
    users: dict[str, list[str]] = {}
    sizes: dict[str, int | None] = {**held()}
    if options.models.exists():
        for connection in load_config(options.models).connections:
            for source in connection.sources:
                name = label(source)
                users.setdefault(name, []).append(connection.key)
                path = cached(source)
                sizes.setdefault(name, path.stat().st_size if path is not None else None)
    for name, size in sizes.items():
        shown = "not here" if size is None else f"{size / 1e6:,.1f} MB"
        print(f"{shown:>12}  {name}  {', '.join(users.get(name, []))}".rstrip())
    return 0


def rm(options: argparse.Namespace) -> int:
    """Remove fetched files. A connection that names one fetches it again when it is next used."""
    for each in options.what:
        for source in _connection(each, options.models).sources:
            print(f"{label(source)}: {remove(source) / 1e6:,.1f} MB freed")
    return 0


def _connection(what: str, models: Path) -> ModelConfig:
    """The connection with this key, else a connection of defaults for the file of this name."""
    if models.exists():
        for connection in load_config(models).connections:
            if what == connection.key:
                return connection
    try:
        source = ModelSource(huggingface=HuggingFaceFile.parse(what))
    except ValueError:
        if not what.endswith(".gguf") and not Path(what).is_file():
            raise WeightsError(
                f"{what} is neither owner/repo:file nor a GGUF nor the key of a connection in {models}"
            ) from None
        source = ModelSource(path=Path(what))
    return ModelConfig(key=what, name=what, model=what, source=source)


def _describe(path: Path, file: gguf.Gguf, connection: ModelConfig) -> None:
    trained = file.metadata.get(f"{file.architecture}.context_length", "?")
    template = connection.template or file.text("tokenizer.chat_template")
    own = "" if connection.template is None else " (the configuration's)"
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    vocabulary = tokens.count if isinstance(tokens, gguf.Array) else "?"
    _print(f"  file      {path}")
    _print(f"  size      {file.size / 1e6:,.1f} MB")
    _print(f"  model     {file.text('general.name', '?')}, {file.architecture or '?'}, vocabulary {vocabulary}")
    _print(
        f"  context   {connection.context_length or trained} of {trained} tokens, {connection.slots or 'up to 8'} slots"
    )
    _print(f"  template  {f'{len(template)} characters{own}' if template else 'none'}")


async def _abilities(path: Path, connection: ModelConfig) -> list[str]:
    """Capabilities of the model with its template, as a helper process finds them."""
    from server.chat import ChatSettings, HelperPool
    from server.wire.records import WireError

    pool = HelperPool(size=1, seconds=60)
    try:
        await pool.start()
        settings = ChatSettings(template=connection.template)
        if connection.mmproj is not None and (projector := cached(connection.mmproj)) is not None:
            settings = replace(settings, projector=str(projector))
        found = await pool.inspect(str(path), settings)
    except WireError as error:
        return [f"  format    none: {error.message}"]
    finally:
        await pool.close()
    able = [name for name in ("images", "json", "tools", "thinking") if getattr(found, name)]
    lines = [
        f"  format    {found.format}",
        f"  can       {', '.join(able)}; tool choice {', '.join(found.tool_choice_modes)}",
    ]
    if found.reasoning_efforts:
        lines.append(f"  effort    {', '.join(found.reasoning_efforts)}")
    return lines


def _planned(path: Path, file: gguf.Gguf, connection: ModelConfig) -> MemoryPlan:
    from server.engine.memory.device import machine
    from server.engine.memory.plan import plan

    projector, draft = (
        cached(source) if source is not None else None for source in (connection.mmproj, connection.draft)
    )
    return plan(HParams.of(file), machine(), connection.spec(path, queue=0, projector=projector, draft=draft))


def _print_plan(made: MemoryPlan, connection: ModelConfig) -> None:
    where = "on the CPU" if not made.devices else f"{made.gpu_layers} layers on the GPU"
    experts = f", experts of {made.cpu_experts} layers on the CPU" if made.cpu_experts else ""
    cells = (
        f"{made.kv_cells:,} cells as {made.kv_type}, {'each slot its own' if made.kv_per_slot else 'one pool for all'}"
    )
    own = "; its last layer drafts" if made.mtp else ""
    _print(f"  plan      {where}{experts}; {made.slots} slots of {made.context_length:,} tokens; {cells}{own}")
    for share in (*made.devices, made.host):
        repacked = f" ({share.repacked / 2**20:,.1f} laid out anew)" if share.repacked else ""
        prefixes = f", beginnings of prompts {share.prefix_cache / 2**20:,.1f}" if share.prefix_cache else ""
        images = f", images {share.encoder_cache / 2**20:,.1f}" if share.encoder_cache else ""
        drafts = f", drafts {share.draft_model / 2**20:,.1f}" if share.draft_model else ""
        _print(
            f"            {share.name}: weights {share.weights / 2**20:,.1f} MiB{repacked},"
            f" KV cache {share.kv / 2**20:,.1f}, compute {share.compute / 2**20:,.1f}{prefixes}{images}{drafts};"
            f" {share.used / 2**20:,.1f} of {share.free / 2**20:,.0f} free"
        )
    for note in made.notes:
        _print(f"            {note}")
    if connection.rpc:
        _print(f"            beside these {', '.join(connection.rpc)}, whose memory is asked for when it is loaded")


def _shown(value: object) -> str:
    """A value of the metadata on one line, templates and lists by their length."""
    if isinstance(value, gguf.Array):
        return f"[{value.count}]"
    text = " ".join(str(value).split())
    return f"{text[:77]}…" if len(text) > 78 else text


def _print(text: str, *, style: str | None = None, end: str = "\n") -> None:
    Console(soft_wrap=True, highlight=False, markup=False).print(text, style=style, end=end)
