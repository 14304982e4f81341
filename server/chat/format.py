"""How a model family writes its answers: the one description from which grammar, parser and recognition come.

An output is free text in which *blocks* stand: thinking, framed text, and calls. A `Format` names their literal
markers and the slots between them; `constraint` writes GBNF from it and `parser` reads output by it, so that the two
cannot drift apart. White space in a literal is written as it stands and read leniently.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Slot(Enum):
    """A place in a call that the model fills."""

    NAME = "name"
    ID = "id"
    ARGUMENTS = "arguments"


NAME, ID, ARGUMENTS = Slot


@dataclass(frozen=True, slots=True)
class Calls:
    """`begin` call (`between` call)* `end`; `call` is one call as literals and slots.

    `anchored`: the first literal is common text (a brace), so calls are recognised only where the output starts with
    one. `most` bounds how many calls the grammar lets a model write in one turn: small models repeat themselves.
    """

    call: tuple[str | Slot, ...]
    begin: str = ""
    between: str = ""
    end: str = ""
    id: str = ""
    """What fills the `ID` slot, in GBNF."""
    anchored: bool = False
    most: int = 8

    @property
    def opening(self) -> tuple[str | Slot, ...]:
        """What a turn's first call looks like, from its marker on."""
        return (self.begin, *self.call) if self.begin else self.call

    @property
    def marker(self) -> str:
        """The text that announces a call."""
        return str(self.opening[0]).strip()


@dataclass(frozen=True, slots=True)
class Frame:
    """Text between two markers. `json`: written as a JSON string (or as the JSON object that was asked for)."""

    open: str
    close: str
    json: bool = False


@dataclass(frozen=True, slots=True)
class Format:
    """One family's way to write.

    `forced`: models do not know this format; only the grammar makes them write it, framed from the first character on.
    Where nothing constrains them they write plain text. `noise` are markers that carry nothing.
    """

    name: str
    calls: Calls
    thinking: tuple[Frame, ...] = ()
    text: tuple[Frame, ...] = ()
    forced: bool = False
    noise: tuple[str, ...] = ()

    @property
    def markers(self) -> frozenset[str]:
        """Every literal by which the format may need a control token."""
        frames = [text for frame in (*self.thinking, *self.text) for text in (frame.open, frame.close)]
        parts = [part for part in self.calls.call if isinstance(part, str)]
        return frozenset(
            text.strip()
            for text in (*frames, *self.noise, *parts, self.calls.begin, self.calls.between, self.calls.end)
        )
