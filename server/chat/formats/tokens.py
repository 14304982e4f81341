"""Families whose calls stand between control tokens, each call's arguments one JSON object."""

from server.chat.arguments import TaggedArguments
from server.chat.formats.spec import ARGUMENTS, ID, NAME, NAME_AGAIN, THINK, ChatFormat, Tags, ToolCallFormat

FORMATS = (
    ChatFormat(
        name="deepseek-r1",
        template_markers=(("<｜tool▁calls▁begin｜>", "```json"),),
        reasoning_tags=THINK,
        calls=(
            ToolCallFormat(
                begin="<｜tool▁calls▁begin｜>",
                call=(
                    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
                    NAME,
                    "\n```json\n",
                    ARGUMENTS,
                    "\n```<｜tool▁call▁end｜>",
                ),
                between="\n",
                end="<｜tool▁calls▁end｜>",
            ),
        ),
    ),
    ChatFormat(
        name="deepseek-v3.1",
        template_markers=(("<｜tool▁calls▁begin｜>",),),
        excluded_markers=("```json",),
        reasoning_tags=THINK,
        calls=(
            ToolCallFormat(
                begin="<｜tool▁calls▁begin｜>",
                call=("<｜tool▁call▁begin｜>", NAME, "<｜tool▁sep｜>", ARGUMENTS, "<｜tool▁call▁end｜>"),
                end="<｜tool▁calls▁end｜>",
            ),
        ),
    ),
    ChatFormat(
        name="kimi-k2",
        template_markers=(("<|tool_calls_section_begin|>",),),
        reasoning_tags=THINK,
        calls=(
            ToolCallFormat(
                begin="<|tool_calls_section_begin|>",
                call=(
                    "<|tool_call_begin|>functions.",
                    NAME,
                    ":",
                    ID,
                    "<|tool_call_argument_begin|>",
                    ARGUMENTS,
                    "<|tool_call_end|>",
                ),
                end="<|tool_calls_section_end|>",
                id="[0-9]{1,3}",
            ),
        ),
        id_template="functions.{name}:{index}",
        needs_reasoning_history=True,
    ),
    ChatFormat(
        name="gigachat-3",
        template_markers=(("function call<|role_sep|>",),),
        excluded_markers=("<|function_call|>",),
        calls=(
            ToolCallFormat(
                call=(
                    "<|message_sep|>\n\nfunction call<|role_sep|>",
                    '\n{"name": "',
                    NAME,
                    '", "arguments": ',
                    ARGUMENTS,
                    "}",
                ),
                max_calls=1,
            ),
        ),
    ),
    ChatFormat(
        name="gigachat-3.1",
        template_markers=(("<|function_call|>", "<|message_sep|>"),),
        calls=(
            ToolCallFormat(
                call=("<|function_call|>", '{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}"), max_calls=1
            ),
        ),
    ),
    ChatFormat(
        name="solar-open",
        template_markers=(("<|tool_call:begin|>", "<|tool_calls|>"),),
        reasoning_tags=Tags("<|think|>", "<|end|>"),
        answer_tags=(Tags("<|content|>", "<|end|>"),),
        ignored_markers=("<|begin|>assistant", "<|calls|>"),
        own_space=True,
        separator="<|begin|>assistant",
        calls=(
            ToolCallFormat(
                begin="<|tool_calls|>",
                call=(
                    "<|tool_call:begin|>",
                    ID,
                    "<|tool_call:name|>",
                    NAME,
                    "<|tool_call:args|>",
                    ARGUMENTS,
                    "<|tool_call:end|>",
                ),
            ),
        ),
    ),
    ChatFormat(
        name="gpt-oss",
        template_markers=(("<|channel|>", "<|message|>", "to=functions"),),
        reasoning_tags=Tags("<|channel|>analysis<|message|>", "<|end|>"),
        answer_tags=(
            Tags("<|channel|>final<|message|>", "<|end|>"),
            Tags("<|channel|>commentary<|message|>", "<|end|>"),
            Tags("<|channel|>final <|constrain|>json<|message|>", "<|end|>"),
        ),
        ignored_markers=("<|start|>assistant", "<|call|>", "<|return|>"),
        separator="<|start|>assistant",
        calls=(
            ToolCallFormat(
                call=("<|channel|>commentary to=functions.", NAME, " <|constrain|>json<|message|>", ARGUMENTS),
                max_calls=1,
            ),
            ToolCallFormat(
                call=("<|channel|>analysis to=functions.", NAME, " <|constrain|>json<|message|>", ARGUMENTS),
                max_calls=1,
            ),
            ToolCallFormat(
                call=(" to=functions.", NAME, "<|channel|>commentary <|constrain|>json<|message|>", ARGUMENTS),
                max_calls=1,
            ),
        ),
        needs_reasoning_history=True,
    ),
    ChatFormat(
        name="functionary-3.2",
        template_markers=((">>>all", "<|start_header_id|>"),),
        always_tagged=True,
        prompt_opening=">>>",
        answer_tags=(Tags(">>>all\n", ""),),
        calls=(ToolCallFormat(call=(">>>", NAME, "\n", ARGUMENTS)),),
    ),
    ChatFormat(
        name="muse-glimmer",
        template_markers=(("<atem:function_calls>",),),
        always_tagged=True,
        reasoning_tags=Tags(" to=self<|message|>", "<|eom|>"),
        answer_tags=(Tags(" to=user<|message|>", "<|eom|>"),),
        ignored_markers=("<|start|>assistant", "<|eom|>", "<|eot|>"),
        separator="<|start|>assistant",
        calls=(
            ToolCallFormat(
                call=(
                    " to=",
                    NAME,
                    '<|message|><atem:function_calls>\n<atem:invoke name="',
                    NAME_AGAIN,
                    '">\n',
                    ARGUMENTS,
                    "</atem:invoke>\n</atem:function_calls>",
                ),
                between="<|eom|><|start|>assistant",
                syntax=TaggedArguments('<atem:parameter name="', '">', "</atem:parameter>\n"),
            ),
        ),
    ),
    ChatFormat(
        name="functionary-3.1",
        template_markers=(("<function=", "</function>", "<|python_tag|>"),),
        excluded_markers=("<parameter=",),
        calls=(ToolCallFormat(call=("<function=", NAME, ">", ARGUMENTS, "</function>")),),
    ),
)
