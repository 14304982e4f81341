"""Questions only the owner can answer: may this be disclosed, and which connection shall it be.

A decision waits in `Decisions` until somebody settles it or the work that asked is settled itself (cancel, deadline,
disconnect, revocation); then it is gone, and a late answer finds nothing.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from server.runtime.endpoint import Endpoint
from server.wire.records import GenerationRequest, ImagePart, Requirements, TextPart, ThinkingPart, ToolCallPart

_BYTES_OF_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class DisclosedAmount:
    """How many of something are disclosed, and their size in bytes: of text as UTF-8, of images as files."""

    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Disclosure:
    """Facts that an authorization must identify (NAP-LLM, "Shell Behavior"): asker, destination, content in numbers."""

    connection: str
    """The connection's label."""
    key: str
    model: str
    route: str
    charge: str
    messages: dict[str, DisclosedAmount]
    """By role; their text and the calls they replay."""
    images: DisclosedAmount
    tool_definitions: DisclosedAmount
    tool_names: tuple[str, ...]
    tool_results: DisclosedAmount
    answer_schema: DisclosedAmount
    """The JSON Schema that the answer is to follow, where the request brings one."""
    continuations: DisclosedAmount
    """Earlier turns that are put back as the model wrote them, what it thought among it; bytes are those of their
    tokens, four each."""


@dataclass(eq=False, slots=True)
class ConsentDecision:
    """May this generation be submitted? Answer: True or False."""

    endpoint: Endpoint
    disclosure: Disclosure
    request: GenerationRequest = field(repr=False)
    """The content itself, for the owner alone and on demand."""
    expires: float
    """When the deadline takes the question back, in seconds since the epoch."""
    schema: Mapping[str, Any] | bool | None = field(default=None, repr=False)
    """JSON Schema of the answer."""
    continued: Mapping[int, int] = field(default_factory=dict)
    """Tokens of each earlier turn that is put back as the model wrote it, by its message's index."""
    kind: Literal["consent"] = "consent"
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    created: float = field(default_factory=time.time)
    answer: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future(), repr=False)


@dataclass(eq=False, slots=True)
class SelectionDecision:
    """Which connection shall this endpoint get? Answer: a connection's key, or None to decline."""

    endpoint: Endpoint
    requirements: Requirements
    choices: tuple[str, ...]
    """Keys of the connections that meet the requirements."""
    expires: float
    kind: Literal["selection"] = "selection"
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    created: float = field(default_factory=time.time)
    answer: asyncio.Future[str | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future(), repr=False
    )


Decision = ConsentDecision | SelectionDecision


class PendingDecisions:
    """The decisions that wait for the owner, oldest first."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._waiting: dict[str, Decision] = {}
        self._changed = changed

    def waiting(self) -> tuple[Decision, ...]:
        return tuple(self._waiting.values())

    async def consent(self, decision: ConsentDecision) -> bool:
        """Waits for the owner. Cancelling the wait withdraws the question."""
        with self._asking(decision):
            return await decision.answer

    async def selection(self, decision: SelectionDecision) -> str | None:
        with self._asking(decision):
            return await decision.answer

    def settle_consent(self, id: str, allow: bool) -> bool:
        """Answers a question. False where none of this id waits."""
        decision = self._waiting.get(id)
        if not isinstance(decision, ConsentDecision) or decision.answer.done():
            return False
        decision.answer.set_result(allow)
        return True

    def settle_selection(self, id: str, key: str | None) -> bool:
        """As `settle_consent`; a key that is no choice of this question settles nothing."""
        decision = self._waiting.get(id)
        if not isinstance(decision, SelectionDecision) or decision.answer.done():
            return False
        if key is not None and key not in decision.choices:
            return False
        decision.answer.set_result(key)
        return True

    @contextmanager
    def _asking(self, decision: Decision) -> Iterator[None]:
        """Keeps a decision in the list for as long as somebody waits for its answer."""
        self._waiting[decision.id] = decision
        self._changed()
        try:
            yield
        finally:
            del self._waiting[decision.id]
            self._changed()


def count_disclosed(
    request: GenerationRequest,
) -> tuple[dict[str, DisclosedAmount], DisclosedAmount, DisclosedAmount, DisclosedAmount]:
    """Disclosure of a request, counted: messages by role, images, tool definitions, tool results."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for message in request.messages:
        what = message.role
        counts[what] += 1
        for part in message.content:
            if isinstance(part, ImagePart):
                counts["image"] += 1
                sizes["image"] += part.size
            elif isinstance(part, TextPart):
                sizes[what] += len(part.text.encode())
            elif isinstance(part, ToolCallPart):
                sizes[what] += _size(part.arguments) + len(part.name)
            elif isinstance(part, ThinkingPart):
                # Thinking is never sent (NAP-LLM, "Part").
                continue
    for tool in request.tools:
        counts["tool"] += 1
        sizes["tool"] += _size(tool.parameters) + len(tool.name) + len((tool.description or "").encode())

    def amount(what: str) -> DisclosedAmount:
        return DisclosedAmount(counts[what], sizes[what])

    roles = {role: amount(role) for role in ("system", "user", "assistant") if counts[role]}
    return roles, amount("image"), amount("tool"), amount("toolResult")


def count_schema(schema: Mapping[str, Any] | bool | None) -> DisclosedAmount:
    return DisclosedAmount(0, 0) if schema is None else DisclosedAmount(1, _size(schema))


def count_continued(continued: Mapping[int, int]) -> DisclosedAmount:
    """Of earlier turns, by their tokens."""
    return DisclosedAmount(len(continued), _BYTES_OF_A_TOKEN * sum(continued.values()))


def _size(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
