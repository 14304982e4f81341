"""Keywords about the value itself: type, enum, and those of numbers and strings (validation, sections 6.1 to 6.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grammars.automata.formats import BASE64
from grammars.schema.document import Schema
from grammars.schema.forms import TYPES, is_number
from grammars.schema.sets import ANY_VALUE, NO_VALUE, ValueSet
from grammars.sets import numbers as numbersets
from grammars.sets import strings as textsets
from grammars.sets.languages import BOUNDS, is_format, simple_pattern
from grammars.sets.numbers import NumberSet
from grammars.sets.strings import TextSet

if TYPE_CHECKING:
    from grammars.schema.normalize import Normalizer

_ALL_TYPES = frozenset(TYPES)
_LENGTHS = ("minLength", "maxLength")


def types(schema: Schema) -> frozenset[str]:
    """The types that `type` allows."""
    names = schema.node.get("type")
    if names is None:
        return _ALL_TYPES
    if not all(isinstance(name, str) for name in names):
        raise schema.unsupported("type", "holds schemas, as in draft 3 alone")
    found = frozenset((names,)) if isinstance(names, str) else frozenset(names)
    return _ALL_TYPES if "any" in found else found


# enum


def enumeration(normal: Normalizer, values: list[Any]) -> ValueSet:
    out = NO_VALUE._replace(
        string=textsets.finite(tuple(v for v in values if isinstance(v, str))),
        number=numbersets.finite(tuple(v for v in values if is_number(v))),
    )
    for value in values:
        if not isinstance(value, str) and not is_number(value):
            out = normal.algebra.union(out, normal.algebra.constant(value))
    return out


def not_enumeration(normal: Normalizer, schema: Schema) -> ValueSet:
    values, path, intersect = schema.node["enum"], schema.path, normal.algebra.intersect
    plain = enumeration(normal, [v for v in values if not isinstance(v, (list, dict))])
    out = intersect(ANY_VALUE, normal.algebra.complement(plain), path, "enum")
    for value in values:
        if isinstance(value, (list, dict)):
            out = intersect(out, normal.value_set(normal.terms.const(value, False)), path, "enum")
    return out


# Numbers


def numbers(normal: Normalizer, schema: Schema, allowed: frozenset[str]) -> NumberSet:
    """The numbers within the bounds, integers alone where `number` is not among the allowed types."""
    node = schema.node
    low, high, low_open, high_open = node.get("minimum"), node.get("maximum"), False, False
    below, above = node.get("exclusiveMaximum"), node.get("exclusiveMinimum")
    if above is True:
        low_open = low is not None
    elif above is not None and above is not False and (low is None or above >= low):
        low, low_open = above, True
    if below is True:
        high_open = high is not None
    elif below is not None and below is not False and (high is None or below <= high):
        high, high_open = below, True
    normal.unchecked.record_places(schema.path, BOUNDS, node)
    divisors = (node["multipleOf"],) if "multipleOf" in node else ()
    return numbersets.span("number" not in allowed, low, low_open, high, high_open, divisors)


def not_numbers(normal: Normalizer, schema: Schema, allowed: frozenset[str]) -> NumberSet:
    within = numbers(normal, schema, frozenset(("number",)))
    if "number" not in allowed:
        within = numbersets.meet(within, numbersets.INTEGER) if "integer" in allowed else numbersets.NONE
    return numbersets.negate(within)


# Strings


def strings(normal: Normalizer, schema: Schema) -> TextSet:
    node, intersect = schema.node, normal.texts.intersect
    most = node.get("maxLength")
    normal.unchecked.record_places(schema.path, _LENGTHS, node)
    out = textsets.length(int(node.get("minLength", 0)), None if most is None else int(most))
    if "pattern" in node:
        out = intersect(out, pattern(normal, schema, "pattern", node["pattern"]))
    if normal.assert_formats and "format" in node and is_format(node["format"]):
        atom = ("format", node["format"])
        normal.unchecked.record_origin(atom, schema.path, "format")
        out = intersect(out, atom)
    if "contentEncoding" in node and node["contentEncoding"] == "base64" and normal.assert_formats:
        out = intersect(out, pattern(normal, schema, "contentEncoding", BASE64))
    return out


def not_strings(normal: Normalizer, schema: Schema, allowed: frozenset[str]) -> TextSet:
    return normal.texts.complement(strings(normal, schema) if "string" in allowed else textsets.NONE)


def pattern(normal: Normalizer, schema: Schema, keyword: str, text: str) -> TextSet:
    """The set of a pattern that stands in a keyword."""
    known = simple_pattern(text)
    if known is not None:
        return known
    atom = ("pattern", text)
    normal.unchecked.record_origin(atom, schema.path, keyword)
    return atom
