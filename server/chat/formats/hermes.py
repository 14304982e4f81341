"""Hermes, Qwen 2.5, Qwen 3, Granite 4 and many more: a JSON object between `<tool_call>` tags."""

from server.chat.formats.spec import ARGUMENTS, NAME, THINK, ChatFormat, ToolCallFormat

FORMATS = (
    ChatFormat(
        name="hermes",
        template_markers=(("<tool_call>", '"arguments":'), ("Reasoning Mode: ", "trained by Hugging Face")),
        excluded_markers=("<function=", "<arg_key>", "<tool_sep", "]<]minimax[>[", "<tool_calls>["),
        reasoning_tags=THINK,
        calls=(
            ToolCallFormat(
                call=("<tool_call>", '\n{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}\n</tool_call>"),
                between="\n",
                untagged_call=('{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}"),
            ),
        ),
    ),
)
