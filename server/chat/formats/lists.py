"""Families that write their calls as a JSON list behind a marker of their own."""

from server.chat.formats.spec import ARGUMENTS, ID, NAME, THINK, ChatFormat, Tags, ToolCallFormat

_CALL = ('{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}")

FORMATS = (
    ChatFormat(
        name="granite-3",
        template_markers=(("<|tool_call|>",),),
        excluded_markers=("<|tool_call>",),
        reasoning_tags=THINK,
        answer_tags=(Tags("<response>", "</response>"),),
        calls=(ToolCallFormat(begin="<|tool_call|>[", call=_CALL, between=", ", end="]"),),
    ),
    ChatFormat(
        name="nemotron-2",
        template_markers=(("<TOOLCALL>[",),),
        reasoning_tags=THINK,
        calls=(ToolCallFormat(begin="<TOOLCALL>[", call=_CALL, between=", ", end="]</TOOLCALL>"),),
    ),
    ChatFormat(
        name="apriel-1.5",
        template_markers=(("<tool_calls>[", "<|assistant|>"),),
        calls=(ToolCallFormat(begin="<tool_calls>[", call=_CALL, between=", ", end="]</tool_calls>"),),
    ),
    ChatFormat(
        name="apriel-1.6",
        template_markers=(("<tool_calls>[", "<|begin_assistant|>"),),
        reasoning_tags=Tags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
        calls=(ToolCallFormat(begin="<tool_calls>[", call=_CALL, between=", ", end="]</tool_calls>"),),
    ),
    ChatFormat(
        name="minimax-m1",
        template_markers=(("<tool_calls>", "<beginning_of_sentence>"),),
        reasoning_tags=THINK,
        calls=(ToolCallFormat(begin="<tool_calls>\n", call=_CALL, between="\n", end="\n</tool_calls>"),),
    ),
    ChatFormat(
        name="firefunction-2",
        template_markers=(("functools[",),),
        calls=(ToolCallFormat(begin=" functools[", call=_CALL, between=", ", end="]"),),
    ),
    ChatFormat(
        name="apertus",
        template_markers=(("<|tools_prefix|>",),),
        reasoning_tags=Tags("<|inner_prefix|>", "<|inner_suffix|>"),
        calls=(
            ToolCallFormat(
                begin="<|tools_prefix|>[",
                call=('{"', NAME, '": ', ARGUMENTS, "}"),
                between=", ",
                end="]<|tools_suffix|>",
            ),
        ),
    ),
    ChatFormat(
        name="command-r7b",
        template_markers=(("<|START_ACTION|>",),),
        reasoning_tags=Tags("<|START_THINKING|>", "<|END_THINKING|>"),
        answer_tags=(Tags("<|START_RESPONSE|>", "<|END_RESPONSE|>"), Tags("<|START_TEXT|>", "<|END_TEXT|>")),
        calls=(
            ToolCallFormat(
                begin="<|START_ACTION|>[\n    ",
                call=('{"tool_call_id": "', ID, '", "tool_name": "', NAME, '", "parameters": ', ARGUMENTS, "}"),
                between=",\n    ",
                end="\n]<|END_ACTION|>",
                id="[0-9]{1,2}",
            ),
        ),
        needs_reasoning_history=True,
    ),
    ChatFormat(
        name="command-r-plus",
        template_markers=(("Action:\n```json", "<|CHATBOT_TOKEN|>"),),
        calls=tuple(
            ToolCallFormat(
                begin=f"{action}[\n    ",
                call=('{\n        "tool_name": "', NAME, '",\n        "parameters": ', ARGUMENTS, "\n    }"),
                between=",\n    ",
                end="\n]```",
            )
            for action in ("Action:\n```json\n", "Action: ```json\n")
        ),
    ),
)
