"""Unicode tables for patterns: classes of ECMA-262, `\\p{…}` properties, and simple case folding.

All of the Unicode version of Python's `unicodedata`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import cache

from grammars.automata.chars import ANY, Ranges, char_set, invert
from grammars.memo import memo

DIGIT: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
SPACE: Ranges = char_set(
    [(9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)]
    + [(code, code) for code in (0x202F, 0x205F, 0x3000, 0xFEFF)]
)
NO_LINE_END = invert(LINE_ENDS)
CLASSES = {"d": DIGIT, "D": invert(DIGIT), "w": WORD, "W": invert(WORD), "s": SPACE, "S": invert(SPACE)}
"""Escapes of one letter that stand for a set of characters."""
CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
"""Escapes of one letter that stand for a control character."""


class UnknownProperty(LookupError):
    """A Unicode property without a table here."""


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
    """Ranges of each general category."""
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

    Scripts go by the characters' names, so they cover letters and marks and leave out shared punctuation. Raises
    `UnknownProperty`, so that no name from a schema is kept in the cache.
    """
    key, _, value = name.partition("=")
    if value:
        if key in ("Script", "sc", "Script_Extensions", "scx"):
            return _script(value)
        if key not in ("General_Category", "gc"):
            raise UnknownProperty(name)
        name = value
    if name in _CATEGORY:
        return char_set(_category(_CATEGORY[name]))
    if name == "Any":
        return ANY
    if name == "ASCII":
        return ((0, 127),)
    if name == "Assigned":
        return invert(char_set(_categories()["Cn"]))
    if name in ("White_Space", "space"):
        return char_set([(9, 13), (32, 32), (0x85, 0x85), (0xA0, 0xA0), *_category("Z")])
    if name in ("Uppercase", "Upper"):
        return _where(str.isupper)
    if name in ("Lowercase", "Lower"):
        return _where(str.islower)
    if not value:
        return _script(name)
    raise UnknownProperty(name)


def _category(short: str) -> list[tuple[int, int]]:
    """Ranges of a category or of a group of them."""
    kinds = ("Lu", "Ll", "Lt") if short == "LC" else tuple(kind for kind in _categories() if kind.startswith(short))
    return [pair for kind in kinds for pair in _categories()[kind]]


def _where(test: Callable[[str], bool]) -> Ranges:
    return char_set([(code, code) for block in _ASSIGNED_BLOCKS for code in block if test(chr(code))])


@cache
def _script(name: str) -> Ranges:
    prefixes = _SCRIPTS.get(_SCRIPT_CODES.get(name, name))
    if prefixes is None:
        raise UnknownProperty(name)
    letters = [pair for kind, pairs in _categories().items() if kind[0] in "LMN" for pair in pairs]
    codes = [code for lo, hi in letters for code in range(lo, hi + 1)]
    return char_set([(code, code) for code in codes if unicodedata.name(chr(code), "").startswith(prefixes)])


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
