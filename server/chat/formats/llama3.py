"""Llama 3.1 to 3.3: the whole answer is one JSON object, its arguments called parameters.

The opening brace is common text, so a call is one only where the answer begins with it. The templates refuse more
than one call in a turn.
"""

from server.chat.format import ARGUMENTS, NAME, Calls, Format

FORMATS = (
    Format(
        name="llama3",
        signs=(("Environment: ipython", '"parameters": '),),
        unlike=("<function=", ">>>"),
        calls=(
            Calls(call=('{"name": "', NAME, '", "parameters": ', ARGUMENTS, "}"), anchored=True, most=1),
            Calls(call=("<|python_tag|>", '{"name": "', NAME, '", "parameters": ', ARGUMENTS, "}"), most=1),
        ),
    ),
)
