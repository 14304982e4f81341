"""The generic format, for models whose template knows nothing of tools: one JSON object, a call or an answer.

    {"tool_calls": [{"name": "get_weather", "arguments": {"city": "Paris"}}]}
    {"response": "It is sunny."}

The catalogue and the way to call stand in the system turn; the grammar does the rest.
"""

from server.chat.formats.spec import ARGUMENTS, NAME, ChatFormat, Tags, ToolCallFormat

FORMAT = ChatFormat(
    name="generic",
    grammar_only=True,
    calls=(
        ToolCallFormat(
            begin='{"tool_calls": [',
            call=('{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}"),
            between=", ",
            end="]}",
        ),
    ),
    answer_tags=(Tags('{"response": ', "}"),),
)
