"""Capabilities of a chat template, found by rendering small conversations and looking for their words in the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from server.chat.template.provenance import ProvenanceStr, from_template, from_user, join, media
from server.chat.template.reasoning import ReasoningSwitches, find_control
from server.chat.template.template import Template, TemplateError
from server.chat.types import ChatSettings

_NONE: Mapping[str, Any] = {}
_THINKING = ChatSettings(thinking=True)
_REASONINGS = ("reasoning_content", "reasoning", "thinking")
"""The members of a message that templates take an assistant's reasoning from."""
_SYSTEM, _USER, _REPLY, _RESULT = "needlesystem", "needleuser", "needlereply", "needleresult"
_TOOL, _KEY, _VALUE, _OTHER = "needletool", "needlekey", "needlevalue", "needleother"
_BEFORE, _AFTER = "needlebefore", "needleafter"
_IMAGE = join([_BEFORE, media(0), _AFTER])
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": "A tool",
            "parameters": {"type": "object", "properties": {_KEY: {"type": "string", "description": "A key"}}},
        },
    }
]


@dataclass(frozen=True, slots=True)
class TemplateCapabilities:
    """The parts of a conversation that reach the prompt through a template."""

    needs_content_parts: bool
    """Content must be a list of typed parts: strings are lost or refused."""
    no_tools: Literal["null", "empty"]
    """How `tools` must be where there are none."""
    system: bool
    """A system turn at the beginning is rendered."""
    later_system: Literal["native", "first", "none"]
    """One further on stays there; or the template itself joins it to the first; or it is lost, or displaces the first,
    or is refused."""
    consecutive_users: bool
    """Two user turns may follow each other."""
    tools: bool
    """The catalogue is rendered."""
    arguments: Literal["object", "string"] | None
    """How a call's arguments are given, where calls are rendered."""
    text_with_calls: bool
    """Text beside calls in one turn is rendered, and stays when the conversation goes on."""
    apart: bool
    """So is text in a turn of its own before that of the calls."""
    parallel: bool
    """Several calls in one turn are rendered."""
    results: bool
    """Results of tools are rendered in turns of their own."""
    answered: bool
    """A user turn may follow results at once."""
    sample: str
    """The prompt of a catalogue, a call and its result."""
    reasoning: ReasoningSwitches = field(default_factory=ReasoningSwitches)
    """How it can be told to think."""
    replay: bool = False
    """The reasoning behind a call is rendered before its result, where it is given."""
    images: bool = False
    """An image within a user's text stands at its place in the prompt."""
    result_images: bool = False
    """So does one within a tool's result: it is written as it is, not within JSON."""


def detect_capabilities(template: Template) -> TemplateCapabilities:
    """The capabilities of a template. Raises `TemplateError` where the template renders no user turn at all."""
    probes = _Probes(template)
    return probes.capabilities()


