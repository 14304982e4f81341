"""Regular languages of strings as grammar rules of their quoted spelling.

An automaton is about the decoded text; a `StringEscapes` says how each character is written. One spelling of a
character is offered, so that the rules are right-linear. Where anything may follow (a string without constraints, or
the rest of one), every other legal escape is accepted too.
"""

from __future__ import annotations

from grammars.automata.chars import Ranges
from grammars.automata.dfa import DFA
from grammars.automata.operations import bounded
from grammars.limits import LimitExceeded
from grammars.memo import memo
from grammars.rules.automata import AutomatonRules
from grammars.rules.characters import CharacterRules, joined, wide
from grammars.rules.escapes import JSON, StringEscapes
from grammars.rules.rules import BLOCKS, Grammar, Item, Lit, Ref, Repeat, Rule, Sequence, repeat

CHAIN = 256
"""Largest count of a wide set that is written as one rule for each character; higher ones are composed of blocks."""


class StringRules:
    """Writes automata into one grammar in one spelling; rules are shared between equal languages."""

    def __init__(self, grammar: Grammar, spelling: StringEscapes = JSON) -> None:
        self.grammar, self.spelling = grammar, spelling
        self.chars = CharacterRules(grammar, spelling)
        self._memo: dict[object, Ref] = {}

    def write(self, language: DFA, least: int = 0, most: int | None = None) -> Sequence:
        """The spelling, quotes included, of the texts of `language` that have `least` to `most` characters.

        Where there is none, a reference to a rule without alternatives, which `rules.prune` removes with all that
        needs it. Raises `LimitExceeded("states")` where it would take too many rules.
        """
        if language.name is not None and not least and most is None:
            rules, sequence = _template(language, self.spelling)
            self.grammar.include(rules)
            return sequence
        key = (language, least, most)
        ref = self._memo.get(key)
        if ref is None:
            sequence = self._whole(language, least, most)
            if len(sequence) == 1:
                return sequence
            ref = self._memo[key] = self.grammar.add((sequence,), "s")
        return (ref,)

    def _whole(self, language: DFA, least: int, most: int | None) -> Sequence:
        opening = (Lit(self.spelling.quote),) if self.spelling.quote else ()
        if least or most is not None:
            counted = self._counted(language, least, most)
            if counted is not None:
                return joined((*opening, *counted))
            language = bounded(language, least, most)
        if language.is_empty():
            return (self._nothing,)
        return joined((*opening, *AutomatonRules(self, language).line(0)))

    def _counted(self, language: DFA, least: int, most: int | None) -> list[Item] | None:
        """A forced beginning and then any number of one set of characters, with the bounds on its length as counts."""
        state = 0
        items: list[Item] = []
        for length in range(len(language)):
            row = language.transitions[state]
            if state in language.accepting:
                if any(target != state for _, _, target in row) or not row:
                    return None
                chars = tuple([(lo, hi) for lo, hi, _ in row])
                low, high = max(0, least - length), None if most is None else most - length
                if high is not None and high < low:
                    return [self._nothing]
                return [*items, *self.ending(chars, low, high)]
            if not row or any(target != row[0][2] or target == state for _, _, target in row):
                return None
            items.append(self.chars.item(tuple([(lo, hi) for lo, hi, _ in row])))
            state = row[0][2]
        return None

    @property
    def _nothing(self) -> Ref:
        return self.grammar.define("nothing", ())

    @property
    def end(self) -> Lit:
        return Lit(self.spelling.quote)

    def ending(self, chars: Ranges, least: int = 0, most: int | None = None) -> Sequence:
        """`least` to `most` characters of a set, and the end of the string."""
        item = self.chars.item(chars)
        if not wide(chars):
            return (*repeat(self.grammar, item, least, most), self.end)
        forced = repeat(self.grammar, item, least, least)
        return (*forced, *self._up_to(item, None if most is None else most - least))

    def _up_to(self, item: Item, most: int | None) -> Sequence:
        """Up to `most` times an item (None: any number), and the end.

        llama.cpp keeps the stacks of a rule from its last alternative to its first, and looks with each only at the
        tokens that those before it refused. The item, which lets most of them pass, therefore comes last; `item{0,9}`
        would put it first.
        """
        if most == 0:
            return (self.end,)
        key = ("ending", item, most)
        ref = self._memo.get(key)
        if ref is not None:
            return (ref,)
        if most is None:
            ref = Ref(f"{self.spelling.key}string-rest" if item == self.chars.char else self.grammar.fresh("t"))
            self.grammar.define(ref.name, ((self.end,), (item, ref)))
        elif most <= CHAIN:
            ref = self.grammar.add(((self.end,), (item, *self._up_to(item, most - 1))), "t")
        else:
            blocks, rest = divmod(most, CHAIN)
            if blocks > BLOCKS:
                raise LimitExceeded("repeat")
            less = self._up_to(item, CHAIN - 1)
            below = self._up_to(item, rest)
            for _ in range(blocks):
                ref = self.grammar.add(((Repeat(item, CHAIN, CHAIN), *below), less), "u")
                below = (ref,)
            assert ref is not None
        self._memo[key] = ref
        return (ref,)


class _Named(Grammar):
    """Rules whose names begin with that of a language."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def fresh(self, hint: str = "r") -> str:
        self._count += 1
        return f"{self.name}-{self._count}"


@memo
def _template(language: DFA, spelling: StringEscapes) -> tuple[dict[str, Rule], Sequence]:
    """The rules of a language that has a name, the same in every grammar, and the sequence that leads into them."""
    assert language.name is not None
    grammar = _Named(f"{spelling.key}{language.name}")
    strings = StringRules(grammar, spelling)
    entry = grammar.define(grammar.name, (strings._whole(language, 0, None),))
    return grammar.rules, (entry,)
