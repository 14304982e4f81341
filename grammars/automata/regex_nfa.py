"""Automata of regular expressions.

`pattern_dfa` gives the language of the texts in which a pattern is found, as `pattern` and `patternProperties` of JSON
Schema mean it: unanchored unless the pattern says otherwise. Look-ahead, look-behind and word boundaries are exact; a
back-reference is no regular language.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from grammars.automata import ast
from grammars.automata.chars import ANY, Ranges, char_set
from grammars.automata.dfa import ALL, DFA, EPSILON
from grammars.automata.nfa import NFA, SubsetConstruction
from grammars.automata.operations import characters, complement, concat, product_states
from grammars.automata.regex import InvalidPattern, UnsupportedPattern, parse_pattern
from grammars.automata.unicode import LINE_ENDS, NO_LINE_END, WORD, fold
from grammars.limits import LimitExceeded
from grammars.memo import memo


@dataclass(frozen=True, slots=True)
class _Mode:
    """Flags in force; `inside`: "ahead" or "behind" within a look-around."""

    ignore_case: bool = False
    dot_all: bool = False
    multiline: bool = False
    inside: str = field(default="")


def _beginning(chars: Ranges) -> DFA:
    """Texts that begin with one of these characters."""
    return concat(characters(chars), ALL)


def _ending(chars: Ranges) -> DFA:
    return concat(ALL, characters(chars))


STARTS_WITH_WORD, ENDS_IN_WORD = _beginning(WORD), _ending(WORD)
STARTS_WITH_LINE_END, ENDS_IN_LINE_END = _beginning(LINE_ENDS), _ending(LINE_ENDS)


def _anchored(node: ast.Node) -> bool:
    """True where a match can begin only where the text begins."""
    match node:
        case ast.Anchor("start"):
            return True
        case ast.Concat(parts):
            for part in parts:
                if _anchored(part):
                    return True
                if not isinstance(part, ast.Lookaround | ast.Anchor):
                    return False
            return False
        case ast.Alternation(options):
            return all(_anchored(option) for option in options)
        case ast.Repetition(part, least, _):
            return least > 0 and _anchored(part)
    return False


class _Builder:
    def __init__(self) -> None:
        self.nfa = NFA()

    def chars(self, ranges: Ranges, mode: _Mode) -> Ranges:
        return fold(ranges) if mode.ignore_case else ranges

    def build(self, node: ast.Node, here: int, mode: _Mode) -> int:
        """Adds the states of `node` behind `here`; returns the state behind it. Nothing ever leads back to `here`."""
        nfa = self.nfa
        match node:
            case ast.Literal(text):
                for char in text:
                    there = nfa.state()
                    nfa.edge(here, self.chars(char_set([(ord(char), ord(char))]), mode), there)
                    here = there
                return here
            case ast.CharClass(ranges):
                there = nfa.state()
                if ranges:
                    nfa.edge(here, self.chars(ranges, mode), there)
                return there
            case ast.Dot():
                there = nfa.state()
                nfa.edge(here, ANY if mode.dot_all else NO_LINE_END, there)
                return there
            case ast.Concat(parts):
                for part in parts:
                    here = self.build(part, here, mode)
                return here
            case ast.Alternation(options):
                there = nfa.state()
                for option in options:
                    nfa.epsilon(self.build(option, here, mode), there)
                return there
            case ast.Repetition(part, least, most):
                return self.count(part, least, most, here, mode)
            case ast.Anchor(kind):
                return self.anchor(kind, here, mode)
            case ast.Lookaround(ahead, positive, part):
                return self.look(ahead, positive, part, here, mode)
            case ast.Flags(part, on, off):
                inner = _Mode(
                    (mode.ignore_case or "i" in on) and "i" not in off,
                    (mode.dot_all or "s" in on) and "s" not in off,
                    (mode.multiline or "m" in on) and "m" not in off,
                    mode.inside,
                )
                return self.build(part, here, inner)
        raise AssertionError(node)

    def count(self, part: ast.Node, least: int, most: int | None, here: int, mode: _Mode) -> int:
        nfa = self.nfa
        for _ in range(least if most is not None or least == 0 else least - 1):
            here = self.build(part, here, mode)
        if most is None:
            loop = nfa.state()
            if least:  # the last required one is the body of the loop
                nfa.epsilon(here, loop)
                end = self.build(part, loop, mode)
                there = nfa.state()
                nfa.epsilon(end, loop)
                nfa.epsilon(end, there)
                return there
            nfa.epsilon(here, loop)
            nfa.epsilon(self.build(part, loop, mode), loop)
            return loop
        if most == least:
            return here
        there = nfa.state()
        for _ in range(most - least):
            nfa.epsilon(here, there)
            here = self.build(part, here, mode)
        nfa.epsilon(here, there)
        return there

    def anchor(self, kind: str, here: int, mode: _Mode) -> int:
        nfa = self.nfa
        there = nfa.state()
        if kind == "start":
            if mode.inside == "ahead":
                nfa.lookaround(here, there, False, EPSILON)
            else:
                nfa.epsilon(here, there, "start")
            if mode.multiline:
                nfa.lookaround(here, there, False, ENDS_IN_LINE_END)
        elif kind == "end":
            if mode.inside == "behind":
                raise UnsupportedPattern("an end anchor in a look-behind")
            nfa.epsilon(here, there, "end")
            if mode.multiline:
                nfa.lookaround(here, there, True, STARTS_WITH_LINE_END)
        else:
            if mode.inside == "behind":
                raise UnsupportedPattern("a word boundary in a look-behind")
            for before_word in (True, False):
                middle = nfa.state()
                nfa.lookaround(here, middle, False, ENDS_IN_WORD if before_word else complement(ENDS_IN_WORD))
                starts = before_word if kind == "inside" else not before_word
                nfa.lookaround(middle, there, True, STARTS_WITH_WORD if starts else complement(STARTS_WITH_WORD))
        return there

    def look(self, ahead: bool, positive: bool, part: ast.Node, here: int, mode: _Mode) -> int:
        nfa = self.nfa
        there = nfa.state()
        inner = _Builder()
        inside = _Mode(mode.ignore_case, mode.dot_all, mode.multiline, "ahead" if ahead else "behind")
        start = inner.nfa.state()
        if not ahead:
            if mode.multiline or not _anchored(part):
                inner.nfa.edge(start, ANY, start)
                begin = inner.nfa.state()
                inner.nfa.epsilon(start, begin)
                start_part = begin
            else:
                start_part = start
            end = inner.build(part, start_part, inside)
            if inner.nfa.ahead:
                raise UnsupportedPattern("a look-ahead in a look-behind")
            language = inner.nfa.determinize(start, [end])
            nfa.lookaround(here, there, False, language if positive else complement(language))
            return there
        end = inner.build(part, start, inside)
        final = inner.nfa.state()
        inner.nfa.epsilon(end, final)
        inner.nfa.edge(final, ANY, final)
        if not inner.nfa.behind:
            language = inner.nfa.determinize(start, [final])
            nfa.lookaround(here, there, True, language if positive else complement(language))
            return there
        for states, prefix in product_states(inner.nfa.behind):
            middle = nfa.state()
            nfa.lookaround(here, middle, False, prefix)
            language = inner.nfa.determinize(start, [final], states)
            nfa.lookaround(middle, there, True, language if positive else complement(language))
        return there


def _search(node: ast.Node) -> tuple[NFA, int, int]:
    """The automaton of the texts in which the pattern is found: itself, its start and its final state."""
    builder = _Builder()
    nfa = builder.nfa
    start, final = nfa.state(), nfa.state()
    nfa.edge(final, ANY, final)
    mode = _Mode()
    while isinstance(node, ast.Flags):
        mode = _Mode("i" in node.on, "s" in node.on, "m" in node.on)
        node = node.part
    loop = -1
    for option in node.options if isinstance(node, ast.Alternation) else (node,):
        if not mode.multiline and _anchored(option):
            begin = start
        else:
            if loop < 0:
                loop = nfa.state()
                nfa.edge(loop, ANY, loop)
                nfa.epsilon(start, loop)
            begin = loop
        first = nfa.state()
        nfa.epsilon(begin, first)
        nfa.epsilon(builder.build(option, first, mode), final)
    return nfa, start, final


@memo
def _compiled(pattern: str) -> DFA | ValueError | LimitExceeded:
    try:
        nfa, start, final = _search(parse_pattern(pattern))
        return nfa.determinize(start, [final])
    except (InvalidPattern, UnsupportedPattern, LimitExceeded) as error:
        if isinstance(error, LimitExceeded) and error.limit == "seconds":
            raise
        return error
    except RecursionError:
        return UnsupportedPattern("nesting of this depth")


def pattern_dfa(pattern: str) -> DFA:
    """The texts in which the pattern is found.

    Raises `InvalidPattern`, `UnsupportedPattern`, or `LimitExceeded("states")` where the automaton would be too large
    (`pattern_accepts` still judges texts by such a pattern).
    """
    result = _compiled(pattern)
    if isinstance(result, Exception):
        raise result.with_traceback(None)
    return result


@memo
def _subsets(pattern: str) -> SubsetConstruction:
    nfa, start, final = _search(parse_pattern(pattern))
    return SubsetConstruction(nfa, start, [final])


def pattern_accepts(pattern: str, text: str) -> bool:
    """Search for a pattern in a text; without backtracking, also where `pattern_dfa` meets a limit."""
    result = _compiled(pattern)
    if isinstance(result, DFA):
        return result.accepts(text)
    if isinstance(result, LimitExceeded):
        return _subsets(pattern).accepts(text)
    raise result.with_traceback(None)
