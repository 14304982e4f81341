"""Rules of a conversation's history (nap-llm.md, "Message"): where parts may stand, and which results answer what."""

from __future__ import annotations

from collections.abc import Sequence

from server.wire.records import Message, ThinkingPart, ToolCallPart, WireError


def check_history(
    messages: Sequence[Message],
    at: str = "messages",
    *,
    places: Sequence[str] | None = None,
    call: str = "toolCallId",
    answer: str = "toolCallId",
) -> None:
    """Raises `invalid-request` naming the message where placement or pairing breaks a rule.

    `places` names each message where `at` and its index do not; `call` and `answer` are the fields that hold the id of
    a call and of the call that a result answers.

    Every call of an assistant turn is answered by exactly one `toolResult`, directly after that turn, in any order,
    with the call's own tool name; call ids are unique within the conversation.
    """
    seen: set[str] = set()
    open_calls: dict[str, str] = {}
    for index, message in enumerate(messages):
        where = f"{at}[{index}]" if places is None else places[index]
        if message.role == "toolResult":
            _check_result(message, where, open_calls, answer)
            continue
        if open_calls:
            raise WireError("invalid-request", f"{where} stands before every tool call of the turn has its result")
        for position, part in enumerate(message.content):
            if isinstance(part, ToolCallPart | ThinkingPart) and message.role != "assistant":
                raise WireError("invalid-request", f"{where}.content[{position}] is allowed in assistant messages only")
            if isinstance(part, ToolCallPart):
                if part.tool_call_id in seen:
                    raise WireError("invalid-request", f"{where}.content[{position}].{call} stands twice")
                seen.add(part.tool_call_id)
                open_calls[part.tool_call_id] = part.name
    if open_calls:
        raise WireError("invalid-request", f"{at} ends before every tool call has its result")


def _check_result(message: Message, where: str, open_calls: dict[str, str], answer: str) -> None:
    for position, part in enumerate(message.content):
        if isinstance(part, ToolCallPart | ThinkingPart):
            raise WireError("invalid-request", f"{where}.content[{position}] must be text or image in a toolResult")
    name = open_calls.pop(message.tool_call_id or "", None)
    if name is None:
        raise WireError(
            "invalid-request", f"{where}.{answer} answers no open call of the directly preceding assistant turn"
        )
    if name != message.tool_name:
        raise WireError("invalid-request", f"{where}.toolName is not the name of the call it answers")
