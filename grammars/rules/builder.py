"""From normal form to grammar: one rule per shape; objects and arrays are right-linear chains of their members."""

from __future__ import annotations

from collections import deque

from grammars import limits
from grammars.automata.chars import ANY
from grammars.automata.dfa import ALL
from grammars.automata.operations import bounded, up_to
from grammars.rules.arrays import ArrayRules
from grammars.rules.escapes import RAW
from grammars.rules.names import Node, OtherNames, TrieWriter, insert
from grammars.rules.objects import ObjectRules
from grammars.rules.rules import Chars, Grammar, Item, Lit, Ref, Repeat, Rule, Sequence, repeat
from grammars.rules.strings import StringRules
from grammars.rules.syntax import TaggedSyntax, ValueSyntax, escaped, number_texts
from grammars.schema.normalize import Normalizer
from grammars.schema.sets import ANY_VALUE, NO_VALUE, ValueSet
from grammars.schema.terms import TRUE, Term
from grammars.sets import numbers as numbersets
from grammars.sets import strings as textsets
from grammars.sets.languages import BOUNDS, number_automaton, split_length
from grammars.sets.numbers import NumberSet
from grammars.sets.strings import TextSet

_DIGITS = Chars(((0x30, 0x39),))
_NONZERO = Chars(((0x31, 0x39),))
_FLAT = 8
"""Texts of an enumeration that are written side by side; longer lists become trees."""


