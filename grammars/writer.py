"""From normal form to grammar: one rule per shape; objects and arrays are right-linear chains of their members."""

from __future__ import annotations

from collections import deque
from typing import Any

from . import atoms, limits, numbersets, textsets
from .normal import Normalizer
from .numbersets import NumberSet
from .rules import Chars, Grammar, Item, Lit, Ref, Repeat, Rule, Sequence, repeat
from .shapes import ANY, FALSE, TRUE, ArrayShape, ObjectShape, Shape, Term
from .spelling import Spelling, number_texts
from .strings import RAW, Strings
from .textsets import TextSet
from .trie import END, Node, TrieWriter, insert

_DIGITS = Chars(((0x30, 0x39),))
_NONZERO = Chars(((0x31, 0x39),))
_FLAT = 8
"""Texts of an enumeration that are written side by side; longer lists become trees."""
_STATES = 4_000
"""States of one object or array whose members must be counted."""


class Writer:
    """Writes the terms of one normaliser into one grammar."""

    def __init__(self, normal: Normalizer, spelling: Spelling) -> None:
        self.normal, self.spelling = normal, spelling
        self.grammar = Grammar()
        self.strings = Strings(self.grammar)
        self.digits = Strings(self.grammar, RAW)
        self._terms: dict[Term, Sequence] = {}
        self._shapes: dict[Shape, Sequence] = {}
        self._texts: dict[TextSet, tuple[Sequence, ...]] = {}
        self._numbers: dict[NumberSet, tuple[Sequence, ...]] = {}
        self._queue: deque[tuple[str, Shape]] = deque()

    def write(self, term: Term) -> Grammar:
        """The grammar of a term; its entry rule is `root`."""
        self.grammar.define("root", ())
        self.grammar.define("root", (self.term(term),))
        while self._queue:
            limits.check()
            name, shape = self._queue.popleft()
            self.grammar.define(name, self._rule(shape))
        return self.grammar

    def term(self, term: Term) -> Sequence:
        known = self._terms.get(term)
        if known is None:
            known = self._terms[term] = self._shape(ANY if term is TRUE else self.normal.shape(term))
        return known

    def _shape(self, shape: Shape) -> Sequence:
        known = self._shapes.get(shape)
        if known is not None:
            return known
        if shape.arrays or shape.objects:
            name = "value" if shape == ANY else self.grammar.fresh("v")
            self._queue.append((name, shape))
            out: Sequence = (Ref(name),)
        else:
            rule = self._rule(shape)
            out = rule[0] if len(rule) == 1 else (self.grammar.add(rule, "v"),)
        self._shapes[shape] = out
        return out

    def _rule(self, shape: Shape) -> Rule:
        rule: list[Sequence] = list(self.text(shape.string))
        rule.extend(self.number(shape.number))
        for o in shape.objects:
            rule.extend(ObjectWriter(self, o).write())
        for a in shape.arrays:
            rule.extend(ArrayWriter(self, a).write())
        if shape.booleans & 2:
            rule.append((Lit(self.spelling.true),))
        if shape.booleans & 1:
            rule.append((Lit(self.spelling.false),))
        if shape.null:
            rule.append((Lit(self.spelling.null),))
        return tuple(rule)

    # Strings

    def char(self) -> Item:
        """One character of a string as it is spelled."""
        return self.strings.char

    def text(self, s: TextSet) -> tuple[Sequence, ...]:
        known = self._texts.get(s)
        if known is None:
            known = self._texts[s] = self._text(s)
        return known

    def _text(self, s: TextSet) -> tuple[Sequence, ...]:
        quote = self.spelling.quote
        kind = s[0]
        if kind == "none":
            return ()
        if kind == "all":
            self.grammar.define("string", ((Lit(quote), Repeat(self.char(), 0, None), Lit(quote)),))
            return ((Ref("string"),),)
        if kind == "finite":
            if len(s[1]) <= _FLAT:
                return tuple((Lit(quote + self.spelling.text(value) + quote),) for value in s[1])
            node: Node = {}
            for value in s[1]:
                node = insert(node, self.pieces(value), ())
            return ((Lit(quote), *TrieWriter(self.grammar, quote).write(node)),)
        if kind == "length":
            return ((Lit(quote), *repeat(self.grammar, self.char(), s[1], s[2]), Lit(quote)),)
        rest, least, most = atoms.split_length(s)
        automaton = atoms.language(rest, self.normal)
        if automaton is None:
            return self.text(textsets.length(least, most))
        if automaton.is_empty():
            return ()
        try:
            return (self.strings.write(automaton, least, most),)
        except limits.LimitExceeded as error:
            if error.limit == "seconds":
                raise
            self.normal.note("minLength", "maxLength")
            return (self.strings.write(automaton),)

    def pieces(self, name: str) -> list[str]:
        return [self.spelling.text(char) for char in name] if not name.isalnum() else list(name)

    # Numbers

    def integer(self) -> Ref:
        if "integer" not in self.grammar.rules:
            natural = self.grammar.define("natural", ((Lit("0"),), (_NONZERO, Repeat(_DIGITS, 0, None))))
            self.grammar.define("integer", ((natural,), (Lit("-"), natural)))
        return Ref("integer")

    def any_number(self) -> Ref:
        if "number" not in self.grammar.rules:
            whole = self.integer()
            some = Repeat(_DIGITS, 1, None)
            sign = Chars(((0x2B, 0x2B), (0x2D, 0x2D)))
            # below 300, so that no reader of doubles finds an infinite number
            digits = self.grammar.define(
                "power", ((Chars(((0x31, 0x32),)), Repeat(_DIGITS, 0, 2)), (Chars(((0x33, 0x39),)), Repeat(_DIGITS, 0, 1)), (Lit("0"), _DIGITS))
            )
            exponent = self.grammar.define("exponent", ((Chars(((0x45, 0x45), (0x65, 0x65))), Repeat(sign, 0, 1), digits),))
            fraction = self.grammar.define("fraction", ((Lit("."), some),))
            self.grammar.define("number", ((whole, Repeat(fraction, 0, 1), Repeat(exponent, 0, 1)),))
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
            automaton = atoms.number_automaton(s)
        except limits.LimitExceeded as error:
            if error.limit == "seconds":
                raise
            automaton = None
        if automaton is None:
            self.normal.note(*_BOUNDS)
            return ((self.integer() if numbersets.is_integral(s) else self.any_number(),),)
        if automaton.is_empty():
            return ()
        return (self.digits.write(automaton),)


