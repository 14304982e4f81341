"""The one argument of a tool that has no other and takes any text: small models copy it into the call as it stands.

What may stand there beside a string literal, and is kept character by character:

    save_note(text=New York, see f(x))    bare text, in which brackets match: lists and objects too
    save_note(text="C:\\users\\me\\")        a path with its drive, whose backslashes are no escapes
    save_note(text="C:\\users\\me)          the same without its closing quote, where it ends the turn's only call

and, for any text, `save_note(arguments={"text": "…"})`. Text that could be read in two ways is no call: a literal may
not begin by what could be a path or an escape (`C:\\new`). Reader and grammar share their classes of characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from string import ascii_letters
from typing import TYPE_CHECKING, Any

from server.chat.arguments.json import read_inside, read_string, to_json
from server.chat.arguments.syntax import MALFORMED, ArgumentGrammar, compile_schema
from server.chat.gbnf import any_of, choice, others_than, quote, sequence
from server.chat.reader import MalformedOutput, Reader, Steps
from server.wire import quoted

if TYPE_CHECKING:
    from grammars import Compiled
    from server.chat.arguments.literals import LiteralArguments

_CONTROLS = "".join(map(chr, range(32)))
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_ALL_BRACKETS = "".join([*_BRACKETS, *_BRACKETS.values()])
_NOT_IN_PATHS = _CONTROLS + '<>|"?*'
"""Characters that no path of Windows holds."""
_NOT_IN_WORDS = _CONTROLS + " ,'\"=<" + _ALL_BRACKETS
"""Characters that bare text does not hold outside of brackets; but spaces and commas between words, and apostrophes in
them."""
_NOT_IN_BRACKETS = _CONTROLS + '"<' + _ALL_BRACKETS
_NOT_IN_QUOTES = _CONTROLS + "<"
"""Characters that no string in bare text holds; where it ends, only its quote and backslashes tell."""
_ESCAPE_LETTERS = "nrtbf"
_ESCAPE_DIGITS = "xu"
"""Letters of escapes that need hexadecimal digits."""
_ESCAPED = "\\\"'"
_HEX = "0123456789ABCDEFabcdef"
_STOPS = _CONTROLS + '\\"'
"""Characters that end a string literal or have a meaning in it, and those that never stand there."""
_BLUR = " ,"
"""Characters that a path without its quote may not end in."""

_DRIVE = re.compile(r"([A-Za-z](:(\\)?)?)?")
_AMBIGUOUS = "an argument of a call can be read in two ways"
_NO_LITERAL = "an argument of a call is no literal"


def read_copied(reader: Reader, emit: Callable[[str], None], after: str, end: str) -> Steps[bool]:
    """The value, up to the literal `after`. Returns true where it stood in quotes.

    `end`: the literal behind `after` where this may be the turn's only call.
    """
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
    yield from reader.expect("{", MALFORMED)
    yield from reader.skip_space()
    yield from read_string(reader, key.append)
    if "".join(key) != name:
        raise MalformedOutput(MALFORMED)
    yield from reader.expect(":", MALFORMED)
    yield from reader.skip_space()
    emit(f'{quoted(name)}: "')
    yield from read_string(reader, lambda text: emit(quoted(text)[1:-1]))
    yield from reader.expect("}", MALFORMED)
    emit('"')


def _path_stands(reader: Reader) -> Steps[bool]:
    """True where a path begins behind the quote that stands here; reads nothing."""
    while True:
        seen = _begins_path(reader.buffer[reader.at + 1 : reader.at + 6])
        if seen is not None or reader.ended:
            return bool(seen)
        yield


def _begins_path(text: str) -> bool | None:
    """True for a drive and a backslash that begins no escape; None: more text must tell.

    Raises `MalformedOutput` where it may begin one: in `C:\\new`.
    """
    drive = _DRIVE.match(text)
    if drive is None or drive.end() < min(len(text), 3):
        return False
    kind, digit = text[3:4], text[4:5]
    if not kind or (kind in _ESCAPE_DIGITS and not digit):
        return None
    if kind in _ESCAPE_LETTERS or (kind in _ESCAPE_DIGITS and digit in _HEX):
        raise MalformedOutput(_AMBIGUOUS)
    return kind not in _ESCAPED + _NOT_IN_PATHS


def _path(reader: Reader, quote: str, after: str, end: str) -> Steps[str]:
    """The path whose quote stands here; with the quote, where it has no other."""
    size = 1
    while True:
        at = reader.at + size
        if at == len(reader.buffer):
            yield from reader.more()
        elif reader.buffer[at] in _NOT_IN_PATHS + quote:
            break
        else:
            size += 1
    text = reader.buffer[reader.at : at]
    if reader.buffer[at] == quote:
        reader.at = at + 1
        return text[1:]
    # The literals that follow stand in the text as far as a path may hold them.
    closing = after + end
    path = text.removesuffix(re.split(f"[{re.escape(_NOT_IN_PATHS)}]", closing)[0])
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
    """True where bare text may go on by this character; `closers`, of the brackets open in it, are kept up."""
    if closers and closers[-1] == '"':
        if char == '"' and before != "\\":
            closers.pop()
        return char not in _NOT_IN_QUOTES
    if closers and char == closers[-1]:
        closers.pop()
    elif char in _BRACKETS or (closers and char == '"'):
        closers.append(_BRACKETS.get(char, char))
    elif closers:
        return char not in _NOT_IN_BRACKETS
    elif char in " ,'":
        return before not in (" ", ",") or (before, char) == (",", " ")
    else:
        return char not in _NOT_IN_WORDS
    return True


def copied_grammar(schema: Mapping[str, Any], syntax: LiteralArguments, name: str) -> ArgumentGrammar:
    """The grammar for a tool whose only argument is called `name`: a string literal of the notation, a path with its
    drive, bare text, or the arguments wrapped in an object. Raises what `compile_schema` raises."""
    whole = compile_schema(schema, syntax.notation)
    others = _others(schema, syntax, name)
    string = compile_schema({"type": "string"})

    def rules(prefix: str) -> str:
        own = _rules(prefix, syntax, name, others=others is not None)
        written = [f"{prefix}{rule} ::= {body}" for rule, body in own.items()]
        written.append(string.rules(f"{prefix}json-"))
        if others is not None:
            written.append(others.rules(f"{prefix}others-"))
        return "\n".join(rule.rstrip("\n") for rule in written)

    return ArgumentGrammar(rules, whole.satisfiable, not whole.unchecked, unclosed=True)


def _rules(p: str, syntax: LiteralArguments, name: str, *, others: bool) -> dict[str, str]:
    """Bodies of the rules by their names; `p` is the prefix of every name, `others`: more arguments may follow."""
    key = quote(f"{name}{syntax.pair}")
    wrapper = quote(f"{syntax.wrapper(name)}{syntax.pair}{{{to_json(name)}:")
    rest = f"({quote(syntax.comma)} {p}others-root)?" if others else ""
    end = quote(syntax.quote)
    char, escaped = others_than(_STOPS), f"{p}escape {p}literal"
    path, last = others_than(_NOT_IN_PATHS), others_than(_NOT_IN_PATHS + _BLUR)
    word, apostrophe = others_than(_NOT_IN_WORDS), quote("'")
    inner, within = others_than(_NOT_IN_BRACKETS), others_than(_NOT_IN_QUOTES + '\\"')
    return {
        "root": choice([sequence([wrapper, quote(" ") + "?", f"{p}json-root", quote("}")]), f"{key} {p}value"]),
        "unclosed": sequence([key, end, "[A-Za-z]", quote(":\\"), f"{p}kind", f"{path}*", last]),
        "value": choice([sequence([end, f"{p}first", rest]), f"{p}bare"]),
        # Literals and paths: the first characters tell which.
        "first": f"{end} | {escaped} | [A-Za-z] {p}second | {others_than(_STOPS + ascii_letters)} {p}literal",
        "second": f'{end} | {escaped} | ":" {p}third | {others_than(_STOPS + ":")} {p}literal',
        "third": f"{end} | {quote(chr(92))} {p}fourth | {char} {p}literal",
        "fourth": f"{any_of(_ESCAPED)} {p}literal | {p}kind {p}path",
        "literal": f"{end} | {escaped} | {char} {p}literal",
        "escape": f'{quote(chr(92))} ({any_of(_ESCAPED + _ESCAPE_LETTERS)} | "x" {any_of(_HEX)} {any_of(_HEX)})',
        "kind": f"{any_of(_ESCAPE_DIGITS)} {others_than(_NOT_IN_PATHS + _BLUR + _HEX)}"
        f" | {others_than(_NOT_IN_PATHS + _BLUR + _ESCAPED + _ESCAPE_LETTERS + _ESCAPE_DIGITS)}",
        "path": f"{end} | {path} {p}path",
        # Bare text.
        "bare": f'{p}word ((" " | "," " "?) {p}word)*',
        "word": f"({p}group | {word}) ({apostrophe} | {p}group | {word})*",
        "group": " | ".join(f"{quote(open)} {p}inner* {quote(close)}" for open, close in _BRACKETS.items()),
        "inner": f"{p}group | {end} {p}quoted* {end} | {inner}",
        "quoted": f"{quote(chr(92))} {others_than(_NOT_IN_QUOTES)} | {within}",
    }


def _others(schema: Mapping[str, Any], syntax: LiteralArguments, name: str) -> Compiled | None:
    """The arguments that the schema does not declare, at least one; None where there are none."""
    if schema.get("additionalProperties", True) is False:
        return None
    rest = {**schema, "properties": {name: False}, "required": [], "minProperties": 1}
    found = compile_schema(rest, syntax.notation)
    return found if found.satisfiable else None
