"""Families that write one element an argument: strings raw, everything else as JSON."""

from server.chat.arguments import ANY_TYPE, NestedArguments, TaggedArguments
from server.chat.formats.spec import ARGUMENTS, ID, NAME, THINK, ChatFormat, Tags, ToolCallFormat

_PARAMETER = TaggedArguments("<parameter=", ">\n", "\n</parameter>\n")
_KEYS = TaggedArguments("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")
_KEYS_TIGHT = TaggedArguments("<arg_key>", "</arg_key><arg_value>", "</arg_value>")
_TYPED = (("string", '" string="true">'), ("other", '" string="false">'))


def _dsml(section: str) -> ToolCallFormat:
    return ToolCallFormat(
        begin=f"<｜DSML｜{section}>\n",
        call=('<｜DSML｜invoke name="', NAME, '">\n', ARGUMENTS, "</｜DSML｜invoke>"),
        between="\n",
        end=f"\n</｜DSML｜{section}>",
        syntax=TaggedArguments('<｜DSML｜parameter name="', '">', "</｜DSML｜parameter>\n", _TYPED),
    )


FORMATS = (
    ChatFormat(
        name="qwen3-coder",
        template_markers=(("<tool_call>", "<function=", "<parameter="),),
        excluded_markers=("<seed:tool_call>",),
        reasoning_tags=THINK,
        calls=(
            ToolCallFormat(
                call=("<tool_call>\n<function=", NAME, ">\n", ARGUMENTS, "</function>\n</tool_call>"),
                between="\n",
                syntax=_PARAMETER,
            ),
        ),
    ),
    ChatFormat(
        name="seed-oss",
        template_markers=(("<seed:tool_call>",),),
        reasoning_tags=Tags("<seed:think>", "</seed:think>"),
        calls=(
            ToolCallFormat(
                call=("<seed:tool_call>\n<function=", NAME, ">\n", ARGUMENTS, "</function>\n</seed:tool_call>"),
                between="\n",
                syntax=TaggedArguments("<parameter=", ">", "</parameter>\n"),
            ),
        ),
    ),
    ChatFormat(
        name="glm-4.5",
        template_markers=(("<tool_call>", "</arg_key>\n<arg_value>"),),
        reasoning_tags=THINK,
        ignored_markers=("</think>",),
        calls=(
            ToolCallFormat(call=("<tool_call>", NAME, "\n", ARGUMENTS, "</tool_call>"), between="\n", syntax=_KEYS),
        ),
    ),
    ChatFormat(
        name="glm-4.7",
        template_markers=(("<tool_call>", "</arg_key><arg_value>"),),
        excluded_markers=("</arg_key>\n<arg_value>",),
        reasoning_tags=THINK,
        ignored_markers=("</think>",),
        calls=(ToolCallFormat(call=("<tool_call>", NAME, ARGUMENTS, "</tool_call>"), syntax=_KEYS_TIGHT),),
    ),
    ChatFormat(
        name="minimax-m2",
        template_markers=(("<minimax:tool_call>",),),
        reasoning_tags=THINK,
        calls=(
            ToolCallFormat(
                begin="<minimax:tool_call>\n",
                call=('<invoke name="', NAME, '">\n', ARGUMENTS, "</invoke>"),
                between="\n",
                end="\n</minimax:tool_call>",
                syntax=TaggedArguments('<parameter name="', '">', "</parameter>\n"),
            ),
        ),
        needs_reasoning_history=True,
    ),
    ChatFormat(
        name="minimax-m3",
        template_markers=(("]<]minimax[>[",),),
        reasoning_tags=Tags("<mm:think>", "</mm:think>"),
        ignored_markers=("</mm:think>",),
        calls=(
            ToolCallFormat(
                begin="]<]minimax[>[<tool_call>\n",
                call=(']<]minimax[>[<invoke name="', NAME, '">', ARGUMENTS, "]<]minimax[>[</invoke>\n"),
                end="]<]minimax[>[</tool_call>",
                syntax=NestedArguments("]<]minimax[>["),
            ),
        ),
        needs_reasoning_history=True,
    ),
    ChatFormat(
        name="deepseek-v3.2",
        template_markers=(("DSML", "function_calls"),),
        reasoning_tags=THINK,
        calls=(_dsml("function_calls"),),
        needs_reasoning_history=True,
    ),
    ChatFormat(
        name="deepseek-v4",
        template_markers=(("DSML",),),
        excluded_markers=("function_calls",),
        reasoning_tags=THINK,
        calls=(_dsml("tool_calls"),),
        needs_reasoning_history=True,
    ),
    ChatFormat(
        name="minicpm-5",
        template_markers=(('<function name="', '<param name="'),),
        reasoning_tags=THINK,
        calls=(
            ToolCallFormat(
                call=('<function name="', NAME, '">', ARGUMENTS, "</function>"),
                between="\n",
                syntax=TaggedArguments('<param name="', '">', "</param>"),
            ),
        ),
    ),
    ChatFormat(
        name="hunyuan-3",
        template_markers=(("<tool_calls{}>", "<tool_sep{}>"),),
        reasoning_tags=Tags("<think:opensource>", "</think:opensource>"),
        calls=(
            ToolCallFormat(
                begin="<tool_calls:opensource>\n",
                call=(
                    "<tool_call:opensource>",
                    NAME,
                    "<tool_sep:opensource>\n",
                    ARGUMENTS,
                    "</tool_call:opensource>",
                ),
                between="\n",
                end="\n</tool_calls:opensource>",
                syntax=TaggedArguments(
                    "<arg_key:opensource>",
                    "</arg_key:opensource>\n<arg_value:opensource>",
                    "</arg_value:opensource>\n",
                ),
            ),
        ),
    ),
    ChatFormat(
        name="kimi-k3",
        template_markers=(("<|open|>tools<|sep|>",),),
        reasoning_tags=Tags("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        answer_tags=(Tags("<|open|>response<|sep|>", "<|close|>response<|sep|>"),),
        ignored_markers=("<|close|>message<|sep|>",),
        calls=(
            ToolCallFormat(
                begin="<|open|>tools<|sep|>",
                call=('<|open|>call tool="', NAME, '" index="', ID, '"<|sep|>', ARGUMENTS, "<|close|>call<|sep|>"),
                end="<|close|>tools<|sep|>",
                id="[0-9]{1,3}",
                syntax=TaggedArguments(
                    '<|open|>argument key="',
                    '" type="string"<|sep|>',
                    "<|close|>argument<|sep|>",
                    tuple((kind, f'" type="{kind}"<|sep|>') for kind in ANY_TYPE),
                ),
            ),
        ),
        needs_reasoning_history=True,
    ),
)
