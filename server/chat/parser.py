"""The streaming parser: a model's text in, block events out.

It reads by a `Format`, in one direction, as a coroutine that pauses wherever the next step needs text that has not
come yet. What it emits is certain and never taken back, and does not depend on how the text was cut into pieces.
Pure Python, for the web process.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeVar

from server.chat.events import BlockDelta, BlockEnd, BlockEvent, BlockKind, BlockStart
from server.chat.format import AGAIN, ANY_TYPE, ARGUMENTS, NAME, Calls, Format, Frame, Literals, Slot, Tagged, Types
from server.chat.spell import json_type

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A computation that yields while it waits for more text."""

_WORD = re.compile(r"[A-Za-z0-9_.-]*")
_SPACE = re.compile(r"\s*")
_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
_PLAIN = re.compile(r'[^"\\]+')
_PLAIN_SINGLE = re.compile(r"[^'\\]+")
_BARE = re.compile(r"[^\s,\])}\[({:]*\s*")
_CLOSER = {"{": "}", "[": "]"}
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class MalformedOutput(Exception):
    """A completed output breaks its format. `reason` holds nothing of the output."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ParserSpec:
    """What a parser must know; picklable.

    `calls`: "allowed" (the constraint lets the model call), "refused" (a recognised call is a failure) or "ignored"
    (the output is text whatever it says). `tools`: those that may be called, with the types of their arguments.
    `json`: the answer is a JSON object. `lead`: what of the prompt's end belongs to the output, an open thinking tag.
    """

    format: Format
    calls: Literal["allowed", "refused", "ignored"] = "ignored"
    tools: Mapping[str, Types] = field(default_factory=dict)
    json: bool = False
    lead: str = ""


def new_call_id() -> str:
    """A tool-call id that no other conversation has: `call_` and 144 random bits."""
    return f"call_{secrets.token_urlsafe(18)}"


def make_parser(spec: ParserSpec, new_id: Callable[[], str] = new_call_id) -> Parser:
    return Parser(spec, new_id)


class _Ended(Exception):
    """The output ended where more was needed."""


class Parser:
    """Reads one output. `feed` it every piece of text, then tell it once how the output ended."""

    def __init__(self, spec: ParserSpec, new_id: Callable[[], str] = new_call_id) -> None:
        self._spec = spec
        self._new_id = new_id
        self._buffer = spec.lead
        self._at = 0
        self._ended = False
        self._events: list[BlockEvent] = []
        self._index = -1
        self._open: BlockKind | None = None
        self._answered = False
        self._space: list[str] = []
        self._trim = False
        self._failure: str | None = None
        self._steps = self._output()

    def feed(self, text: str) -> list[BlockEvent]:
        """The events that this much more text makes certain. Never raises: a failure is told by `finish`."""
        self._buffer = self._buffer[self._at :] + text
        self._at = 0
        return self._step()

    def finish(self, finish: Literal["stop", "length"]) -> list[BlockEvent]:
        """The last events. Raises `MalformedOutput` where an output that ended by itself breaks its format.

        A truncated output breaks nothing: its open text ends here, its unfinished call stays without an end.
        """
        self._ended = True
        events = self._step()
        if finish == "stop" and self._failure is not None:
            raise MalformedOutput(self._failure)
        if self._open in ("text", "thinking"):
            self._close()
        if finish == "stop" and not self._answered:
            self._start("text")
            self._close()
        return events + self._drain()

    def _step(self) -> list[BlockEvent]:
        if self._failure is None:
            try:
                next(self._steps, None)
            except MalformedOutput as error:
                self._failure = error.reason
            except _Ended:
                self._failure = "the output ends inside a block"
        return self._drain()

    def _drain(self) -> list[BlockEvent]:
        events, self._events = self._events, []
        return events

    # Blocks

    def _start(self, kind: BlockKind, name: str | None = None) -> None:
        if self._open is not None:
            self._close()
        self._index += 1
        self._open = kind
        self._answered |= kind != "thinking"
        self._events.append(BlockStart(self._index, kind, self._new_id() if kind == "toolCall" else None, name))

    def _close(self) -> None:
        self._events.append(BlockEnd(self._index))
        self._open = None

    def _delta(self, text: str) -> None:
        if text:
            self._events.append(BlockDelta(self._index, text))

    def _say(self, kind: BlockKind, text: str) -> None:
        """Free text or thinking. White space waits until it is known whether a marker follows it."""
        body = text.rstrip()
        if not body:
            self._space.append(text)
            return
        tail = text[len(body) :]
        body = "".join(self._space) + body
        if self._open != kind:
            self._start(kind)
            body = body.lstrip() if self._trim else body
        self._space = [tail] if tail else []
        self._trim = False
        self._delta(body)

    def _say_text(self, text: str) -> None:
        self._say("text", text)

    def _say_thinking(self, text: str) -> None:
        self._say("thinking", text)

    def _cut(self) -> None:
        """A marker stands here: the white space around it is nobody's, and the block before it is over."""
        self._space = []
        self._trim = True
        if self._open is not None:
            self._close()

    # Reading

    def _skip_space(self) -> Steps[None]:
        while True:
            match = _SPACE.match(self._buffer, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._buffer) or self._ended:
                return
            yield

    def _more(self) -> Steps[None]:
        if self._ended:
            raise _Ended
        yield

    def _until(self, markers: Sequence[str], emit: Callable[[str], None]) -> Steps[str | None]:
        """Emits text up to the first of the markers and returns that one, or None where the output ends first.

        Of markers that begin together the longest counts, so one that may still become another is waited for.
        """
        pattern = _alternatives(tuple(markers))
        while True:
            match = pattern.search(self._buffer, self._at) if markers else None
            open = len(self._buffer) if self._ended else self._partial(markers)
            if match and open > match.start():
                end = match.start()
            else:
                match, end = None, open
            if end > self._at:
                emit(self._buffer[self._at : end])
            self._at = match.end() if match else end
            if match or self._ended:
                return match.group() if match else None
            yield

    def _partial(self, markers: Sequence[str]) -> int:
        """Where the text that may become a marker, or a longer one, begins: the end of the buffer where none does."""
        size = min(max(map(len, markers), default=1) - 1, len(self._buffer) - self._at)
        while size > 0:
            tail = self._buffer[-size:]
            if any(len(marker) > size and marker.startswith(tail) for marker in markers):
                break
            size -= 1
        return len(self._buffer) - size

    def _choose(self, literals: Sequence[str]) -> Steps[int | None]:
        """Reads the one of the literals that stands here and returns its index; None where none does."""
        while True:
            ends = [_literal(self._buffer, self._at, literal) for literal in literals]
            for index, end in enumerate(ends):
                if end is not None:
                    self._at = end
                    return index
            if self._ended or not any(_may_become(self._buffer, self._at, literal) for literal in literals):
                return None
            yield

    def _expect(self, literal: str) -> Steps[None]:
        if (yield from self._choose([literal])) is None:
            yield from self._wrong("a call is not written as its format has it")

    def _wrong(self, reason: str) -> Steps[None]:
        """Something else stands here, or nothing where the output has ended."""
        yield from self._skip_space()
        raise _Ended if self._at == len(self._buffer) else MalformedOutput(reason)

    def _word(self) -> Steps[str]:
        """A name or an id: it ends where a character stands that cannot be in one."""
        yield from self._skip_space()
        while True:
            word = _WORD.match(self._buffer, self._at)
            end = word.end() if word else self._at
            if end < len(self._buffer):
                self._at, start = end, self._at
                return self._buffer[start:end]
            yield from self._more()

    def _recognised(self, calls: Calls, behind: str = "") -> Steps[bool]:
        """Whether a call begins here, as far as its arguments; reads nothing. Where tools are offered, to one of them.

        `behind`: what of it has been read. What is cut short before the arguments is no call.
        """
        while True:
            seen = _call_stands(behind + self._buffer[self._at :], calls, self._spec.tools)
            if seen is not None or self._ended:
                return bool(seen)
            yield

    # The output and its blocks

    def _output(self) -> Steps[None]:
        spec, format = self._spec, self._spec.format
        if spec.lead and format.thinking and spec.lead == format.thinking.open:
            self._at = len(spec.lead)
            yield from self._thinking(format.thinking)
        if format.forced and spec.calls == "allowed":
            if format.thinking and (yield from self._choose([format.thinking.open])) is not None:
                yield from self._thinking(format.thinking)
            yield from self._framed(format)
            return
        for calls in format.calls if spec.calls != "ignored" else ():
            if (format.forced or calls.anchored) and (yield from self._recognised(calls)):
                if spec.calls == "refused":
                    raise MalformedOutput("a call where none is allowed")
                yield from self._expect(str(calls.opening[0]))
                yield from self._section(calls)
        yield from self._free(format)

    def _framed(self, format: Format) -> Steps[None]:
        """Calls or one frame of text, and nothing else."""
        calls = format.calls[0]
        choice = yield from self._choose([calls.begin, *(frame.open for frame in format.text)])
        if choice is None:
            yield from self._wrong("the output is neither a call nor an answer of its format")
        elif choice == 0:
            yield from self._section(calls)
        else:
            self._start("text")
            yield from (self._object() if self._spec.json else self._string())
            yield from self._expect(format.text[choice - 1].close)
            self._close()
        yield from self._skip_space()
        if self._at < len(self._buffer):
            raise MalformedOutput("text follows the end of the format")

    def _free(self, format: Format) -> Steps[None]:
        """Text, with blocks in it wherever their markers stand."""
        spec = self._spec
        thinking = {format.thinking.open.strip(): format.thinking} if format.thinking else {}
        text = {} if format.forced else {frame.open: frame for frame in format.text}
        calls = {}
        if spec.calls != "ignored" and not format.forced:
            calls = {calls.marker: calls for calls in format.calls if not calls.anchored}
        markers = [*thinking, *text, *calls, *format.noise]
        while (marker := (yield from self._until(markers, self._say_text))) is not None:
            if marker in thinking:
                yield from self._thinking(thinking[marker])
            elif marker in text:
                self._cut()
                if text[marker].close:
                    yield from self._until([text[marker].close], self._say_text)
                    self._cut()
            elif marker in format.noise:
                self._cut()
            elif spec.calls == "allowed" and not format.framed:
                yield from self._section(calls[marker])
            elif not (yield from self._recognised(calls[marker], marker)):
                self._say_text(marker)
            elif spec.calls == "allowed":
                yield from self._section(calls[marker])
            else:
                raise MalformedOutput("a call where none is allowed")
        if self._space and not self._trim:
            if self._open != "text":
                self._start("text")
            self._delta("".join(self._space))

    def _thinking(self, frame: Frame) -> Steps[None]:
        self._cut()
        yield from self._until([frame.close.strip()], self._say_thinking)
        self._cut()

    def _section(self, calls: Calls) -> Steps[None]:
        """One call or several; the marker has been read."""
        self._cut()
        parts = calls.call if calls.begin else calls.call[1:]
        between = calls.between.strip()
        while True:
            yield from self._call(calls, parts)
            if not calls.begin:
                return  # the next call, if any, has a marker of its own
            following = between or str(calls.call[0])
            choice = yield from self._choose([following, *filter(None, [calls.end])])
            if choice is None and calls.end:
                yield from self._wrong("a call is not followed by another or by the end of the calls")
            if choice != 0:
                return
            parts = calls.call if between else calls.call[1:]

    def _call(self, calls: Calls, parts: Sequence[str | Slot]) -> Steps[None]:
        types: Types = {}
        name = ""
        rest = iter((*parts, ""))
        for part in rest:
            if part is NAME:
                name = yield from self._word()
                if name not in self._spec.tools:
                    raise MalformedOutput("a call to a tool that was not offered")
                types = self._spec.tools[name]
                self._start("toolCall", name)
            elif part is ARGUMENTS:
                match calls.syntax:
                    case Tagged() as tags:
                        yield from self._elements(tags, types, str(next(rest)))
                    case Literals() as notation:
                        yield from self._pairs(notation, types, notation.close or str(next(rest)))
                    case _:
                        yield from self._object()
            elif part is AGAIN:
                if (yield from self._word()) != name:
                    raise MalformedOutput("a call names two tools")
            elif isinstance(part, Slot):
                yield from self._word()
            else:
                yield from self._expect(part)
        self._cut()

    # Arguments as elements

    def _elements(self, tags: Tagged, types: Types, after: str) -> Steps[None]:
        """One element an argument, up to and with the literal that follows them all."""
        seen: set[str] = set()
        self._delta("{")
        while True:
            choice = yield from self._choose([tags.open, after])
            if choice is None:
                yield from self._wrong("the arguments of a call are not written as their format has them")
            if choice == 1:
                break
            yield from self._element(tags, types, seen)
        self._delta("}")

    def _element(self, tags: Tagged, types: Types, seen: set[str]) -> Steps[None]:
        kinds = dict(tags.typed) or {"": tags.named}
        first = _tokens(next(iter(kinds.values())))[0]
        read: list[str] = []
        if (yield from self._until([first], read.append)) is None:
            raise _Ended
        key = "".join(read).strip()
        if key in seen:
            raise MalformedOutput("a call names an argument twice")
        choice = yield from self._choose(["".join(_tokens(named)[1:]) for named in kinds.values()])
        if choice is None:
            yield from self._wrong("the arguments of a call are not written as their format has them")
        allowed = types.get(key, types.get(None, ANY_TYPE))
        if tags.typed:
            allowed = ("string",) if list(kinds)[choice or 0] == "string" else tuple(set(ANY_TYPE) - {"string"})
        if tags.named.endswith("\n"):
            yield from self._skip_newline()
        self._delta(f"{', ' if seen else ''}{json.dumps(key, ensure_ascii=False)}: ")
        seen.add(key)
        yield from self._raw(tags.close, allowed)

    def _skip_newline(self) -> Steps[None]:
        while self._at == len(self._buffer):
            yield from self._more()
        self._at += self._buffer.startswith("\n", self._at)

    def _raw(self, close: str, types: Sequence[str]) -> Steps[None]:
        """One value up to its closing marker: text as it stands, everything else as JSON."""
        markers = [close.rstrip(), close.strip()]
        if types == ("string",):
            self._delta('"')
            if (yield from self._until(markers, self._say_string)) is None:
                raise _Ended
            self._delta('"')
            return
        read: list[str] = []
        if (yield from self._until(markers, read.append)) is None:
            raise _Ended
        text = "".join(read)
        value = _value(text)
        if value is not _NOTHING and json_type(value) in types and json_type(value) != "string":
            self._delta(text.strip())
        elif "string" in types:
            self._delta(json.dumps(text, ensure_ascii=False))
        elif value is not _NOTHING:
            self._delta(text.strip())  # of a type that its schema refuses, and will say so
        else:
            raise MalformedOutput("an argument of a call is not JSON")

    def _say_string(self, text: str) -> None:
        self._delta(json.dumps(text, ensure_ascii=False)[1:-1])

    # Arguments as literals

    def _pairs(self, notation: Literals, types: Types, after: str) -> Steps[None]:
        """`key=value, …` up to and with the literal that follows."""
        yield from self._expect(notation.open)
        self._delta("{")
        seen: set[str] = set()
        while (yield from self._choose([after])) is None:
            if seen and (yield from self._choose([notation.comma])) is None:
                yield from self._wrong("the arguments of a call are not written as their format has them")
            if seen and (yield from self._choose([after])) is not None:
                break  # a comma at the end
            key = yield from self._bare_key(notation.pair)
            if key in seen:
                raise MalformedOutput("a call names an argument twice")
            self._delta(f"{', ' if seen else ''}{json.dumps(key, ensure_ascii=False)}: ")
            seen.add(key)
            yield from self._literal_value(notation, types.get(key, types.get(None, ANY_TYPE)))
        self._delta("}")

    def _bare_key(self, colon: str) -> Steps[str]:
        read: list[str] = []
        if (yield from self._until([colon.strip()], read.append)) is None:
            raise _Ended
        return "".join(read).strip()

    def _literal_value(self, notation: Literals, types: Sequence[str] = ANY_TYPE) -> Steps[None]:
        yield from self._skip_space()
        if self._at == len(self._buffer):
            raise _Ended
        quotes = [notation.quote] if notation.quote != '"' else ['"', "'"]
        quote = yield from self._choose(quotes)
        if quote is not None:
            yield from self._quoted(quotes[quote])
            return
        opening = self._buffer[self._at]
        if opening in "[{":
            self._at += 1
            yield from self._items(notation, opening)
            return
        word = yield from self._bare_word()
        self._delta(_word(notation, word, types))

    def _quoted(self, quote: str) -> Steps[None]:
        self._delta('"')
        if quote in ("'", '"'):
            yield from self._python_string(quote)
        elif (yield from self._until([quote], self._say_string)) is None:
            raise _Ended
        self._delta('"')

    def _python_string(self, quote: str) -> Steps[None]:
        """The inside of a Python string literal, as the inside of a JSON string."""
        while True:
            text, self._at, waiting = _decode(self._buffer, self._at, quote)
            self._say_string(text)
            if not waiting:
                return
            yield from self._more()

    def _items(self, notation: Literals, opening: str) -> Steps[None]:
        """What stands between brackets or braces, the opening one read."""
        closing = _CLOSER[opening]
        self._delta(opening)
        first = True
        while (yield from self._choose([closing])) is None:
            if not first:
                if (yield from self._choose([notation.comma])) is None:
                    yield from self._wrong("a list or an object is not written as its format has it")
                if (yield from self._choose([closing])) is not None:
                    break
                self._delta(", ")
            first = False
            if opening == "{":
                if notation.bare_keys:
                    key = yield from self._bare_key(notation.colon)
                    self._delta(json.dumps(key, ensure_ascii=False))
                else:
                    yield from self._literal_value(notation, ("string",))
                    yield from self._expect(notation.colon)
                self._delta(": ")
            yield from self._literal_value(notation)
        self._delta(closing)

    def _bare_word(self) -> Steps[str]:
        while True:
            word = _BARE.match(self._buffer, self._at)
            end = word.end() if word else self._at
            if end < len(self._buffer):
                self._at, start = end, self._at
                return self._buffer[start:end].strip()
            yield from self._more()

    # JSON

    def _object(self) -> Steps[None]:
        """One JSON object, its text as it stands. Whether it is valid is for those who read the whole of it."""
        yield from self._skip_space()
        if not self._buffer.startswith("{", self._at):
            yield from self._wrong("what should be a JSON object is none")
        closers: list[str] = []
        quoted = False
        while True:
            start = at = self._at
            while match := (_INSIDE if quoted else _OUTSIDE).search(self._buffer, at):
                at = match.end()
                char = match.group()
                if char == '"':
                    quoted = not quoted
                elif char == "\\":
                    if at == len(self._buffer):
                        at -= 1
                        break
                    at += 1
                elif char in _CLOSER:
                    closers.append(_CLOSER[char])
                elif closers.pop() != char:
                    raise MalformedOutput("the brackets of a JSON object do not match")
                elif not closers:
                    self._at = at
                    self._delta(self._buffer[start:at])
                    return
            else:
                at = len(self._buffer)
            self._at = at
            self._delta(self._buffer[start:at])
            yield from self._more()

    def _string(self) -> Steps[None]:
        """One JSON string, decoded as it comes. A surrogate without its other half becomes U+FFFD."""
        yield from self._expect('"')
        while True:
            text, self._at, waiting = _decode(self._buffer, self._at)
            self._delta(text)
            if not waiting:
                return
            yield from self._more()


