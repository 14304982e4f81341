"""The form of schemas against the metaschemas, by `jsonschema`: where we differ is listed here and in docs/grammars.md.

`benchmarks/forms.py` holds the same classes against MaskBench and the JSON Schema Test Suite.
"""

from __future__ import annotations

import gzip
import json
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from forms import CLASSES, difference
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

from grammars import InvalidInstance, InvalidSchema, UnsupportedSchema, check_schema, compile_schema
from tests.grammars.walks import accepts

_URIS = {
    None: None,
    **{draft: f"http://json-schema.org/draft-0{draft}/schema#" for draft in (4, 6, 7)},
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
_KEYWORDS = sorted(
    {
        key
        for uri in REGISTRY
        if isinstance(REGISTRY[uri].contents, dict)
        for key in REGISTRY[uri].contents.get("properties", {})
    }
    - {"$schema"}
)
_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 1.5, 2.0),
    *("", "a", "#a", "a#b", "(", "string", "any", r"\p{L}", "(?<=a+)b"),
    *([], [1], ["a"], ["a", "a"], ["string"], ["string", "string"], ["string", 1], [True], [{}], [3], [{"type": 3}]),
    *({}, {"a": 1}, {"a": True}, {"a": {}}, {"a": ["b"]}, {"a": ["b", "b"]}, {"a": []}, {"a": "b"}, {"type": 3}),
    *({"(": {}}, {"a": {"type": 3}}),
]
_COMBINED: list[dict[str, Any]] = [
    {"minimum": 1, "exclusiveMinimum": True},
    {"maximum": 1, "exclusiveMaximum": False},
    {"minimum": 1, "exclusiveMaximum": True},
    {"items": [{}], "additionalItems": 3},
    {"items": {}, "additionalItems": 3},
    {"items": [{}], "prefixItems": [{}]},
    {"items": [{}], "$defs": {"a": {"$dynamicAnchor": "a"}}},
    {"properties": {"a": {"type": "string", "required": True}}},
    {"properties": {"a": True}, "required": ["a", "a"]},
    {"$ref": "#/a", "a": {"type": 3}},
    {"$ref": "#/a", "a": {"type": "string"}},
    {"$ref": "https://example.org/unknown#/a"},
]


def test_every_difference_from_the_metaschemas_is_of_a_listed_class() -> None:
    met: Counter[str] = Counter()
    unlisted = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python's regular expressions
        for draft, uri in _URIS.items():
            for schema in [*({key: value} for key in _KEYWORDS for value in _VALUES), *_COMBINED]:
                named = schema if uri is None or "$schema" in schema else {"$schema": uri, **schema}
                found = difference(named)
                if found is not None and found not in CLASSES:
                    unlisted.append((draft, schema, found))
                elif found is not None:
                    met[found] += 1
    assert not unlisted
    assert met.keys() == CLASSES.keys()  # none is listed that does not occur


def test_the_suites_schemas_differ_in_listed_classes_alone() -> None:
    suite = json.loads(gzip.decompress((Path(__file__).parent / "data/json-schema-test-suite.json.gz").read_bytes()))
    schemas = [group["schema"] for file in suite["tests"].values() for group in file]
    assert len(schemas) > 400
    assert {difference(schema) for schema in schemas} <= {None, "pattern", "reference"}


def test_the_docs_list_every_class() -> None:
    text = (Path(__file__).parents[2] / "docs/grammars.md").read_text()
    for what, verdict in CLASSES.values():
        assert f"| {what} | {verdict} |" in text


