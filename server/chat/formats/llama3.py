"""Llama 3.1 to 3.3: the whole answer is one JSON object, its arguments called parameters.

The opening brace is common text, so a call is one only where the answer begins with it. The templates refuse more
than one call in a turn.
"""

from server.chat.formats.spec import ARGUMENTS, NAME, ChatFormat, ToolCallFormat

FORMATS = (
    ChatFormat(
        name="llama3",
        template_markers=(("Environment: ipython", '"parameters": '),),
        excluded_markers=("<function=", ">>>"),
        calls=(
            ToolCallFormat(
                call=('{"name": "', NAME, '", "parameters": ', ARGUMENTS, "}"), only_at_start=True, max_calls=1
            ),
            ToolCallFormat(
                call=("<|python_tag|>", '{"name": "', NAME, '", "parameters": ', ARGUMENTS, "}"), max_calls=1
            ),
        ),
    ),
)
