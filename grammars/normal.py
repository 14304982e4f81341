"""From schemas to shapes: every keyword becomes part of a shape, or is noted as left to validation, or is refused.

A leaf term is a schema that must hold or must fail. Where it must hold, the shapes of its keywords meet; where it must
fail, the shapes of the negated keywords join. Negation is pushed down to single keywords, so whatever a shape cannot
express may be widened where it stands: the result is never smaller than the schema.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from . import atoms, limits, numbersets, textsets
from .automata import DFA
from .errors import InvalidSchema, UnsupportedSchema
from .formats import INEXACT, format_accepts
from .forms import TYPES, UNREAD, is_number
from .limits import LimitExceeded
from .numbersets import NumberSet
from .pattern import InvalidPattern, UnsupportedPattern, pattern_accepts
from .schema import Document, Schema, escape
from .shapes import (
    ANY,
    ANY_ARRAY,
    ANY_OBJECT,
    BY_TYPE,
    EMPTY,
    FALSE,
    TRUE,
    ArrayShape,
    Contains,
    Evaluated,
    Layer,
    ObjectShape,
    Shape,
    Term,
    Terms,
    freeze,
)
from .textsets import Texts, TextSet

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
        self.coarse = coarse
        self.alternatives = _COARSE if coarse else limits.ALTERNATIVES
        self.terms = Terms()
        self.texts = Texts(self._judge)
        self.formats = formats == "assert"
        self.tracking = tracking
        self.checks: dict[tuple[str, str], None] = {}
        self.places: dict[str, list[str]] = {}
        self.dropped: set[Schema] = set()  # schemas whose patternProperties exceed the limits
        self.sources: dict[TextSet, tuple[str, str]] = {}
        self._shapes: dict[Term, Shape | None] = {}
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
        self.checks[schema.path, keyword] = None

    def note(self, *keywords: str) -> None:
        """Notes that the grammar is wider than these keywords, wherever they stand."""
        for keyword in keywords:
            for path in self.places.get(keyword, ()):
                self.checks[path, keyword] = None

    def values(self, term: Term, limit: int) -> list[tuple[Any, Any]] | None:
        """The values of a term, each with its key, where they are plain values and at most `limit`."""
        if term is FALSE:
            return []
        shape = self.shape(term)
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

    def name_classes(self, shape: ObjectShape) -> list[tuple[Any, Term, int]]:
        """Undeclared names in classes: the automaton of the names, the term of their values, the bits of `some`."""
        return atoms.name_classes(shape, self)

    def _judge(self, atom: TextSet, text: str, widen: bool) -> bool:
        try:
            return format_accepts(atom[1], text) if atom[0] == "format" else pattern_accepts(atom[1], text)
        except LimitExceeded as error:
            if error.limit == "seconds":
                raise
        except (InvalidPattern, UnsupportedPattern) as error:
            raise self._fault(atom, error) from None
        self.widened(atom)
        return widen

    def _fault(self, atom: TextSet, error: ValueError) -> ValueError:
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
                self.widened(atom)
                if not widen:
                    return None
            return atoms.atom_automaton(atom)
        except LimitExceeded as error:
            if error.limit == "seconds":
                raise
        except (InvalidPattern, UnsupportedPattern) as error:
            raise self._fault(atom, error) from None
        self.widened(atom)
        return None

    def widened(self, s: TextSet) -> None:
        """Notes that the grammar is wider than the keywords a string formula comes from."""
        if s[0] in ("and", "or"):
            for part in s[1]:
                self.widened(part)
        elif s[0] == "not":
            self.widened(s[1])
        elif s in self.sources:
            self.checks[self.sources[s]] = None
        else:
            self.note("minLength", "maxLength") if s[0] == "length" else self.note("enum", "const")

    # Shapes of terms

    def shape(self, term: Term) -> Shape:
        known = self._shapes.get(term, term)
        if isinstance(known, Shape):
            return known
        if known is None:
            raise Circular(term)
        self._shapes[term] = None
        limits.check()
        try:
            shape = self._shapes[term] = self._shape(term)
        except BaseException:
            del self._shapes[term]
            raise
        return shape

    def _shape(self, term: Term) -> Shape:
        kind = term.kind
        if kind == "true":
            shape = ANY
        elif kind == "false":
            shape = EMPTY
        elif kind == "leaf":
            schema, holds, scope = term.args
            shape = self._holds(schema, scope) if holds else self._fails(schema, scope)
        elif kind == "const":
            shape = self._constant(term.args[1])
            if not term.args[2]:
                shape = self._complement(shape)
        else:
            shape = self.shape(term.args[0])
            for part in term.args[1:]:
                other = self.shape(part)
                if kind == "any":
                    shape = self.join(shape, other)
                else:
                    shape = self.meet(shape, other, part.args[0] if part.kind == "leaf" else None, "allOf")
        return shape

    def _constant(self, value: Any) -> Shape:
        if value is None:
            return BY_TYPE["null"]
        if isinstance(value, bool):
            return EMPTY._replace(booleans=2 if value else 1)
        if isinstance(value, str):
            return EMPTY._replace(string=textsets.finite((value,)))
        if is_number(value):
            return EMPTY._replace(number=numbersets.finite((value,)))
        const = self.terms.const
        if isinstance(value, list):
            items = tuple(const(v) for v in value)
            return EMPTY._replace(arrays=(ArrayShape(items, FALSE, len(items), len(items)),))
        props = tuple((k, const(v)) for k, v in value.items())
        return EMPTY._replace(objects=(ObjectShape(props, frozenset(value), rest=FALSE),))

    def _complement(self, shape: Shape) -> Shape:
        """All values outside a shape that has at most one array and one object."""
        return Shape(
            not shape.null,
            3 & ~shape.booleans,
            numbersets.negate(shape.number),
            self.texts.negate(shape.string),
            self._not_array(shape.arrays[0], None) if shape.arrays else (ANY_ARRAY,),
            self._not_object(shape.objects[0]) if shape.objects else (ANY_OBJECT,),
        )

    # Algebra

    def join(self, a: Shape, b: Shape) -> Shape:
        if a is EMPTY or (b is ANY and not self.tracking):
            return b
        if b is EMPTY or (a is ANY and not self.tracking):
            return a
        return Shape(
            a.null or b.null,
            a.booleans | b.booleans,
            numbersets.join(a.number, b.number),
            self.texts.join(a.string, b.string),
            _union(a.arrays, b.arrays, None if self.tracking else ANY_ARRAY),
            _union(a.objects, b.objects, None if self.tracking else ANY_OBJECT),
        )

    def meet(self, a: Shape, b: Shape, schema: Schema | None, keyword: str) -> Shape:
        if a is ANY or b is EMPTY:
            return b
        if b is ANY or a is EMPTY:
            return a
        most = self.alternatives
        wide = len(a.arrays) * len(b.arrays) > most or len(a.objects) * len(b.objects) > most
        if wide:
            self.checks[schema.path if schema else "", keyword] = None
        arrays, objects = a.arrays, a.objects
        if not wide:
            arrays = _unique(m for x in arrays for y in b.arrays if (m := self._meet_arrays(x, y)) is not None)
            objects = _unique(o for x in objects for y in b.objects if (o := self.meet_objects(x, y)) is not None)
        return Shape(
            a.null and b.null,
            a.booleans & b.booleans,
            numbersets.meet(a.number, b.number),
            self.texts.meet(a.string, b.string),
            arrays,
            objects,
        )

    def _meet_arrays(self, a: ArrayShape, b: ArrayShape) -> ArrayShape | None:
        if a is ANY_ARRAY:
            return b
        if b is ANY_ARRAY or a == b:
            return a
        n = max(len(a.prefix), len(b.prefix))
        both = self.terms.all
        prefix = tuple(
            both(
                a.prefix[i] if i < len(a.prefix) else a.rest,
                b.prefix[i] if i < len(b.prefix) else b.rest,
            )
            for i in range(n)
        )
        least, most = max(a.least, b.least), _smaller(a.most, b.most)
        if most is not None and most < least:
            return None
        contains = tuple(dict.fromkeys(a.contains + b.contains))
        evaluated = _evaluated(a.evaluated, b.evaluated)
        return ArrayShape(prefix, both(a.rest, b.rest), least, most, contains, a.unique or b.unique, evaluated)

    def term_for(self, shape: ObjectShape, name: str) -> Term:
        """What a shape says about the value under a name that it does not declare."""
        if shape.names is not textsets.ALL and not self.texts.accepts(shape.names, name):
            return FALSE
        if not shape.layers:
            return shape.rest
        terms = [shape.rest]
        for layer in shape.layers:
            matching = [term for pattern, term in layer.patterns if self.texts.accepts(pattern, name)]
            terms.extend(matching or (layer.rest,))
        return self.terms.all(*terms)

    def meet_objects(self, a: ObjectShape, b: ObjectShape) -> ObjectShape | None:
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
        least, most = max(a.least, b.least), _smaller(a.most, b.most)
        if most is not None and most < max(least, len(required)):
            return None
        return ObjectShape(
            tuple(props.items()),
            required,
            tuple(dict.fromkeys(a.layers + b.layers)),
            both(a.rest, b.rest),
            least,
            most,
            self.texts.meet(a.names, b.names),
            tuple(dict.fromkeys(a.needs + b.needs)),
            tuple(dict.fromkeys(a.some + b.some)),
            _evaluated(a.evaluated, b.evaluated),
        )

    def _not_array(self, a: ArrayShape, schema: Schema | None) -> tuple[ArrayShape, ...]:
        negate = self.terms.negate
        out = []
        for i, term in enumerate(a.prefix):
            if term is not TRUE:
                out.append(ArrayShape((TRUE,) * i + (negate(term),), least=i + 1))
        if a.rest is FALSE:
            out.append(ArrayShape(least=len(a.prefix) + 1))
        elif a.rest is not TRUE:
            out.append(ArrayShape(contains=(Contains(negate(a.rest), 1, None, len(a.prefix)),)))
        if a.least:
            out.append(ArrayShape(most=a.least - 1))
        if a.most is not None:
            out.append(ArrayShape(least=a.most + 1))
        for c in a.contains:
            if c.least:
                out.append(ArrayShape(contains=(Contains(c.term, 0, c.least - 1, c.start),)))
            if c.most is not None:
                out.append(ArrayShape(contains=(Contains(c.term, c.most + 1, None, c.start),)))
        if a.unique:
            if schema is not None:
                self.check(schema, "uniqueItems")
            out.append(ArrayShape(least=2))
        return tuple(out)

    def _not_object(self, o: ObjectShape) -> tuple[ObjectShape, ...]:
        negate = self.terms.negate
        out = [ObjectShape(((name, FALSE),)) for name, _ in o.props if name in o.required]
        for name, term in o.props:
            if term is not TRUE:
                out.append(ObjectShape(((name, negate(term)),), frozenset((name,))))
        declared = textsets.finite(tuple(name for name, _ in o.props))
        others = self.texts.negate(declared)
        for layer in o.layers:
            unmatched = others
            for pattern, term in layer.patterns:
                unmatched = self.texts.meet(unmatched, self.texts.negate(pattern))
                if term is not TRUE:
                    out.append(ObjectShape(some=((pattern, negate(term)),)))
            if layer.rest is not TRUE:
                out.append(ObjectShape(some=((unmatched, negate(layer.rest)),)))
        if o.rest is not TRUE:
            out.append(ObjectShape(some=((others, negate(o.rest)),)))
        if o.names is not textsets.ALL:
            out.append(ObjectShape(some=((self.texts.negate(o.names), TRUE),)))
        if o.least:
            out.append(ObjectShape(most=o.least - 1))
        if o.most is not None:
            out.append(ObjectShape(least=o.most + 1))
        for name, needed in o.needs:
            for other in needed:
                if other != name:
                    out.append(ObjectShape(((name, TRUE), (other, FALSE)), frozenset((name,))))
        return tuple(out)

    # Schemas that hold

    def _holds(self, schema: Schema, scope: Scope) -> Shape:
        node = schema.node
        if "$ref" in node and schema.draft <= 7:
            return self.shape(self._reference(schema, "$ref", scope))
        if schema.draft <= 3:
            for keyword in UNREAD & node.keys():
                raise schema.unsupported(keyword, "is of draft 3 alone")
        shape = self._local(schema, scope)
        for keyword, terms in self._applied(schema, scope):
            other = self._apply(schema, keyword, terms)
            shape = self.meet(shape, other, schema, keyword)
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

    def _apply(self, schema: Schema, keyword: str, terms: list[Term]) -> Shape:
        shape = self.shape
        if keyword == "anyOf":
            return self._any_of(schema, terms)
        if keyword == "oneOf":
            return self._one_of(schema, terms)
        if self.coarse and keyword in ("not", "if"):
            self.check(schema, keyword)
            return ANY
        if keyword == "not":
            return _forget(shape(self.terms.negate(terms[0])))
        if keyword == "if":
            condition, then, other = terms
            first = self.meet(shape(condition), shape(then), schema, "then")
            second = self.meet(_forget(shape(self.terms.negate(condition))), shape(other), schema, "else")
            return self.join(first, second)
        out = shape(terms[0])
        for term in terms[1:]:
            out = self.meet(out, shape(term), schema, keyword)
        return out

    def _any_of(self, schema: Schema, terms: list[Term]) -> Shape:
        out = EMPTY
        for term in terms:
            out = self.join(out, self.shape(term))
        if self.tracking and len(terms) > 1:
            if len(terms) > _SUBSETS:
                self.check(schema, "anyOf")
                return _evaluate_all(out)
            for size in range(2, len(terms) + 1):
                for chosen in combinations(terms, size):
                    both = self.shape(chosen[0])
                    for term in chosen[1:]:
                        both = self.meet(both, self.shape(term), schema, "anyOf")
                    out = self.join(out, both)
        return out

    def _one_of(self, schema: Schema, terms: list[Term]) -> Shape:
        """Each branch without what overlaps it; where that grows too large, the plain union and a check."""
        shapes = [self.shape(term) for term in terms]
        out = EMPTY
        for i, shape in enumerate(shapes):
            for j, other in enumerate(shapes):
                if i == j or shape is EMPTY or self._apart(shape, other, 4):
                    continue
                if terms[i] is terms[j]:
                    shape = EMPTY
                    continue
                if self.coarse:
                    self.check(schema, "oneOf")
                    continue
                outside = _forget(self.shape(self.terms.negate(terms[j])))
                if (
                    len(shape.objects) * len(outside.objects) > _OVERLAPS
                    or len(shape.arrays) * len(outside.arrays) > _OVERLAPS
                ):
                    self.check(schema, "oneOf")
                    outside = outside._replace(arrays=(ANY_ARRAY,), objects=(ANY_OBJECT,))
                shape = self.meet(shape, outside, schema, "oneOf")
            out = self.join(out, shape)
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

    def _local(self, schema: Schema, scope: Scope) -> Shape:
        node = schema.node
        types = self._types(schema)
        shape = Shape(
            "null" in types,
            3 if "boolean" in types else 0,
            self._numbers(schema, types) if "number" in types or "integer" in types else numbersets.NONE,
            self._strings(schema) if "string" in types else textsets.NONE,
            self._arrays(schema, scope) if "array" in types else (),
            self._objects(schema, scope) if "object" in types else (),
        )
        if "enum" in node:
            shape = self.meet(shape, self._enumeration(node["enum"]), schema, "enum")
        for name, dependent in self._dependent_schemas(schema, scope):
            if self.coarse:
                self.check(schema, "dependentSchemas" if "dependentSchemas" in node else "dependencies")
                continue
            absent = ANY._replace(objects=(ObjectShape(((name, FALSE),)),))
            present = self.meet(
                EMPTY._replace(objects=(_having(name),)), self.shape(dependent), schema, "dependentSchemas"
            )
            shape = self.meet(shape, self.join(absent, present), schema, "dependentSchemas")
        return shape

    def _enumeration(self, values: list[Any]) -> Shape:
        out = EMPTY._replace(
            string=textsets.finite(tuple(v for v in values if isinstance(v, str))),
            number=numbersets.finite(tuple(v for v in values if is_number(v))),
        )
        for value in values:
            if not isinstance(value, str) and not is_number(value):
                out = self.join(out, self._constant(value))
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
            out = self.texts.meet(out, self._pattern(schema, "pattern", node["pattern"]))
        if self.formats and "format" in node and atoms.is_format(node["format"]):
            atom = ("format", node["format"])
            self.sources.setdefault(atom, (schema.path, "format"))
            out = self.texts.meet(out, atom)
        if "contentEncoding" in node and node["contentEncoding"] == "base64" and self.formats:
            out = self.texts.meet(out, self._pattern(schema, "contentEncoding", BASE64))
        return out

    def _pattern(self, schema: Schema, keyword: str, pattern: str) -> TextSet:
        known = atoms.simple_pattern(pattern)
        if known is not None:
            return known
        atom = ("pattern", pattern)
        self.sources.setdefault(atom, (schema.path, keyword))
        return atom

    def _arrays(self, schema: Schema, scope: Scope) -> tuple[ArrayShape, ...]:
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
        return (ArrayShape(prefix, rest, least, None if most is None else int(most), contains, unique, evaluated),)

    def _objects(self, schema: Schema, scope: Scope) -> tuple[ObjectShape, ...]:
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
                    value, f"{path}/properties/{escape(name)}", resource
                )
                props[name] = self.term(known, scope)
        rest = TRUE
        if "additionalProperties" in node:
            rest = self.child(schema, node["additionalProperties"], scope, "additionalProperties")
        layers: tuple[Layer, ...] = ()
        if node.get("patternProperties"):
            layers, rest = self._layers(schema, scope, props, rest)
        shape = ObjectShape(tuple(props.items()), layers=layers, rest=rest)
        if "propertyNames" in node:
            names = self.shape(self.child(schema, node["propertyNames"], scope, "propertyNames")).string
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
                least=least,
                most=None if most is None else int(most),
                needs=needs,
                evaluated=evaluated,
            ),
        )

    def _layers(
        self, schema: Schema, scope: Scope, props: dict[str, Term], rest: Term
    ) -> tuple[tuple[Layer, ...], Term]:
        """patternProperties with additionalProperties; declared properties meet what the patterns say about them."""
        patterns = []
        for pattern, value in schema.node["patternProperties"].items():
            atom = self._pattern(schema, "patternProperties", pattern)
            term = self.child(schema, value, scope, f"patternProperties/{escape(pattern)}")
            if atom[0] == "pattern" and self.automaton(atom) is None:
                self.check(schema, "additionalProperties")
                self.dropped.add(schema)
                return (), TRUE
            patterns.append((atom, term))
            for name in props:
                if self.texts.accepts(atom, name):
                    props[name] = self.terms.all(props[name], term)
        return (Layer(tuple(patterns), rest),), TRUE

    def _dependent_schemas(self, schema: Schema, scope: Scope) -> list[tuple[str, Term]]:
        node = schema.node
        found = [("dependentSchemas", k, v) for k, v in node.get("dependentSchemas", {}).items()]
        for name, value in node.get("dependencies", {}).items():
            if isinstance(value, (dict, bool)):
                found.append(("dependencies", name, value))
        return [(name, self.child(schema, value, scope, f"{keyword}/{escape(name)}")) for keyword, name, value in found]

    def _unevaluated(self, schema: Schema, scope: Scope, shape: Shape) -> Shape:
        node = schema.node
        if "unevaluatedProperties" in node:
            term = self.child(schema, node["unevaluatedProperties"], scope, "unevaluatedProperties")
            objects = []
            for o in shape.objects:
                seen = o.evaluated
                if not seen.all_names:
                    known = tuple((name, TRUE) for name in sorted(seen.names))
                    layers: tuple[Layer, ...] = ()
                    rest = term
                    if seen.patterns:
                        layers, rest = (Layer(tuple((p, TRUE) for p in seen.patterns), term),), TRUE
                    met = self.meet_objects(o, ObjectShape(known, layers=layers, rest=rest))
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
                    met_array = self._meet_arrays(a, ArrayShape((TRUE,) * a.evaluated.items, rest))
                    if met_array is None:
                        continue
                    a = met_array
                arrays.append(a._replace(evaluated=a.evaluated._replace(items=None)))
            shape = shape._replace(arrays=tuple(arrays))
        return shape

    # Schemas that fail

    def _fails(self, schema: Schema, scope: Scope) -> Shape:
        node = schema.node
        if "$ref" in node and schema.draft <= 7:
            return self.shape(self.terms.negate(self._reference(schema, "$ref", scope)))
        negate, shape = self.terms.negate, self.shape
        types = self._types(schema)
        numbers = self._numbers(schema, frozenset(("number",)))
        if "number" not in types:
            numbers = numbersets.meet(numbers, numbersets.INTEGER) if "integer" in types else numbersets.NONE
        arrays = self._arrays(schema, scope) if "array" in types else ()
        objects = self._objects(schema, scope) if "object" in types else ()
        out = Shape(
            "null" not in types,
            0 if "boolean" in types else 3,
            numbersets.negate(numbers),
            self.texts.negate(self._strings(schema) if "string" in types else textsets.NONE),
            self._not_array(arrays[0], schema) if arrays else (ANY_ARRAY,),
            self._not_object(objects[0]) if objects else (ANY_OBJECT,),
        )
        if schema in self.dropped:
            out = out._replace(objects=(ANY_OBJECT,))
        if "enum" in node:
            excluded = ANY
            plain = self._enumeration([v for v in node["enum"] if not isinstance(v, (list, dict))])
            excluded = self.meet(excluded, self._complement(plain), schema, "enum")
            for value in node["enum"]:
                if isinstance(value, (list, dict)):
                    excluded = self.meet(excluded, shape(self.terms.const(value, False)), schema, "enum")
            out = self.join(out, excluded)
        for name, dependent in self._dependent_schemas(schema, scope):
            present = EMPTY._replace(objects=(_having(name),))
            out = self.join(out, self.meet(present, shape(negate(dependent)), schema, "dependentSchemas"))
        for keyword, terms in self._applied(schema, scope):
            if keyword == "anyOf":
                out = self.join(out, shape(self.terms.all(*map(negate, terms))))
            elif keyword == "not":
                out = self.join(out, shape(terms[0]))
            elif keyword == "oneOf":
                out = self.join(out, shape(self.terms.all(*map(negate, terms))))
                if len(terms) > _SUBSETS:
                    self.check(schema, "oneOf")
                    for term in terms:
                        out = self.join(out, shape(term))
                else:
                    for a, b in combinations(terms, 2):
                        out = self.join(out, shape(self.terms.all(a, b)))
            elif keyword == "if":
                condition, then, other = terms
                out = self.join(out, shape(self.terms.all(condition, negate(then))))
                out = self.join(out, shape(self.terms.all(negate(condition), negate(other))))
            else:
                for term in terms:
                    out = self.join(out, shape(negate(term)))
        for keyword in ("unevaluatedProperties", "unevaluatedItems"):
            if keyword in node and node[keyword] is not True:
                self.check(schema, keyword)
                wide = (
                    EMPTY._replace(objects=(ANY_OBJECT,))
                    if keyword == "unevaluatedProperties"
                    else EMPTY._replace(arrays=(ANY_ARRAY,))
                )
                out = self.join(out, wide)
        return _forget(out)

    # Disjointness, as far as it shows at once

    def _apart(self, a: Shape, b: Shape, depth: int) -> bool:
        """Whether no value is in both shapes; False where that is not plain to see."""
        if (a.null and b.null) or a.booleans & b.booleans:
            return False
        if numbersets.meet(a.number, b.number) != numbersets.NONE:
            return False
        if not self._empty_text(self.texts.meet(a.string, b.string)):
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
                known = self._apart(self.shape(a), self.shape(b), depth - 1)
            except Circular:  # asked while one of the two is being made
                return False
            self._disjoint[a, b] = known
        return known

    def _arrays_apart(self, a: ArrayShape, b: ArrayShape, depth: int) -> bool:
        least, most = max(a.least, b.least), _smaller(a.most, b.most)
        if most is not None and least > most:
            return True
        for i in range(min(least, max(len(a.prefix), len(b.prefix)) + 1)):
            x = a.prefix[i] if i < len(a.prefix) else a.rest
            y = b.prefix[i] if i < len(b.prefix) else b.rest
            if self._terms_apart(x, y, depth):
                return True
        return False

    def _objects_apart(self, a: ObjectShape, b: ObjectShape, depth: int) -> bool:
        ours, theirs = dict(a.props), dict(b.props)
        names = a.required | b.required
        if (b.most is not None and b.most < max(a.least, len(names))) or (
            a.most is not None and a.most < max(b.least, len(names))
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


def _having(name: str) -> ObjectShape:
    return ObjectShape(((name, TRUE),), frozenset((name,)))


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


def _forget(shape: Shape) -> Shape:
    """Without marks of evaluation: a schema under `not` leaves none."""
    return shape._replace(
        arrays=_unique(a._replace(evaluated=Evaluated()) for a in shape.arrays),
        objects=_unique(o._replace(evaluated=Evaluated()) for o in shape.objects),
    )


def _evaluate_all(shape: Shape) -> Shape:
    done = Evaluated(all_names=True, items=None)
    return shape._replace(
        arrays=tuple(a._replace(evaluated=done) for a in shape.arrays),
        objects=tuple(o._replace(evaluated=done) for o in shape.objects),
    )