def _decode(text: str, at: int, quote: str = '"') -> tuple[str, int, bool]:
    """The inside of a string from `at` on: what is certain of it, where that ends, and whether more is needed.

    Between `"` as JSON has it, between `'` as Python does; a few of Python's escapes hold in both.
    """
    out: list[str] = []
    pattern = _PLAIN if quote == '"' else _PLAIN_SINGLE
    while at < len(text):
        plain = pattern.match(text, at)
        if plain:
            out.append(plain.group())
            at = plain.end()
            continue
        if text[at] == quote:
            return "".join(out), at + 1, False
        kind = text[at + 1 : at + 2]
        if kind == "u":
            char, size = _unit(text, at)
            if not size:
                break
            out.append(char)
            at += size
        elif kind in _ESCAPES:
            out.append(_ESCAPES[kind])
            at += 2
        elif kind:
            raise MalformedOutput("a JSON string holds an unknown escape")
        else:
            break
    return "".join(out), at, True


def _unit(text: str, at: int) -> tuple[str, int]:
    """The character of the `\\u` escape or escapes at `at`, and their size; zero where more is needed."""
    code = _hex(text[at + 2 : at + 6])
    if code is None:
        return "", 0
    if 0xD800 <= code < 0xDC00:
        second = text[at + 6 : at + 12]
        if second[:2] == "\\u"[: len(second)]:
            low = _hex(second[2:]) if len(second) > 1 else None
            if low is None:
                return "", 0
            if 0xDC00 <= low < 0xE000:
                return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), 12
    return ("\N{REPLACEMENT CHARACTER}" if 0xD800 <= code < 0xE000 else chr(code)), 6


