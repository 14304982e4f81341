"""Writes calls the way a format has them: for a history whose template cannot, and to show a model an example."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from server.chat.format import ARGUMENTS, ID, Calls, Json, Literals, Nested, Slot, Tagged
from server.chat.text import Text, control, join


def spell(calls: Calls, given: Sequence[tuple[str, str, Mapping[str, Any]]]) -> Text:
    """The calls (name, id, arguments) as a model of the format writes them; literals are control text."""
    written = [join(_part(calls, part, call) for part in calls.call) for call in given]
    return join([control(calls.begin), control(calls.between).join(written), control(calls.end)])


def _part(calls: Calls, part: str | Slot, call: tuple[str, str, Mapping[str, Any]]) -> Text:
    name, id, arguments = call
    if part is ARGUMENTS:
        return spell_arguments(calls, arguments)
    if isinstance(part, Slot):
        return Text(id if part is ID else name)
    return control(part)


def spell_arguments(calls: Calls, arguments: Mapping[str, Any]) -> Text:
    match calls.syntax:
        case Json():
            return Text(to_json(arguments))
        case Tagged() as tags:
            return join(_element(tags, key, value) for key, value in arguments.items())
        case Nested() as nested:
            return _nested(nested, arguments)
        case Literals() as notation:
            pairs = [join([Text(key), notation.pair, _literal(notation, value)]) for key, value in arguments.items()]
            return join([notation.open, Text(notation.comma).join(pairs), notation.close])


def _element(tags: Tagged, key: str, value: Any) -> Text:
    text = value if isinstance(value, str) else to_json(value)
    named = tags.after_key(json_type(value))
    return join([control(tags.open), Text(key), control(named), Text(text), control(tags.close)])


def _nested(syntax: Nested, value: Any) -> Text:
    match value:
        case Mapping():
            elements = [(str(key), member) for key, member in value.items() if member is not None]
        case list() | tuple():
            elements = [(syntax.item, item) for item in value]
        case None:
            return Text("")
        case _:
            return Text(value if isinstance(value, str) else to_json(value))
    mark = control(syntax.mark)
    return join(
        join(
            [
                mark,
                control("<"),
                Text(key),
                control(">"),
                _nested(syntax, member),
                mark,
                control("</"),
                Text(key),
                control(">"),
            ]
        )
        for key, member in elements
    )


def _literal(notation: Literals, value: Any) -> Text:
    match value:
        case str():
            if notation.quote == '"':
                return Text(to_json(value))
            return join([control(notation.quote), Text(value), control(notation.quote)])
        case None | bool():
            return Text(notation.words[(None, True, False).index(value)])
        case Mapping():
            keys = value if notation.bare_keys else map(to_json, value)
            pairs = [
                join([Text(key), notation.colon, _literal(notation, value[name])])
                for key, name in zip(keys, value, strict=True)
            ]
            return join(["{", Text(notation.comma).join(pairs), "}"])
        case list() | tuple():
            return join(["[", Text(notation.comma).join([_literal(notation, item) for item in value]), "]"])
    return Text(to_json(value))


def json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
    return "array"


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
