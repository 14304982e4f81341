"""A syntax of tool-call arguments: the interface that grammar, parser and history know, one class a syntax.

A new one is a module beside this one and a format that names its class. Grammars are made in helper processes alone:
`grammar` imports what compiles schemas when it is called, so that the web process, which only reads, does without.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from server.chat.arguments.schema_types import ArgumentTypes, Types
from server.chat.reader import Reader, Steps
from server.chat.template.provenance import ProvenanceStr

if TYPE_CHECKING:
    from grammars import Compiled, TaggedSyntax

MALFORMED = "the arguments of a call are not written as their format has them"
"""The reason of a `MalformedOutput` that a syntax has no better one for."""


@dataclass(frozen=True, slots=True)
class ArgumentGrammar:
    """GBNF of one tool's arguments in one syntax.

    `rules` writes them, every name behind a prefix; the entry is `{prefix}root`. `unclosed`: they have another,
    `{prefix}unclosed`, for arguments behind which the turn's calls must end. `satisfiable`: some value is valid.
    `exact`: nothing is accepted that the schema refuses.
    """

    rules: Callable[[str], str]
    satisfiable: bool = True
    exact: bool = True
    unclosed: bool = False

    @classmethod
    def of(cls, compiled: Compiled) -> ArgumentGrammar:
        """The grammar of a whole schema as it was compiled."""
        return cls(compiled.rules, compiled.satisfiable, not compiled.unchecked)


class ArgumentSyntax(ABC):
    """One way to write a call's arguments. Immutable, hashable, and picklable with the format that names it."""

    __slots__ = ()

    self_describing: ClassVar[bool] = False
    """The text tells the type of each value, so that no schema is needed to read it."""

    @property
    def literals(self) -> tuple[str, ...]:
        """Texts around keys and values, for which the grammar may need control tokens."""
        return ()

    def openings(self, after: str) -> tuple[str, ...]:
        """Literals that arguments begin with, one of them; none where they may begin with anything. `after`: the
        literal behind the arguments, with which empty ones may begin."""
        return ()

    @abstractmethod
    def grammar(self, schema: Mapping[str, Any], types: ArgumentTypes) -> ArgumentGrammar:
        """The grammar of arguments that obey a tool's schema, whose types are given.

        Raises `UnsupportedSchema` and `InvalidSchema` of `grammars`.
        """

    @abstractmethod
    def read(self, reader: Reader, emit: Callable[[str], None], types: Types, after: str, end: str = "") -> Steps[str]:
        """Read one call's arguments and emit fragments of their JSON object, as soon as these are certain.

        `after` is the literal behind them, `end` the one behind that where this may be the turn's only call. Returns
        the part of `after` that is still to be read: a syntax whose end nothing else tells has read it. Raises
        `MalformedOutput` and `OutputEnded`.
        """

    @abstractmethod
    def render(self, arguments: Mapping[str, Any]) -> ProvenanceStr:
        """The arguments as a model of the format writes them; the syntax's own literals may be control tokens."""

    @abstractmethod
    def is_exact(self, types: ArgumentTypes) -> bool:
        """Every value that the grammar accepts is read as the value it was accepted for. Otherwise completed arguments
        are validated."""


def compile_schema(schema: Mapping[str, Any] | bool, notation: str | TaggedSyntax = "json") -> Compiled:
    """A schema's grammar with the white space that models write. Raises `UnsupportedSchema` and `InvalidSchema`."""
    import grammars  # here: see the module's docstring

    return grammars.compile_schema(schema, style="spaced", spelling=notation)
