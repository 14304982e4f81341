"""From schemas to shapes: every keyword becomes part of a shape, or is noted as left to validation, or is refused.

A leaf term is a schema that must hold or must fail. Where it must hold, the shapes of its keywords meet; where it must
fail, the shapes of the negated keywords join. Negation is pushed down to single keywords, so whatever a shape cannot
express may be widened where it stands: the result is never smaller than the schema.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from grammars import limits
from grammars.automata.dfa import DFA
from grammars.automata.formats import INEXACT, format_accepts
from grammars.automata.regex import InvalidPattern, UnsupportedPattern, pattern_accepts
from grammars.errors import InvalidSchema, UnsupportedSchema
from grammars.limits import LimitExceeded
from grammars.schema.document import Document, Schema, json_pointer_escape
from grammars.schema.forms import TYPES, UNREAD, is_number
from grammars.schema.sets import (
    ANY_ARRAY,
    ANY_OBJECT,
    ANY_VALUE,
    BY_TYPE,
    FALSE,
    NO_VALUE,
    TRUE,
    ArraySet,
    Contains,
    Evaluated,
    ObjectSet,
    PatternLayer,
    Term,
    Terms,
    ValueSet,
    freeze,
)
from grammars.sets import atoms
from grammars.sets import numbers as numbersets
from grammars.sets import strings as textsets
from grammars.sets.numbers import NumberSet
from grammars.sets.strings import Texts, TextSet

Scope = tuple[Any, ...]

_ALL_TYPES = frozenset(TYPES)
_SUBSETS = 4
"""Branches of anyOf whose combinations are told apart where unevaluated* asks which of them held."""
_COARSE = 8
"""Object or array shapes of one position in a coarse grammar."""
_OVERLAPS = 24
"""Object shapes that one branch of oneOf may take when the other branches are subtracted from it."""


class Circular(Exception):
    """A term whose shape depends on itself."""

    def __init__(self, term: Term) -> None:
        self.path = term.args[0].path if term.kind == "leaf" else ""
        super().__init__(self.path)


class Normalizer:
    """Normalises the terms of one document. `checks` collects what is left to validation: (path, keyword).

    `tracking`: the document asks for unevaluated properties or items. `coarse`: whatever needs a negation or many
    alternatives is left to validation; for schemas whose exact grammar exceeds the limits.
    """

    def __init__(self, document: Document, *, formats: str, tracking: bool, coarse: bool = False) -> None:
        self.document = document
        self.approximate = coarse
        self.alternatives = _COARSE if coarse else limits.ALTERNATIVES
        self.terms = Terms()
        self.texts = Texts(self._format_accepts)
        self.formats = formats == "assert"
        self.tracking = tracking
        self.unchecked: dict[tuple[str, str], None] = {}
        self.places: dict[str, list[str]] = {}
        self.dropped: set[Schema] = set()  # schemas whose patternProperties exceed the limits
        self.sources: dict[TextSet, tuple[str, str]] = {}
        self._value_sets: dict[Term, ValueSet | None] = {}
        self._disjoint: dict[tuple[Term, Term], bool] = {}

    # Terms

    def root(self) -> Term:
        main = self.document.main
        if isinstance(main.root, bool):
            return TRUE if main.root else FALSE
        return self.term(self.document.at(main.root, "", main), ())

    def term(self, schema: bool | Schema, scope: Scope) -> Term:
        """The term that a schema holds, in the dynamic scope (resources entered, outermost first)."""
        if isinstance(schema, bool):
            return TRUE if schema else FALSE
        if not schema.node:
            return TRUE
        if self.document.scoped:
            # only the outermost resource that has a dynamic anchor counts
            if not all(any(name in r.dynamic for r in scope) for name in schema.resource.dynamic):
                scope = (*scope, schema.resource)
        else:
            scope = ()
        return self.terms.leaf(schema, True, scope)

    def child(self, parent: Schema, node: Any, scope: Scope, keyword: str) -> Term:
        if node is True:
            return TRUE
        if node is False:
            return FALSE
        return self.term(self.document.at(node, f"{parent.path}/{keyword}", parent.resource), scope)

    def check(self, schema: Schema, keyword: str) -> None:
        """Notes that the grammar is wider than this keyword."""
        self.unchecked[schema.path, keyword] = None

    def note(self, *keywords: str) -> None:
        """Notes that the grammar is wider than these keywords, wherever they stand."""
        for keyword in keywords:
            for path in self.places.get(keyword, ()):
                self.unchecked[path, keyword] = None

    def values(self, term: Term, limit: int) -> list[tuple[Any, Any]] | None:
        """The values of a term, each with its key, where they are plain values and at most `limit`."""
        if term is FALSE:
            return []
        shape = self.value_set(term)
        strings, numbers = shape.string, shape.number
        if (
            shape.arrays
            or shape.objects
            or strings[0] not in ("none", "finite")
            or numbers[0] not in ("none", "finite")
        ):
            return None
        found: list[Any] = [*(strings[1] if len(strings) > 1 else ()), *(numbers[1] if len(numbers) > 1 else ())]
        found += [value for bit, value in ((1, False), (2, True)) if shape.booleans & bit]
        if shape.null:
            found.append(None)
        return [(freeze(value), value) for value in found] if len(found) <= limit else None

    def name_classes(self, shape: ObjectSet) -> list[tuple[Any, Term, int]]:
        """Undeclared names in classes: the automaton of the names, the term of their values, the bits of `some`."""
        return atoms.name_classes(shape, self)

    def _format_accepts(self, atom: TextSet, text: str, widen: bool) -> bool:
        try:
            return format_accepts(atom[1], text) if atom[0] == "format" else pattern_accepts(atom[1], text)
        except LimitExceeded as error:
            if error.limit == "seconds":
                raise
        except (InvalidPattern, UnsupportedPattern) as error:
            raise self._report(atom, error) from None
        self.overapproximated(atom)
        return widen

    def _report(self, atom: TextSet, error: ValueError) -> ValueError:
        """What neither the grammar nor validation can judge (a back-reference, say) is refused, not checked in vain."""
        path, keyword = self.sources.get(atom, ("", "pattern"))
        kind = InvalidSchema if isinstance(error, InvalidPattern) else UnsupportedSchema
        return kind(path, keyword, str(error))

    def automaton(self, atom: TextSet, widen: bool = True) -> DFA | None:
        """The automaton of an atom; None, and a check, where there is none within the limits.

        `widen`: it may be larger than the atom's set, else smaller.
        """
        try:
            if atom[0] == "format" and atom[1] in INEXACT:
                self.overapproximated(atom)
                if not widen:
                    return None
            return atoms.atom_automaton(atom)
        except LimitExceeded as error:
            if error.limit == "seconds":
                raise
        except (InvalidPattern, UnsupportedPattern) as error:
            raise self._report(atom, error) from None
        self.overapproximated(atom)
        return None

    def overapproximated(self, s: TextSet) -> None:
        """Notes that the grammar is wider than the keywords a string formula comes from."""
        if s[0] in ("and", "or"):
            for part in s[1]:
                self.overapproximated(part)
        elif s[0] == "not":
            self.overapproximated(s[1])
        elif s in self.sources:
            self.unchecked[self.sources[s]] = None
        else:
            self.note("minLength", "maxLength") if s[0] == "length" else self.note("enum", "const")

    # Shapes of terms

    def value_set(self, term: Term) -> ValueSet:
        known = self._value_sets.get(term, term)
        if isinstance(known, ValueSet):
            return known
        if known is None:
            raise Circular(term)
        self._value_sets[term] = None
        limits.check()
        try:
            shape = self._value_sets[term] = self._value_set(term)
        except BaseException:
            del self._value_sets[term]
            raise
        return shape

    def _value_set(self, term: Term) -> ValueSet:
        kind = term.kind
        if kind == "true":
            shape = ANY_VALUE
        elif kind == "false":
            shape = NO_VALUE
        elif kind == "leaf":
            schema, holds, scope = term.args
            shape = self._asserted(schema, scope) if holds else self._negated(schema, scope)
        elif kind == "const":
            shape = self._constant(term.args[1])
            if not term.args[2]:
                shape = self._complement(shape)
        else:
            shape = self.value_set(term.args[0])
            for part in term.args[1:]:
                other = self.value_set(part)
                if kind == "any":
                    shape = self.union(shape, other)
                else:
                    shape = self.intersect(shape, other, part.args[0] if part.kind == "leaf" else None, "allOf")
        return shape

    def _constant(self, value: Any) -> ValueSet:
        if value is None:
            return BY_TYPE["null"]
        if isinstance(value, bool):
            return NO_VALUE._replace(booleans=2 if value else 1)
        if isinstance(value, str):
            return NO_VALUE._replace(string=textsets.finite((value,)))
        if is_number(value):
            return NO_VALUE._replace(number=numbersets.finite((value,)))
        const = self.terms.const
        if isinstance(value, list):
            items = tuple(const(v) for v in value)
            return NO_VALUE._replace(arrays=(ArraySet(items, FALSE, len(items), len(items)),))
        props = tuple((k, const(v)) for k, v in value.items())
        return NO_VALUE._replace(objects=(ObjectSet(props, frozenset(value), additional=FALSE),))

    def _complement(self, shape: ValueSet) -> ValueSet:
        """All values outside a shape that has at most one array and one object."""
        return ValueSet(
            not shape.null,
            3 & ~shape.booleans,
            numbersets.negate(shape.number),
            self.texts.complement(shape.string),
            self._not_array(shape.arrays[0], None) if shape.arrays else (ANY_ARRAY,),
            self._not_object(shape.objects[0]) if shape.objects else (ANY_OBJECT,),
        )

    # Algebra

    def union(self, a: ValueSet, b: ValueSet) -> ValueSet:
        if a is NO_VALUE or (b is ANY_VALUE and not self.tracking):
            return b
        if b is NO_VALUE or (a is ANY_VALUE and not self.tracking):
            return a
        return ValueSet(
            a.null or b.null,
            a.booleans | b.booleans,
            numbersets.join(a.number, b.number),
            self.texts.union(a.string, b.string),
            _union(a.arrays, b.arrays, None if self.tracking else ANY_ARRAY),
            _union(a.objects, b.objects, None if self.tracking else ANY_OBJECT),
        )

    def intersect(self, a: ValueSet, b: ValueSet, schema: Schema | None, keyword: str) -> ValueSet:
        if a is ANY_VALUE or b is NO_VALUE:
            return b
        if b is ANY_VALUE or a is NO_VALUE:
            return a
        most = self.alternatives
        wide = len(a.arrays) * len(b.arrays) > most or len(a.objects) * len(b.objects) > most
        if wide:
            self.unchecked[schema.path if schema else "", keyword] = None
        arrays, objects = a.arrays, a.objects
        if not wide:
            arrays = _unique(m for x in arrays for y in b.arrays if (m := self._intersect_arrays(x, y)) is not None)
            objects = _unique(o for x in objects for y in b.objects if (o := self.intersect_objects(x, y)) is not None)
        return ValueSet(
            a.null and b.null,
            a.booleans & b.booleans,
            numbersets.meet(a.number, b.number),
            self.texts.intersect(a.string, b.string),
            arrays,
            objects,
        )

    def _intersect_arrays(self, a: ArraySet, b: ArraySet) -> ArraySet | None:
        if a is ANY_ARRAY:
            return b
        if b is ANY_ARRAY or a == b:
            return a
        n = max(len(a.prefix), len(b.prefix))
        both = self.terms.all
        prefix = tuple(
            both(
                a.prefix[i] if i < len(a.prefix) else a.additional,
                b.prefix[i] if i < len(b.prefix) else b.additional,
            )
            for i in range(n)
        )
        least, most = max(a.min_items, b.min_items), _smaller(a.max_items, b.max_items)
        if most is not None and most < least:
            return None
        contains = tuple(dict.fromkeys(a.contains + b.contains))
        evaluated = _evaluated(a.evaluated, b.evaluated)
        return ArraySet(
            prefix, both(a.additional, b.additional), least, most, contains, a.unique or b.unique, evaluated
        )

    def term_for(self, shape: ObjectSet, name: str) -> Term:
        """What a shape says about the value under a name that it does not declare."""
        if shape.names is not textsets.ALL and not self.texts.accepts(shape.names, name):
            return FALSE
        if not shape.layers:
            return shape.additional
        terms = [shape.additional]
        for layer in shape.layers:
            matching = [term for pattern, term in layer.patterns if self.texts.accepts(pattern, name)]
            terms.extend(matching or (layer.additional,))
        return self.terms.all(*terms)

    def intersect_objects(self, a: ObjectSet, b: ObjectSet) -> ObjectSet | None:
        if a is ANY_OBJECT:
            return b
        if b is ANY_OBJECT or a == b:
            return a
        both = self.terms.all
        theirs = dict(b.props)
        props: dict[str, Term] = {}
        for name, term in a.props:
            other = theirs.pop(name, None)
            props[name] = both(term, self.term_for(b, name) if other is None else other)
        for name, term in theirs.items():
            props[name] = both(self.term_for(a, name), term)
        required = a.required | b.required
        if any(props[name] is FALSE for name in required):
            return None
        least, most = max(a.min_properties, b.min_properties), _smaller(a.max_properties, b.max_properties)
        if most is not None and most < max(least, len(required)):
            return None
        return ObjectSet(
            tuple(props.items()),
            required,
            tuple(dict.fromkeys(a.layers + b.layers)),
            both(a.additional, b.additional),
            least,
            most,
            self.texts.intersect(a.names, b.names),
            tuple(dict.fromkeys(a.dependent_required + b.dependent_required)),
            tuple(dict.fromkeys(a.must_contain + b.must_contain)),
            _evaluated(a.evaluated, b.evaluated),
        )

    def _not_array(self, a: ArraySet, schema: Schema | None) -> tuple[ArraySet, ...]:
        negate = self.terms.negate
        out = []
        for i, term in enumerate(a.prefix):
            if term is not TRUE:
                out.append(ArraySet((TRUE,) * i + (negate(term),), min_items=i + 1))
        if a.additional is FALSE:
            out.append(ArraySet(min_items=len(a.prefix) + 1))
        elif a.additional is not TRUE:
            out.append(ArraySet(contains=(Contains(negate(a.additional), 1, None, len(a.prefix)),)))
        if a.min_items:
            out.append(ArraySet(max_items=a.min_items - 1))
        if a.max_items is not None:
            out.append(ArraySet(min_items=a.max_items + 1))
        for c in a.contains:
            if c.least:
                out.append(ArraySet(contains=(Contains(c.term, 0, c.least - 1, c.start),)))
            if c.most is not None:
                out.append(ArraySet(contains=(Contains(c.term, c.most + 1, None, c.start),)))
        if a.unique:
            if schema is not None:
                self.check(schema, "uniqueItems")
            out.append(ArraySet(min_items=2))
        return tuple(out)

    def _not_object(self, o: ObjectSet) -> tuple[ObjectSet, ...]:
        negate = self.terms.negate
        out = [ObjectSet(((name, FALSE),)) for name, _ in o.props if name in o.required]
        for name, term in o.props:
            if term is not TRUE:
                out.append(ObjectSet(((name, negate(term)),), frozenset((name,))))
        declared = textsets.finite(tuple(name for name, _ in o.props))
        others = self.texts.complement(declared)
        for layer in o.layers:
            unmatched = others
            for pattern, term in layer.patterns:
                unmatched = self.texts.intersect(unmatched, self.texts.complement(pattern))
                if term is not TRUE:
                    out.append(ObjectSet(must_contain=((pattern, negate(term)),)))
            if layer.additional is not TRUE:
                out.append(ObjectSet(must_contain=((unmatched, negate(layer.additional)),)))
        if o.additional is not TRUE:
            out.append(ObjectSet(must_contain=((others, negate(o.additional)),)))
        if o.names is not textsets.ALL:
            out.append(ObjectSet(must_contain=((self.texts.complement(o.names), TRUE),)))
        if o.min_properties:
            out.append(ObjectSet(max_properties=o.min_properties - 1))
        if o.max_properties is not None:
            out.append(ObjectSet(min_properties=o.max_properties + 1))
        for name, needed in o.dependent_required:
            for other in needed:
                if other != name:
                    out.append(ObjectSet(((name, TRUE), (other, FALSE)), frozenset((name,))))
        return tuple(out)

    # Schemas that hold

    def _asserted(self, schema: Schema, scope: Scope) -> ValueSet:
        node = schema.node
        if "$ref" in node and schema.draft <= 7:
            return self.value_set(self._reference(schema, "$ref", scope))
        if schema.draft <= 3:
            for keyword in UNREAD & node.keys():
                raise schema.unsupported(keyword, "is of draft 3 alone")
        shape = self._local(schema, scope)
        for keyword, terms in self._applied(schema, scope):
            other = self._apply(schema, keyword, terms)
            shape = self.intersect(shape, other, schema, keyword)
        if self.tracking:
            shape = self._unevaluated(schema, scope, shape)
        return shape

    def _applied(self, schema: Schema, scope: Scope) -> list[tuple[str, list[Term]]]:
        """The in-place applicators of a schema with their terms; `if` carries then and else along."""
        node = schema.node
        out: list[tuple[str, list[Term]]] = []
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if keyword in node and (keyword != "$recursiveRef" or schema.draft == 2019):
                out.append((keyword, [self._reference(schema, keyword, scope)]))
        for keyword in ("allOf", "anyOf", "oneOf"):
            if keyword in node:
                out.append((keyword, [self.child(schema, x, scope, keyword) for x in node[keyword]]))
        if "not" in node:
            out.append(("not", [self.child(schema, node["not"], scope, "not")]))
        if "if" in node and ("then" in node or "else" in node):
            then, other = node.get("then", True), node.get("else", True)
            out.append(
                (
                    "if",
                    [
                        self.child(schema, node["if"], scope, "if"),
                        self.child(schema, then, scope, "then"),
                        self.child(schema, other, scope, "else"),
                    ],
                )
            )
        elif "if" in node and self.tracking:
            out.append(("if", [self.child(schema, node["if"], scope, "if"), TRUE, TRUE]))
        if "const" in node:
            out.append(("const", [self.terms.const(node["const"])]))
        return out

    def _apply(self, schema: Schema, keyword: str, terms: list[Term]) -> ValueSet:
        shape = self.value_set
        if keyword == "anyOf":
            return self._any_of(schema, terms)
        if keyword == "oneOf":
            return self._one_of(schema, terms)
        if self.approximate and keyword in ("not", "if"):
            self.check(schema, keyword)
            return ANY_VALUE
        if keyword == "not":
            return _forget(shape(self.terms.negate(terms[0])))
        if keyword == "if":
            condition, then, other = terms
            first = self.intersect(shape(condition), shape(then), schema, "then")
            second = self.intersect(_forget(shape(self.terms.negate(condition))), shape(other), schema, "else")
            return self.union(first, second)
        out = shape(terms[0])
        for term in terms[1:]:
            out = self.intersect(out, shape(term), schema, keyword)
        return out

    def _any_of(self, schema: Schema, terms: list[Term]) -> ValueSet:
        out = NO_VALUE
        for term in terms:
            out = self.union(out, self.value_set(term))
        if self.tracking and len(terms) > 1:
            if len(terms) > _SUBSETS:
                self.check(schema, "anyOf")
                return _evaluate_all(out)
            for size in range(2, len(terms) + 1):
                for chosen in combinations(terms, size):
                    both = self.value_set(chosen[0])
                    for term in chosen[1:]:
                        both = self.intersect(both, self.value_set(term), schema, "anyOf")
                    out = self.union(out, both)
        return out

    def _one_of(self, schema: Schema, terms: list[Term]) -> ValueSet:
        """Each branch without what overlaps it; where that grows too large, the plain union and a check."""
        shapes = [self.value_set(term) for term in terms]
        out = NO_VALUE
        for i, shape in enumerate(shapes):
            for j, other in enumerate(shapes):
                if i == j or shape is NO_VALUE or self._are_disjoint(shape, other, 4):
                    continue
                if terms[i] is terms[j]:
                    shape = NO_VALUE
                    continue
                if self.approximate:
                    self.check(schema, "oneOf")
                    continue
                outside = _forget(self.value_set(self.terms.negate(terms[j])))
                if (
                    len(shape.objects) * len(outside.objects) > _OVERLAPS
                    or len(shape.arrays) * len(outside.arrays) > _OVERLAPS
                ):
                    self.check(schema, "oneOf")
                    outside = outside._replace(arrays=(ANY_ARRAY,), objects=(ANY_OBJECT,))
                shape = self.intersect(shape, outside, schema, "oneOf")
            out = self.union(out, shape)
        return out

    def _reference(self, schema: Schema, keyword: str, scope: Scope) -> Term:
        document, value = self.document, schema.node[keyword]
        if keyword == "$recursiveRef":
            value = "#"
        target = document.resolve(schema, value, keyword)
        if isinstance(target, Schema) and keyword == "$dynamicRef":
            name = value.rpartition("#")[2]
            if target.node.get("$dynamicAnchor") == name:
                for resource in scope:
                    if name in resource.dynamic:
                        target = document.at(resource.anchors[name], resource.path, resource)
                        break
        elif isinstance(target, Schema) and keyword == "$recursiveRef" and target.node.get("$recursiveAnchor") is True:
            for resource in scope:
                if "" in resource.dynamic:
                    target = document.at(resource.root, resource.path, resource)
                    break
        return self.term(target, scope)

    # Keywords of one schema that speak about the value itself

    def _types(self, schema: Schema) -> frozenset[str]:
        names = schema.node.get("type")
        if names is None:
            return _ALL_TYPES
        if not all(isinstance(name, str) for name in names):
            raise schema.unsupported("type", "holds schemas, as in draft 3 alone")
        types = frozenset((names,)) if isinstance(names, str) else frozenset(names)
        return _ALL_TYPES if "any" in types else types

    def _local(self, schema: Schema, scope: Scope) -> ValueSet:
        node = schema.node
        types = self._types(schema)
        shape = ValueSet(
            "null" in types,
            3 if "boolean" in types else 0,
            self._numbers(schema, types) if "number" in types or "integer" in types else numbersets.NONE,
            self._strings(schema) if "string" in types else textsets.NONE,
            self._arrays(schema, scope) if "array" in types else (),
            self._objects(schema, scope) if "object" in types else (),
        )
        if "enum" in node:
            shape = self.intersect(shape, self._enumeration(node["enum"]), schema, "enum")
        for name, dependent in self._dependent_schemas(schema, scope):
            if self.approximate:
                self.check(schema, "dependentSchemas" if "dependentSchemas" in node else "dependencies")
                continue
            absent = ANY_VALUE._replace(objects=(ObjectSet(((name, FALSE),)),))
            present = self.intersect(
                NO_VALUE._replace(objects=(_having(name),)), self.value_set(dependent), schema, "dependentSchemas"
            )
            shape = self.intersect(shape, self.union(absent, present), schema, "dependentSchemas")
        return shape

    def _enumeration(self, values: list[Any]) -> ValueSet:
        out = NO_VALUE._replace(
            string=textsets.finite(tuple(v for v in values if isinstance(v, str))),
            number=numbersets.finite(tuple(v for v in values if is_number(v))),
        )
        for value in values:
            if not isinstance(value, str) and not is_number(value):
                out = self.union(out, self._constant(value))
        return out

    def _numbers(self, schema: Schema, types: frozenset[str]) -> NumberSet:
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
        for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
            if keyword in node:
                self.places.setdefault(keyword, []).append(schema.path)
        divisors = (node["multipleOf"],) if "multipleOf" in node else ()
        return numbersets.span("number" not in types, low, low_open, high, high_open, divisors)

    def _strings(self, schema: Schema) -> TextSet:
        node = schema.node
        most = node.get("maxLength")
        for keyword in ("minLength", "maxLength"):
            if keyword in node:
                self.places.setdefault(keyword, []).append(schema.path)
        out = textsets.length(int(node.get("minLength", 0)), None if most is None else int(most))
        if "pattern" in node:
            out = self.texts.intersect(out, self._pattern(schema, "pattern", node["pattern"]))
        if self.formats and "format" in node and atoms.is_format(node["format"]):
            atom = ("format", node["format"])
            self.sources.setdefault(atom, (schema.path, "format"))
            out = self.texts.intersect(out, atom)
        if "contentEncoding" in node and node["contentEncoding"] == "base64" and self.formats:
            out = self.texts.intersect(out, self._pattern(schema, "contentEncoding", BASE64))
        return out

    def _pattern(self, schema: Schema, keyword: str, pattern: str) -> TextSet:
        known = atoms.simple_pattern(pattern)
        if known is not None:
            return known
        atom = ("pattern", pattern)
        self.sources.setdefault(atom, (schema.path, keyword))
        return atom

    def _arrays(self, schema: Schema, scope: Scope) -> tuple[ArraySet, ...]:
        node = schema.node
        keys = node.keys() & _ARRAY_KEYS
        if not keys:
            return (ANY_ARRAY,)
        prefix: tuple[Term, ...] = ()
        rest = TRUE
        items = node.get("items")
        prefixed: Any = None
        if isinstance(items, list):
            prefixed, after = items, "additionalItems"
        elif "prefixItems" in node:
            prefixed, after = node["prefixItems"], "items"
        else:
            after = "items"
        if prefixed is not None:
            prefix = tuple(self.child(schema, x, scope, "items") for x in prefixed)
        if after in node:
            rest = self.child(schema, node[after], scope, after)
        most = node.get("maxItems")
        least = int(node.get("minItems", 0))
        contains: tuple[Contains, ...] = ()
        if "contains" in node:
            fewest = int(node.get("minContains", 1))
            highest = None if "maxContains" not in node else int(node["maxContains"])
            if highest is not None and highest < fewest:
                return ()
            term = self.child(schema, node["contains"], scope, "contains")
            if term is TRUE:
                least = max(least, fewest)
                most = _smaller(most, highest)
            elif term is FALSE:
                if fewest:
                    return ()
            elif fewest or highest is not None or self.tracking:
                contains = (Contains(term, fewest, highest, 0),)
        if most is not None and most < least:
            return ()
        evaluated = Evaluated()
        if self.tracking:
            seen = tuple(c.term for c in contains) if schema.draft >= 2020 else ()
            if "contains" in node and node["contains"] is True and schema.draft >= 2020:
                seen = (TRUE,)
            evaluated = Evaluated(items=None if after in node else len(prefix), contains=seen)
        unique = bool(node.get("uniqueItems", False))
        for keyword in ("contains", "maxItems", "uniqueItems"):
            if keyword in node:
                self.places.setdefault(keyword, []).append(schema.path)
        return (ArraySet(prefix, rest, least, None if most is None else int(most), contains, unique, evaluated),)

    def _objects(self, schema: Schema, scope: Scope) -> tuple[ObjectSet, ...]:
        node = schema.node
        keys = node.keys() & _OBJECT_KEYS
        if not keys:
            return (ANY_OBJECT,)
        document, path, resource = self.document, schema.path, schema.resource
        props: dict[str, Term] = {}
        for name, value in node.get("properties", {}).items():
            if value is True:
                props[name] = TRUE
            elif value is False:
                props[name] = FALSE
            else:
                known = document.schemas.get(id(value)) or document.at(
                    value, f"{path}/properties/{json_pointer_escape(name)}", resource
                )
                props[name] = self.term(known, scope)
        rest = TRUE
        if "additionalProperties" in node:
            rest = self.child(schema, node["additionalProperties"], scope, "additionalProperties")
        layers: tuple[PatternLayer, ...] = ()
        if node.get("patternProperties"):
            layers, rest = self._layers(schema, scope, props, rest)
        shape = ObjectSet(tuple(props.items()), layers=layers, additional=rest)
        if "propertyNames" in node:
            names = self.value_set(self.child(schema, node["propertyNames"], scope, "propertyNames")).string
            for name in props:
                if not self.texts.accepts(names, name):
                    props[name] = FALSE
            shape = shape._replace(names=names)
        required = node.get("required", ())
        if isinstance(required, bool):
            required = ()
        if schema.draft <= 3 or "required" not in node:
            required = (
                [
                    name
                    for name, value in node.get("properties", {}).items()
                    if isinstance(value, dict) and value.get("required") is True
                ]
                if schema.draft <= 3
                else ()
            )
        for name in required:
            if name not in props:
                props[name] = self.term_for(shape, name)
            if props[name] is FALSE:
                return ()
        least, most = int(node.get("minProperties", 0)), node.get("maxProperties")
        for keyword in _COUNTED:
            if keyword in node:
                self.places.setdefault(keyword, []).append(schema.path)
        if most is not None and most < max(least, len(set(required))):
            return ()
        needs: tuple[tuple[str, frozenset[str]], ...] = ()
        if "dependentRequired" in node or "dependencies" in node:
            needed = dict(node.get("dependentRequired", {}))
            for name, value in node.get("dependencies", {}).items():
                if isinstance(value, list):
                    needed[name] = value
                elif isinstance(value, str):
                    needed[name] = [value]
            for name in (*needed, *(n for names in needed.values() for n in names)):
                if name not in props:
                    props[name] = self.term_for(shape, name)
            needs = tuple((name, frozenset(names)) for name, names in needed.items() if names)
        evaluated = Evaluated()
        if self.tracking:
            evaluated = Evaluated(
                frozenset(node.get("properties", {})),
                tuple(pattern for layer in layers for pattern, _ in layer.patterns),
                "additionalProperties" in node,
            )
        return (
            shape._replace(
                props=tuple(props.items()),
                required=frozenset(required),
                min_properties=least,
                max_properties=None if most is None else int(most),
                dependent_required=needs,
                evaluated=evaluated,
            ),
        )

    def _layers(
        self, schema: Schema, scope: Scope, props: dict[str, Term], rest: Term
    ) -> tuple[tuple[PatternLayer, ...], Term]:
        """patternProperties with additionalProperties; declared properties meet what the patterns say about them."""
        patterns = []
        for pattern, value in schema.node["patternProperties"].items():
            atom = self._pattern(schema, "patternProperties", pattern)
            term = self.child(schema, value, scope, f"patternProperties/{json_pointer_escape(pattern)}")
            if atom[0] == "pattern" and self.automaton(atom) is None:
                self.check(schema, "additionalProperties")
                self.dropped.add(schema)
                return (), TRUE
            patterns.append((atom, term))
            for name in props:
                if self.texts.accepts(atom, name):
                    props[name] = self.terms.all(props[name], term)
        return (PatternLayer(tuple(patterns), rest),), TRUE

    def _dependent_schemas(self, schema: Schema, scope: Scope) -> list[tuple[str, Term]]:
        node = schema.node
        found = [("dependentSchemas", k, v) for k, v in node.get("dependentSchemas", {}).items()]
        for name, value in node.get("dependencies", {}).items():
            if isinstance(value, (dict, bool)):
                found.append(("dependencies", name, value))
        return [
            (name, self.child(schema, value, scope, f"{keyword}/{json_pointer_escape(name)}"))
            for keyword, name, value in found
        ]

    def _unevaluated(self, schema: Schema, scope: Scope, shape: ValueSet) -> ValueSet:
        node = schema.node
        if "unevaluatedProperties" in node:
            term = self.child(schema, node["unevaluatedProperties"], scope, "unevaluatedProperties")
            objects = []
            for o in shape.objects:
                seen = o.evaluated
                if not seen.all_names:
                    known = tuple((name, TRUE) for name in sorted(seen.names))
                    layers: tuple[PatternLayer, ...] = ()
                    rest = term
                    if seen.patterns:
                        layers, rest = (PatternLayer(tuple((p, TRUE) for p in seen.patterns), term),), TRUE
                    met = self.intersect_objects(o, ObjectSet(known, layers=layers, additional=rest))
                    if met is None:
                        continue
                    o = met
                objects.append(o._replace(evaluated=o.evaluated._replace(all_names=True)))
            shape = shape._replace(objects=tuple(objects))
        if "unevaluatedItems" in node:
            term = self.child(schema, node["unevaluatedItems"], scope, "unevaluatedItems")
            arrays = []
            for a in shape.arrays:
                if a.evaluated.items is not None:
                    rest = self.terms.any(term, *a.evaluated.contains)
                    met_array = self._intersect_arrays(a, ArraySet((TRUE,) * a.evaluated.items, rest))
                    if met_array is None:
                        continue
                    a = met_array
                arrays.append(a._replace(evaluated=a.evaluated._replace(items=None)))
            shape = shape._replace(arrays=tuple(arrays))
        return shape

    # Schemas that fail

    def _negated(self, schema: Schema, scope: Scope) -> ValueSet:
        node = schema.node
        if "$ref" in node and schema.draft <= 7:
            return self.value_set(self.terms.negate(self._reference(schema, "$ref", scope)))
        negate, shape = self.terms.negate, self.value_set
        types = self._types(schema)
        numbers = self._numbers(schema, frozenset(("number",)))
        if "number" not in types:
            numbers = numbersets.meet(numbers, numbersets.INTEGER) if "integer" in types else numbersets.NONE
        arrays = self._arrays(schema, scope) if "array" in types else ()
        objects = self._objects(schema, scope) if "object" in types else ()
        out = ValueSet(
            "null" not in types,
            0 if "boolean" in types else 3,
            numbersets.negate(numbers),
            self.texts.complement(self._strings(schema) if "string" in types else textsets.NONE),
            self._not_array(arrays[0], schema) if arrays else (ANY_ARRAY,),
            self._not_object(objects[0]) if objects else (ANY_OBJECT,),
        )
        if schema in self.dropped:
            out = out._replace(objects=(ANY_OBJECT,))
        if "enum" in node:
            excluded = ANY_VALUE
            plain = self._enumeration([v for v in node["enum"] if not isinstance(v, (list, dict))])
            excluded = self.intersect(excluded, self._complement(plain), schema, "enum")
            for value in node["enum"]:
                if isinstance(value, (list, dict)):
                    excluded = self.intersect(excluded, shape(self.terms.const(value, False)), schema, "enum")
            out = self.union(out, excluded)
        for name, dependent in self._dependent_schemas(schema, scope):
            present = NO_VALUE._replace(objects=(_having(name),))
            out = self.union(out, self.intersect(present, shape(negate(dependent)), schema, "dependentSchemas"))
        for keyword, terms in self._applied(schema, scope):
            if keyword == "anyOf":
                out = self.union(out, shape(self.terms.all(*map(negate, terms))))
            elif keyword == "not":
                out = self.union(out, shape(terms[0]))
            elif keyword == "oneOf":
                out = self.union(out, shape(self.terms.all(*map(negate, terms))))
                if len(terms) > _SUBSETS:
                    self.check(schema, "oneOf")
                    for term in terms:
                        out = self.union(out, shape(term))
                else:
                    for a, b in combinations(terms, 2):
                        out = self.union(out, shape(self.terms.all(a, b)))
            elif keyword == "if":
                condition, then, other = terms
                out = self.union(out, shape(self.terms.all(condition, negate(then))))
                out = self.union(out, shape(self.terms.all(negate(condition), negate(other))))
            else:
                for term in terms:
                    out = self.union(out, shape(negate(term)))
        for keyword in ("unevaluatedProperties", "unevaluatedItems"):
            if keyword in node and node[keyword] is not True:
                self.check(schema, keyword)
                wide = (
                    NO_VALUE._replace(objects=(ANY_OBJECT,))
                    if keyword == "unevaluatedProperties"
                    else NO_VALUE._replace(arrays=(ANY_ARRAY,))
                )
                out = self.union(out, wide)
        return _forget(out)

    # Disjointness, as far as it shows at once

    def _are_disjoint(self, a: ValueSet, b: ValueSet, depth: int) -> bool:
        """Whether no value is in both shapes; False where that is not plain to see."""
        if (a.null and b.null) or a.booleans & b.booleans:
            return False
        if numbersets.meet(a.number, b.number) != numbersets.NONE:
            return False
        if not self._empty_text(self.texts.intersect(a.string, b.string)):
            return False
        if any(not self._arrays_apart(x, y, depth) for x in a.arrays for y in b.arrays):
            return False
        return not any(not self._objects_apart(x, y, depth) for x in a.objects for y in b.objects)

    def _empty_text(self, s: TextSet) -> bool:
        if s == textsets.NONE:
            return True
        if s[0] != "and":
            return False
        return atoms.is_empty(s, self)

    def _terms_apart(self, a: Term, b: Term, depth: int) -> bool:
        if a is FALSE or b is FALSE:
            return True
        if a is TRUE or b is TRUE or a is b or depth <= 0:
            return False
        known = self._disjoint.get((a, b))
        if known is None:
            try:
                known = self._are_disjoint(self.value_set(a), self.value_set(b), depth - 1)
            except Circular:  # asked while one of the two is being made
                return False
            self._disjoint[a, b] = known
        return known

    def _arrays_apart(self, a: ArraySet, b: ArraySet, depth: int) -> bool:
        least, most = max(a.min_items, b.min_items), _smaller(a.max_items, b.max_items)
        if most is not None and least > most:
            return True
        for i in range(min(least, max(len(a.prefix), len(b.prefix)) + 1)):
            x = a.prefix[i] if i < len(a.prefix) else a.additional
            y = b.prefix[i] if i < len(b.prefix) else b.additional
            if self._terms_apart(x, y, depth):
                return True
        return False

    def _objects_apart(self, a: ObjectSet, b: ObjectSet, depth: int) -> bool:
        ours, theirs = dict(a.props), dict(b.props)
        names = a.required | b.required
        if (b.max_properties is not None and b.max_properties < max(a.min_properties, len(names))) or (
            a.max_properties is not None and a.max_properties < max(b.min_properties, len(names))
        ):
            return True
        for name in names:
            x = ours.get(name) or self.term_for(a, name)
            y = theirs.get(name) or self.term_for(b, name)
            if self._terms_apart(x, y, depth):
                return True
        return False


_COUNTED = (
    *("additionalProperties", "dependencies", "dependentRequired", "maxProperties"),
    *("minProperties", "patternProperties", "propertyNames"),
)
BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_ARRAY_KEYS = frozenset(
    (
        *("additionalItems", "contains", "items", "maxContains", "maxItems"),
        *("minContains", "minItems", "prefixItems", "uniqueItems"),
    )
)
_OBJECT_KEYS = frozenset(
    (
        *("additionalProperties", "dependencies", "dependentRequired", "maxProperties", "minProperties"),
        *("patternProperties", "properties", "propertyNames", "required"),
    )
)


def _having(name: str) -> ObjectSet:
    return ObjectSet(((name, TRUE),), frozenset((name,)))


def _smaller(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else min(a, b)


def _unique(shapes: Any) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(shapes))


def _union(a: tuple[Any, ...], b: tuple[Any, ...], whole: Any) -> tuple[Any, ...]:
    if whole is not None and (whole in a or whole in b):
        return (whole,)
    if not a or not b:
        return a or b
    return tuple(dict.fromkeys(a + b))


def _evaluated(a: Evaluated, b: Evaluated) -> Evaluated:
    if a == b:
        return a
    return Evaluated(
        a.names | b.names,
        tuple(dict.fromkeys(a.patterns + b.patterns)),
        a.all_names or b.all_names,
        None if a.items is None or b.items is None else max(a.items, b.items),
        tuple(dict.fromkeys(a.contains + b.contains)),
    )


def _forget(shape: ValueSet) -> ValueSet:
    """Without marks of evaluation: a schema under `not` leaves none."""
    return shape._replace(
        arrays=_unique(a._replace(evaluated=Evaluated()) for a in shape.arrays),
        objects=_unique(o._replace(evaluated=Evaluated()) for o in shape.objects),
    )


def _evaluate_all(shape: ValueSet) -> ValueSet:
    done = Evaluated(all_names=True, items=None)
    return shape._replace(
        arrays=tuple(a._replace(evaluated=done) for a in shape.arrays),
        objects=tuple(o._replace(evaluated=done) for o in shape.objects),
    )
