"""What passes between the web process, the chat helpers and a model's worker process: plain, picklable values."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from server.engine.sampling.params import Sampling

MAX_DRAFT_TOKENS = 16
"""Draft tokens of one step, all sequences together."""
PREFIX_CACHE_BYTES = 256 * 2**20
"""Limit of the prefix cache in host memory."""
ENCODER_CACHE_BYTES = 256 * 2**20
"""Limit of the image embeddings kept. An image of 256 tokens takes 1 to 5 MB."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of prompt text. Only where `control` is true may its text become control tokens."""

    text: str
    control: bool


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the sampler must obey.

    `grammar` is GBNF with the root rule `root`. Without `markers` it holds from the first token on. With
    `markers` the output is free until the first of them appears outside `thinking` (its opening and closing
    text); the marker itself belongs to the grammar's text. `thinking_open`: the prompt ends inside thinking.
    After the grammar has ended, only an end-of-generation token may follow.
    """

    grammar: str
    triggers: tuple[str, ...] = ()
    reasoning_tags: tuple[str, str] | None = None
    thinking_open: bool = False


@dataclass(frozen=True, slots=True)
class RgbImage:
    """A decoded image: `rgb` holds `width` × `height` pixels of three bytes, row by row from the top left.

    `digest` stands for the content wherever images are compared or kept: equal digests must mean equal pixels and size
    (SHA-256 over both, say; `Picture.of` computes it).
    """

    width: int
    height: int
    rgb: bytes = field(repr=False)
    digest: str

    @classmethod
    def of(cls, width: int, height: int, rgb: bytes) -> RgbImage:
        """A picture with the digest of its content. Raises ValueError where size and pixels do not agree."""
        if width < 1 or height < 1 or len(rgb) != 3 * width * height:
            raise ValueError("rgb must hold three bytes for each pixel")
        return cls(width, height, rgb, hashlib.sha256(b"%d %d " % (width, height) + rgb).hexdigest())


@dataclass(frozen=True, slots=True)
class StopCriteria:
    """Texts that end an output where its answer holds one of them. What begins with it is not part of the output.

    Thinking and calls are no answer: `thinking` is what they stand between, `calls` are markers from which on nothing
    is looked for, `anchored` such as are markers only where an answer begins. `skip` are the markers of frames.
    `lead`: what of the prompt's end belongs to the output.
    """

    strings: tuple[str, ...]
    reasoning_tags: tuple[str, str] | None = None
    calls: tuple[str, ...] = ()
    anchored: tuple[str, ...] = ()
    ignored_markers: tuple[str, ...] = ()
    prompt_opening: str = ""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to generate. `tokens` is the whole prompt's text; `scope` bounds which jobs may share its cache.

    `pictures` stand in the prompt: each with the offset in `tokens` before which it stands, in ascending order (equal
    offsets: one directly after the other). What the model wants around an image (its begin and end tokens, breaks
    between its parts) comes with the image and is not in `tokens`. A prompt ends with at least one token of text.
    `deadline` is in seconds of `time.monotonic()` (one clock for all processes of the machine).
    `banned` tokens are never sampled.
    """

    id: int
    tokens: array[int]
    sampling: Sampling
    cache_salt: str
    deadline: float
    max_tokens: int | None = None
    constraint: Constraint | None = None
    suppress_tokens: tuple[int, ...] = ()
    images: tuple[tuple[int, RgbImage], ...] = ()
    stop: StopCriteria | None = None
    logprobs: int | None = None
    """How many of the likeliest tokens to tell with each token, 0 for the chosen one's own log probability alone."""


class Logprob(NamedTuple):
    """One token's bytes in the output, its natural log probability, and the likeliest tokens with theirs."""

    piece: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...]