_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


class ObjectWriter:
    """One object: declared properties in order, any subset that is allowed, then the other ones."""

    def __init__(self, writer: Writer, shape: ObjectShape) -> None:
        self.writer, self.shape, self.spelling, self.grammar = writer, shape, writer.spelling, writer.grammar
        self.colon, self.comma = Lit(self.spelling.colon), self.spelling.comma
        self.names = [name for name, term in shape.props if term is not FALSE]
        self.terms = dict(shape.props)

    def write(self) -> tuple[Sequence, ...]:
        shape = self.shape
        self.open = self._others()
        possible = None if self.open else len(self.names)
        required = len(shape.required)
        least, most = shape.least, shape.most
        if possible is not None and possible < least:
            return ()
        counted = least > required or (most is not None and (possible is None or most < possible))
        if counted or shape.needs or shape.some:
            return self._counted()
        return self._plain()

    def _others(self) -> list[tuple[Any, Term, int]]:
        """Undeclared names in classes: (the automaton of the names or None for all, term, bits of `some` they satisfy)."""
        shape = self.shape
        if not shape.layers and shape.names == textsets.ALL and not shape.some:
            return [(None, shape.rest, 0)] if shape.rest is not FALSE else []
        return self.writer.normal.name_classes(shape)

    def _member(self, term: Term, after: Sequence) -> Sequence:
        return (self.colon, *self.writer.term(term), *after)

    def _plain(self) -> tuple[Sequence, ...]:
        names, shape, quote = self.names, self.shape, self.spelling.quote
        closing: Sequence = (Lit("}"),)
        keyed = [c for c in self.open if c[0] is not None]
        whole = next((c for c in self.open if c[0] is None), None)
        # after the declared properties: other members or the end
        node: Node | None = None
        writer: TrieWriter
        if self.open:
            end_name = self.grammar.fresh("o")
            rest: Sequence = (Ref(end_name),)
            other_keys: list[Sequence] = []
            if whole is not None and not shape.props:
                last_keys: list[Sequence] = [(*self.writer.text(textsets.ALL)[0], *self._member(whole[1], rest))]
                writer = TrieWriter(self.grammar, quote)
            elif whole is not None:
                follow = self._member(whole[1], rest)
                tail = self.grammar.add(((Repeat(self.writer.char(), 0, None), Lit(quote), *follow),), "n")
                follow_ref: Sequence = (self.grammar.add((follow,), "n"),)
                writer = TrieWriter(self.grammar, quote, (tail,), follow_ref)
                for name, _ in shape.props:
                    node = insert(node, self.writer.pieces(name), None)
                node = node or {}
                last_keys = [(Lit(quote), *writer.write(node))]
            else:
                writer = TrieWriter(self.grammar, quote)
                last_keys = []
            for automaton, term, _ in keyed:
                other_keys.append((*self.writer.strings.write(automaton), *self._member(term, rest)))
            last_keys += other_keys
            last: Sequence = last_keys[0] if len(last_keys) == 1 else (self.grammar.add(tuple(last_keys), "k"),)
            self.grammar.define(end_name, (closing, (Lit(self.comma), *last)))
        else:
            rest, last, other_keys = closing, (), []
            writer = TrieWriter(self.grammar, quote)
        # backwards through the declared properties: `keys` are the names that may come now
        keys: Sequence = last
        may_end = True
        closed = TrieWriter(self.grammar, quote)
        current = writer
        for i in range(len(names) - 1, -1, -1):
            name = names[i]
            leaf = self._member(self.terms[name], rest)
            if name in shape.required:
                current, node, other_keys, may_end = closed, None, [], False
            if i and names[i - 1] not in shape.required:  # several positions lead to this property
                leaf = (self.grammar.add((leaf,), "m"),)
            pieces = self.writer.pieces(name)
            node = insert(node, pieces, leaf)
            branches = [(Lit(quote), *current.write(node)), *other_keys]
            keys = branches[0] if len(branches) == 1 else (self.grammar.add(tuple(branches), "k"),)
            if i:
                after: Sequence = (Lit(self.comma), *keys)
                rest = (self.grammar.add((closing, after), "o"),) if may_end else after
        start: list[Sequence] = []
        if keys:
            start.append((Lit("{"), *keys))
        if may_end:
            start.append((Lit("{}"),))
        return tuple(start)

    def _counted(self) -> tuple[Sequence, ...]:
        """The general case: a state is (next property, members so far, names seen that matter, `some` satisfied)."""
        shape, names, quote, normal = self.shape, self.names, self.spelling.quote, self.writer.normal
        index = {name: i for i, name in enumerate(names)}
        needs: dict[str, set[str]] = {}
        dead: set[str] = set()
        for name, needed in shape.needs:
            if name in index:
                missing = [n for n in needed if n not in index]
                if missing:
                    dead.add(name)
                needs.setdefault(name, set()).update(n for n in needed if n in index and n != name)
        for name in dead & shape.required:
            return ()
        last_use = {n: max(index[a] for a, needed in needs.items() if n in needed) for needed in needs.values() for n in needed}
        some_bits = (1 << len(shape.some)) - 1
        cap = shape.least if shape.most is None else max(shape.least, shape.most)
        states: dict[tuple[int, int, frozenset[str], frozenset[str], int], str] = {}
        queue: list[tuple[int, int, frozenset[str], frozenset[str], int]] = []

        def rest(state: tuple[int, int, frozenset[str], frozenset[str], int]) -> Sequence:
            if state not in states:
                if len(states) >= _STATES:
                    raise limits.LimitExceeded("states")
                states[state] = self.grammar.fresh("o")
                queue.append(state)
            return (Ref(states[state]),)

        def options(term: Term, name: str | None, bits: int, applicable: int) -> list[tuple[Term, int]]:
            """The terms that a value may have, with the `some` bits it then satisfies."""
            out = [(term, bits)]
            for b, (_, wanted) in enumerate(shape.some):
                if not bits >> b & 1 and applicable >> b & 1:
                    out = [
                        pair
                        for t, have in out
                        for pair in (
                            ((t, have | 1 << b),) if wanted is TRUE else ((normal.terms.all(t, wanted), have | 1 << b), (t, have))
                        )
                    ]
            return out

        declared_bits = {
            name: sum(1 << b for b, (where, _) in enumerate(shape.some) if normal.texts.accepts(where, name)) for name in names
        }

        def keys(i: int, count: int, seen: frozenset[str], pending: frozenset[str], bits: int) -> list[Sequence]:
            if shape.most is not None and count >= shape.most:
                return []
            following = min(count + 1, cap)
            node: Node | None = None
            out: list[Sequence] = []
            reached = True
            for j in range(i, len(names)):
                name = names[j]
                allowed = name not in dead and all(n in seen or index[n] > j for n in needs.get(name, ()))
                if allowed:
                    ahead = {n for n in needs.get(name, ()) if index[n] > j and n not in shape.required}
                    new_pending = frozenset((pending | ahead) - {name})
                    new_seen = frozenset(n for n in (*seen, name) if last_use.get(n, -1) > j)
                    leaves = [
                        self._member(term, rest((j + 1, following, new_seen, new_pending, have)))
                        for term, have in options(self.terms[name], name, bits, declared_bits[name])
                    ]
                    leaf = leaves[0] if len(leaves) == 1 else (self.grammar.add(tuple(leaves), "m"),)
                    node = insert(node, self.writer.pieces(name), leaf)
                if name in shape.required or name in pending:
                    reached = False
                    break
            if not reached or not self.open:
                if node:
                    out.append((Lit(quote), *TrieWriter(self.grammar, quote).write(node)))
                return out
            for automaton, term, applicable in self.open:
                leaves = [
                    self._member(t, rest((len(names), following, frozenset(), frozenset(), have)))
                    for t, have in options(term, None, bits, applicable)
                ]
                leaf = leaves[0] if len(leaves) == 1 else (self.grammar.add(tuple(leaves), "m"),)
                if automaton is None:
                    tail = self.grammar.add(((Repeat(self.writer.char(), 0, None), Lit(quote), *leaf),), "n")
                    for name, _ in shape.props:
                        if name not in index or index[name] < i or name in dead:
                            node = insert(node, self.writer.pieces(name), None)
                    for name in names[i:]:
                        if not _holds_name(node, self.writer.pieces(name)):
                            node = insert(node, self.writer.pieces(name), None)
                    out.append((Lit(quote), *TrieWriter(self.grammar, quote, (tail,), leaf).write(node or {})))
                    node = None
                else:
                    out.append((*self.writer.strings.write(automaton), *leaf))
            if node:
                out.append((Lit(quote), *TrieWriter(self.grammar, quote).write(node)))
            return out

        def may_end(i: int, count: int, pending: frozenset[str], bits: int) -> bool:
            return (
                count >= shape.least
                and not pending
                and bits == some_bits
                and not any(name in shape.required for name in names[i:])
            )

        start: list[Sequence] = [(Lit("{"), *key) for key in keys(0, 0, frozenset(), frozenset(), 0)]
        if may_end(0, 0, frozenset(), 0):
            start.append((Lit("{}"),))
        while queue:
            limits.check()
            state = queue.pop()
            i, count, seen, pending, bits = state
            rule: list[Sequence] = [(Lit("}"),)] if may_end(i, count, pending, bits) else []
            rule += [(Lit(self.comma), *key) for key in keys(i, count, seen, pending, bits)]
            self.grammar.define(states[state], tuple(rule))
        return tuple(start)


