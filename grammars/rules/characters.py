"""Characters of a string literal as grammar rules: raw where they may stand raw, else their one offered escape."""

from __future__ import annotations

from grammars import limits
from grammars.automata.chars import LAST, Ranges, char_set
from grammars.memo import memo
from grammars.rules.escapes import StringEscapes
from grammars.rules.rules import Chars, Grammar, Item, Lit, Ref, Repeat, Rule, Sequence

_HEX = (*((48 + n, 48 + n) for n in range(10)), *((65 + n, 97 + n) for n in range(6)))
_ANY_HEX = Chars(((48, 57), (65, 70), (97, 102)))
NAMED = 8
"""Sets of more ranges than this become a rule, so that their text is not repeated."""
WIDE = 1_000
"""Characters of a wide set, one worth being tried before the end of the string."""


def wide(chars: Ranges) -> bool:
    """True for a set that most tokens of a vocabulary pass, more or less."""
    return sum([hi - lo + 1 for lo, hi in chars]) > WIDE


def _hex_digits(values: list[int]) -> Chars:
    return Chars(char_set([(code, code) for value in values for code in _HEX[value]]))


@memo
def split(chars: Ranges, escaped: Ranges) -> tuple[Ranges, tuple[int, ...]]:
    """The characters that stand raw, and the code points that need an escape."""
    inside: list[int] = []
    raw: list[tuple[int, int]] = []
    for lo, hi in chars:
        if lo > 92:
            raw.append((lo, hi))
            continue
        at = lo
        for low, high in escaped:
            if high < at or low > hi:
                continue
            if low > at:
                raw.append((at, low - 1))
            inside.extend(range(max(low, at), min(high, hi) + 1))
            at = high + 1
        if at <= hi:
            raw.append((at, hi))
    return tuple(raw), tuple(inside)


