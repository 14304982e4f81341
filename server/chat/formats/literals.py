"""Families that write arguments as literals: Python calls (LFM2) and Gemma 4's notation with bare keys."""

from server.chat.arguments import GEMMA, PYTHON
from server.chat.formats.spec import ARGUMENTS, NAME, THINK, ChatFormat, Tags, ToolCallFormat

FORMATS = (
    ChatFormat(
        name="lfm-2",
        template_markers=(
            ("List of tools: <|tool_list_start|>[",),
            ("List of tools: [", "<|im_start|>"),
            ("<|tool_call_start|>[",),
        ),
        reasoning_tags=THINK,
        calls=(
            ToolCallFormat(
                begin="<|tool_call_start|>[",
                call=(NAME, "(", ARGUMENTS, ")"),
                between=", ",
                end="]<|tool_call_end|>",
                syntax=PYTHON,
            ),
            ToolCallFormat(
                begin="<|tool_call_start|>[",
                call=('{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}"),
                between=", ",
                end="]<|tool_call_end|>",
            ),
        ),
    ),
    ChatFormat(
        name="gemma-4",
        template_markers=(("<|tool_call>call:",),),
        reasoning_tags=Tags("<|channel>thought\n", "<channel|>"),
        ignored_markers=("<channel|>",),
        own_space=True,
        calls=(ToolCallFormat(call=("<|tool_call>call:", NAME, ARGUMENTS, "<tool_call|>"), syntax=GEMMA),),
    ),
)