@dataclass(frozen=True, slots=True)
class TextChunk:
    """Text that is certain: whole characters only. `tokens` counts the tokens behind it, `logprobs` holds one entry
    for each where the job asks."""

    text: str
    tokens: int
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The generation ended by itself. `prompt_tokens` and `cache_read_tokens` count those of images too."""

    finish_reason: Literal["stop", "length"]
    prompt_tokens: int
    output_tokens: int
    cache_read_tokens: int
    jump_forward_tokens: int = 0
    """Output tokens the constraint left no choice about: appended, not sampled."""
    tokens: array[int] = field(default_factory=lambda: array("i"), repr=False)
    """The output itself, without the token that ended it: behind the prompt it is what the sequence held."""
    ends: array[int] = field(default_factory=lambda: array("i"), repr=False)
    """For each of `tokens`, how many characters the output has to its end. One that ends within a character counts
    those before it. Behind a stop sequence there are more characters than were sent."""
    stopped: bool = False
    """One of the job's stop sequences ended it: `finish` is "stop" and the text is cut before that."""
    draft_tokens: int = 0
    """Tokens decoded ahead because the output might go on so."""
    accepted_tokens: int = 0
    """Of these, those that it went on with."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The generation ended without a result. `reason` is safe to show: it holds no prompt and no output.

    `extra` tells the kinds of a code apart. `"reason"` of quota-exceeded: "queue" (too many wait) or "context" (the
    prompt does not fit it). Of unsupported: "vision" (the model takes no images) or "image" (it does not take the one
    whose index among the job's pictures `"image"` is). Of provider-error: "constraint" (it cannot be followed),
    "decode" or "encode" (a step, an image failed), "memory" (the KV cache is full), "worker" (it died or was closed);
    without any it is a fault of whoever made the job.
    """

    code: Literal["provider-error", "quota-exceeded", "unsupported", "cancelled", "timeout"]
    reason: str
    extra: dict[str, str] = field(default_factory=dict)


Event = TextChunk | Finished | Failed


PREFILL_SLOWDOWN = 3.5
"""On a CPU a few prompt tokens beside decoding ones take nearly as long as many: 2.5 held the gaps of running answers
to 1.7 times what they were and made a long prompt take 3.6 times as long."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How a worker loads its model. Zero means: what the model was trained for, or what the machine suggests."""

    path: str
    context_length: int = 0
    """Tokens per sequence."""
    slots: int = 8
    threads: int = 0
    gpu_layers: int = -1
    """Of the layers and the output behind them, so many on GPUs. -1: as many as fit."""
    cpu_experts: int = -1
    """Of a mixture, so many layers' experts stay with the CPU. -1: as many as do not fit elsewhere."""
    rpc: tuple[str, ...] = ()
    """Servers of llama.cpp's RPC backend, `host:port`, over whose devices the model may be laid too."""
    kv_type: str = ""
    """How the KV cache is stored: "f16", "q8_0" or "q4_0". Empty: as it fits."""
    prefill_chunk: int = 0
    prefill_slowdown: float = PREFILL_SLOWDOWN
    """How much longer a step of running answers may take while prompts are prefilled beside them."""
    speculation: bool = True
    """Draft what an output may copy from what came before; switched off by itself where that does not pay."""
    draft_model_path: str | None = None
    """Path of the GGUF of a smaller model of the same vocabulary, which drafts too."""
    max_queued: int = 64
    mmproj_path: str | None = None
    """Path of the GGUF that turns images into the model's embeddings (llama.cpp's "mmproj"). None: text only."""
    hang_timeout: float = 60.0
    """Seconds without progress after which a worker that has work counts as hung; 0: never."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a loaded model says of itself."""

    architecture: str
    context_length: int
    """Tokens one sequence may hold."""
    slots: int
    vocabulary: int
    backends: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What is less than the model has, for want of memory."""
    gpu_contended: bool = False
    """Whether GPUs that held nothing else would have taken more of it."""
    vision: bool = False
    """Whether the projector takes images; one for sound alone does not."""


class EngineError(Exception):
    """The engine cannot serve the model. `reason` is safe to show: it names no path and holds no prompt."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters of one engine since its start, and what it does now."""

    active: int
    """Sequences in the batch: in prefill or decoding."""
    queued: int
    """Jobs accepted and not yet in the batch."""
    prompt_tokens: int
    """Prompt tokens of finished jobs, cached ones included."""
    cache_read_tokens: int
    output_tokens: int
    restarts: int
    jump_forward_tokens: int = 0
    """Output tokens of finished jobs that the constraint left no choice about."""
    worker_active: int = 0
    """Sequences in the worker's batch by its own account: ones cancelled a moment ago may be among them."""
    worker_queued: int = 0