def _hex(digits: str) -> int | None:
    if not re.fullmatch(r"[0-9A-Fa-f]*", digits):
        raise MalformedOutput("a JSON string holds an unknown escape")
    return int(digits, 16) if len(digits) == 4 else None


@lru_cache(maxsize=256)
def _alternatives(markers: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(markers, key=len, reverse=True))))


@lru_cache(maxsize=1024)
def _tokens(literal: str) -> tuple[str, ...]:
    return tuple(literal.split())


def _walk(text: str, at: int, literal: str) -> tuple[bool, int]:
    """How far `literal` goes along `text`, white space aside, and whether to its end."""
    for char in "".join(_tokens(literal)):
        space = _SPACE.match(text, at)
        at = space.end() if space else at
        if not text.startswith(char, at):
            return False, at
        at += 1
    return True, at


def _literal(text: str, at: int, literal: str) -> int | None:
    """Where `literal` ends if it stands at `at`."""
    whole, end = _walk(text, at, literal)
    return end if whole else None


def _may_become(text: str, at: int, literal: str) -> bool:
    whole, end = _walk(text, at, literal)
    return whole or end == len(text)


def _call_stands(text: str, calls: Calls, tools: Mapping[str, Types]) -> bool | None:
    """Whether the text begins with a call, as far as the beginning of its arguments. None: more text must tell."""
    at = 0
    for index, part in enumerate(calls.opening):
        if part is ARGUMENTS:
            after = str(calls.opening[index + 1]) if index + 1 < len(calls.opening) else ""
            return _arguments_stand(text, at, calls, after)
        if isinstance(part, Slot):
            space = _SPACE.match(text, at)
            word = _WORD.match(text, space.end() if space else at)
            if word is None or word.end() == len(text):
                return None
            if not word.group() or (part is NAME and tools and word.group() not in tools):
                return False
            at = word.end()
        else:
            whole, at = _walk(text, at, part)
            if not whole:
                return None if at == len(text) else False
    return True


def _arguments_stand(text: str, at: int, calls: Calls, after: str) -> bool | None:
    match calls.syntax:
        case Tagged() as tags:
            openings = [tags.open, after]
        case Literals():
            return True
        case _:
            openings = ["{"]
    if any(_literal(text, at, opening) is not None for opening in openings):
        return True
    return None if any(_may_become(text, at, opening) for opening in openings) else False


def _word(notation: Literals, word: str, types: Sequence[str]) -> str:
    """The JSON of a bare word: a number, one of the notation's (or JSON's) names, or a string where only that fits."""
    if types == ("string",):
        return json.dumps(word, ensure_ascii=False)
    for names in (notation.words, ("null", "true", "false")):
        if word in names:
            return ("null", "true", "false")[names.index(word)]
    if _value(word) is _NOTHING:
        raise MalformedOutput("an argument of a call is no literal")
    return word


_NOTHING = object()


def _value(text: str) -> object:
    """The JSON value a text is, or `_NOTHING`."""
    try:
        value: object = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return _NOTHING
    return value


def _no_constant(name: str) -> object:
    raise ValueError(name)
