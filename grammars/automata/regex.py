"""Regular expressions of ECMA-262 as automata.

`pattern_dfa` gives the language of the texts in which a pattern is found, as `pattern` and `patternProperties` of JSON
Schema mean it: unanchored unless the pattern says otherwise, by code points (the `u` flag), with Annex B's leniency
where real schemas need it (an unescaped `{` or `]`, needless escapes). Look-ahead, look-behind and word boundaries
are exact; a back-reference is no regular language.

Beyond the standard, because schemas are written for other engines too: `\\A`, `\\Z`, `\\z`, `(?P<name>…)` and a leading
flag group such as `(?i)`. `is_pattern` judges by the standard alone.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken
from lark.exceptions import VisitError

from grammars.automata.chars import ANY, LAST, Ranges, char_set, invert
from grammars.automata.dfa import ALL, DFA, EPSILON
from grammars.automata.nfa import NFA, SubsetConstruction
from grammars.automata.operations import characters, complement, concat, product_states
from grammars.limits import LimitExceeded
from grammars.memo import memo


class InvalidPattern(ValueError):
    """Not a regular expression; `position` is the offset of the fault."""

    def __init__(self, position: int, reason: str) -> None:
        self.position, self.reason = position, reason
        super().__init__(f"{reason} at {position}")

    def __reduce__(self) -> tuple[type, tuple[int, str]]:
        return type(self), (self.position, self.reason)


class UnsupportedPattern(ValueError):
    """A regular expression that no automaton is made of; `construct` names what stands in the way."""

    def __init__(self, construct: str) -> None:
        self.construct = construct
        super().__init__(f"{construct} is not supported")

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (self.construct,)


_ESCAPE = (
    r"\\(?:u\{[0-9a-fA-F]+\}|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}"
    r"|c[A-Za-z]|[pP]\{[^}]*\}|k<[^>]*>|[0-7]{1,3}|[1-9][0-9]*|.)"
)
_CLASS_PART = re.compile(_ESCAPE + "|.", re.DOTALL)

# 22.2.1 "Patterns" with the leniency of Annex B.1.2; character classes and escapes are single tokens.
_GRAMMAR = r"""
start: _alternatives
_alternatives: sequence ("|" sequence)*
sequence: _term*
_term: START | END | atom | quantified
quantified: atom QUANTIFIER
atom: CHARS | CHAR | DOT | ESCAPE | CLASS | group
group: OPEN _alternatives ")"

