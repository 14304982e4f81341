"""What a template can carry, found by rendering small conversations and looking for their words in the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.chat.template import Template, TemplateError
from server.chat.text import Text, control

_SYSTEM, _USER, _TOOL, _RESULT, _REPLY = "needlesystem", "needleuser", "needletool", "needleresult", "needlereply"


@dataclass(frozen=True, slots=True)
class Traits:
    """What of a conversation reaches the prompt through a template."""

    typed: bool
    """Content must be a list of typed parts: strings are lost or refused."""
    system: bool
    """A system turn at the beginning is rendered."""
    later_system: bool
    """So is one further on."""
    adjacent: bool
    """Two user turns may follow each other."""


def probe(template: Template) -> Traits:
    """Renders until it knows. Raises `TemplateError` where the template renders no user turn at all."""
    typed = not _shows(template, [turn("user", _USER)], _USER)
    if typed and not _shows(template, [turn("user", _USER, typed=True)], _USER):
        raise TemplateError("the chat template does not render a user's message")

    def shows(messages: Sequence[tuple[str, str]], *needles: str) -> bool:
        return _shows(template, [turn(role, text, typed=typed) for role, text in messages], *needles)

    return Traits(
        typed=typed,
        system=shows([("system", _SYSTEM), ("user", _USER)], _SYSTEM, _USER),
        later_system=shows(
            [("user", _USER), ("assistant", _REPLY), ("system", _SYSTEM), ("user", _USER)], _REPLY, _SYSTEM
        ),
        adjacent=shows([("user", _RESULT), ("user", _USER)], _RESULT, _USER),
    )


def turn(role: str, text: str, *, typed: bool = False, **members: Any) -> dict[str, Any]:
    """One message as templates take it. The role is the template's own word; the text is content."""
    content: Any = text if isinstance(text, Text) else Text(text)
    return {
        "role": control(role),
        "content": [{"type": control("text"), "text": content}] if typed else content,
        **members,
    }


def _shows(template: Template, messages: Sequence[Mapping[str, Any]], *needles: str) -> bool:
    try:
        prompt = template.render(messages)
    except TemplateError:
        return False
    return all(needle in prompt for needle in needles)
