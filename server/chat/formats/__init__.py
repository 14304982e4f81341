"""The formats this server knows, and how a template is recognised as one of them."""

from __future__ import annotations

from server.chat.format import Format
from server.chat.formats import generic


def recognise(source: str) -> Format:
    """The format of models with this chat template. Templates that say nothing of calls get the generic one."""
    return generic.FORMAT