class CharacterRules:
    """Writes characters and sets of them into one grammar in one spelling."""

    def __init__(self, grammar: Grammar, spelling: StringEscapes) -> None:
        self.grammar, self.spelling = grammar, spelling
        self._memo: dict[object, Ref] = {}

    @property
    def char(self) -> Item:
        """Any character, in any legal spelling."""
        if not self.spelling.quote:
            return Chars(((0, LAST),))
        name = f"{self.spelling.key}char"
        if name not in self.grammar.rules:
            raw, _ = split(((0, LAST),), self.spelling.escaped)
            self.grammar.define(name, ((Lit("\\"), self._any_escape), (Chars(raw),)))
        return Ref(name)

    @property
    def _any_escape(self) -> Ref:
        """Anything that may follow a backslash."""
        name = f"{self.spelling.key}any-escape"
        if name not in self.grammar.rules:
            if self.spelling.prefix == "x":
                letters = char_set([(ord(c), ord(c)) for c in "\"'\\bfnrt"])
                number: Sequence = (Lit("x"), Repeat(_ANY_HEX, 2, 2))
            else:
                letters = char_set([(ord(c), ord(c)) for c in '"\\/bfnrt'])
                number = (Lit("u"), self._utf16)
            self.grammar.define(name, ((Chars(letters),), number))
        return Ref(name)

    @property
    def _utf16(self) -> Ref:
        """Four digits of a character, or of a high surrogate and then its low one."""
        two = Repeat(_ANY_HEX, 2, 2)
        d, eight_to_b, c_to_f = _hex_digits([13]), _hex_digits([8, 9, 10, 11]), _hex_digits([12, 13, 14, 15])
        after_d = self.grammar.define(
            "utf16-d", ((_hex_digits(list(range(8))), two), (eight_to_b, two, Lit("\\u"), d, c_to_f, two))
        )
        not_d = _hex_digits([n for n in range(16) if n != 13])
        return self.grammar.define("utf16", ((not_d, Repeat(_ANY_HEX, 3, 3)), (d, after_d)))

    def item(self, chars: Ranges) -> Item:
        """One character of a set as a single item."""
        if chars == ((0, LAST),):
            return self.char
        raw, escaped = split(chars, self.spelling.escaped)
        if not escaped:
            return self.raw(raw)
        if not raw and len(escaped) == 1:
            letter = self.spelling.letters.get(escaped[0])
            return Lit("\\" + (letter or f"{self.spelling.prefix}{escaped[0]:02x}"))
        ref = self._memo.get(chars)
        if ref is None:
            alternatives: list[Sequence] = [joined((Lit("\\"), *self.escapes(escaped)))]
            if raw:
                alternatives.append((self.raw(raw),))
            ref = self._memo[chars] = self.grammar.add(tuple(alternatives), "c")
        return ref

    def raw(self, raw: Ranges) -> Item:
        if len(raw) == 1 and raw[0][0] == raw[0][1]:
            return Lit(chr(raw[0][0]))
        if len(raw) <= NAMED:
            return Chars(raw)
        ref = self._memo.get(("chars", raw))
        if ref is None:
            ref = self._memo["chars", raw] = self.grammar.add(((Chars(raw),),), "k")
        return ref

    def escapes(self, codes: tuple[int, ...]) -> Sequence:
        """The part behind the backslash for these characters."""
        key = ("escapes", codes)
        ref = self._memo.get(key)
        if ref is None:
            rule = self.escape_rule(dict.fromkeys(codes, ()))
            if len(rule) == 1:
                return rule[0]
            ref = self._memo[key] = self.grammar.add(rule, "esc")
        return (ref,)

    def escape_rule(self, after: dict[int, Sequence]) -> Rule:
        """The alternatives behind a backslash, each escape followed by its sequence of the map."""
        letters: dict[Sequence, list[int]] = {}
        numbers: dict[int, dict[Sequence, list[int]]] = {}
        for code, rest in after.items():
            letter = self.spelling.letters.get(code)
            if letter is not None:
                letters.setdefault(rest, []).append(ord(letter))
            else:
                numbers.setdefault(code >> 4, {}).setdefault(rest, []).append(code & 15)
        out: list[Sequence] = [
            (Chars(char_set([(code, code) for code in codes])), *rest) for rest, codes in letters.items()
        ]
        if numbers:
            parts: list[Sequence] = []
            for high, by_rest in numbers.items():
                lows = [joined((_hex_digits(values), *rest)) for rest, values in by_rest.items()]
                tail = lows[0] if len(lows) == 1 else (self.grammar.add(tuple(lows), "esc"),)
                parts.append(joined((_hex_digits([high]), *tail)))
            tail = parts[0] if len(parts) == 1 else (self.grammar.add(tuple(parts), "esc"),)
            out.append((Lit(self.spelling.prefix), *tail))
        return tuple([joined(sequence) for sequence in out])


def joined(items: tuple[Item, ...] | list[Item]) -> Sequence:
    """Merges neighbours: characters into literals, equal items into counts."""
    out: list[Item] = []
    for item in items:
        if isinstance(item, Chars) and len(item.ranges) == 1 and item.ranges[0][0] == item.ranges[0][1]:
            item = Lit(chr(item.ranges[0][0]))  # a hexadecimal digit
        if isinstance(item, Lit):
            if not item.text:
                continue
            if out and isinstance(out[-1], Lit):
                out[-1] = Lit(out[-1].text + item.text)
                continue
        elif out:
            last = out[-1]
            base, low, high = (item.item, item.min, item.max) if isinstance(item, Repeat) else (item, 1, 1)
            base2, low2, high2 = (last.item, last.min, last.max) if isinstance(last, Repeat) else (last, 1, 1)
            if type(base) is type(base2) and base == base2 and (low == high or low2 == high2):
                most = None if high is None or high2 is None else high + high2
                if low + low2 <= limits.REPEAT and (most is None or most <= limits.REPEAT):
                    out[-1] = Repeat(base, low + low2, most)
                    continue
        out.append(item)
    return tuple(out)
