"""One object of the normal form as grammar rules.

Few declared properties may come in any order; more of them come in the order of the schema, any subset that is allowed.
Undeclared ones come anywhere behind the last required one. Every declared property comes at most once, and no
undeclared one spells a declared name. Rules are right-linear in the members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grammars import limits
from grammars.automata.dfa import DFA
from grammars.automata.operations import difference, intersect, strings
from grammars.automata.regex_nfa import pattern_dfa
from grammars.errors import UnsupportedSchema
from grammars.rules.counted import CountedObject
from grammars.rules.names import Node, TrieWriter, insert
from grammars.rules.rules import Lit, Ref, Sequence
from grammars.rules.syntax import ELEMENT_NAMES, ObjectSyntax, TaggedSyntax, escaped
from grammars.schema.name_classes import NameClass
from grammars.schema.sets import ObjectSet
from grammars.schema.terms import FALSE, Term
from grammars.sets import strings as textsets

if TYPE_CHECKING:
    from grammars.rules.builder import GrammarBuilder

FREE = 4
"""Declared properties that may come in any order: the rules grow with the number of their subsets."""


class ObjectRules:
    """Writes one object set. Every alternative that `write` returns is a whole object."""

    def __init__(self, writer: GrammarBuilder, shape: ObjectSet, layout: ObjectSyntax | TaggedSyntax) -> None:
        self.writer, self.shape, self.grammar, self.layout = writer, shape, writer.grammar, layout
        self.terms = dict(shape.props)
        self.names = [name for name, term in shape.props if term is not FALSE]
        self.opening = self.closing = self.comma = self.quote = ""
        self.before_name, self.bare = "", layout.names if isinstance(layout, ObjectSyntax) else _element_names()
        if isinstance(layout, TaggedSyntax):
            self.before_name = layout.open
        else:
            self.opening, self.closing, self.comma = layout.open, layout.close, layout.comma
            self.quote = self.before_name = '"' if layout.names is None else ""
            if layout.names is not None:
                self.names = [name for name in self.names if layout.names.accepts(name)]
        self.others: list[NameClass] = []
        self.trie = TrieWriter(self.grammar, self.quote)
        self.end: Sequence = (Lit(self.closing),)
        self.empty: Sequence = (Lit(self.opening + self.closing),)

    def write(self) -> tuple[Sequence, ...]:
        shape = self.shape
        try:
            self.others = self._others()
        except limits.LimitExceeded as error:
            self.others = self._widened(error)
        if not shape.required <= set(self.names):
            raise UnsupportedSchema("", "required", "a required name that this syntax cannot spell")
        possible = None if self.others else len(self.names)
        required = len(shape.required)
        least, most = shape.min_properties, shape.max_properties
        if possible is not None and possible < least:
            return ()
        counted = least > required or (most is not None and (possible is None or most < possible))
        coarse = self.writer.normal.approximate
        if counted or shape.dependent_required or shape.must_contain:
            try:
                if coarse:
                    raise limits.LimitExceeded("states")
                return CountedObject(self).write()
            except limits.LimitExceeded as error:
                if error.limit != "states":
                    raise
            self.writer.normal.unchecked.add_everywhere(
                "minProperties", "maxProperties", "dependentRequired", "dependencies"
            )
            if shape.must_contain:
                self.writer.normal.unchecked.add("", "not")
        if 1 < len(self.names) <= FREE and required < len(self.names) and not coarse:
            return self._free()
        return self._ordered()

    def _others(self) -> list[NameClass]:
        shape = self.shape
        if not shape.layers and shape.names == textsets.ALL and not shape.must_contain:
            return [NameClass(None, shape.additional, 0)] if shape.additional is not FALSE else []
        return self.writer.normal.name_classes(shape)

    def _widened(self, error: limits.LimitExceeded) -> list[NameClass]:
        """Undeclared names of all classes together, where telling them apart exceeds a limit."""
        if error.limit == "seconds":
            raise error
        normal = self.writer.normal
        normal.unchecked.add_everywhere("patternProperties", "additionalProperties", "propertyNames")
        parts = [self.shape.additional]
        for layer in self.shape.layers:
            parts.append(normal.terms.any(layer.additional, *(term for _, term in layer.patterns)))
        every = (1 << len(self.shape.must_contain)) - 1
        return [NameClass(None, normal.terms.all(*parts), every)]

    # Members

    def value(self, term: Term, after: Sequence) -> Sequence:
        """The part behind a name."""
        if isinstance(self.layout, ObjectSyntax):
            return (Lit(self.layout.colon), *self.writer.term(term), *after)
        values = self.writer.element(term, self.layout)
        return (*(values[0] if len(values) == 1 else (self.grammar.add(tuple(values), "e"),)), *after)

    def other(self, others: NameClass, leaf: Sequence) -> Sequence:
        """A member with an undeclared name; `leaf` begins after the name."""
        if self.bare is not None:
            names = self.bare if others.names is None else intersect(self.bare, others.names)
            names = difference(names, strings(name for name, _ in self.shape.props))
            if names.is_empty():
                return (self.grammar.add((), "n"),)
            return (Lit(self.before_name), *self.writer.digits.write(names), *leaf)
        if others.names is not None:
            return (*self.writer.strings.write(others.names), *leaf)
        if not self.shape.props:
            return (*self.writer.text(textsets.ALL)[0], *leaf)
        taken = frozenset(escaped(name) for name, _ in self.shape.props)
        return (Lit(self.quote), self.writer.other_names.write(taken), *leaf)

    def declared(self, node: Node) -> Sequence:
        return (Lit(self.before_name), *self.trie.write(node))

    def insert(self, node: Node | None, name: str, leaf: Sequence) -> Node:
        return insert(node, name if self.bare is not None else escaped(name), leaf)

    def _shared(self, sequence: Sequence) -> Sequence:
        return (self.grammar.add((sequence,), "m"),)

    # Objects

    def _ordered(self) -> tuple[Sequence, ...]:
        """Backwards through the declared properties; what follows each of them is one rule."""
        names, required = self.names, self.shape.required
        closing = self.end
        node: Node | None = None
        may_end = True
        rest: Sequence = closing
        members: list[Sequence] = []
        for i in range(len(names), -1, -1):
            if i < len(names):
                name = names[i]
                leaf = self.value(self.terms[name], rest)
                if name in required:
                    node, may_end = None, False
                if i and names[i - 1] not in required:  # several positions lead to this property
                    leaf = self._shared(leaf)
                node = self.insert(node, name, leaf)
            members = [self.declared(node)] if node else []
            if may_end and self.others:
                here = Ref(self.grammar.fresh("o"))
                members += [self.other(others, self.value(others.term, (here,))) for others in self.others]
                self.grammar.define(here.name, (closing, *((Lit(self.comma), *member) for member in members)))
                rest = (here,)
            elif may_end:
                after = [(Lit(self.comma), *member) for member in members]
                rest = (self.grammar.add((closing, *after), "o"),) if after else closing
            else:
                rest = (Lit(self.comma), *members[0])
        start: list[Sequence] = [(Lit(self.opening), *member) for member in members]
        if may_end:
            start.append(self.empty)
        return tuple(start)

    def _free(self) -> tuple[Sequence, ...]:
        """Any order: a state is the set of declared properties that are still to come."""
        names, required = self.names, self.shape.required
        full = (1 << len(names)) - 1
        must = sum(1 << i for i, name in enumerate(names) if name in required)
        closing = self.end
        rests: list[Sequence] = []
        members: list[Sequence] = []
        for left in range(full + 1):
            node: Node | None = None
            for i, name in enumerate(names):
                if left >> i & 1:
                    leaf = self.value(self.terms[name], rests[left & ~(1 << i)])
                    node = self.insert(node, name, leaf)
            members = [self.declared(node)] if node else []
            may_end = not left & must
            if may_end and self.others:
                here = Ref(self.grammar.fresh("o"))
                members += [self.other(others, self.value(others.term, (here,))) for others in self.others]
                self.grammar.define(here.name, (closing, *((Lit(self.comma), *member) for member in members)))
                rests.append((here,))
            else:
                after = [(Lit(self.comma), *member) for member in members]
                alternatives = ((closing,) if may_end else ()) + tuple(after)
                one = len(alternatives) == 1
                rests.append(alternatives[0] if one else (self.grammar.add(alternatives, "o"),))
        start: list[Sequence] = [(Lit(self.opening), *member) for member in members]
        if not must:
            start.append(self.empty)
        return tuple(start)


def _element_names() -> DFA:
    return pattern_dfa(ELEMENT_NAMES)
