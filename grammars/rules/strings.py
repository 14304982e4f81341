"""Writes regular languages of strings as grammar rules of their quoted spelling.

The automaton is about the decoded text; a `Spelling` says how each character is written. One spelling of a character is
offered (raw where it may stand raw, else its short escape, else a hexadecimal one), so that the rules are right-linear
and the sampler walks them with one live stack per distinguishable continuation. Where anything may follow (a string
without constraints, or the rest of one), every other legal escape is accepted too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from grammars import limits
from grammars.automata.chars import LAST, Ranges, char_set, invert
from grammars.automata.dfa import ALL, DFA
from grammars.automata.minimize import minimize
from grammars.automata.operations import any_string, concat, difference, intersect, literal, strings
from grammars.limits import LimitExceeded
from grammars.memo import memo
from grammars.rules.rules import BLOCKS, Chars, Grammar, Item, Lit, Ref, Repeat, Rule, Sequence, repeat


@dataclass(frozen=True)
class StringEscapes:
    """How text is written: its quotes, which characters need a backslash, and which letter or number follows it.

    `key` begins the names of the rules that every string of this spelling shares, so spellings can share a grammar.
    `short` maps a code point to the letter behind the backslash; every other character of `escaped` is written as
    `prefix` and two hexadecimal digits. Without quotes nothing is escaped, and the automaton is the spelling.
    """

    key: str
    quote: str
    escaped: Ranges = ()
    short: tuple[tuple[int, str], ...] = ()
    prefix: str = ""
    letters: dict[int, str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "letters", dict(self.short))


_CONTROLS = ((8, "b"), (9, "t"), (10, "n"), (12, "f"), (13, "r"))
JSON = StringEscapes("", '"', char_set([(0, 31), (34, 34), (92, 92)]), ((34, '"'), (92, "\\"), *_CONTROLS), "u00")
"""RFC 8259, section 7."""
PYTHON_SINGLE = StringEscapes(
    "python", "'", char_set([(0, 31), (39, 39), (92, 92)]), ((39, "'"), (92, "\\"), *_CONTROLS), "x"
)
PYTHON_DOUBLE = StringEscapes(
    "python", '"', char_set([(0, 31), (34, 34), (92, 92)]), ((34, '"'), (92, "\\"), *_CONTROLS), "x"
)
"""The Python Language Reference, 2.4.1 "String and Bytes literals"."""
RAW = StringEscapes("raw-", "")

_HEX = (*((48 + n, 48 + n) for n in range(10)), *((65 + n, 97 + n) for n in range(6)))
_ANY_HEX = Chars(((48, 57), (65, 70), (97, 102)))
COUNT = 2_000
"""Largest length that is multiplied into an automaton of several states."""
PRODUCT = 5_000
"""States of such a product: each becomes a rule, so this bounds what one string adds to a grammar."""
NAMED = 8
"""Sets of more ranges than this become a rule, so that their text is not repeated."""
WIDE = 1_000
"""Characters of a set that most tokens of a vocabulary pass, more or less: worth being tried before what ends it."""
CHAIN = 256
"""Largest count of a wide set that is written as one rule for each character; higher ones are composed of blocks."""


def _wide(chars: Ranges) -> bool:
    return sum([hi - lo + 1 for lo, hi in chars]) > WIDE


def _hex_digits(values: list[int]) -> Chars:
    return Chars(char_set([(code, code) for value in values for code in _HEX[value]]))


@memo
def _split(chars: Ranges, escaped: Ranges) -> tuple[Ranges, tuple[int, ...]]:
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


class StringRules:
    """Writes automata into one grammar in one spelling; rules are shared between equal languages."""

    def __init__(self, grammar: Grammar, spelling: StringEscapes = JSON) -> None:
        self.grammar = grammar
        self.spelling = spelling
        self._memo: dict[object, Ref] = {}

    # Whole strings

    def write(self, language: DFA, least: int = 0, most: int | None = None) -> Sequence:
        """The spelling, quotes included, of the texts of `language` that have `least` to `most` characters.

        Where there is none, a reference to a rule without alternatives, which `rules.cleaned` removes with all that
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
                return _joined((*opening, *counted))
            language = bounded(language, least, most)
        if language.is_empty():
            return (self._nothing,)
        return _joined((*opening, *self._automaton(language)))

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
            items.append(self._item(tuple([(lo, hi) for lo, hi, _ in row])))
            state = row[0][2]
        return None

    @property
    def _nothing(self) -> Ref:
        return self.grammar.define("nothing", ())

    @property
    def _end(self) -> Lit:
        return Lit(self.spelling.quote)

    def ending(self, chars: Ranges, least: int = 0, most: int | None = None) -> Sequence:
        """`least` to `most` characters of a set, and the end of the string."""
        item = self._item(chars)
        if not _wide(chars):
            return (*repeat(self.grammar, item, least, most), self._end)
        forced = repeat(self.grammar, item, least, least)
        return (*forced, *self._up_to(item, None if most is None else most - least))

    def _up_to(self, item: Item, most: int | None) -> Sequence:
        """Up to `most` times an item (None: any number), and the end.

        llama.cpp keeps the stacks of a rule from its last alternative to its first, and looks with each only at the
        tokens that those before it refused. The item, which lets most of them pass, therefore comes last; `item{0,9}`
        would put it first.
        """
        if most == 0:
            return (self._end,)
        key = ("ending", item, most)
        ref = self._memo.get(key)
        if ref is not None:
            return (ref,)
        if most is None:
            ref = Ref(f"{self.spelling.key}string-rest" if item == self.char else self.grammar.fresh("t"))
            self.grammar.define(ref.name, ((self._end,), (item, ref)))
        elif most <= CHAIN:
            ref = self.grammar.add(((self._end,), (item, *self._up_to(item, most - 1))), "t")
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

    # Characters

    @property
    def char(self) -> Item:
        """Any character, in any legal spelling."""
        if not self.spelling.quote:
            return Chars(((0, LAST),))
        name = f"{self.spelling.key}char"
        if name not in self.grammar.rules:
            raw, _ = _split(((0, LAST),), self.spelling.escaped)
            self.grammar.define(name, ((Lit("\\"), self._any_escape), (Chars(raw),)))
        return Ref(name)

    @property
    def _any_escape(self) -> Ref:
        """What may follow a backslash."""
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

    def _item(self, chars: Ranges) -> Item:
        """One character of a set as a single item."""
        if chars == ((0, LAST),):
            return self.char
        raw, escaped = _split(chars, self.spelling.escaped)
        if not escaped:
            return self._chars(raw)
        if not raw and len(escaped) == 1:
            letter = self.spelling.letters.get(escaped[0])
            return Lit("\\" + (letter or f"{self.spelling.prefix}{escaped[0]:02x}"))
        ref = self._memo.get(chars)
        if ref is None:
            alternatives: list[Sequence] = [_joined((Lit("\\"), *self._escapes(escaped)))]
            if raw:
                alternatives.append((self._chars(raw),))
            ref = self._memo[chars] = self.grammar.add(tuple(alternatives), "c")
        return ref

    def _chars(self, raw: Ranges) -> Item:
        if len(raw) == 1 and raw[0][0] == raw[0][1]:
            return Lit(chr(raw[0][0]))
        if len(raw) <= NAMED:
            return Chars(raw)
        ref = self._memo.get(("chars", raw))
        if ref is None:
            ref = self._memo["chars", raw] = self.grammar.add(((Chars(raw),),), "k")
        return ref

    def _escapes(self, codes: tuple[int, ...]) -> Sequence:
        """What follows the backslash for these characters."""
        key = ("escapes", codes)
        ref = self._memo.get(key)
        if ref is None:
            rule = self._escape_rule(dict.fromkeys(codes, ()))
            if len(rule) == 1:
                return rule[0]
            ref = self._memo[key] = self.grammar.add(rule, "esc")
        return (ref,)

    def _escape_rule(self, after: dict[int, Sequence]) -> Rule:
        """The alternatives behind a backslash, each escape followed by what the map says."""
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
                lows = [_joined((_hex_digits(values), *rest)) for rest, values in by_rest.items()]
                tail = lows[0] if len(lows) == 1 else (self.grammar.add(tuple(lows), "esc"),)
                parts.append(_joined((_hex_digits([high]), *tail)))
            tail = parts[0] if len(parts) == 1 else (self.grammar.add(tuple(parts), "esc"),)
            out.append((Lit(self.spelling.prefix), *tail))
        return tuple([_joined(sequence) for sequence in out])

    # Automata

    def _automaton(self, language: DFA) -> list[Item]:
        return _Writer(self, language).line(0)


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


