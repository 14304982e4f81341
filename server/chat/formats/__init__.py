"""Chat formats of model families, a module each, and their recognition by a template.

A module here defines `FORMATS`, a tuple of `ChatFormat`. Nothing else needs to know of it.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules

from server.chat.formats.generic import FORMAT as GENERIC
from server.chat.formats.spec import THINK, ChatFormat

__all__ = ["FORMATS", "GENERIC", "matching", "recognise"]


def _found() -> dict[str, ChatFormat]:
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    return {format.name: format for module in modules for format in getattr(module, "FORMATS", ())}


FORMATS = _found()


def recognise(source: str, sample: str) -> ChatFormat:
    """The format of models with this chat template, of which `sample` is some output with tools and calls.

    The generic one where neither tells of any.

    Families often train with and without thinking in one format: where the template never closes a `<think>`, its
    models do not write one.
    """
    format = next(iter(matching(source + sample)), GENERIC)
    if format is GENERIC and THINK.close in source:
        return replace(format, reasoning_tags=THINK)
    if format.reasoning_tags == THINK and THINK.close not in source:
        return replace(format, reasoning_tags=None)
    return format


def matching(text: str) -> list[ChatFormat]:
    """Every format whose markers stand in the text; more than one would be a fault of their descriptions."""
    return [
        format
        for format in FORMATS.values()
        if any(all(marker in text for marker in markers) for markers in format.template_markers)
        and not any(marker in text for marker in format.excluded_markers)
    ]
