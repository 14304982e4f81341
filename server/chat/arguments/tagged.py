"""Arguments as elements, one each: strings raw, everything else as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from server.chat.arguments.json import NOTHING, value
from server.chat.arguments.render import json_type
from server.chat.formats.spec import ANY_TYPE, TaggedArguments, Types
from server.chat.reader import MalformedOutput, OutputEnded, Reader, Steps, tokens
from server.wire import quoted

_WRONG = "the arguments of a call are not written as their format has them"


def read_elements(
    reader: Reader, emit: Callable[[str], None], tags: TaggedArguments, types: Types, after: str
) -> Steps[None]:
    """One element an argument, up to and with the literal that follows them all."""
    seen: set[str] = set()
    emit("{")
    while True:
        choice = yield from reader.choose([tags.open, after])
        if choice is None:
            yield from reader.wrong(_WRONG)
        if choice == 1:
            break
        key, allowed = yield from _key(reader, tags, types)
        if key in seen:
            raise MalformedOutput("a call names an argument twice")
        emit(f"{', ' if seen else ''}{quoted(key)}: ")
        seen.add(key)
        yield from _value(reader, emit, tags.close, allowed)
    emit("}")


def _key(reader: Reader, tags: TaggedArguments, types: Types) -> Steps[tuple[str, Sequence[str]]]:
    """An argument's name and the types its value may have."""
    kinds = dict(tags.typed) or {"": tags.named}
    key = (yield from reader.text_until(tokens(next(iter(kinds.values())))[0])).strip()
    choice = yield from reader.choose(["".join(tokens(named)[1:]) for named in kinds.values()])
    if choice is None:
        yield from reader.wrong(_WRONG)
    allowed: Sequence[str] = types.get(key, types.get(None, ANY_TYPE))
    if tags.typed:
        allowed = ("string",) if list(kinds)[choice or 0] == "string" else tuple(set(ANY_TYPE) - {"string"})
    if tags.named.endswith("\n"):
        yield from reader.skip_newline()
    return key, allowed


def _value(reader: Reader, emit: Callable[[str], None], close: str, types: Sequence[str]) -> Steps[None]:
    """One value up to its closing marker: text as it stands, everything else as JSON."""
    markers = [close.rstrip(), close.strip()]
    if types == ("string",):
        emit('"')
        if (yield from reader.until(markers, lambda text: emit(quoted(text)[1:-1]))) is None:
            raise OutputEnded
        emit('"')
        return
    read: list[str] = []
    if (yield from reader.until(markers, read.append)) is None:
        raise OutputEnded
    text = "".join(read)
    found = value(text)
    if found is not NOTHING and json_type(found) in types and json_type(found) != "string":
        emit(text.strip())
    elif "string" in types:
        emit(quoted(text))
    elif found is not NOTHING:
        emit(text.strip())  # of a type that its schema refuses, and will say so
    else:
        raise MalformedOutput("an argument of a call is not JSON")
