"""Families that write arguments as literals: Python calls (LFM2) and Gemma 4's notation with bare keys."""

from server.chat.format import ARGUMENTS, GEMMA, NAME, PYTHON, THINK, Calls, Format, Frame

FORMATS = (
    Format(
        name="lfm-2",
        signs=(
            ("List of tools: <|tool_list_start|>[",),
            ("List of tools: [", "<|im_start|>"),
            ("<|tool_call_start|>[",),
        ),
        thinking=THINK,
        calls=(
            Calls(
                begin="<|tool_call_start|>[",
                call=(NAME, "(", ARGUMENTS, ")"),
                between=", ",
                end="]<|tool_call_end|>",
                syntax=PYTHON,
            ),
            Calls(
                begin="<|tool_call_start|>[",
                call=('{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}"),
                between=", ",
                end="]<|tool_call_end|>",
            ),
        ),
    ),
    Format(
        name="gemma-4",
        signs=(("<|tool_call>call:",),),
        thinking=Frame("<|channel>thought\n", "<channel|>"),
        noise=("<channel|>",),
        own_space=True,
        calls=(Calls(call=("<|tool_call>call:", NAME, ARGUMENTS, "<tool_call|>"), syntax=GEMMA),),
    ),
)
