"""The form of every keyword that holds no schemas, draft by draft, as the metaschemas have it.

A schema that names a draft in `$schema` is held to that draft, one that names none to 2020-12. Where we are wider or
narrower than the metaschema, README.md says why (section "Form").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from grammars.automata.regex import InvalidPattern, UnsupportedPattern, parse_pattern

DRAFTS = {
    "http://json-schema.org/draft-03/schema": 3,
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
}
LATEST = 2020
TYPES = ("null", "boolean", "number", "integer", "string", "array", "object")

_SINCE = {
    **dict.fromkeys(("$id", "const", "contains", "examples", "propertyNames"), 6),
    **dict.fromkeys(("$comment", "contentEncoding", "contentMediaType", "readOnly", "writeOnly"), 7),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(
        ("$anchor", "$recursiveAnchor", "$recursiveRef", "$vocabulary", "contentSchema", "deprecated"), 2019
    ),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "maxContains", "minContains"), 2019),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), 2019),
    **dict.fromkeys(("prefixItems", "$dynamicAnchor", "$dynamicRef"), 2020),
}
"""The first draft that knows a keyword, where that is not the first of all."""
UNKNOWN = {draft: frozenset(key for key, first in _SINCE.items() if draft < first) for draft in DRAFTS.values()}
"""What means nothing in a draft. `$defs` is read in every one: nobody writes it for anything else."""
NEWEST = frozenset(key for key, first in _SINCE.items() if first == LATEST)
"""What 2020-12 alone knows."""

BESIDE = {"exclusiveMaximum": "maximum", "exclusiveMinimum": "minimum"}
"""The bound that these speak of where they are booleans, as drafts 3 and 4 have them."""

Form = Callable[[Any], str | None]
"""What is wrong with a keyword's value, if anything."""


def is_number(value: Any) -> bool:
    """Whether this is a JSON number."""
    return isinstance(value, (int, Decimal, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return is_number(value) and value >= 0 and value == int(value)


def are_names(value: Any) -> bool:
    """Whether this is an array of distinct strings."""
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _must(be: str, holds: Callable[[Any], bool]) -> Form:
    return lambda value: None if holds(value) else f"must be {be}"


_string = _must("a string", lambda value: isinstance(value, str))
_boolean = _must("a boolean", lambda value: isinstance(value, bool))
_array = _must("an array", lambda value: isinstance(value, list))
_count = _must("a non-negative integer", _is_count)
_number = _must("a number", is_number)
_number_or_boolean = _must("a number or a boolean", lambda value: isinstance(value, bool) or is_number(value))
_names = _must("an array of distinct strings", are_names)
_members = _must(
    "an object of arrays of distinct strings",
    lambda value: isinstance(value, dict) and all(map(are_names, value.values())),
)
_vocabulary = _must(
    "an object of booleans",
    lambda value: isinstance(value, dict) and all(isinstance(each, bool) for each in value.values()),
)


def _matching(be: str, pattern: str) -> Form:
    compiled = re.compile(pattern)
    return _must(be, lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None)


_anchor = _matching("a name: a letter or _, then letters, digits, -, _ and .", r"[A-Za-z_][-A-Za-z0-9._]*")
_anchor_2019 = _matching("a name: a letter, then letters, digits, -, _, . and :", r"[A-Za-z][-A-Za-z0-9.:_]*")
_identifier = _matching("a URI reference without a fragment", r"[^#]*#?")


def _divisor(value: Any) -> str | None:
    return _number(value) or (None if value > 0 else "must be positive")


def pattern(value: Any) -> str | None:
    """What is wrong with a regular expression. One that we cannot express is well-formed."""
    if not isinstance(value, str):
        return "must be a string"
    try:
        parse_pattern(value)
    except InvalidPattern as error:
        return str(error)
    except UnsupportedPattern:
        pass
    return None


def _type(*more: str) -> Form:
    known = frozenset((*TYPES, *more))

    def form(value: Any) -> str | None:
        names = value if isinstance(value, list) else [value]
        if not all(isinstance(name, str) for name in names) or not names:
            return "must be a type name or a list of them"
        if not known.issuperset(names):
            return "names an unknown type"
        return "names a type twice" if len(set(names)) < len(names) else None

    return form


def _type_3(value: Any) -> str | None:
    """Draft 3 may write schemas in place of names: well-formed, and not read (`UNREAD`)."""
    if not isinstance(value, list):
        return _type("any")(value)
    names = [name for name in value if not isinstance(name, dict)]
    return _type("any")(names) if names or not value else None


def _values(value: Any) -> str | None:
    return _array(value) or (None if value else "must hold a value")


_FORMS: Mapping[str, Form] = {
    **dict.fromkeys(("$comment", "$dynamicRef", "$recursiveRef", "$ref", "$schema", "contentEncoding"), _string),
    **dict.fromkeys(("contentMediaType", "description", "format", "title"), _string),
    **dict.fromkeys(("deprecated", "readOnly", "uniqueItems", "writeOnly"), _boolean),
    **dict.fromkeys(("maxContains", "maxItems", "maxLength", "maxProperties"), _count),
    **dict.fromkeys(("minContains", "minItems", "minLength", "minProperties"), _count),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"), _number),
    **dict.fromkeys(("$anchor", "$dynamicAnchor", "$recursiveAnchor"), _anchor),
    **dict.fromkeys(("enum", "examples"), _array),
    "$id": _identifier,
    "$vocabulary": _vocabulary,
    "dependentRequired": _members,
    "multipleOf": _divisor,
    "pattern": pattern,
    "required": _names,
    "type": _type(),
}
_OLD_BOUNDS = dict.fromkeys(BESIDE, _number_or_boolean)
_OLDER: Mapping[int, Mapping[str, Form]] = {
    3: {**_OLD_BOUNDS, "id": _string, "enum": _values, "required": _boolean, "type": _type_3},
    4: {**_OLD_BOUNDS, "id": _string, "enum": _values},
    6: {"$id": _string},
    7: {"$id": _string},
    2019: {"$anchor": _anchor_2019, "$recursiveAnchor": _boolean},
    2020: {},
}
"""What a draft has otherwise than 2020-12."""
_TABLES = {
    draft: {key: form for key, form in {**_FORMS, **older}.items() if key not in UNKNOWN[draft]}
    for draft, older in _OLDER.items()
}
_UNNAMED = {**_TABLES[LATEST], **_OLD_BOUNDS}

UNREAD = frozenset(("disallow", "divisibleBy", "extends"))
"""What draft 3 alone knows, and nothing here reads."""


def forms(draft: int, named: bool) -> Mapping[str, Form]:
    """The forms of a draft's keywords. `named`: `$schema` says that it is this draft."""
    return _TABLES[draft] if named or draft != LATEST else _UNNAMED
