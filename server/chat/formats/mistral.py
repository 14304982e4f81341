"""Mistral: `[TOOL_CALLS]`, as a JSON list with ids (Nemo), with the id in brackets (Small 3.2), or without ids."""

from server.chat.format import ARGUMENTS, ID, NAME, Calls, Format, Frame

_THINK = Frame("[THINK]", "[/THINK]")

FORMATS = (
    Format(
        name="mistral-nemo",
        signs=(("[TOOL_CALLS]",),),
        unlike=("[ARGS]",),
        calls=(
            Calls(
                begin="[TOOL_CALLS][",
                call=('{"name": "', NAME, '", "arguments": ', ARGUMENTS, ', "id": "', ID, '"}'),
                between=", ",
                end="]",
            ),
        ),
        ids="{short}",
    ),
    Format(
        name="mistral-call-id",
        signs=(("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),),
        calls=(Calls(call=("[TOOL_CALLS]", NAME, "[CALL_ID]", ID, "[ARGS]", ARGUMENTS)),),
        ids="{short}",
    ),
    Format(
        name="mistral-args",
        signs=(("[TOOL_CALLS]", "[ARGS]"),),
        unlike=("[CALL_ID]",),
        thinking=_THINK,
        calls=(Calls(call=("[TOOL_CALLS]", NAME, "[ARGS]", ARGUMENTS)),),
        ids="{short}",
    ),
)
