"""Normalisation: from terms to value sets. Every keyword becomes part of a value set, is unchecked, or is refused.

A leaf term is a schema that must hold or must fail. Where it must hold, the sets of its keywords are intersected; where
it must fail, those of the negated keywords are united. Negation is pushed down to single keywords, so each may be
widened where it stands: the result is never smaller than the schema.
"""

from __future__ import annotations

from typing import Any

from grammars import limits
from grammars.schema.algebra import ValueAlgebra, unevaluated
from grammars.schema.disjoint import Disjointness
from grammars.schema.document import Document, Schema
from grammars.schema.forms import UNREAD
from grammars.schema.keywords import applicators, arrays, assertions, objects
from grammars.schema.keywords import unevaluated as unevaluated_keywords
from grammars.schema.name_classes import NameClass, name_classes
from grammars.schema.sets import ANY_VALUE, NO_VALUE, ObjectSet, ValueSet
from grammars.schema.terms import FALSE, Circular, SchemaTerms, Scope, Term, freeze
from grammars.sets import numbers as numbersets
from grammars.sets import strings as textsets
from grammars.sets.languages import Languages
from grammars.unchecked import Unchecked

_COARSE = 8
"""Most objects or arrays of one position in an approximate grammar."""


class Normalizer:
    """Value sets of the terms of one document.

    `tracking`: the document asks for unevaluated properties or items. `coarse`: negations and long lists of
    alternatives are left to validation; for schemas whose exact grammar exceeds the limits.
    """

    def __init__(self, document: Document, *, formats: str, tracking: bool, coarse: bool = False) -> None:
        self.approximate, self.tracking, self.assert_formats = coarse, tracking, formats == "assert"
        self.terms = SchemaTerms(document)
        self.unchecked = Unchecked()
        self.languages = Languages(self.unchecked)
        self.texts = self.languages.texts
        self.algebra = ValueAlgebra(
            self.terms,
            self.texts,
            self.unchecked,
            alternatives=_COARSE if coarse else limits.ALTERNATIVES,
            tracking=tracking,
        )
        self.disjointness = Disjointness(self.value_set, self.algebra, self.languages)
        self.dropped: set[Schema] = set()  # schemas whose patternProperties exceed the limits
        self._value_sets: dict[Term, ValueSet | None] = {}

    def values(self, term: Term, limit: int) -> list[tuple[Any, Any]] | None:
        """The values of a term, each with its key, where they are plain values and at most `limit`."""
        if term is FALSE:
            return []
        found = self.value_set(term)
        strings, numbers = found.string, found.number
        if (
            found.arrays
            or found.objects
            or strings[0] not in ("none", "finite")
            or numbers[0] not in ("none", "finite")
        ):
            return None
        out: list[Any] = [*(strings[1] if len(strings) > 1 else ()), *(numbers[1] if len(numbers) > 1 else ())]
        out += [value for bit, value in ((1, False), (2, True)) if found.booleans & bit]
        if found.null:
            out.append(None)
        return [(freeze(value), value) for value in out] if len(out) <= limit else None

    def name_classes(self, o: ObjectSet) -> list[NameClass]:
        """Undeclared names of an object in classes. Raises `LimitExceeded` where there would be too many."""
        return name_classes(o, self.languages, self.terms)

    def value_set(self, term: Term) -> ValueSet:
        """The value set of a term, made once. Raises `Circular` where it depends on itself."""
        known = self._value_sets.get(term, term)
        if isinstance(known, ValueSet):
            return known
        if known is None:
            raise Circular(term)
        self._value_sets[term] = None
        limits.check()
        try:
            found = self._value_sets[term] = self._value_set(term)
        except BaseException:
            del self._value_sets[term]
            raise
        return found

    def _value_set(self, term: Term) -> ValueSet:
        kind = term.kind
        if kind == "true":
            return ANY_VALUE
        if kind == "false":
            return NO_VALUE
        if kind == "leaf":
            schema, holds, scope = term.args
            return self._asserted(schema, scope) if holds else self._negated(schema, scope)
        if kind == "const":
            _, value, holds = term.args
            one = self.algebra.constant(value)
            return one if holds else self.algebra.complement(one)
        out = self.value_set(term.args[0])
        for part in term.args[1:]:
            other = self.value_set(part)
            if kind == "any":
                out = self.algebra.union(out, other)
            else:
                out = self.algebra.intersect(out, other, part.args[0].path if part.kind == "leaf" else "", "allOf")
        return out

    def _asserted(self, schema: Schema, scope: Scope) -> ValueSet:
        node, intersect = schema.node, self.algebra.intersect
        if "$ref" in node and schema.draft <= 7:
            return self.value_set(self.terms.reference(schema, "$ref", scope))
        if schema.draft <= 3:
            for keyword in UNREAD & node.keys():
                raise schema.unsupported(keyword, "is of draft 3 alone")
        out = self._typed(schema, scope)
        if "enum" in node:
            out = intersect(out, assertions.enumeration(self, node["enum"]), schema.path, "enum")
        for dependent in objects.dependent_schemas(self, schema, scope):
            out = intersect(out, dependent, schema.path, "dependentSchemas")
        for keyword, terms in applicators.applied(self, schema, scope):
            out = intersect(out, applicators.asserted(self, schema, keyword, terms), schema.path, keyword)
        return unevaluated_keywords.restricted(self, schema, scope, out) if self.tracking else out

    def _typed(self, schema: Schema, scope: Scope) -> ValueSet:
        """The values of the types that a schema allows, by the keywords of each type."""
        types = assertions.types(schema)
        numeric = "number" in types or "integer" in types
        return ValueSet(
            "null" in types,
            3 if "boolean" in types else 0,
            assertions.numbers(self, schema, types) if numeric else numbersets.NONE,
            assertions.strings(self, schema) if "string" in types else textsets.NONE,
            arrays.arrays(self, schema, scope) if "array" in types else (),
            objects.objects(self, schema, scope) if "object" in types else (),
        )

    def _negated(self, schema: Schema, scope: Scope) -> ValueSet:
        node, union = schema.node, self.algebra.union
        if "$ref" in node and schema.draft <= 7:
            return self.value_set(self.terms.negate(self.terms.reference(schema, "$ref", scope)))
        types = assertions.types(schema)
        out = ValueSet(
            "null" not in types,
            0 if "boolean" in types else 3,
            assertions.not_numbers(self, schema, types),
            assertions.not_strings(self, schema, types),
            arrays.not_arrays(self, schema, scope, types),
            objects.not_objects(self, schema, scope, types),
        )
        if "enum" in node:
            out = union(out, assertions.not_enumeration(self, schema))
        for failing in objects.not_dependent_schemas(self, schema, scope):
            out = union(out, failing)
        for keyword, terms in applicators.applied(self, schema, scope):
            for failing in applicators.negated(self, schema, keyword, terms):
                out = union(out, failing)
        for failing in unevaluated_keywords.negated(self, schema):
            out = union(out, failing)
        return unevaluated(out)