class _Probes:
    def __init__(self, template: Template) -> None:
        self._template = template
        self._typed = False
        self._none: list[Any] | None = None

    def capabilities(self) -> TemplateCapabilities:
        for self._typed, self._none in ((False, None), (True, None), (False, []), (True, [])):
            if self.shows([self.turn("user", _USER)], _USER):
                break
        else:
            raise TemplateError("the chat template does not render a user's message")
        system, user, reply = (self.turn(*t) for t in (("system", _SYSTEM), ("user", _USER), ("assistant", _REPLY)))
        given: Literal["object", "string"] | None = "object"
        if not self._written(self.called({_KEY: _VALUE})):
            given = "string" if self._written(self.called(f'{{"{_KEY}": "{_VALUE}"}}')) else None
        arguments: Any = {_KEY: _VALUE} if given == "object" else f'{{"{_KEY}": "{_VALUE}"}}'
        other: Any = {_KEY: _OTHER} if given == "object" else f'{{"{_KEY}": "{_OTHER}"}}'
        result = self.result()
        asked = self.called(arguments) if given else reply
        reasoning = find_control(lambda options: self.render([user], tools=False, options=options))
        return TemplateCapabilities(
            needs_content_parts=self._typed,
            no_tools="null" if self._none is None else "empty",
            system=self.shows([system, user], _SYSTEM, _USER),
            later_system=self._later_system(),
            consecutive_users=self.shows([self.turn("user", _OTHER), user], _OTHER, _USER),
            tools=self.shows([user], _USER, _TOOL, tools=True),
            arguments=given,
            text_with_calls=self.shows(
                [user, self.called(arguments, text=_SYSTEM), result, reply, user], _SYSTEM, _VALUE, _REPLY, tools=True
            ),
            apart=self.shows(
                [user, self.turn("assistant", _SYSTEM), self.called(arguments), result, reply, user],
                *(_SYSTEM, _VALUE, _REPLY),
                tools=True,
            ),
            parallel=given is not None
            and self.shows([user, self.called(arguments, other), result, self.result("2")], _VALUE, _OTHER, tools=True),
            results=self.shows([user, asked, result, reply, user], _RESULT, _REPLY, tools=True),
            answered=self.shows([user, asked, result, self.turn("user", _OTHER)], _RESULT, _OTHER, tools=True),
            sample=self.render([user, self.called(arguments, other), result], tools=True)
            or self.render([user, self.called(arguments), result], tools=True)
            or self.render([user], tools=True),
            replay=self._replays(reasoning, [user, asked, result]),
            images=self._keeps([self.turn("user", _IMAGE)]),
            result_images=self._keeps([user, asked, self.result(text=_IMAGE), reply, user], tools=True),
            reasoning=reasoning,
        )

    def _replays(self, reasoning: ReasoningSwitches, messages: Sequence[dict[str, Any]]) -> bool:
        user, asked, result = messages
        thought = {**asked, **dict.fromkeys(_REASONINGS, from_user(_SYSTEM))}
        prompt = self.render([user, thought, result], tools=True, options=reasoning.options(_THINKING))
        return _SYSTEM in prompt and _RESULT in prompt

    def _later_system(self) -> Literal["native", "first", "none"]:
        first, later = self.turn("system", _OTHER), self.turn("system", _SYSTEM)
        user, reply = self.turn("user", _USER), self.turn("assistant", _REPLY)
        if not self.shows([user, reply, later, user], _REPLY, _SYSTEM):
            return "none"
        if self.shows([first, user], _OTHER) and not (
            self.shows([first, user, reply, later, user], _OTHER, _REPLY, _SYSTEM)
            and self.shows([first, later, user], _OTHER, _SYSTEM)
        ):
            return "none"
        prompt = self.render([user, reply, later, user], tools=False)
        return "native" if prompt.find(_REPLY) < prompt.find(_SYSTEM) else "first"

    def turn(self, role: str, text: str) -> dict[str, Any]:
        return turn(role, text, typed=self._typed)

    def called(self, *arguments: Any, text: str = "") -> dict[str, Any]:
        calls = [call(f"needle00{i}", _TOOL, given) for i, given in enumerate(arguments, 1)]
        return turn("assistant", text, typed=self._typed, tool_calls=calls)

    def result(self, number: str = "1", text: str = _RESULT) -> dict[str, Any]:
        return turn("tool", text, typed=self._typed, tool_call_id=f"needle00{number}", name=_TOOL)

    def _written(self, called: Mapping[str, Any]) -> bool:
        """True where the call's arguments are rendered once, not as a JSON string inside JSON."""
        prompt = self.render([self.turn("user", _USER), called, self.result()], tools=True)
        return _VALUE in prompt and f'\\"{_KEY}' not in prompt

    def _keeps(self, messages: Sequence[Mapping[str, Any]], *, tools: bool = False) -> bool:
        """True where the image is written once, with its text around it."""
        texts, order = self.render(messages, tools=tools).split_images()
        return order == [0] and texts[0].endswith(_BEFORE) and texts[1].startswith(_AFTER)

    def shows(self, messages: Sequence[Mapping[str, Any]], *needles: str, tools: bool = False) -> bool:
        prompt = self.render(messages, tools=tools)
        return all(needle in prompt for needle in needles)

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, tools: bool, options: Mapping[str, Any] = _NONE
    ) -> ProvenanceStr:
        """The template's prompt of this; empty where it fails."""
        try:
            return self._template.render(messages, tools=from_user(_TOOLS) if tools else self._none, **options)
        except TemplateError:
            return ProvenanceStr()


def turn(role: str, text: str, *, typed: bool = False, **members: Any) -> dict[str, Any]:
    """One message as templates take it. The role is the template's own word; the text is content."""
    given: Any = text if isinstance(text, ProvenanceStr) else ProvenanceStr(text)
    return {
        "role": from_template(role),
        "content": [{"type": from_template("text"), "text": given}] if typed else given,
        **{key: from_user(value) for key, value in members.items()},
    }


def call(id: str, name: str, arguments: Any) -> dict[str, Any]:
    """One call as templates take it."""
    return {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}
