"""Keywords of objects (core specification, sections 10.2.2.4 and 10.3.2; validation, section 6.5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from grammars.schema.algebra import having
from grammars.schema.document import Schema
from grammars.schema.keywords.assertions import pattern
from grammars.schema.sets import ANY_OBJECT, ANY_VALUE, NO_VALUE, Evaluated, ObjectSet, PatternLayer, ValueSet
from grammars.schema.terms import FALSE, TRUE, Scope, Term

if TYPE_CHECKING:
    from grammars.schema.normalize import Normalizer

_KEYWORDS = frozenset(
    (
        *("additionalProperties", "dependencies", "dependentRequired", "maxProperties", "minProperties"),
        *("patternProperties", "properties", "propertyNames", "required"),
    )
)
_LIMITED = (
    *("additionalProperties", "dependencies", "dependentRequired", "maxProperties"),
    *("minProperties", "patternProperties", "propertyNames"),
)
"""Keywords that a grammar may have to leave to validation."""


def objects(normal: Normalizer, schema: Schema, scope: Scope) -> tuple[ObjectSet, ...]:
    node, terms = schema.node, normal.terms
    if not node.keys() & _KEYWORDS:
        return (ANY_OBJECT,)
    props = {
        name: terms.named_child(schema, value, scope, "properties", name)
        for name, value in node.get("properties", {}).items()
    }
    additional = TRUE
    layers: tuple[PatternLayer, ...] = ()
    if "additionalProperties" in node:
        additional = terms.child(schema, node["additionalProperties"], scope, "additionalProperties")
    if node.get("patternProperties"):
        layers, additional = _pattern_properties(normal, schema, scope, props, additional), TRUE
    found = ObjectSet(tuple(props.items()), layers=layers, additional=additional)
    if "propertyNames" in node:
        names = normal.value_set(terms.child(schema, node["propertyNames"], scope, "propertyNames")).string
        for name in props:
            if not normal.texts.accepts(names, name):
                props[name] = FALSE
        found = found._replace(names=names)
    required = _required(schema)
    for name in required:
        if _declare(normal, found, props, name) is FALSE:
            return ()
    least, most = int(node.get("minProperties", 0)), node.get("maxProperties")
    normal.unchecked.record_places(schema.path, _LIMITED, node)
    if most is not None and most < max(least, len(set(required))):
        return ()
    needed = _dependent_required(schema)
    for name in (*needed, *(n for names in needed.values() for n in names)):
        _declare(normal, found, props, name)
    return (
        found._replace(
            props=tuple(props.items()),
            required=frozenset(required),
            min_properties=least,
            max_properties=None if most is None else int(most),
            dependent_required=tuple((name, frozenset(names)) for name, names in needed.items() if names),
            evaluated=_evaluated(schema, layers) if normal.tracking else Evaluated(),
        ),
    )


def not_objects(normal: Normalizer, schema: Schema, scope: Scope, allowed: frozenset[str]) -> tuple[ObjectSet, ...]:
    found = objects(normal, schema, scope) if "object" in allowed else ()
    if not found or schema in normal.dropped:
        return (ANY_OBJECT,)
    return normal.algebra.complement_object(found[0])


def _declare(normal: Normalizer, o: ObjectSet, props: dict[str, Term], name: str) -> Term:
    """The term of a name, which becomes a declared one."""
    if name not in props:
        props[name] = normal.algebra.property_term(o, name)
    return props[name]


def _required(schema: Schema) -> list[str]:
    """Required names; draft 3 marks the properties themselves."""
    node = schema.node
    if schema.draft > 3:
        names = node.get("required", [])
        return [] if isinstance(names, bool) else list(names)
    return [
        name
        for name, value in node.get("properties", {}).items()
        if isinstance(value, dict) and value.get("required") is True
    ]


def _pattern_properties(
    normal: Normalizer, schema: Schema, scope: Scope, props: dict[str, Term], additional: Term
) -> tuple[PatternLayer, ...]:
    """patternProperties with additionalProperties; patterns also restrict the declared properties they match."""
    patterns = []
    for text, value in schema.node["patternProperties"].items():
        atom = pattern(normal, schema, "patternProperties", text)
        term = normal.terms.named_child(schema, value, scope, "patternProperties", text)
        if atom[0] == "pattern" and normal.languages.automaton(atom) is None:
            normal.unchecked.add(schema.path, "additionalProperties")
            normal.dropped.add(schema)
            return ()
        patterns.append((atom, term))
        for name in props:
            if normal.texts.accepts(atom, name):
                props[name] = normal.terms.all(props[name], term)
    return (PatternLayer(tuple(patterns), additional),)


def _dependent_required(schema: Schema) -> dict[str, list[str]]:
    """dependentRequired, and its share of the older `dependencies`."""
    needed = dict(schema.node.get("dependentRequired", {}))
    for name, value in schema.node.get("dependencies", {}).items():
        if isinstance(value, list):
            needed[name] = value
        elif isinstance(value, str):
            needed[name] = [value]
    return needed


def _evaluated(schema: Schema, layers: tuple[PatternLayer, ...]) -> Evaluated:
    return Evaluated(
        frozenset(schema.node.get("properties", {})),
        tuple(pattern for layer in layers for pattern, _ in layer.patterns),
        "additionalProperties" in schema.node,
    )


# dependentSchemas, and its share of the older `dependencies`


def dependent_schemas(normal: Normalizer, schema: Schema, scope: Scope) -> Iterator[ValueSet]:
    """For each name: objects without it, and objects with it that satisfy its schema."""
    union, intersect = normal.algebra.union, normal.algebra.intersect
    for name, term in _dependent_schemas(normal, schema, scope):
        if normal.approximate:
            normal.unchecked.add(
                schema.path, "dependentSchemas" if "dependentSchemas" in schema.node else "dependencies"
            )
            continue
        absent = ANY_VALUE._replace(objects=(ObjectSet(((name, FALSE),)),))
        present = NO_VALUE._replace(objects=(having(name),))
        yield union(absent, intersect(present, normal.value_set(term), schema.path, "dependentSchemas"))


def not_dependent_schemas(normal: Normalizer, schema: Schema, scope: Scope) -> Iterator[ValueSet]:
    for name, term in _dependent_schemas(normal, schema, scope):
        present = NO_VALUE._replace(objects=(having(name),))
        failing = normal.value_set(normal.terms.negate(term))
        yield normal.algebra.intersect(present, failing, schema.path, "dependentSchemas")


def _dependent_schemas(normal: Normalizer, schema: Schema, scope: Scope) -> list[tuple[str, Term]]:
    return [
        (name, normal.terms.named_child(schema, value, scope, keyword, name))
        for keyword in ("dependentSchemas", "dependencies")
        for name, value in schema.node.get(keyword, {}).items()
        if isinstance(value, (dict, bool))
    ]
