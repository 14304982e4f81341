"""Requests to chat and their results: plain, picklable values."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.chat.parser import ParserSpec
from server.engine.types import Constraint, RgbImage, StopCriteria
from server.wire.records import (
    Format,
    Message,
    ReasoningContinuation,
    ReasoningEffort,
    SystemMessages,
    Tool,
    ToolChoice,
    ToolChoiceMode,
)


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """One request's conversation; `tool_choice` is None exactly where there are no tools."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    format: Format = "text"
    response_schema: Mapping[str, Any] | bool | None = None
    """JSON Schema of the answer, which is that JSON then."""
    allowed_tools: frozenset[str] | None = None
    """The tools that may be called, where not all that are described may."""
    parallel: bool = True
    """A turn may hold more than one call."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer."""
    kept_tokens: Mapping[int, array[int]] = field(default_factory=dict, repr=False)
    """The tokens that the model gave as the assistant's turn at this index of `messages`, without the one that ended
    it. They take the turn's place in the prompt."""
    restarted: frozenset[int] = frozenset()
    """Turns whose tokens were another model's: from these the conversation goes on in a new context."""
    lenient: bool = False
    """Messages that the template or the model cannot take as they stand are carried as nearly as can be, not refused: a
    later system message as a user's turn, a loop of calls without its reasoning. For callers who only repeat their
    history, which they cannot mend."""
    names: Sequence[str] = ()
    """The caller's name of each message, where that is not its index."""
    scope: str = ""
    """Its owner, as `EngineRequest.cache_salt`: compiled schemas are kept for, and found by, the same scope alone."""

    def name(self, index: int) -> str:
        """The message at this index, for an error."""
        return self.names[index] if self.names else f"messages[{index}]"


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Limits of the images of one request; whatever is over them is refused, never scaled or cut."""

    pixels: int = 2**25
    """Of all of them together."""
    frames: int = 1
    """Of one of them; of an animation within the limit its first frame is taken."""


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """The owner's settings for a connection's conversations. None: as the model's file and template have it."""

    template: str | None = None
    """Takes the place of the model's own chat template."""
    thinking: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    """One that the template takes; another is left out."""
    reasoning_continuation: ReasoningContinuation = "auto"
    system_messages: SystemMessages = "separate"
    projector: str | None = None
    """The projector's file, where the connection has one."""
    images: ImageLimits = ImageLimits()


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a model with its template."""

    images: bool
    json: bool
    tools: bool
    tool_choice_modes: tuple[ToolChoiceMode, ...]
    thinking: bool = False
    """The template can switch it on and off."""
    reasoning_efforts: tuple[ReasoningEffort, ...] = ()
    """Those that the template takes, the least first."""
    format: str = ""
    """The name of the format that its calls are written in."""
    fingerprint: str = ""
    """Changes with the tokenizer, the template and the description of the format: what a turn's tokens depend on."""


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A conversation ready for the engine.

    `tokens` is the whole prompt's text, and `images` its images, each with the offset in `tokens` before which it
    stands (`EngineRequest.images`); `places` are the fields that those come from. `tools_to_validate` are those whose
    grammar leaves something to check on the completed arguments (`HelperPool.validate`); `validate_answer` says so of
    the answer's schema (`HelperPool.validate_answer`).
    """

    tokens: array[int]
    constraint: Constraint | None
    suppress_tokens: tuple[int, ...]
    parser: ParserSpec
    tools_to_validate: frozenset[str] = frozenset()
    validate_answer: bool = False
    stop: StopCriteria | None = None
    images: tuple[tuple[int, RgbImage], ...] = ()
    places: tuple[str, ...] = ()
    replayed: frozenset[int] = frozenset()
    """The turns of `PromptRequest.kept_tokens` that stand in the prompt as their tokens."""


@dataclass(frozen=True, slots=True)
class CompiledSchema:
    """A compiled schema to be read: its GBNF, and what validation still checks, as (JSON Pointer, keyword)."""

    gbnf: str
    checks: tuple[tuple[str, str], ...]