START: "^"
END: "$"
DOT: "."
QUANTIFIER.3: /(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\??/
OPEN: /\((?:\?(?:[:=!]|<[=!]|P?<[^>=!][^>]*>|[a-z]*(?:-[a-z]+)?:|>))?/
ESCAPE: /ESCAPED/s
CLASS: /\[\^?(?:[^\]\\]|\\.)*\]/s
CHARS.2: /[^\\^$.*+?()\[{|]+(?![*+?{])/
CHAR.1: /[^\\^$.*+?()\[|]/
"""

# Syntax tree


@dataclass(frozen=True, slots=True)
class Literal:
    text: str


@dataclass(frozen=True, slots=True)
class CharClass:
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Dot:
    pass


@dataclass(frozen=True, slots=True)
class Anchor:
    """`start`, `end`, `word` (a word boundary) or `inside` (its opposite)."""

    kind: str


@dataclass(frozen=True, slots=True)
class Concat:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repetition:
    part: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Lookaround:
    ahead: bool
    positive: bool
    part: Node


@dataclass(frozen=True, slots=True)
class Flags:
    part: Node
    on: str
    off: str


Node: TypeAlias = Literal | CharClass | Dot | Anchor | Concat | Alternation | Repetition | Lookaround | Flags

DIGIT: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
SPACE: Ranges = char_set(
    [(9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)]
    + [(code, code) for code in (0x202F, 0x205F, 0x3000, 0xFEFF)]
)
_NO_LINE_END = invert(LINE_ENDS)
_CLASSES = {"d": DIGIT, "D": invert(DIGIT), "w": WORD, "W": invert(WORD), "s": SPACE, "S": invert(SPACE)}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}


def _escape(text: str, position: int, strict: bool, in_class: bool = False) -> int | Ranges | str:
    """The character, the set of characters, or the name of the anchor that an escape stands for."""
    kind = text[1]
    if kind in _CLASSES:
        return _CLASSES[kind]
    if kind in _CONTROLS:
        return _CONTROLS[kind]
    if kind == "u" and len(text) > 2:
        if text[2] == "{":
            code = int(text[3:-1], 16)
            if code > LAST:
                raise InvalidPattern(position, "no such character")
            return code
        if len(text) == 12:
            high, low = int(text[2:6], 16), int(text[8:12], 16)
            return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)
        return int(text[2:], 16)
    if kind == "x" and len(text) == 4:
        return int(text[2:], 16)
    if kind == "c" and len(text) == 3:
        return ord(text[2]) % 32
    if kind in "pP" and len(text) > 2:
        chars = property_set(text[3:-1])
        return invert(chars) if kind == "P" else chars
    if in_class and kind == "b":
        return 8
    if kind.isdigit():
        if kind == "0" or in_class:
            digits = text[1:]
            if digits.isdigit() and all(digit < "8" for digit in digits):
                return int(digits, 8)
            return ord(kind)
        raise UnsupportedPattern("a back-reference")
    if kind == "k" and len(text) > 2:
        raise UnsupportedPattern("a back-reference")
    if not in_class:
        if kind == "b":
            return "word"
        if kind == "B":
            return "inside"
        if not strict and kind in "AZz":
            return "start" if kind == "A" else "end"
    if kind.isascii() and kind.isalpha() and strict:
        raise InvalidPattern(position, "an escape that means nothing")
    return ord(kind)


def _class(text: str, position: int, strict: bool) -> Ranges:
    negated = text.startswith("[^")
    parts: list[int | Ranges] = []
    dashes: list[bool] = []  # whether the part is an unescaped "-"
    for match in _CLASS_PART.finditer(text, 2 if negated else 1, len(text) - 1):
        part = match.group()
        if part[0] == "\\" and len(part) > 1:
            value = _escape(part, position + match.start(), strict, in_class=True)
            assert not isinstance(value, str)
            parts.append(value)
        else:
            parts.append(ord(part))
        dashes.append(part == "-")
    ranges: list[tuple[int, int]] = []
    at = 0
    while at < len(parts):
        first = parts[at]
        if at + 2 < len(parts) and dashes[at + 1]:
            last = parts[at + 2]
            if isinstance(first, int) and isinstance(last, int):
                if last < first:
                    raise InvalidPattern(position, "a range out of order")
                ranges.append((first, last))
                at += 3
                continue
            if strict:
                raise InvalidPattern(position, "a range of a class")
        if isinstance(first, int):
            ranges.append((first, first))
        else:
            ranges.extend(first)
        at += 1
    chars = char_set(ranges)
    return invert(chars) if negated else chars


class _Tree(Transformer[Token, Node]):
    """Makes the syntax tree while lark parses."""

    def __init__(self, strict: bool) -> None:
        super().__init__()
        self.strict = strict

    def start(self, items: list[Node]) -> Node:
        return items[0] if len(items) == 1 else Alternation(tuple(items))

    def sequence(self, items: list[Node]) -> Node:
        return items[0] if len(items) == 1 else Concat(tuple(items))

    def atom(self, items: list[Node]) -> Node:
        return items[0]

    def START(self, token: Token) -> Node:
        return Anchor("start")

    def END(self, token: Token) -> Node:
        return Anchor("end")

    def DOT(self, token: Token) -> Node:
        return Dot()

    def CHARS(self, token: Token) -> Node:
        return Literal(str(token))

    CHAR = CHARS

    def ESCAPE(self, token: Token) -> Node:
        value = _escape(token, token.start_pos or 0, self.strict)
        if isinstance(value, str):
            return Anchor(value)
        return CharClass(((value, value),) if isinstance(value, int) else value)

    def CLASS(self, token: Token) -> Node:
        return CharClass(_class(token, token.start_pos or 0, self.strict))

    def quantified(self, items: list[Node | Token]) -> Node:
        part, token = items
        assert not isinstance(part, Token) and isinstance(token, Token)
        if isinstance(part, Anchor):
            raise InvalidPattern(token.start_pos or 0, "nothing to repeat")
        sign = token[:-1] if len(token) > 1 and token[-1] == "?" else str(token)
        if sign[0] == "{":
            least, _, most = sign[1:-1].partition(",")
            low, high = int(least), (int(least) if "," not in sign else int(most) if most else None)
            if high is not None and high < low:
                raise InvalidPattern(token.start_pos or 0, "counts out of order")
        else:
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        if isinstance(part, Lookaround):
            if not part.ahead or self.strict:
                raise InvalidPattern(token.start_pos or 0, "nothing to repeat")
            return part if low else Concat(())
        return Repetition(part, low, high)

    def group(self, items: list[Node | Token]) -> Node:
        opening = items[0]
        options = tuple([item for item in items[1:] if not isinstance(item, Token)])
        assert isinstance(opening, Token)
        part = options[0] if len(options) == 1 else Alternation(options)
        if isinstance(part, Anchor | Lookaround):
            part = Concat((part,))  # a group may be repeated where an anchor may not
        kind = opening[2:]
        if kind in ("=", "!", "<=", "<!"):
            return Lookaround(kind[0] != "<", kind[-1] == "=", part)
        if kind == ">":
            raise UnsupportedPattern("an atomic group")
        if kind.startswith("P") and self.strict:
            raise InvalidPattern(opening.start_pos or 0, "a Python group")
        if len(kind) > 1 and kind[-1] == ":":
            on, _, off = kind[:-1].partition("-")
            if set(on + off) - set("ims"):
                raise InvalidPattern(opening.start_pos or 0, "an unknown flag")
            return Flags(part, on, off)
        return part


@cache
def _parser(strict: bool) -> Lark:
    return Lark(
        _GRAMMAR.replace("ESCAPED", _ESCAPE), parser="lalr", transformer=_Tree(strict), maybe_placeholders=False
    )


_LEADING_FLAGS = re.compile(r"\(\?([aimsux]+)\)")


def parse_pattern(pattern: str, strict: bool = False) -> Node:
    """The syntax tree. Raises `InvalidPattern` or `UnsupportedPattern`."""
    text, on, skipped = pattern, "", 0
    match = None if strict else _LEADING_FLAGS.match(pattern)
    if match:
        on, skipped = match.group(1), match.end()
        if "x" in on:
            raise UnsupportedPattern("the flag x")
        text = pattern[skipped:]
    if text.count("(") > 500:
        raise UnsupportedPattern("nesting of this depth")
    try:
        tree = _parser(strict).parse(text)
    except UnexpectedInput as error:
        position = error.pos_in_stream
        if position is None or position < 0 or (isinstance(error, UnexpectedToken) and error.token.type == "$END"):
            position = len(text)
        raise InvalidPattern(position + skipped, "unexpected character or end") from None
    except VisitError as error:
        if isinstance(error.orig_exc, InvalidPattern):
            raise InvalidPattern(error.orig_exc.position + skipped, error.orig_exc.reason) from None
        raise error.orig_exc from None
    assert not hasattr(tree, "data")
    return Flags(tree, on, "") if on else tree  # type: ignore[return-value, arg-type]


def is_pattern(text: str) -> bool:
    """Whether the text is a regular expression by ECMA-262 (the format `regex`)."""
    try:
        parse_pattern(text, strict=True)
    except InvalidPattern:
        return False
    except UnsupportedPattern:
        return True
    return True


# Automaton


@dataclass(frozen=True, slots=True)
class _Mode:
    """Flags in force, and whether the pattern stands inside a look-ahead or a look-behind."""

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


def _anchored(node: Node) -> bool:
    """Whether a match can begin only where the text begins."""
    match node:
        case Anchor("start"):
            return True
        case Concat(parts):
            for part in parts:
                if _anchored(part):
                    return True
                if not isinstance(part, Lookaround | Anchor):
                    return False
            return False
        case Alternation(options):
            return all(_anchored(option) for option in options)
        case Repetition(part, least, _):
            return least > 0 and _anchored(part)
    return False


class _Builder:
    def __init__(self) -> None:
        self.nfa = NFA()

    def chars(self, ranges: Ranges, mode: _Mode) -> Ranges:
        return fold(ranges) if mode.ignore_case else ranges

    def build(self, node: Node, here: int, mode: _Mode) -> int:
        """Adds the states of `node` behind `here`; returns the state behind it. Nothing ever leads back to `here`."""
        nfa = self.nfa
        match node:
            case Literal(text):
                for char in text:
                    there = nfa.state()
                    nfa.edge(here, self.chars(char_set([(ord(char), ord(char))]), mode), there)
                    here = there
                return here
            case CharClass(ranges):
                there = nfa.state()
                if ranges:
                    nfa.edge(here, self.chars(ranges, mode), there)
                return there
            case Dot():
                there = nfa.state()
                nfa.edge(here, ANY if mode.dot_all else _NO_LINE_END, there)
                return there
            case Concat(parts):
                for part in parts:
                    here = self.build(part, here, mode)
                return here
            case Alternation(options):
                there = nfa.state()
                for option in options:
                    nfa.epsilon(self.build(option, here, mode), there)
                return there
            case Repetition(part, least, most):
                return self.count(part, least, most, here, mode)
            case Anchor(kind):
                return self.anchor(kind, here, mode)
            case Lookaround(ahead, positive, part):
                return self.look(ahead, positive, part, here, mode)
            case Flags(part, on, off):
                inner = _Mode(
                    (mode.ignore_case or "i" in on) and "i" not in off,
                    (mode.dot_all or "s" in on) and "s" not in off,
                    (mode.multiline or "m" in on) and "m" not in off,
                    mode.inside,
                )
                return self.build(part, here, inner)
        raise AssertionError(node)

    def count(self, part: Node, least: int, most: int | None, here: int, mode: _Mode) -> int:
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

    def look(self, ahead: bool, positive: bool, part: Node, here: int, mode: _Mode) -> int:
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


def _search(node: Node) -> tuple[NFA, int, int]:
    """The automaton of the texts in which the pattern is found: itself, its start and its final state."""
    builder = _Builder()
    nfa = builder.nfa
    start, final = nfa.state(), nfa.state()
    nfa.edge(final, ANY, final)
    mode = _Mode()
    while isinstance(node, Flags):
        mode = _Mode("i" in node.on, "s" in node.on, "m" in node.on)
        node = node.part
    loop = -1
    for option in node.options if isinstance(node, Alternation) else (node,):
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
    """Whether the pattern is found in the text; without backtracking, also where `pattern_dfa` meets a limit."""
    result = _compiled(pattern)
    if isinstance(result, DFA):
        return result.accepts(text)
    if isinstance(result, LimitExceeded):
        return _subsets(pattern).accepts(text)
    raise result.with_traceback(None)


# Unicode

_GROUPS = {
    "L": ("Letter",),
    "LC": ("Cased_Letter",),
    "Lu": ("Uppercase_Letter",),
    "Ll": ("Lowercase_Letter",),
    "Lt": ("Titlecase_Letter",),
    "Lm": ("Modifier_Letter",),
    "Lo": ("Other_Letter",),
    "M": ("Mark", "Combining_Mark"),
    "Mn": ("Nonspacing_Mark",),
    "Mc": ("Spacing_Mark",),
    "Me": ("Enclosing_Mark",),
    "N": ("Number",),
    "Nd": ("Decimal_Number", "digit"),
    "Nl": ("Letter_Number",),
    "No": ("Other_Number",),
    "P": ("Punctuation", "punct"),
    "Pc": ("Connector_Punctuation",),
    "Pd": ("Dash_Punctuation",),
    "Ps": ("Open_Punctuation",),
    "Pe": ("Close_Punctuation",),
    "Pi": ("Initial_Punctuation",),
    "Pf": ("Final_Punctuation",),
    "Po": ("Other_Punctuation",),
    "S": ("Symbol",),
    "Sm": ("Math_Symbol",),
    "Sc": ("Currency_Symbol",),
    "Sk": ("Modifier_Symbol",),
    "So": ("Other_Symbol",),
    "Z": ("Separator",),
    "Zs": ("Space_Separator",),
    "Zl": ("Line_Separator",),
    "Zp": ("Paragraph_Separator",),
    "C": ("Other",),
    "Cc": ("Control", "cntrl"),
    "Cf": ("Format",),
    "Co": ("Private_Use",),
    "Cn": ("Unassigned",),
}
_CATEGORY = {name: short for short, names in _GROUPS.items() for name in (short, *names)}
_SCRIPTS = {
    "Latin": ("LATIN", "FEMININE ORDINAL", "MASCULINE ORDINAL", "FULLWIDTH LATIN"),
    "Greek": ("GREEK",),
    "Cyrillic": ("CYRILLIC",),
    "Han": ("CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH", "IDEOGRAPHIC ITERATION MARK"),
    "Hiragana": ("HIRAGANA LETTER", "HIRAGANA ITERATION", "HIRAGANA VOICED ITERATION", "HIRAGANA DIGRAPH"),
    "Katakana": ("KATAKANA LETTER", "KATAKANA ITERATION", "KATAKANA VOICED ITERATION", "HALFWIDTH KATAKANA LETTER"),
    "Hangul": ("HANGUL", "HALFWIDTH HANGUL"),
    "Arabic": ("ARABIC LETTER", "ARABIC LIGATURE"),
    "Hebrew": ("HEBREW LETTER", "HEBREW POINT", "HEBREW ACCENT", "HEBREW LIGATURE"),
    "Armenian": ("ARMENIAN",),
    "Georgian": ("GEORGIAN",),
    "Thai": ("THAI",),
    "Devanagari": ("DEVANAGARI",),
    "Bengali": ("BENGALI",),
    "Tamil": ("TAMIL",),
    "Telugu": ("TELUGU",),
}
_SCRIPT_CODES = {
    "Latn": "Latin",
    "Grek": "Greek",
    "Cyrl": "Cyrillic",
    "Hani": "Han",
    "Hira": "Hiragana",
    "Kana": "Katakana",
    "Hang": "Hangul",
    "Arab": "Arabic",
    "Hebr": "Hebrew",
    "Armn": "Armenian",
    "Geor": "Georgian",
    "Deva": "Devanagari",
    "Beng": "Bengali",
    "Taml": "Tamil",
    "Telu": "Telugu",
}
_ASSIGNED_BLOCKS = (range(0x40000), range(0xE0000, 0xE1000))  # planes 4 to 13 and the rest of 14 hold no characters


@cache
def _categories() -> dict[str, list[tuple[int, int]]]:
    """Ranges of each general category, of the Unicode version of Python's `unicodedata`."""
    out: dict[str, list[tuple[int, int]]] = {}
    category = unicodedata.category
    for block in _ASSIGNED_BLOCKS:
        low, current = block.start, category(chr(block.start))
        for code in block:
            kind = category(chr(code))
            if kind != current:
                out.setdefault(current, []).append((low, code - 1))
                low, current = code, kind
        out.setdefault(current, []).append((low, block.stop - 1))
    out["Cn"] += [(0x40000, 0xDFFFF), (0xE1000, 0xEFFFF), (0xFFFFE, 0xFFFFF), (0x10FFFE, 0x10FFFF)]
    out["Co"] += [(0xF0000, 0xFFFFD), (0x100000, 0x10FFFD)]
    return out


@cache
def property_set(name: str) -> Ranges:
    """The characters of `\\p{name}`: general categories, a few binary properties, and scripts.

    Scripts go by the characters' names, so they cover letters and marks and leave out shared punctuation.
    """
    key, _, value = name.partition("=")
    if value:
        if key in ("Script", "sc", "Script_Extensions", "scx"):
            return _script(value)
        if key not in ("General_Category", "gc"):
            raise UnsupportedPattern("this Unicode property")
        name = value
    if name in _CATEGORY:
        short = _CATEGORY[name]
        kinds = ("Lu", "Ll", "Lt") if short == "LC" else tuple(k for k in _categories() if k.startswith(short))
        return char_set([pair for kind in kinds for pair in _categories()[kind]])
    if name == "Any":
        return ANY
    if name == "ASCII":
        return ((0, 127),)
    if name == "Assigned":
        return invert(char_set(_categories()["Cn"]))
    if name in ("White_Space", "space"):
        return char_set([(9, 13), (32, 32), (0x85, 0x85), (0xA0, 0xA0), *property_set("Z")])
    if name in ("Uppercase", "Upper"):
        return _where(str.isupper)
    if name in ("Lowercase", "Lower"):
        return _where(str.islower)
    if not value:
        return _script(name)
    raise UnsupportedPattern("this Unicode property")


def _where(test: object) -> Ranges:
    assert callable(test)
    return char_set([(code, code) for block in _ASSIGNED_BLOCKS for code in block if test(chr(code))])


@cache
def _script(name: str) -> Ranges:
    prefixes = _SCRIPTS.get(_SCRIPT_CODES.get(name, name))
    if prefixes is None:
        raise UnsupportedPattern("this Unicode property")
    letters = [pair for kind in property_kinds("LMN") for pair in _categories()[kind]]
    codes = [code for lo, hi in letters for code in range(lo, hi + 1)]
    return char_set([(code, code) for code in codes if unicodedata.name(chr(code), "").startswith(prefixes)])


def property_kinds(letters: str) -> list[str]:
    return [kind for kind in _categories() if kind[0] in letters]


@cache
def _case_pairs() -> list[tuple[int, tuple[int, ...]]]:
    """Characters with others that differ in case alone (simple case folding)."""
    families: dict[str, set[int]] = {}
    for code in range(0x1E944):
        char = chr(code)
        lower = char.lower()
        folded = lower if len(lower) == 1 else char
        upper = char.upper()
        if folded != char or (len(upper) == 1 and upper != char):
            key = upper.lower() if len(upper) == 1 and len(upper.lower()) == 1 else folded
            families.setdefault(key, {ord(key)}).add(code)
    return sorted((code, tuple(family)) for family in families.values() for code in family if len(family) > 1)


@memo
def fold(ranges: Ranges) -> Ranges:
    """The set with every character's other cases."""
    extra: list[tuple[int, int]] = []
    if all(hi < 0x80 for _, hi in ranges):
        for lo, hi in ranges:
            for code in range(lo, hi + 1):
                other = ord(chr(code).swapcase())
                extra.append((other, other))
        if any(lo <= c <= hi for lo, hi in ranges for c in (75, 107)):
            extra.append((0x212A, 0x212A))  # the Kelvin sign folds to k
        if any(lo <= c <= hi for lo, hi in ranges for c in (83, 115)):
            extra.append((0x17F, 0x17F))  # the long s
    else:
        for code, family in _case_pairs():
            if any(lo <= code <= hi for lo, hi in ranges):
                extra.extend((other, other) for other in family)
    return char_set([*ranges, *extra])
