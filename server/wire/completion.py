"""Rules of a finished output (nap-llm.md, "Generation"): what a provider may not hand out as completed."""

from __future__ import annotations

from server.wire import strict_json
from server.wire.records import (
    Generation,
    GenerationRequest,
    ImagePart,
    NamedTool,
    TextPart,
    ToolCallPart,
    WireError,
)


def check_generation(request: GenerationRequest, generation: Generation) -> None:
    """Raises `provider-error` where the generation breaks a rule of the specification.

    Completed turns (`stop`, `toolUse`) must satisfy the tool choice and the format; partial ones (`length`,
    `refusal`) must carry no call. Messages never hold any of the output.
    """
    calls = [part for part in generation.content if isinstance(part, ToolCallPart)]
    if any(isinstance(part, ImagePart) for part in generation.content):
        raise _broken("the output holds a part that no generation may hold")
    if generation.finish in ("length", "refusal"):
        if calls:
            raise _broken("a partial turn carries tool calls")
        return
    if bool(calls) != (generation.finish == "toolUse"):
        raise _broken("the finish does not match the presence of tool calls")
    if not generation.content:
        raise _broken("a completed turn is empty")
    _check_calls(request, calls)
    if request.format == "json" and generation.finish == "stop":
        _check_json("".join(part.text for part in generation.content if isinstance(part, TextPart)))


def _check_calls(request: GenerationRequest, calls: list[ToolCallPart]) -> None:
    offered = {tool.name for tool in request.tools}
    choice = request.tool_choice
    if calls and not offered:
        raise _broken("the model called a tool although none was offered")
    if calls and choice == "none":
        raise _broken("the model called a tool although the choice was none")
    if any(call.name not in offered for call in calls):
        raise _broken("the model called a tool that was not offered")
    if not calls and (choice == "required" or isinstance(choice, NamedTool)):
        raise _broken("the model did not call a tool although one was required")
    if isinstance(choice, NamedTool) and any(call.name != choice.name for call in calls):
        raise _broken("the model called another tool than the forced one")
    if len({call.tool_call_id for call in calls}) != len(calls):
        raise _broken("two tool calls carry the same id")


def _check_json(text: str) -> None:
    try:
        parsed = strict_json.parse(text.encode("utf-8", "surrogatepass"))
    except strict_json.NotJson:
        raise _broken("the output is not JSON") from None
    if parsed.violation or not isinstance(parsed.value, dict):
        raise _broken("the output is not a JSON object")


def _broken(message: str) -> WireError:
    return WireError("provider-error", message)