class _Writer:
    """Writes one automaton: straight lines become sequences, states where lines part or meet become rules."""

    def __init__(self, strings: StringRules, language: DFA) -> None:
        self.strings = strings
        self.grammar = strings.grammar
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
        end = self.strings._end
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
                if _wide(groups[state]) or self._conflict(groups):
                    items.append(self._ref(state))
                    return items
                items.append(Repeat(self.strings._item(groups[state]), 0, None))
            target, chars = next((t, c) for t, c in groups.items() if t != state)
            items.append(self.strings._item(chars))
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
        """Whether a backslash may lead to more than one state."""
        escaped = self.strings.spelling.escaped
        return bool(escaped) and sum(1 for chars in groups.values() if _split(chars, escaped)[1]) > 1

    def _rule(self, state: int) -> Rule:
        """The alternatives of a state, the widest last: the sampler tries that first (see `Strings._up_to`)."""
        limits.check()
        groups = self.groups[state]
        spelling = self.strings.spelling
        conflict = self._conflict(groups)
        escapes: dict[int, Sequence] = {}
        wide: list[tuple[int, Sequence]] = []
        out: list[Sequence] = []
        if state in self.language.accepting:
            out.append((self.strings._end,) if spelling.quote else ())
        for target, chars in groups.items():
            rest = (self._ref(state),) if target == state else tuple(self._line(target))
            raw, escaped = _split(chars, spelling.escaped)
            if chars == ((0, LAST),) and spelling.quote:
                wide.append((LAST, (self.strings.char, *rest)))
                continue
            if raw:
                wide.append((sum([hi - lo + 1 for lo, hi in raw]), (self.strings._chars(raw), *rest)))
            if escaped and conflict:
                escapes.update(dict.fromkeys(escaped, rest))
            elif escaped:
                out.append((Lit("\\"), *self.strings._escapes(escaped), *rest))
        if escapes:
            rule = self.strings._escape_rule(escapes)
            tail = rule[0] if len(rule) == 1 else (self.grammar.add(rule, "esc"),)
            out.append((Lit("\\"), *tail))
        wide.sort(key=_width)
        out.extend([sequence for _, sequence in wide])
        return tuple([_joined(sequence) for sequence in out])


