"""Hermes, Qwen 2.5, Qwen 3, Granite 4 and many more: a JSON object between `<tool_call>` tags."""

from server.chat.format import ARGUMENTS, NAME, THINK, Calls, Format

FORMATS = (
    Format(
        name="hermes",
        signs=(("<tool_call>", '"arguments":'), ("Reasoning Mode: ", "trained by Hugging Face")),
        unlike=("<function=", "<arg_key>", "<tool_sep", "]<]minimax[>[", "<tool_calls>["),
        thinking=THINK,
        calls=(
            Calls(
                call=("<tool_call>", '\n{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}\n</tool_call>"),
                between="\n",
                bare=('{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}"),
            ),
        ),
    ),
)
