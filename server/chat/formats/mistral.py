"""Mistral: `[TOOL_CALLS]`, as a JSON list with ids (Nemo), with the id in brackets (Small 3.2), or without ids."""

from server.chat.formats.spec import ARGUMENTS, ID, NAME, ChatFormat, Tags, ToolCallFormat

_THINK = Tags("[THINK]", "[/THINK]")

FORMATS = (
    ChatFormat(
        name="mistral-nemo",
        template_markers=(("[TOOL_CALLS]",),),
        excluded_markers=("[ARGS]",),
        calls=(
            ToolCallFormat(
                begin="[TOOL_CALLS][",
                call=('{"name": "', NAME, '", "arguments": ', ARGUMENTS, ', "id": "', ID, '"}'),
                between=", ",
                end="]",
            ),
        ),
        id_template="{short}",
    ),
    ChatFormat(
        name="mistral-call-id",
        template_markers=(("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),),
        calls=(ToolCallFormat(call=("[TOOL_CALLS]", NAME, "[CALL_ID]", ID, "[ARGS]", ARGUMENTS)),),
        id_template="{short}",
    ),
    ChatFormat(
        name="mistral-args",
        template_markers=(("[TOOL_CALLS]", "[ARGS]"),),
        excluded_markers=("[CALL_ID]",),
        reasoning_tags=_THINK,
        calls=(ToolCallFormat(call=("[TOOL_CALLS]", NAME, "[ARGS]", ARGUMENTS)),),
        id_template="{short}",
    ),
)
