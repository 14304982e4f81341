"""Families whose calls stand between control tokens, each call's arguments one JSON object."""

from server.chat.format import AGAIN, ARGUMENTS, ID, NAME, THINK, Calls, Format, Frame, Tagged

FORMATS = (
    Format(
        name="deepseek-r1",
        signs=(("<｜tool▁calls▁begin｜>", "```json"),),
        thinking=THINK,
        calls=(
            Calls(
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
    Format(
        name="deepseek-v3.1",
        signs=(("<｜tool▁calls▁begin｜>",),),
        unlike=("```json",),
        thinking=THINK,
        calls=(
            Calls(
                begin="<｜tool▁calls▁begin｜>",
                call=("<｜tool▁call▁begin｜>", NAME, "<｜tool▁sep｜>", ARGUMENTS, "<｜tool▁call▁end｜>"),
                end="<｜tool▁calls▁end｜>",
            ),
        ),
    ),
    Format(
        name="kimi-k2",
        signs=(("<|tool_calls_section_begin|>",),),
        thinking=THINK,
        calls=(
            Calls(
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
        ids="functions.{name}:{index}",
        wants_thinking=True,
    ),
    Format(
        name="gigachat-3",
        signs=(("function call<|role_sep|>",),),
        unlike=("<|function_call|>",),
        calls=(
            Calls(
                call=(
                    "<|message_sep|>\n\nfunction call<|role_sep|>",
                    '\n{"name": "',
                    NAME,
                    '", "arguments": ',
                    ARGUMENTS,
                    "}",
                ),
                most=1,
            ),
        ),
    ),
    Format(
        name="gigachat-3.1",
        signs=(("<|function_call|>", "<|message_sep|>"),),
        calls=(Calls(call=("<|function_call|>", '{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}"), most=1),),
    ),
    Format(
        name="solar-open",
        signs=(("<|tool_call:begin|>", "<|tool_calls|>"),),
        thinking=Frame("<|think|>", "<|end|>"),
        text=(Frame("<|content|>", "<|end|>"),),
        noise=("<|begin|>assistant", "<|calls|>"),
        own_space=True,
        next="<|begin|>assistant",
        calls=(
            Calls(
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
    Format(
        name="gpt-oss",
        signs=(("<|channel|>", "<|message|>", "to=functions"),),
        thinking=Frame("<|channel|>analysis<|message|>", "<|end|>"),
        text=(
            Frame("<|channel|>final<|message|>", "<|end|>"),
            Frame("<|channel|>commentary<|message|>", "<|end|>"),
            Frame("<|channel|>final <|constrain|>json<|message|>", "<|end|>"),
        ),
        noise=("<|start|>assistant", "<|call|>", "<|return|>"),
        next="<|start|>assistant",
        calls=(
            Calls(
                call=("<|channel|>commentary to=functions.", NAME, " <|constrain|>json<|message|>", ARGUMENTS), most=1
            ),
            Calls(call=("<|channel|>analysis to=functions.", NAME, " <|constrain|>json<|message|>", ARGUMENTS), most=1),
            Calls(
                call=(" to=functions.", NAME, "<|channel|>commentary <|constrain|>json<|message|>", ARGUMENTS), most=1
            ),
        ),
        wants_thinking=True,
    ),
    Format(
        name="functionary-3.2",
        signs=((">>>all", "<|start_header_id|>"),),
        framed=True,
        lead=">>>",
        text=(Frame(">>>all\n", ""),),
        calls=(Calls(call=(">>>", NAME, "\n", ARGUMENTS)),),
    ),
    Format(
        name="muse-glimmer",
        signs=(("<atem:function_calls>",),),
        framed=True,
        thinking=Frame(" to=self<|message|>", "<|eom|>"),
        text=(Frame(" to=user<|message|>", "<|eom|>"),),
        noise=("<|start|>assistant", "<|eom|>", "<|eot|>"),
        next="<|start|>assistant",
        calls=(
            Calls(
                call=(
                    " to=",
                    NAME,
                    '<|message|><atem:function_calls>\n<atem:invoke name="',
                    AGAIN,
                    '">\n',
                    ARGUMENTS,
                    "</atem:invoke>\n</atem:function_calls>",
                ),
                between="<|eom|><|start|>assistant",
                syntax=Tagged('<atem:parameter name="', '">', "</atem:parameter>\n"),
            ),
        ),
    ),
    Format(
        name="functionary-3.1",
        signs=(("<function=", "</function>", "<|python_tag|>"),),
        unlike=("<parameter=",),
        calls=(Calls(call=("<function=", NAME, ">", ARGUMENTS, "</function>")),),
    ),
)
