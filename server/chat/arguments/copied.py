"""The one argument of a tool that has no other and takes any text: small models copy it into the call as it stands.

What may stand there beside a string literal, and is kept character by character:

    save_note(text=New York, see f(x))    bare text, in which brackets match: lists and objects too
    save_note(text="C:\\users\\me\\")        a path with its drive, whose backslashes are no escapes
    save_note(text="C:\\users\\me)          the same without its closing quote, where it ends the turn's only call

and, for any text, `save_note(arguments={"text": "…"})`. A spelling that could mean two texts is no call. The grammar of
these (`server.chat.arguments.copied_grammar`) is made of the same classes of characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from server.chat.arguments.json import read_inside, read_string
from server.chat.reader import MalformedOutput, Reader, Steps
from server.wire import quoted

CONTROLS = "".join(map(chr, range(32)))
BRACKETS = {"(": ")", "[": "]", "{": "}"}
_BRACKETS = "".join([*BRACKETS, *BRACKETS.values()])
NOT_IN_PATHS = CONTROLS + '<>|"?*'
"""What no path of Windows holds."""
NOT_IN_WORDS = CONTROLS + " ,'\"=<" + _BRACKETS
"""What bare text does not hold outside of brackets; but spaces and commas between words, and apostrophes in them."""
NOT_IN_BRACKETS = CONTROLS + '"<' + _BRACKETS
NOT_IN_QUOTES = CONTROLS + "<"
"""What no string in bare text holds; where it ends, only its quote and backslashes tell."""
ESCAPE_LETTERS = "nrtbf"
ESCAPE_DIGITS = "xu"
"""Letters of escapes that need hexadecimal digits."""
ESCAPED = "\\\"'"
HEX = "0123456789ABCDEFabcdef"

_DRIVE = re.compile(r"([A-Za-z](:(\\)?)?)?")
_WRONG = "the arguments of a call are not written as their format has them"
_AMBIGUOUS = "an argument of a call can be read in two ways"
_NO_LITERAL = "an argument of a call is no literal"


def read_copied(reader: Reader, emit: Callable[[str], None], after: str, end: str) -> Steps[bool]:
    """The value, up to the literal `after`; whether it stood in quotes. `end`: what follows that where this may be the
    turn's only call."""
    while not reader.waiting or reader.buffer[reader.at] in " \t\r\n":  # and no other space: it may be the text's own
        if reader.waiting:
            reader.at += 1
        else:
            yield from reader.more()
    quote = reader.buffer[reader.at]
    if quote not in "\"'":
        emit(quoted((yield from _bare(reader, after))))
    elif (yield from _path_stands(reader)):
        emit(quoted((yield from _path(reader, quote, after, end))))
    else:
        reader.at += 1
        emit('"')
        yield from read_inside(reader, lambda text: emit(quoted(text)[1:-1]), quote, python=True)
        emit('"')
    return quote in "\"'"


def read_wrapped(reader: Reader, emit: Callable[[str], None], name: str) -> Steps[None]:
    """All arguments as a JSON object with this member, a string, and no other."""
    key: list[str] = []
    yield from reader.expect("{", _WRONG)
    yield from reader.skip_space()
    yield from read_string(reader, key.append)
    if "".join(key) != name:
        raise MalformedOutput(_WRONG)
    yield from reader.expect(":", _WRONG)
    yield from reader.skip_space()
    emit(f'{quoted(name)}: "')
    yield from read_string(reader, lambda text: emit(quoted(text)[1:-1]))
    yield from reader.expect("}", _WRONG)
    emit('"')


def _path_stands(reader: Reader) -> Steps[bool]:
    """Whether a path begins behind the quote that stands here; reads nothing."""
    while True:
        seen = _begins_path(reader.buffer[reader.at + 1 : reader.at + 6])
        if seen is not None or reader.ended:
            return bool(seen)
        yield


def _begins_path(text: str) -> bool | None:
    """Whether these are a drive and a backslash that begins no escape; None: more text must tell.

    Raises `MalformedOutput` where it may begin one: in `C:\\new`.
    """
    drive = _DRIVE.match(text)
    if drive is None or drive.end() < min(len(text), 3):
        return False
    kind, digit = text[3:4], text[4:5]
    if not kind or (kind in ESCAPE_DIGITS and not digit):
        return None
    if kind in ESCAPE_LETTERS or (kind in ESCAPE_DIGITS and digit in HEX):
        raise MalformedOutput(_AMBIGUOUS)
    return kind not in ESCAPED + NOT_IN_PATHS


def _path(reader: Reader, quote: str, after: str, end: str) -> Steps[str]:
    """The path whose quote stands here; with the quote, where it has no other."""
    size = 1
    while True:
        at = reader.at + size
        if at == len(reader.buffer):
            yield from reader.more()
        elif reader.buffer[at] in NOT_IN_PATHS + quote:
            break
        else:
            size += 1
    text = reader.buffer[reader.at : at]
    if reader.buffer[at] == quote:
        reader.at = at + 1
        return text[1:]
    # The literals that follow stand in the text as far as a path may hold them.
    closing = after + end
    path = text.removesuffix(re.split(f"[{re.escape(NOT_IN_PATHS)}]", closing)[0])
    while reader.waiting < len(path) + len(closing) and not reader.ended:
        yield
    if not end or path[-1] in " ," or not reader.buffer.startswith(closing, reader.at + len(path)):
        raise MalformedOutput(_AMBIGUOUS)
    reader.at += len(path)
    return path


def _bare(reader: Reader, after: str) -> Steps[str]:
    """Text without quotes around it, up to `after`."""
    closers: list[str] = []
    before = " "
    size = 0
    while True:
        if size == reader.waiting:
            yield from reader.more()
            continue
        char = reader.buffer[reader.at + size]
        if not closers and char == after[0]:
            break
        if not _goes_on(closers, before, char):
            reader.at += size
            yield from reader.not_closed(_NO_LITERAL)
        # A backslash behind a backslash escapes nothing more.
        before = "" if before == char == "\\" else char
        size += 1
    if before in (" ", ","):
        raise MalformedOutput(_NO_LITERAL)
    text = reader.buffer[reader.at : reader.at + size]
    reader.at += size
    return text


def _goes_on(closers: list[str], before: str, char: str) -> bool:
    """Whether bare text may go on by this character; `closers`, of what is open in it, are kept up."""
    if closers and closers[-1] == '"':
        if char == '"' and before != "\\":
            closers.pop()
        return char not in NOT_IN_QUOTES
    if closers and char == closers[-1]:
        closers.pop()
    elif char in BRACKETS or (closers and char == '"'):
        closers.append(BRACKETS.get(char, char))
    elif closers:
        return char not in NOT_IN_BRACKETS
    elif char in " ,'":
        return before not in (" ", ",") or (before, char) == (",", " ")
    else:
        return char not in NOT_IN_WORDS
    return True