def _width(alternative: tuple[int, Sequence]) -> int:
    return alternative[0]


def _joined(items: tuple[Item, ...] | list[Item]) -> Sequence:
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


# Languages


def bounded(language: DFA, least: int = 0, most: int | None = None) -> DFA:
    """The texts of `language` that have `least` to `most` characters."""
    if language is not ALL:
        shortest = len(language.shortest() or "")
        longest = language.longest()
        if shortest >= least:
            least = 0
        if most is not None and longest is not None and longest <= most:
            most = None
    if not least and most is None:
        return language
    top = max(least, most or 0)
    if top > COUNT or (top + 1) * len(language) > PRODUCT:
        raise LimitExceeded("states")
    return intersect(language, any_string(least, most))


@memo
def without(names: frozenset[str]) -> DFA:
    """Every text but these."""
    return difference(ALL, strings(names))


@memo
def up_to(language: DFA, marker: str) -> DFA:
    """Texts of `language` followed by `marker`, which occurs nowhere earlier: text that ends at a closing marker."""
    fail = [0] * (len(marker) + 1)  # Knuth, Morris and Pratt: longest proper border of each prefix
    length = 0
    for at in range(1, len(marker)):
        while length and marker[at] != marker[length]:
            length = fail[length]
        length += marker[at] == marker[length]
        fail[at + 1] = length

    def follow(state: int, char: str) -> int:
        while state and marker[state] != char:
            state = fail[state]
        return state + (marker[state] == char)

    alphabet = sorted(set(marker))
    others = invert(char_set([(ord(c), ord(c)) for c in alphabet]))
    rows = []
    good = []
    for state in range(len(marker)):
        row = [(lo, hi, 0) for lo, hi in others]
        for char in alphabet:
            target = follow(state, char)
            if target < len(marker):
                row.append((ord(char), ord(char), target))
        rows.append(tuple(sorted(row)))
        here, early = state, False
        for char in marker[:-1]:
            here = follow(here, char)
            if here == len(marker):
                early = True
                break
        good.append(not early)
    before_marker = minimize(0, good.__getitem__, rows)
    return concat(intersect(language, before_marker), literal(marker))
