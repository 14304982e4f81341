"""Tool calls written as a format has them: for a history whose template cannot, and to show a model an example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from server.chat.formats.spec import ARGUMENTS, ID, CallField, ToolCallFormat
from server.chat.template.provenance import ProvenanceStr, from_template, join


def render_tool_calls(calls: ToolCallFormat, given: Sequence[tuple[str, str, Mapping[str, Any]]]) -> ProvenanceStr:
    """The calls (name, id, arguments) as a model of the format writes them; literals are control text."""
    written = [join(_part(calls, part, call) for part in calls.call) for call in given]
    return join([from_template(calls.begin), from_template(calls.between).join(written), from_template(calls.end)])


def _part(calls: ToolCallFormat, part: str | CallField, call: tuple[str, str, Mapping[str, Any]]) -> ProvenanceStr:
    name, id, arguments = call
    if part is ARGUMENTS:
        return calls.syntax.render(arguments)
    if isinstance(part, CallField):
        return ProvenanceStr(id if part is ID else name)
    return from_template(part)