def _holds_name(node: Node | None, pieces: list[str]) -> bool:
    here: Any = node
    for piece in (*pieces, END):
        if not isinstance(here, dict) or piece not in here:
            return False
        here = here[piece]
    return True


class ArrayWriter:
    """One array: the items of the prefix, then any number of further items within the bounds."""

    def __init__(self, writer: Writer, shape: ArrayShape) -> None:
        self.writer, self.shape, self.grammar = writer, shape, writer.grammar
        self.comma = Lit(writer.spelling.comma)

    def write(self) -> tuple[Sequence, ...]:
        shape = self.shape
        prefix, most = shape.prefix, shape.most
        for i, term in enumerate(prefix):
            if term is FALSE:
                prefix, most = prefix[:i], i if most is None else min(most, i)
                break
        else:
            if shape.rest is FALSE:
                most = len(prefix) if most is None else min(most, len(prefix))
        if most is not None:
            prefix = prefix[:most]
            if most < shape.least:
                return ()
        contains = tuple(c for c in shape.contains if c.least or c.most is not None)
        shape = shape._replace(prefix=prefix, most=most, contains=contains)
        if contains or (shape.unique and (most is None or most > 1)):
            out = self._counted(shape)
            if out is not None:
                return out
        return self._plain(shape)

    def _plain(self, shape: ArrayShape) -> tuple[Sequence, ...]:
        prefix, least, most, n = shape.prefix, shape.least, shape.most, len(shape.prefix)
        closing: Sequence = (Lit("]"),)
        if most == 0:
            return ((Lit("[]"),),)
        out: list[Sequence] = [(Lit("[]"),)] if least == 0 else []
        if most is not None and most <= n:
            rest: Sequence = closing
        else:
            item = self.writer.term(shape.rest)
            lower, upper = max(0, least - n), None if most is None else most - n
            if n == 0:
                lower, upper = max(0, lower - 1), None if upper is None else upper - 1
            if upper == 0:
                rest = closing
            else:
                more = self.grammar.add(((self.comma, *item),), "i")
                rest = (*repeat(self.grammar, more, lower, upper), *closing)
            if n == 0:
                out.append((Lit("["), *item, *rest))
                return tuple(out)
        for i in range(n - 1, 0, -1):
            after: Sequence = (self.comma, *self.writer.term(prefix[i]), *rest)
            rest = after if least > i else (self.grammar.add((closing, after), "i"),)
        out.append((Lit("["), *self.writer.term(prefix[0]), *rest))
        return tuple(out)

    def _counted(self, shape: ArrayShape) -> tuple[Sequence, ...] | None:
        """contains and uniqueItems: a state is (index, items so far, matches per contains, values used)."""
        normal, terms = self.writer.normal, self.writer.normal.terms
        prefix, least, most, n = shape.prefix, shape.least, shape.most, len(shape.prefix)
        unique = shape.unique and (most is None or most > 1)
        values: dict[Term, list[Any]] = {}
        if unique:
            listed = {term: normal.values(term, 20) for term in {*prefix, shape.rest}}
            if any(v is None for v in listed.values()):
                normal.note("uniqueItems")
                unique = False
            else:
                values = {term: v for term, v in listed.items() if v is not None}
        if not unique and not shape.contains:
            return None
        cap = max(least, most or 0, n, *(c.start for c in shape.contains))
        states: dict[Any, str] = {}
        queue: list[Any] = []

        def rest(state: Any) -> Sequence:
            if state not in states:
                if len(states) >= _STATES // 4:
                    raise limits.LimitExceeded("states")
                states[state] = self.grammar.fresh("i")
                queue.append(state)
            return (Ref(states[state]),)

        def items(count: int, matches: tuple[int, ...], used: frozenset[Any]) -> list[Sequence]:
            if most is not None and count >= most:
                return []
            term = prefix[count] if count < n else shape.rest
            out = []
            choices: list[tuple[Term, Any]] = [(term, None)]
            if unique:
                choices = [(terms.const(value), key) for key, value in values[term] if key not in used]
            for choice, key in choices:
                branches = [(choice, ())]
                for c, have in zip(shape.contains, matches, strict=True):
                    if count < c.start:
                        branches = [(t, (*m, have)) for t, m in branches]
                        continue
                    limit = c.least if c.most is None else c.most
                    matching = [
                        (terms.all(t, c.term), (*m, have + 1 if c.most is not None else min(have + 1, limit)))
                        for t, m in branches
                        if c.most is None or have < c.most
                    ]
                    if c.most is None:
                        if have >= c.least:
                            branches = [(t, (*m, have)) for t, m in branches]
                        else:
                            branches = matching + [(t, (*m, have)) for t, m in branches]
                    else:
                        branches = matching + [(terms.all(t, terms.negate(c.term)), (*m, have)) for t, m in branches]
                for t, m in branches:
                    if t is not FALSE:
                        used_now = used | {key} if key is not None else used
                        out.append((*self.writer.term(t), *rest((min(count + 1, cap), m, used_now))))
            return out

        def may_end(count: int, matches: tuple[int, ...]) -> bool:
            return count >= least and all(m >= c.least for m, c in zip(matches, shape.contains, strict=True))

        try:
            zero = (0,) * len(shape.contains)
            start: list[Sequence] = [(Lit("["), *item) for item in items(0, zero, frozenset())]
            if may_end(0, zero):
                start.append((Lit("[]"),))
            while queue:
                limits.check()
                state = queue.pop()
                count, matches, used = state
                rule: list[Sequence] = [(Lit("]"),)] if may_end(count, matches) else []
                rule += [(self.comma, *item) for item in items(count, matches, used)]
                self.grammar.define(states[state], tuple(rule))
        except limits.LimitExceeded as error:
            if error.limit != "states":
                raise
            normal.note(*(("contains",) if shape.contains else ()), *(("uniqueItems",) if shape.unique else ()))
            return None
        return tuple(start)
