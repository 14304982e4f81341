"""Walks text through grammar rules, character by character: what may come next, and what must.

A position is a set of stacks, as in llama.cpp's sampler; equal stacks are one object, so positions stay small. Copies
are free: positions are immutable.
"""

from __future__ import annotations

from grammars.rules.rules import Chars, Item, Lit, Ref, Repeat, Rule


class _Stack:
    """An item to match (a literal from an offset on, or a set of characters) above what follows it."""

    __slots__ = ("item", "offset", "opened", "pushed", "rest")

    def __init__(self, item: Item | None, offset: int, rest: _Stack | None) -> None:
        self.item, self.offset, self.rest = item, offset, rest
        self.pushed: dict[tuple[Item, int], _Stack] = {}
        self.opened: tuple[_Stack, ...] | None = None

    def push(self, item: Item, offset: int = 0) -> _Stack:
        key = (item, offset)
        found = self.pushed.get(key)
        if found is None:
            found = self.pushed[key] = _Stack(item, offset, self)
        return found


class Matcher:
    """Text read so far against the rule `root`. Left recursion is allowed, as long as it consumes something."""

    def __init__(self, rules: dict[str, Rule], root: str = "root") -> None:
        self._rules = rules
        bottom = _Stack(None, 0, None)
        self._stacks = self._open(bottom.push(Ref(root)))

    def copy(self) -> Matcher:
        other = Matcher.__new__(Matcher)
        other._rules, other._stacks = self._rules, self._stacks
        return other

    @property
    def stacks(self) -> int:
        """How many continuations are alive."""
        return len(self._stacks)

    @property
    def position(self) -> tuple[object, ...]:
        """A key of what may follow: equal positions of copies of one matcher continue alike."""
        return self._stacks

    @property
    def accepting(self) -> bool:
        """Whether the text so far is complete."""
        return any(stack.item is None for stack in self._stacks)

    def accept(self, text: str) -> bool:
        """Reads a text; False, with nothing read, where it may not come here."""
        stacks = self._read(text)
        if not stacks:
            return False
        self._stacks = stacks
        return True

    def allowed(self, text: str) -> bool:
        """Whether the text may come here."""
        return bool(self._read(text))

    def next_chars(self) -> tuple[tuple[int, int], ...]:
        """The ranges of code points that may come here, in no order, possibly overlapping."""
        out: list[tuple[int, int]] = []
        for stack in self._stacks:
            if isinstance(stack.item, Lit):
                code = ord(stack.item.text[stack.offset])
                out.append((code, code))
            elif isinstance(stack.item, Chars):
                out.extend(stack.item.ranges)
        return tuple(out)

    def forced_text(self, limit: int = 10_000) -> str:
        """What must come here: the longest text that every completion begins with (at most `limit` characters)."""
        out: list[str] = []
        stacks = self._stacks
        while len(out) < limit:
            char = _only_char(stacks)
            if char is None:
                break
            out.append(char)
            stacks = self._step(stacks, char)
        return "".join(out)

    def _read(self, text: str) -> tuple[_Stack, ...]:
        stacks = self._stacks
        for char in text:
            stacks = self._step(stacks, char)
            if not stacks:
                break
        return stacks

    def _step(self, stacks: tuple[_Stack, ...], char: str) -> tuple[_Stack, ...]:
        code = ord(char)
        out: dict[_Stack, None] = {}
        for stack in stacks:
            item = stack.item
            if isinstance(item, Lit):
                if item.text[stack.offset] != char:
                    continue
                assert stack.rest is not None
                if stack.offset + 1 < len(item.text):
                    out[stack.rest.push(item, stack.offset + 1)] = None
                    continue
            elif isinstance(item, Chars):
                if not any(low <= code <= high for low, high in item.ranges):
                    continue
            else:
                continue
            assert stack.rest is not None
            out.update(dict.fromkeys(self._open(stack.rest)))
        return tuple(out)

    def _open(self, stack: _Stack) -> tuple[_Stack, ...]:
        """The stacks with a character (or the end) on top that a stack stands for."""
        if stack.opened is not None:
            return stack.opened
        out: dict[_Stack, None] = {}
        seen = {stack}
        todo = [stack]
        while todo:
            here = todo.pop()
            item, rest = here.item, here.rest
            following: list[_Stack] = []
            if item is None or isinstance(item, Chars) or (isinstance(item, Lit) and item.text):
                out[here] = None
                continue
            assert rest is not None
            if isinstance(item, Lit):
                following.append(rest)
            elif isinstance(item, Ref):
                for sequence in self._rules[item.name]:
                    above = rest
                    for part in reversed(sequence):
                        above = above.push(part)
                    following.append(above)
            else:
                low, high = item.min, item.max
                if low == 0:
                    following.append(rest)
                if high is None or high > 0:
                    again = Repeat(item.item, max(0, low - 1), None if high is None else high - 1)
                    following.append((rest if again.max == 0 else rest.push(again)).push(item.item))
            for above in following:
                if above not in seen:
                    seen.add(above)
                    todo.append(above)
        stack.opened = tuple(out)
        return stack.opened


def _only_char(stacks: tuple[_Stack, ...]) -> str | None:
    """The single character that all stacks continue with."""
    found: str | None = None
    for stack in stacks:
        item = stack.item
        if isinstance(item, Lit):
            char = item.text[stack.offset]
        elif isinstance(item, Chars) and len(item.ranges) == 1 and item.ranges[0][0] == item.ranges[0][1]:
            char = chr(item.ranges[0][0])
        else:
            return None
        if found is not None and char != found:
            return None
        found = char
    return found