DRAFT_3 = "http://json-schema.org/draft-03/schema#"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
LATEST = "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize(
    ("schema", "path", "keyword"),
    [
        ({"properties": {"a": {"required": True}}}, "/properties/a", "required"),
        ({"required": ["a", "a"]}, "", "required"),
        ({"properties": {"a": {"exclusiveMinimum": True}}}, "/properties/a", "exclusiveMinimum"),
        ({"$schema": DRAFT_4, "exclusiveMaximum": False}, "", "exclusiveMaximum"),
        ({"$schema": LATEST, "minimum": 1, "exclusiveMinimum": True}, "", "exclusiveMinimum"),
        ({"properties": {"a/b": {"items": []}}}, "/properties/a~1b", "items"),
        ({"$schema": LATEST, "items": [{}]}, "", "items"),
        ({"$defs": {"a": {"prefixItems": [{}]}}, "items": [{}]}, "", "items"),
        ({"items": [{}], "additionalItems": 3}, "", "additionalItems"),
        ({"prefixItems": []}, "", "prefixItems"),
        ({"$schema": DRAFT_4, "enum": []}, "", "enum"),
        ({"type": ["string", "string"]}, "", "type"),
        ({"not": {"type": "any"}}, "/not", "type"),
        ({"dependentRequired": {"a": ["b", "b"]}}, "", "dependentRequired"),
        ({"dependencies": {"a": "b"}}, "", "dependencies"),
        ({"title": 3}, "", "title"),
        ({"description": []}, "", "description"),
        ({"$comment": {}}, "", "$comment"),
        ({"deprecated": "yes"}, "", "deprecated"),
        ({"readOnly": 0}, "", "readOnly"),
        ({"examples": "a"}, "", "examples"),
        ({"contentMediaType": 3}, "", "contentMediaType"),
        ({"$id": "https://example.org/a#b"}, "", "$id"),
        ({"$anchor": "a b"}, "", "$anchor"),
        ({"$vocabulary": {"https://example.org/": "yes"}}, "", "$vocabulary"),
        ({"$schema": 3}, "", "$schema"),
        ({"$defs": {"unused": {"pattern": "("}}}, "/$defs/unused", "pattern"),
        ({"$defs": {"unused": {"patternProperties": {"(": {}}}}}, "/$defs/unused", "patternProperties"),
        ({"$defs": {"unused": {"$ref": "#/$defs/nowhere"}}}, "/$defs/unused", "$ref"),
        ({"$defs": {"unused": {"$ref": "#nowhere"}}}, "/$defs/unused", "$ref"),
    ],
)
def test_what_is_malformed_is_named_compiled_or_not(schema: dict[str, Any], path: str, keyword: str) -> None:
    for work in (check_schema, compile_schema):
        with pytest.raises(InvalidSchema) as error:
            work(schema)
        assert (error.value.path, error.value.keyword) == (path, keyword)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, [2, 3], [1, 0]),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": False}, [1, 2], [0]),
        ({"type": "integer", "maximum": 5, "exclusiveMaximum": True}, [4], [5, 6]),
        ({"$schema": DRAFT_4, "type": "integer", "minimum": 1, "exclusiveMinimum": True}, [2], [1]),
        ({"$schema": DRAFT_4, "type": "integer", "exclusiveMinimum": 1}, [2], [1]),
        ({"$schema": DRAFT_4, "type": "array", "items": {"not": True}}, [[]], [[1]]),
        ({"type": "array", "items": [{"type": "integer"}], "additionalItems": False}, [[], [1]], [["a"], [1, 2]]),
        ({"type": "array", "items": [{"type": "null"}], "additionalItems": {"const": 1}}, [[None, 1]], [[None, 2]]),
        ({"properties": {"a": {"items": [True, {"enum": ["x"]}]}}}, [{"a": [1, "x", 2]}], [{"a": [1, "y"]}]),
        ({"type": "array", "items": [True], "unevaluatedItems": False}, [[], [1]], [[1, 2]]),
        ({"additionalItems": 3, "type": "array", "items": {"type": "integer"}}, [[1, 2]], [["a"]]),
        ({"$schema": DRAFT_3, "properties": {"a": {"type": "any", "required": True}}}, [{"a": 1}], [{}]),
    ],
)
def test_older_spellings_mean_what_they_meant(schema: dict[str, Any], valid: list[Any], invalid: list[Any]) -> None:
    compiled = compile_schema(schema)
    assert accepts(compiled, *valid, *invalid) == [True] * len(valid) + [False] * len(invalid)
    for value in valid:
        compiled.validate(value)
    for value in invalid:
        with pytest.raises(InvalidInstance):
            compiled.validate(value)


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"extends": {"type": "string"}}, "extends"),
        ({"disallow": "string"}, "disallow"),
        ({"divisibleBy": 3}, "divisibleBy"),
        ({"type": ["string", {"type": "null"}]}, "type"),
    ],
)
def test_what_draft_3_alone_knows_is_refused(schema: dict[str, Any], keyword: str) -> None:
    named = {"$schema": DRAFT_3, **schema}
    check_schema(named)
    with pytest.raises(UnsupportedSchema) as error:
        compile_schema(named)
    assert error.value.keyword == keyword


def test_what_cannot_be_expressed_is_well_formed() -> None:
    for schema in (
        {"pattern": r"(a)\1"},
        {"$ref": "https://example.org/a"},
        {"properties": {"a": False}, "required": ["a"]},
    ):
        check_schema(schema)
    deep: Any = {}
    for _ in range(200):
        deep = {"items": deep}
    with pytest.raises(UnsupportedSchema) as error:
        check_schema(deep)
    assert error.value.limit == "depth"
