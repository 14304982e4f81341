"""Reasoning switches of a template: the variables by which thinking and its effort are set.

A template that has no such switch or effort is rendered without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from server.chat.template.provenance import from_template
from server.chat.types import ChatSettings
from server.wire.records import ReasoningEffort

EFFORTS: tuple[ReasoningEffort, ...] = get_args(ReasoningEffort)

_SWITCHES: tuple[tuple[str, Any, Any], ...] = (
    ("enable_thinking", True, False),
    ("thinking", True, False),
    ("thinking_mode", from_template("enabled"), from_template("disabled")),
    ("reasoning", True, False),
    ("thinking_budget", -1, 0),
)
"""The variables by which templates let thinking be switched: name, on, off."""

_EFFORTS = ("reasoning_effort", "thinking_effort", "reasoning_strength")
"""The variables that hold an effort."""


@dataclass(frozen=True, slots=True)
class ReasoningSwitches:
    """The variables of one template that bear on reasoning."""

    switch: tuple[str, Any, Any] | None = None
    """The variable that switches thinking, and its values for on and off."""
    effort: str = ""
    """The variable that holds the effort."""
    efforts: tuple[ReasoningEffort, ...] = ()
    """The efforts that the template takes, the least first."""
    unasked: bool = True
    """The model thinks where the template is told nothing."""

    def thinks(self, settings: ChatSettings) -> bool:
        """True where these settings let a model think that can."""
        return self.unasked if self.switch is None or settings.thinking is None else settings.thinking

    def options(self, settings: ChatSettings) -> Mapping[str, Any]:
        """The template's variables for these settings. The meaning of an effort where thinking is off is
        the template's affair."""
        options: dict[str, Any] = {}
        if self.switch is not None and settings.thinking is not None:
            name, on, off = self.switch
            options[name] = on if settings.thinking else off
        if settings.reasoning_effort in self.efforts:
            options[self.effort] = from_template(settings.reasoning_effort)
        return options


def find_control(render: Callable[[Mapping[str, Any]], str]) -> ReasoningSwitches:
    """The switches found by rendering with each variable and looking for a change of the prompt.

    `render` gives an empty text where it fails.
    """
    found, unasked = None, True
    for name, on, off in _SWITCHES:
        prompts = render({name: on}), render({name: off})
        if all(prompts) and prompts[0] != prompts[1]:
            found, unasked = (name, on, off), render({}) != prompts[1]
            break
    thinking = {found[0]: found[1]} if found else {}
    for name in _EFFORTS:
        efforts = _efforts(partial(_with_effort, render, thinking, name))
        if efforts:
            return ReasoningSwitches(found, name, efforts, unasked)
    return ReasoningSwitches(found, unasked=unasked)


def _with_effort(
    render: Callable[[Mapping[str, Any]], str], thinking: Mapping[str, Any], name: str, effort: str | None
) -> str:
    return render(thinking if effort is None else {**thinking, name: from_template(effort)})


def _efforts(render: Callable[[str | None], str]) -> tuple[ReasoningEffort, ...]:
    """The efforts that a template takes by this variable; none where it does not read it.

    Some templates look for one or two of the names alone. The others then write what no effort writes, which stands
    for less than the names it knows where they are high ones, and for more where they are low.
    """
    plain, unknown = render(None), render("unheard-of")
    prompts = {effort: prompt for effort in EFFORTS if (prompt := render(effort))}
    heard = [EFFORTS.index(effort) for effort, prompt in prompts.items() if prompt != plain]
    if not heard or unknown != plain:
        return tuple(prompts) if heard else ()
    high = heard[-1] >= EFFORTS.index("high")
    others = range(heard[0]) if high else range(heard[-1] + 1, len(EFFORTS))
    return tuple(effort for effort in prompts if EFFORTS.index(effort) in {*heard, *others})
