"""The generic format, for models whose template knows nothing of tools: one JSON object, a call or an answer.

    {"tool_calls": [{"name": "get_weather", "arguments": {"city": "Paris"}}]}
    {"response": "It is sunny."}

The catalogue and the way to call stand in the system turn; the grammar does the rest.
"""

from dataclasses import replace

from server.chat.format import ARGUMENTS, NAME, THINK, Calls, Format, Frame

FORMAT = Format(
    name="generic",
    forced=True,
    calls=(
        Calls(
            begin='{"tool_calls": [',
            call=('{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}"),
            between=", ",
            end="]}",
        ),
    ),
    text=(Frame('{"response": ', "}", json=True),),
)

_MINIMAX_THINK = Frame("<mm:think>", "</mm:think>")

THINKING = {
    THINK.close: replace(FORMAT, thinking=THINK),
    _MINIMAX_THINK.close: replace(FORMAT, thinking=_MINIMAX_THINK, noise=(_MINIMAX_THINK.close,)),
}
"""The same for models that think, by what closes their thinking. MiniMax M3 closes it where there is none, too."""
