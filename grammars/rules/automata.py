"""Automata as grammar rules: right-linear, so that the sampler walks them with one stack per continuation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grammars import limits
from grammars.automata.chars import LAST, Ranges
from grammars.automata.dfa import DFA
from grammars.rules.characters import joined, split, wide
from grammars.rules.rules import Item, Lit, Ref, Repeat, Rule, Sequence

if TYPE_CHECKING:
    from grammars.rules.strings import StringRules


class AutomatonRules:
    """Writes one automaton: straight lines become sequences, states where lines part or meet become rules."""

    def __init__(self, strings: StringRules, language: DFA) -> None:
        self.strings = strings
        self.grammar, self.chars = strings.grammar, strings.chars
        self.language = language
        self.groups: list[dict[int, Ranges]] = []
        entries = [0] * len(language)
        for row in language.transitions:
            groups: dict[int, list[tuple[int, int]]] = {}
            for lo, hi, target in row:
                groups.setdefault(target, []).append((lo, hi))
            self.groups.append({target: tuple(ranges) for target, ranges in groups.items()})
            for target in groups:
                entries[target] += 1
        for state, groups_ in enumerate(self.groups):
            entries[state] -= state in groups_
        self.entries = entries
        self.runs: dict[int, tuple[int, int]] = {}
        self.refs: dict[int, Ref] = {}
        self.pending: list[int] = []

    def line(self, start: int) -> list[Item]:
        items = self._line(start, first=True)
        while self.pending:
            state = self.pending.pop()
            self.grammar.define(self.refs[state].name, self._rule(state))
        return items

    def _ref(self, state: int) -> Ref:
        ref = self.refs.get(state)
        if ref is None:
            ref = self.refs[state] = Ref(self.grammar.fresh("q"))
            self.pending.append(state)
        return ref

    def _line(self, state: int, first: bool = False) -> list[Item]:
        """The items from a state on, up to where lines part (or meet, except at the end of all)."""
        items: list[Item] = []
        accepting = self.language.accepting
        end = self.strings.end
        while True:
            groups = self.groups[state]
            if not groups:
                items.append(end)
                return items
            if state in accepting:
                count, last = self._run(state)
                if last == state and len(groups) == 1 and state in groups:
                    return [*items, *self.strings.ending(groups[state])]
                if count and not self.groups[last]:
                    return [*items, *self.strings.ending(next(iter(groups.values())), 0, count)]
                items.append(self._ref(state))
                return items
            if (self.entries[state] > 1 and not first) or len(groups) > 1 + (state in groups):
                items.append(self._ref(state))
                return items
            if state in groups:
                if wide(groups[state]) or self._conflict(groups):
                    items.append(self._ref(state))
                    return items
                items.append(Repeat(self.chars.item(groups[state]), 0, None))
            target, chars = next((t, c) for t, c in groups.items() if t != state)
            items.append(self.chars.item(chars))
            state = target
            first = False

    def _run(self, state: int) -> tuple[int, int]:
        """How far accepting states follow each other by one and the same set of characters, and where that ends."""
        accepting, groups, runs = self.language.accepting, self.groups, self.runs
        chain: list[int] = []
        here = state
        while here not in runs:
            following = next(iter(groups[here]), here)
            if here not in accepting or len(groups[here]) != 1 or following == here or following not in accepting:
                runs[here] = (0, here)
            elif list(groups[following].values()) == list(groups[here].values()) and following not in groups[following]:
                chain.append(here)
                here = following
            else:
                runs[here] = (1, following)
        for here in reversed(chain):
            count, last = runs[next(iter(groups[here]))]
            runs[here] = (count + 1, last) if count else (1, next(iter(groups[here])))
        return runs[state]

    def _conflict(self, groups: dict[int, Ranges]) -> bool:
        """True where a backslash may lead to more than one state."""
        escaped = self.strings.spelling.escaped
        return bool(escaped) and sum(1 for chars in groups.values() if split(chars, escaped)[1]) > 1

    def _rule(self, state: int) -> Rule:
        """The alternatives of a state, the widest last: the sampler tries that first (see `StringRules.ending`)."""
        limits.check()
        groups = self.groups[state]
        spelling = self.strings.spelling
        conflict = self._conflict(groups)
        escapes: dict[int, Sequence] = {}
        wide: list[tuple[int, Sequence]] = []
        out: list[Sequence] = []
        if state in self.language.accepting:
            out.append((self.strings.end,) if spelling.quote else ())
        for target, chars in groups.items():
            rest = (self._ref(state),) if target == state else tuple(self._line(target))
            raw, escaped = split(chars, spelling.escaped)
            if chars == ((0, LAST),) and spelling.quote:
                wide.append((LAST, (self.chars.char, *rest)))
                continue
            if raw:
                wide.append((sum([hi - lo + 1 for lo, hi in raw]), (self.chars.raw(raw), *rest)))
            if escaped and conflict:
                escapes.update(dict.fromkeys(escaped, rest))
            elif escaped:
                out.append((Lit("\\"), *self.chars.escapes(escaped), *rest))
        if escapes:
            rule = self.chars.escape_rule(escapes)
            tail = rule[0] if len(rule) == 1 else (self.grammar.add(rule, "esc"),)
            out.append((Lit("\\"), *tail))
        wide.sort(key=_width)
        out.extend([sequence for _, sequence in wide])
        return tuple([joined(sequence) for sequence in out])


def _width(alternative: tuple[int, Sequence]) -> int:
    return alternative[0]
