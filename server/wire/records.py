"""Records of the NAP-LLM wire as immutable Python values (nap-llm.md, "Schemas").

Field names are snake_case here and camelCase on the wire; `wire.read` and `wire.write` translate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "toolResult"]
Format = Literal["text", "json"]
ToolChoiceMode = Literal["auto", "none", "required", "tool"]
ReasoningEffort = Literal["minimal", "low", "medium", "high", "xhigh", "max", "ultra"]
"""From the least to the most (mhome LLM contract, "GenerationParameters")."""
ReasoningContinuation = Literal["auto", "dropped", "required"]
"""What becomes of a loop of tool calls whose earlier turns came without the reasoning behind their calls. "auto": it is
refused where the model's format wants that back and the model thinks. "dropped": it goes on. "required": it is refused.
"""
SystemMessages = Literal["separate", "merge"]
"""What becomes of a system message behind the first where a chat template takes but one. "separate": it is refused.
"merge": its text joins the first, or becomes the first where there is none."""
Finish = Literal["stop", "length", "refusal", "toolUse"]
ErrorCode = Literal[
    "unsupported",
    "invalid-request",
    "selection-expired",
    "user-cancelled",
    "cancelled",
    "timeout",
    "quota-exceeded",
    "provider-error",
]


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    mime_type: Literal["image/png", "image/jpeg", "image/webp"]
    data: str
    """Standard padded base64, already checked for form."""

    @property
    def size(self) -> int:
        """Bytes of the file: four characters are three, less the padding."""
        return len(self.data) // 4 * 3 - self.data.count("=", -2)


@dataclass(frozen=True, slots=True)
class ThinkingPart:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    tool_call_id: str
    name: str
    arguments: Mapping[str, Any]


Part = TextPart | ImagePart | ThinkingPart | ToolCallPart


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: tuple[Part, ...]
    tool_call_id: str | None = None
    tool_name: str | None = None
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str | None
    parameters: Mapping[str, Any]
    """JSON Schema with root `type: "object"`; the specification's default already filled in."""


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The wire's ToolChoice record: forces one named tool."""

    name: str


ToolChoice = Literal["auto", "none", "required"] | NamedTool


@dataclass(frozen=True, slots=True)
class Requirements:
    model: str | None = None
    images: bool = False
    json: bool = False
    tools: bool = False


@dataclass(frozen=True, slots=True)
class Model:
    handle: str
    name: str
    model: str
    route: str
    images: bool
    json: bool
    tools: bool
    tool_choice_modes: tuple[ToolChoiceMode, ...]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    handle: str
    messages: tuple[Message, ...]
    format: Format = "text"
    max_tokens: int | None = None
    temperature: float | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    """None where there are no tools; otherwise the explicit choice or the default, `auto`."""


@dataclass(frozen=True, slots=True)
class Usage:
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    """Of the output, those between the brackets of thinking; the brackets' own are none. None: there are none."""


@dataclass(frozen=True, slots=True)
class Generation:
    content: tuple[Part, ...]
    finish: Finish
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    request_id: str
    sequence: int
    event: Literal["start", "delta", "end"]
    block: Literal["text", "thinking", "toolCall"]
    block_index: int
    text: str | None = None
    tool_call_id: str | None = None
    name: str | None = None


class WireError(Exception):
    """A failure as the wire reports it: one of the specification's codes and a safe message.

    The message names fields, tools and keywords, never values. `extra` holds additional members of the
    error record (http-binding: `"reason": "context"`).
    """

    def __init__(self, code: ErrorCode, message: str, **extra: str) -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.message = message
        self.extra = extra
