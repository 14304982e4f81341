"""Generated schemas: grammar, validation and jsonschema agree; texts of a grammar are valid."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis_jsonschema import from_schema

from grammars import UnsupportedSchema, compile_schema
from tests.grammars.walks import accepts, compact, matcher, random_text, validates

_NAMES = st.sampled_from(["a", "b", "ab", "ä", 'q"', "c\t"])
_TEXTS = st.sampled_from(["", "a", "ab", "b", "ä", '"', "\\", "\u0001"])
_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, -1.5]), _TEXTS)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3), max_leaves=6
)
_PATTERNS = st.sampled_from(["a", "^a", "b$", "^[ab]*$", "^.?$", '"', "^(?!a)"])


def _keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    small = st.integers(0, 3)
    optional = {
        "type": st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
        | st.lists(st.sampled_from(["null", "integer", "string", "object"]), min_size=1, max_size=2, unique=True),
        "enum": st.lists(_VALUES, min_size=1, max_size=3),
        "const": _VALUES,
        "minimum": st.integers(-2, 2),
        "exclusiveMaximum": st.integers(-2, 3) | st.just(1.5),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "minLength": small,
        "maxLength": small,
        "pattern": _PATTERNS,
        "items": inner,
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "minItems": small,
        "maxItems": small,
        "contains": inner,
        "maxContains": small,
        "uniqueItems": st.booleans(),
        "properties": st.dictionaries(_NAMES, inner, max_size=3),
        "required": st.lists(_NAMES, max_size=2, unique=True),
        "additionalProperties": inner,
        "patternProperties": st.dictionaries(_PATTERNS, inner, max_size=2),
        "propertyNames": st.builds(lambda p: {"pattern": p}, _PATTERNS),
        "minProperties": small,
        "maxProperties": small,
        "dependentRequired": st.dictionaries(_NAMES, st.lists(_NAMES, max_size=2, unique=True), max_size=2),
        "dependentSchemas": st.dictionaries(_NAMES, inner, max_size=1),
        "allOf": st.lists(inner, min_size=1, max_size=2),
        "anyOf": st.lists(inner, min_size=1, max_size=3),
        "oneOf": st.lists(inner, min_size=1, max_size=3),
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "unevaluatedProperties": st.booleans(),
        "unevaluatedItems": st.booleans(),
    }
    return st.lists(st.sampled_from(sorted(optional)), max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: optional[name] for name in names})
    )


_SCHEMAS = st.recursive(st.booleans() | _keywords(st.booleans()), _keywords, max_leaves=4)
_SETTINGS = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def _says(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


@_SETTINGS
@given(_SCHEMAS, st.lists(_VALUES, min_size=4, max_size=8))
def test_grammar_and_validation_agree_with_jsonschema(schema: Any, values: list[Any]) -> None:
    compiled = compile_schema(schema)
    for value in values:
        valid = _says(schema, value)
        assert validates(compiled, value) == valid
        text = compact(value)
        if isinstance(value, (dict, list)) and any(isinstance(v, dict) and len(v) > 1 for v in _all(value)):
            continue  # the order of properties is the grammar's
        (accepted,) = accepts(compiled, value)
        if valid:
            assert accepted, text
        elif not compiled.unchecked:
            assert not accepted, text


def _unique(pairs: list[tuple[str, Any]]) -> Any:
    """The object; no example where a name comes twice, which a grammar cannot exclude."""
    assume(len({name for name, _ in pairs}) == len(pairs))
    return dict(pairs)


def _all(value: Any) -> list[Any]:
    below = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
    return [value] + [found for item in below for found in _all(item)]


@_SETTINGS
@given(_SCHEMAS, st.integers(0, 1000))
def test_texts_of_the_grammar_are_valid(schema: Any, seed: int) -> None:
    compiled = compile_schema(schema)
    assume(compiled.satisfiable)
    text = random_text(matcher(compiled), seed, 40)
    assume(text is not None)
    value = json.loads(str(text), object_pairs_hook=_unique)
    if not compiled.unchecked:
        assert _says(schema, value), text
    assert validates(compiled, value) == _says(schema, value)


@_SETTINGS
@given(st.data())
def test_instances_of_generated_schemas_are_accepted(data: st.DataObject) -> None:
    schema = data.draw(_SCHEMAS)
    try:
        compiled = compile_schema(schema)
    except UnsupportedSchema:
        assume(False)
    assume(compiled.satisfiable)
    try:
        value = data.draw(from_schema(schema))
    except Exception as error:  # what the generator of another project cannot do is not ours to test
        assume("hypothesis" not in type(error).__module__)
        assume(False)
    assume(all(len(v) < 2 for v in _all(value) if isinstance(v, dict)))
    assume(all(abs(v) < 1e308 for v in _all(value) if isinstance(v, float)))
    assert accepts(compiled, value) == [True], compact(value)