class GrammarBuilder:
    """Writes the terms of one normaliser into one grammar."""

    def __init__(self, normal: Normalizer, spelling: ValueSyntax) -> None:
        self.normal, self.spelling = normal, spelling
        self.grammar = Grammar()
        self.strings = StringRules(self.grammar, spelling.text)
        self.digits = StringRules(self.grammar, RAW)
        self.other_names = OtherNames(self.grammar, self.strings)
        self._terms: dict[Term, Sequence] = {}
        self._shapes: dict[ValueSet, Sequence] = {}
        self._texts: dict[TextSet, tuple[Sequence, ...]] = {}
        self._numbers: dict[NumberSet, tuple[Sequence, ...]] = {}
        self._queue: deque[tuple[str, ValueSet]] = deque()

    def write(self, term: Term) -> Grammar:
        """The grammar of a term; its entry rule is `root`."""
        self.grammar.define("root", ())
        if self.spelling.root is None:
            self.grammar.define("root", (self.term(term),))
        else:
            whole = ANY_VALUE if term is TRUE else self.normal.value_set(term)
            layout = self.spelling.root
            objects = [sequence for o in whole.objects for sequence in ObjectRules(self, o, layout).write()]
            self.grammar.define("root", tuple(objects))
        while self._queue:
            limits.check()
            name, shape = self._queue.popleft()
            self.grammar.define(name, self._rule(shape))
        self.grammar.factor()
        return self.grammar

    def term(self, term: Term) -> Sequence:
        known = self._terms.get(term)
        if known is None:
            known = self._terms[term] = self._shape(ANY_VALUE if term is TRUE else self.normal.value_set(term))
        return known

    def _shape(self, shape: ValueSet) -> Sequence:
        known = self._shapes.get(shape)
        if known is not None:
            return known
        if shape.arrays or shape.objects:
            name = "value" if shape == ANY_VALUE else self.grammar.fresh("v")
            self._queue.append((name, shape))
            out: Sequence = (Ref(name),)
        else:
            rule = self._rule(shape)
            out = rule[0] if len(rule) == 1 else (self.grammar.add(rule, "v"),)
        self._shapes[shape] = out
        return out

    def _rule(self, shape: ValueSet) -> Rule:
        rule: list[Sequence] = list(self.text(shape.string))
        rule.extend(self.number(shape.number))
        for o in shape.objects:
            rule.extend(ObjectRules(self, o, self.spelling.layout).write())
        for a in shape.arrays:
            rule.extend(ArrayRules(self, a).write())
        if shape.booleans & 2:
            rule.append((Lit(self.spelling.true),))
        if shape.booleans & 1:
            rule.append((Lit(self.spelling.false),))
        if shape.null:
            rule.append((Lit(self.spelling.null),))
        return tuple(rule)

    def repeat(self, item: Item, least: int, most: int | None, keyword: str) -> Sequence:
        """`least` to `most` times `item`; a bound too high to be composed is left to validation."""
        try:
            return repeat(self.grammar, item, least, most)
        except limits.LimitExceeded:
            self.normal.unchecked.add_everywhere(keyword)
            return repeat(self.grammar, item, least, None)

    # Strings

    def text(self, s: TextSet) -> tuple[Sequence, ...]:
        known = self._texts.get(s)
        if known is None:
            known = self._texts[s] = self._text(s)
        return known

    def _text(self, s: TextSet) -> tuple[Sequence, ...]:
        if self.spelling.marker:
            marker = self.spelling.marker
            return tuple((Lit(marker), *sequence) for sequence in self.raw_text(s, marker))
        quote, kind = self.spelling.text.quote, s[0]
        if kind == "none":
            return ()
        if kind == "all":
            self.grammar.define("string", ((Lit(quote), *self.strings.ending(ANY)),))
            return ((Ref("string"),),)
        if kind == "finite":
            if len(s[1]) <= _FLAT:
                return tuple((Lit(quote + escaped(value) + quote),) for value in s[1])
            node: Node = {}
            for value in s[1]:
                node = insert(node, escaped(value), ())
            return ((Lit(quote), *TrieWriter(self.grammar, quote).write(node)),)
        if kind == "length":
            try:
                return ((Lit(quote), *self.strings.ending(ANY, s[1], s[2])),)
            except limits.LimitExceeded as error:
                if error.limit != "repeat":
                    raise
                self.normal.unchecked.add_everywhere("maxLength")
                return ((Lit(quote), *self.strings.ending(ANY, s[1])),)
        rest, least, most = split_length(s)
        automaton = self.normal.languages.language(rest)
        if automaton is None:
            return self.text(textsets.length(least, most))
        if automaton.is_empty():
            return ()
        try:
            return (self.strings.write(automaton, least, most),)
        except limits.LimitExceeded as error:
            if error.limit == "seconds":
                raise
            self.normal.unchecked.add_everywhere("minLength", "maxLength")
            return (self.strings.write(automaton),)

    def raw_text(self, s: TextSet, end: str) -> list[Sequence]:
        """The texts of a set as they are, up to and with an end that none of them holds."""
        if s == textsets.NONE:
            return []
        if s[0] == "finite":
            return [(Lit(value + end),) for value in s[1] if (value + end).find(end) == len(value)]
        rest, least, most = (textsets.ALL, s[1], s[2]) if s[0] == "length" else split_length(s)
        language = ALL if rest == textsets.ALL else self.normal.languages.language(rest) or ALL
        try:
            language = bounded(language, least, most)
        except limits.LimitExceeded as error:
            if error.limit == "seconds":
                raise
            self.normal.unchecked.add_everywhere("minLength", "maxLength")
        language = up_to(language, end)
        return [] if language.is_empty() else [self.digits.write(language)]

    def element(self, term: Term, elements: TaggedSyntax) -> list[Sequence]:
        """What may follow an argument's name: what tells the type, the value, and the closing text."""
        shape = ANY_VALUE if term is TRUE else self.normal.value_set(term)
        texts = self.raw_text(shape.string, elements.close)
        out: list[Sequence] = [(Lit(elements.after_name("string")), *text) for text in texts]
        others: dict[str, ValueSet] = {}
        for kind, part in _parts(shape).items():
            if part != NO_VALUE:
                named = elements.after_name(kind)
                known = others.get(named, NO_VALUE)
                others[named] = self.normal.algebra.union(known, part)
        if out and elements.after_name("string") in others:
            # raw text and JSON look the same: the type shows in decoding
            self.normal.unchecked.add("", "type")
        for named, part in others.items():
            out.append((Lit(named), *self._shape(part), Lit(elements.close)))
        return out

    # Numbers

    def integer(self) -> Ref:
        define = self.grammar.define
        if "integer" not in self.grammar.rules:
            natural = define("natural", ((_NONZERO, Repeat(_DIGITS, 0, None)), (Lit("0"),)))
            define("integer", ((natural,), (Lit("-"), natural)))
        return Ref("integer")

    def any_number(self) -> Ref:
        """A number that a reader of doubles finds finite: an exponent below 308, behind a single digit."""
        define = self.grammar.define
        if "number" not in self.grammar.rules:
            some = Repeat(_DIGITS, 1, None)
            zero_to_seven = Chars(((0x30, 0x37),))
            hundreds = (Chars(((0x31, 0x32),)), Repeat(_DIGITS, 0, 2))
            three = define("three", ((Chars(((0x31, 0x39),)),), (Lit("0"), Repeat(zero_to_seven, 0, 1)), ()))
            tens = (Chars(((0x34, 0x39),)), Repeat(_DIGITS, 0, 1))
            power = define("power", (hundreds, tens, (Lit("3"), three), (Lit("0"), Repeat(_DIGITS, 0, 1))))
            sign = Chars(((0x2B, 0x2B), (0x2D, 0x2D)))
            letter = Chars(((0x45, 0x45), (0x65, 0x65)))
            exponent = define("exponent", ((letter, Repeat(sign, 0, 1), power),))
            fraction = define("fraction", ((Lit("."), some),))
            rest = define("rest", ((Repeat(fraction, 0, 1), Repeat(exponent, 0, 1)),))
            digits = define("digits", ((some, Repeat(fraction, 0, 1)), (rest,)))
            unsigned = define("unsigned", ((_NONZERO, digits), (Lit("0"), rest)))
            define("number", ((unsigned,), (Lit("-"), unsigned)))
        return Ref("number")

    def number(self, s: NumberSet) -> tuple[Sequence, ...]:
        known = self._numbers.get(s)
        if known is None:
            known = self._numbers[s] = self._number(s)
        return known

    def _number(self, s: NumberSet) -> tuple[Sequence, ...]:
        kind = s[0]
        if kind == "none":
            return ()
        if kind == "all":
            return ((self.any_number(),),)
        if s == numbersets.INTEGER:
            return ((self.integer(),),)
        if kind == "finite":
            return tuple((Lit(text),) for value in s[1] for text in number_texts(value))
        try:
            automaton = number_automaton(s, self.normal.unchecked)
        except limits.LimitExceeded as error:
            if error.limit == "seconds":
                raise
            automaton = None
        if automaton is None:
            self.normal.unchecked.add_everywhere(*BOUNDS)
            return ((self.integer() if numbersets.is_integral(s) else self.any_number(),),)
        if automaton.is_empty():
            return ()
        return (self.digits.write(automaton),)


def _parts(shape: ValueSet) -> dict[str, ValueSet]:
    """A shape without its strings, by JSON type."""
    return {
        "number": NO_VALUE._replace(number=shape.number),
        "boolean": NO_VALUE._replace(booleans=shape.booleans),
        "null": NO_VALUE._replace(null=shape.null),
        "object": NO_VALUE._replace(objects=shape.objects),
        "array": NO_VALUE._replace(arrays=shape.arrays),
    }
