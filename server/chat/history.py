"""Histories that a model or its template cannot take as they stand.

They are refused, by the name of the message, or carried as the connection's owner or the API says.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from server.chat.formats.spec import ChatFormat
from server.chat.template.capabilities import TemplateCapabilities
from server.chat.template.messages import text_of
from server.chat.template.provenance import ProvenanceStr
from server.chat.types import ChatSettings, PromptRequest
from server.wire.records import Message, ToolCallPart, WireError


def check_reasoning(
    conversation: PromptRequest,
    settings: ChatSettings,
    format: ChatFormat,
    capabilities: TemplateCapabilities,
    replayed: Collection[int] = (),
) -> None:
    """Refuses a conversation in the middle of a tool loop where the model needs the reasoning behind its calls and does
    not get it: messages cannot carry it (NAP-LLM, "Schemas": thinking is not input), turns that are `replayed` as their
    tokens do.

    By its format a model needs it where that is what it has been trained with, and it thinks. Raises
    WireError("unsupported") naming the first turn that lacks it.
    """
    rule = settings.reasoning_continuation
    needed = (
        format.needs_reasoning_history and format.reasoning_tags is not None and capabilities.reasoning.thinks(settings)
    )
    if rule == "dropped" or (rule == "auto" and (conversation.lenient or not needed)):
        return
    # A turn that comes from another route begins a new context by contract; an owner may require more.
    excused = {*replayed, *(conversation.restarted if rule == "auto" else ())}
    lost = [index for index in open_calls(conversation.messages) if index not in excused]
    if not lost:
        return
    ways = [
        'set reasoning_continuation = "dropped"',
        *(["switch thinking off"] if capabilities.reasoning.switch else []),
    ]
    raise WireError(
        "unsupported",
        f"{conversation.name(lost[0])}: this connection's model needs the reasoning behind its calls to go on, which "
        "the request does not carry; requests of /llm/complete carry it in the continuations of their messages. The "
        f"connection's owner may {' or '.join(ways)}",
    )


def open_calls(messages: Sequence[Message]) -> list[int]:
    """The turns of calls in the loop that goes on: those since the user spoke last. A loop that the user has spoken
    into is over, as one that has been answered is."""
    found: list[int] = []
    for index, message in enumerate(messages):
        if message.role == "user":
            found.clear()
        elif any(isinstance(part, ToolCallPart) for part in message.content):
            found.append(index)
    return found


def joined_system(
    conversation: PromptRequest, settings: ChatSettings, capabilities: TemplateCapabilities
) -> tuple[ProvenanceStr, ...]:
    """The system messages behind the first, where they join it; none where each stays in its place.

    They join it where the template itself would have it so, and where the owner lets them because it takes but one.
    Raises WireError("unsupported") naming the first that has no place (NAP-LLM, "API Surface": no message or role is
    discarded).
    """
    later = [index for index, each in enumerate(conversation.messages) if index and each.role == "system"]
    if not later or capabilities.later_system == "native":
        return ()
    if capabilities.later_system == "first" or settings.system_messages == "merge":
        return tuple(text_of(conversation.messages[at]) for at in later)
    if conversation.lenient:
        return ()
    raise WireError(
        "unsupported",
        f"{conversation.name(later[0])}: this model's chat template takes a system message at the beginning alone. The "
        'connection\'s owner may let later ones join it (system_messages = "merge")',
    )
