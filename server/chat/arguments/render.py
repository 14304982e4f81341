"""Writes calls the way a format has them: for a history whose template cannot, and to show a model an example."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from server.chat.formats.spec import (
    ARGUMENTS,
    ID,
    CallField,
    JsonArguments,
    LiteralArguments,
    NestedArguments,
    TaggedArguments,
    ToolCallFormat,
)
from server.chat.template.provenance import ProvenanceStr, from_template, join


def render_tool_calls(calls: ToolCallFormat, given: Sequence[tuple[str, str, Mapping[str, Any]]]) -> ProvenanceStr:
    """The calls (name, id, arguments) as a model of the format writes them; literals are control text."""
    written = [join(_part(calls, part, call) for part in calls.call) for call in given]
    return join([from_template(calls.begin), from_template(calls.between).join(written), from_template(calls.end)])


def _part(calls: ToolCallFormat, part: str | CallField, call: tuple[str, str, Mapping[str, Any]]) -> ProvenanceStr:
    name, id, arguments = call
    if part is ARGUMENTS:
        return render_arguments(calls, arguments)
    if isinstance(part, CallField):
        return ProvenanceStr(id if part is ID else name)
    return from_template(part)


def render_arguments(calls: ToolCallFormat, arguments: Mapping[str, Any]) -> ProvenanceStr:
    match calls.syntax:
        case JsonArguments():
            return ProvenanceStr(to_json(arguments))
        case TaggedArguments() as tags:
            return join(_element(tags, key, value) for key, value in arguments.items())
        case NestedArguments() as nested:
            return _nested(nested, arguments)
        case LiteralArguments() as notation:
            pairs = [
                join([ProvenanceStr(key), notation.pair, _literal(notation, value)]) for key, value in arguments.items()
            ]
            return join([notation.open, ProvenanceStr(notation.comma).join(pairs), notation.close])


def _element(tags: TaggedArguments, key: str, value: Any) -> ProvenanceStr:
    text = value if isinstance(value, str) else to_json(value)
    named = tags.after_key(json_type(value))
    return join(
        [
            from_template(tags.open),
            ProvenanceStr(key),
            from_template(named),
            ProvenanceStr(text),
            from_template(tags.close),
        ]
    )


def _nested(syntax: NestedArguments, value: Any) -> ProvenanceStr:
    match value:
        case Mapping():
            elements = [(str(key), member) for key, member in value.items() if member is not None]
        case list() | tuple():
            elements = [(syntax.item, item) for item in value]
        case None:
            return ProvenanceStr("")
        case _:
            return ProvenanceStr(value if isinstance(value, str) else to_json(value))
    mark = from_template(syntax.mark)
    return join(
        join(
            [
                mark,
                from_template("<"),
                ProvenanceStr(key),
                from_template(">"),
                _nested(syntax, member),
                mark,
                from_template("</"),
                ProvenanceStr(key),
                from_template(">"),
            ]
        )
        for key, member in elements
    )


def _literal(notation: LiteralArguments, value: Any) -> ProvenanceStr:
    match value:
        case str():
            if notation.quote == '"':
                return ProvenanceStr(to_json(value))
            return join([from_template(notation.quote), ProvenanceStr(value), from_template(notation.quote)])
        case None | bool():
            return ProvenanceStr(notation.words[(None, True, False).index(value)])
        case Mapping():
            keys = value if notation.bare_keys else map(to_json, value)
            pairs = [
                join([ProvenanceStr(key), notation.colon, _literal(notation, value[name])])
                for key, name in zip(keys, value, strict=True)
            ]
            return join(["{", ProvenanceStr(notation.comma).join(pairs), "}"])
        case list() | tuple():
            return join(["[", ProvenanceStr(notation.comma).join([_literal(notation, item) for item in value]), "]"])
    return ProvenanceStr(to_json(value))


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
