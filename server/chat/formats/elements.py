"""Families that write one element an argument: strings raw, everything else as JSON."""

from server.chat.format import ANY_TYPE, ARGUMENTS, ID, NAME, THINK, Calls, Format, Frame, Nested, Tagged

_PARAMETER = Tagged("<parameter=", ">\n", "\n</parameter>\n")
_KEYS = Tagged("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")
_KEYS_TIGHT = Tagged("<arg_key>", "</arg_key><arg_value>", "</arg_value>")
_TYPED = (("string", '" string="true">'), ("other", '" string="false">'))


def _dsml(section: str) -> Calls:
    return Calls(
        begin=f"<｜DSML｜{section}>\n",
        call=('<｜DSML｜invoke name="', NAME, '">\n', ARGUMENTS, "</｜DSML｜invoke>"),
        between="\n",
        end=f"\n</｜DSML｜{section}>",
        syntax=Tagged('<｜DSML｜parameter name="', '">', "</｜DSML｜parameter>\n", _TYPED),
    )


FORMATS = (
    Format(
        name="qwen3-coder",
        signs=(("<tool_call>", "<function=", "<parameter="),),
        unlike=("<seed:tool_call>",),
        thinking=THINK,
        calls=(
            Calls(
                call=("<tool_call>\n<function=", NAME, ">\n", ARGUMENTS, "</function>\n</tool_call>"),
                between="\n",
                syntax=_PARAMETER,
            ),
        ),
    ),
    Format(
        name="seed-oss",
        signs=(("<seed:tool_call>",),),
        thinking=Frame("<seed:think>", "</seed:think>"),
        calls=(
            Calls(
                call=("<seed:tool_call>\n<function=", NAME, ">\n", ARGUMENTS, "</function>\n</seed:tool_call>"),
                between="\n",
                syntax=Tagged("<parameter=", ">", "</parameter>\n"),
            ),
        ),
    ),
    Format(
        name="glm-4.5",
        signs=(("<tool_call>", "</arg_key>\n<arg_value>"),),
        thinking=THINK,
        noise=("</think>",),
        calls=(Calls(call=("<tool_call>", NAME, "\n", ARGUMENTS, "</tool_call>"), between="\n", syntax=_KEYS),),
    ),
    Format(
        name="glm-4.7",
        signs=(("<tool_call>", "</arg_key><arg_value>"),),
        unlike=("</arg_key>\n<arg_value>",),
        thinking=THINK,
        noise=("</think>",),
        calls=(Calls(call=("<tool_call>", NAME, ARGUMENTS, "</tool_call>"), syntax=_KEYS_TIGHT),),
    ),
    Format(
        name="minimax-m2",
        signs=(("<minimax:tool_call>",),),
        thinking=THINK,
        calls=(
            Calls(
                begin="<minimax:tool_call>\n",
                call=('<invoke name="', NAME, '">\n', ARGUMENTS, "</invoke>"),
                between="\n",
                end="\n</minimax:tool_call>",
                syntax=Tagged('<parameter name="', '">', "</parameter>\n"),
            ),
        ),
        wants_thinking=True,
    ),
    Format(
        name="minimax-m3",
        signs=(("]<]minimax[>[",),),
        thinking=Frame("<mm:think>", "</mm:think>"),
        noise=("</mm:think>",),
        calls=(
            Calls(
                begin="]<]minimax[>[<tool_call>\n",
                call=(']<]minimax[>[<invoke name="', NAME, '">', ARGUMENTS, "]<]minimax[>[</invoke>\n"),
                end="]<]minimax[>[</tool_call>",
                syntax=Nested("]<]minimax[>["),
            ),
        ),
        wants_thinking=True,
    ),
    Format(
        name="deepseek-v3.2",
        signs=(("DSML", "function_calls"),),
        thinking=THINK,
        calls=(_dsml("function_calls"),),
        wants_thinking=True,
    ),
    Format(
        name="deepseek-v4",
        signs=(("DSML",),),
        unlike=("function_calls",),
        thinking=THINK,
        calls=(_dsml("tool_calls"),),
        wants_thinking=True,
    ),
    Format(
        name="minicpm-5",
        signs=(('<function name="', '<param name="'),),
        thinking=THINK,
        calls=(
            Calls(
                call=('<function name="', NAME, '">', ARGUMENTS, "</function>"),
                between="\n",
                syntax=Tagged('<param name="', '">', "</param>"),
            ),
        ),
    ),
    Format(
        name="hunyuan-3",
        signs=(("<tool_calls{}>", "<tool_sep{}>"),),
        thinking=Frame("<think:opensource>", "</think:opensource>"),
        calls=(
            Calls(
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
                syntax=Tagged(
                    "<arg_key:opensource>",
                    "</arg_key:opensource>\n<arg_value:opensource>",
                    "</arg_value:opensource>\n",
                ),
            ),
        ),
    ),
    Format(
        name="kimi-k3",
        signs=(("<|open|>tools<|sep|>",),),
        thinking=Frame("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        text=(Frame("<|open|>response<|sep|>", "<|close|>response<|sep|>"),),
        noise=("<|close|>message<|sep|>",),
        calls=(
            Calls(
                begin="<|open|>tools<|sep|>",
                call=('<|open|>call tool="', NAME, '" index="', ID, '"<|sep|>', ARGUMENTS, "<|close|>call<|sep|>"),
                end="<|close|>tools<|sep|>",
                id="[0-9]{1,3}",
                syntax=Tagged(
                    '<|open|>argument key="',
                    '" type="string"<|sep|>',
                    "<|close|>argument<|sep|>",
                    tuple((kind, f'" type="{kind}"<|sep|>') for kind in ANY_TYPE),
                ),
            ),
        ),
        wants_thinking=True,
    ),
)
