"""Regular expressions of ECMA-262 (22.2.1 "Patterns"), read by code points (the `u` flag).

Annex B's leniency holds where real schemas need it (an unescaped `{` or `]`, needless escapes). Beyond the standard,
because schemas are written for other engines too: `\\A`, `\\Z`, `\\z`, `(?P<name>…)` and a leading flag group such as
`(?i)`. `is_pattern` judges by the standard alone.
"""

from __future__ import annotations

import re
from functools import cache

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken
from lark.exceptions import VisitError

from grammars.automata import ast
from grammars.automata.chars import LAST, Ranges, char_set, invert
from grammars.automata.unicode import CLASSES, CONTROLS, UnknownProperty, property_set


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


def _escape(text: str, position: int, strict: bool, in_class: bool = False) -> int | Ranges | str:
    """The character, the set of characters, or the name of the anchor that an escape stands for."""
    kind = text[1]
    if kind in CLASSES:
        return CLASSES[kind]
    if kind in CONTROLS:
        return CONTROLS[kind]
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
        try:
            chars = property_set(text[3:-1])
        except UnknownProperty:
            raise UnsupportedPattern("this Unicode property") from None
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


class _Tree(Transformer[Token, ast.Node]):
    """Makes the syntax tree while lark parses."""

    def __init__(self, strict: bool) -> None:
        super().__init__()
        self.strict = strict

    def start(self, items: list[ast.Node]) -> ast.Node:
        return items[0] if len(items) == 1 else ast.Alternation(tuple(items))

    def sequence(self, items: list[ast.Node]) -> ast.Node:
        return items[0] if len(items) == 1 else ast.Concat(tuple(items))

    def atom(self, items: list[ast.Node]) -> ast.Node:
        return items[0]

    def START(self, token: Token) -> ast.Node:
        return ast.Anchor("start")

    def END(self, token: Token) -> ast.Node:
        return ast.Anchor("end")

    def DOT(self, token: Token) -> ast.Node:
        return ast.Dot()

    def CHARS(self, token: Token) -> ast.Node:
        return ast.Literal(str(token))

    CHAR = CHARS

    def ESCAPE(self, token: Token) -> ast.Node:
        value = _escape(token, token.start_pos or 0, self.strict)
        if isinstance(value, str):
            return ast.Anchor(value)
        return ast.CharClass(((value, value),) if isinstance(value, int) else value)

    def CLASS(self, token: Token) -> ast.Node:
        return ast.CharClass(_class(token, token.start_pos or 0, self.strict))

    def quantified(self, items: list[ast.Node | Token]) -> ast.Node:
        part, token = items
        assert not isinstance(part, Token) and isinstance(token, Token)
        if isinstance(part, ast.Anchor):
            raise InvalidPattern(token.start_pos or 0, "nothing to repeat")
        sign = token[:-1] if len(token) > 1 and token[-1] == "?" else str(token)
        if sign[0] == "{":
            least, _, most = sign[1:-1].partition(",")
            low, high = int(least), (int(least) if "," not in sign else int(most) if most else None)
            if high is not None and high < low:
                raise InvalidPattern(token.start_pos or 0, "counts out of order")
        else:
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        if isinstance(part, ast.Lookaround):
            if not part.ahead or self.strict:
                raise InvalidPattern(token.start_pos or 0, "nothing to repeat")
            return part if low else ast.Concat(())
        return ast.Repetition(part, low, high)

    def group(self, items: list[ast.Node | Token]) -> ast.Node:
        opening = items[0]
        options = tuple([item for item in items[1:] if not isinstance(item, Token)])
        assert isinstance(opening, Token)
        part = options[0] if len(options) == 1 else ast.Alternation(options)
        if isinstance(part, ast.Anchor | ast.Lookaround):
            part = ast.Concat((part,))  # a group may be repeated where an anchor may not
        kind = opening[2:]
        if kind in ("=", "!", "<=", "<!"):
            return ast.Lookaround(kind[0] != "<", kind[-1] == "=", part)
        if kind == ">":
            raise UnsupportedPattern("an atomic group")
        if kind.startswith("P") and self.strict:
            raise InvalidPattern(opening.start_pos or 0, "a Python group")
        if len(kind) > 1 and kind[-1] == ":":
            on, _, off = kind[:-1].partition("-")
            if set(on + off) - set("ims"):
                raise InvalidPattern(opening.start_pos or 0, "an unknown flag")
            return ast.Flags(part, on, off)
        return part


@cache
def _parser(strict: bool) -> Lark:
    return Lark(
        _GRAMMAR.replace("ESCAPED", _ESCAPE), parser="lalr", transformer=_Tree(strict), maybe_placeholders=False
    )


_LEADING_FLAGS = re.compile(r"\(\?([aimsux]+)\)")


def parse_pattern(pattern: str, strict: bool = False) -> ast.Node:
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
    return ast.Flags(tree, on, "") if on else tree  # type: ignore[return-value, arg-type]


def is_pattern(text: str) -> bool:
    """True for a regular expression by ECMA-262 (the format `regex`)."""
    try:
        parse_pattern(text, strict=True)
    except InvalidPattern:
        return False
    except UnsupportedPattern:
        return True
    return True
