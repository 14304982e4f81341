"""Families that write their calls as a JSON list behind a marker of their own."""

from server.chat.format import ARGUMENTS, ID, NAME, THINK, Calls, Format, Frame

_CALL = ('{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}")

FORMATS = (
    Format(
        name="granite-3",
        signs=(("<|tool_call|>",),),
        unlike=("<|tool_call>",),
        thinking=THINK,
        text=(Frame("<response>", "</response>"),),
        calls=(Calls(begin="<|tool_call|>[", call=_CALL, between=", ", end="]"),),
    ),
    Format(
        name="nemotron-2",
        signs=(("<TOOLCALL>[",),),
        thinking=THINK,
        calls=(Calls(begin="<TOOLCALL>[", call=_CALL, between=", ", end="]</TOOLCALL>"),),
    ),
    Format(
        name="apriel-1.5",
        signs=(("<tool_calls>[", "<|assistant|>"),),
        calls=(Calls(begin="<tool_calls>[", call=_CALL, between=", ", end="]</tool_calls>"),),
    ),
    Format(
        name="apriel-1.6",
        signs=(("<tool_calls>[", "<|begin_assistant|>"),),
        thinking=Frame("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
        calls=(Calls(begin="<tool_calls>[", call=_CALL, between=", ", end="]</tool_calls>"),),
    ),
    Format(
        name="minimax-m1",
        signs=(("<tool_calls>", "<beginning_of_sentence>"),),
        thinking=THINK,
        calls=(Calls(begin="<tool_calls>\n", call=_CALL, between="\n", end="\n</tool_calls>"),),
    ),
    Format(
        name="firefunction-2",
        signs=(("functools[",),),
        calls=(Calls(begin=" functools[", call=_CALL, between=", ", end="]"),),
    ),
    Format(
        name="apertus",
        signs=(("<|tools_prefix|>",),),
        thinking=Frame("<|inner_prefix|>", "<|inner_suffix|>"),
        calls=(
            Calls(
                begin="<|tools_prefix|>[",
                call=('{"', NAME, '": ', ARGUMENTS, "}"),
                between=", ",
                end="]<|tools_suffix|>",
            ),
        ),
    ),
    Format(
        name="command-r7b",
        signs=(("<|START_ACTION|>",),),
        thinking=Frame("<|START_THINKING|>", "<|END_THINKING|>"),
        text=(Frame("<|START_RESPONSE|>", "<|END_RESPONSE|>"), Frame("<|START_TEXT|>", "<|END_TEXT|>")),
        calls=(
            Calls(
                begin="<|START_ACTION|>[\n    ",
                call=('{"tool_call_id": "', ID, '", "tool_name": "', NAME, '", "parameters": ', ARGUMENTS, "}"),
                between=",\n    ",
                end="\n]<|END_ACTION|>",
                id="[0-9]{1,2}",
            ),
        ),
        wants_thinking=True,
    ),
    Format(
        name="command-r-plus",
        signs=(("Action:\n```json", "<|CHATBOT_TOKEN|>"),),
        calls=tuple(
            Calls(
                begin=f"{action}[\n    ",
                call=('{\n        "tool_name": "', NAME, '",\n        "parameters": ', ARGUMENTS, "\n    }"),
                between=",\n    ",
                end="\n]```",
            )
            for action in ("Action:\n```json\n", "Action: ```json\n")
        ),
    ),
)
