"""In-place applicators: references, allOf, anyOf, oneOf, not, if and const (core specification, 8.2.3 and 10.2)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

from grammars.schema.algebra import fully_evaluated, unevaluated
from grammars.schema.document import Schema
from grammars.schema.sets import ANY_ARRAY, ANY_OBJECT, ANY_VALUE, NO_VALUE, ValueSet
from grammars.schema.terms import Scope, Term

if TYPE_CHECKING:
    from grammars.schema.normalize import Normalizer

_SUBSETS = 4
"""Most branches whose combinations are told apart: of anyOf for unevaluated*, of a negated oneOf."""
_OVERLAPS = 24
"""Most arrays or objects of one branch of oneOf when the other branches are subtracted from it."""
_DEPTH = 4
"""Nesting looked into for the disjointness of two branches of oneOf."""


def applied(normal: Normalizer, schema: Schema, scope: Scope) -> list[tuple[str, list[Term]]]:
    """The applicators of a schema with their terms; `if` carries then and else along."""
    node, terms = schema.node, normal.terms
    out: list[tuple[str, list[Term]]] = []
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        if keyword in node and (keyword != "$recursiveRef" or schema.draft == 2019):
            out.append((keyword, [terms.reference(schema, keyword, scope)]))
    for keyword in ("allOf", "anyOf", "oneOf"):
        if keyword in node:
            out.append((keyword, [terms.child(schema, each, scope, keyword) for each in node[keyword]]))
    if "not" in node:
        out.append(("not", [terms.child(schema, node["not"], scope, "not")]))
    # without then and else, `if` only marks what it evaluates
    if "if" in node and ("then" in node or "else" in node or normal.tracking):
        out.append(("if", [terms.child(schema, node.get(key, True), scope, key) for key in ("if", "then", "else")]))
    if "const" in node:
        out.append(("const", [terms.const(node["const"])]))
    return out


def asserted(normal: Normalizer, schema: Schema, keyword: str, terms: list[Term]) -> ValueSet:
    if keyword == "anyOf":
        return _any_of(normal, schema, terms)
    if keyword == "oneOf":
        return _one_of(normal, schema, terms)
    if normal.approximate and keyword in ("not", "if"):
        normal.unchecked.add(schema.path, keyword)
        return ANY_VALUE
    if keyword == "not":
        return unevaluated(normal.value_set(normal.terms.negate(terms[0])))
    if keyword == "if":
        return _if(normal, schema, *terms)
    out = normal.value_set(terms[0])
    for term in terms[1:]:
        out = normal.algebra.intersect(out, normal.value_set(term), schema.path, keyword)
    return out


def negated(normal: Normalizer, schema: Schema, keyword: str, terms: list[Term]) -> Iterator[ValueSet]:
    every, negate = normal.terms.all, normal.terms.negate
    if keyword == "anyOf":
        failing = [every(*map(negate, terms))]
    elif keyword == "not":
        failing = terms
    elif keyword == "oneOf":
        yield normal.value_set(every(*map(negate, terms)))
        if len(terms) > _SUBSETS:
            normal.unchecked.add(schema.path, "oneOf")
            failing = terms
        else:
            failing = [every(a, b) for a, b in combinations(terms, 2)]
    elif keyword == "if":
        condition, then, other = terms
        failing = [every(condition, negate(then)), every(negate(condition), negate(other))]
    else:
        failing = [negate(term) for term in terms]
    yield from map(normal.value_set, failing)


def _if(normal: Normalizer, schema: Schema, condition: Term, then: Term, other: Term) -> ValueSet:
    value_set, intersect = normal.value_set, normal.algebra.intersect
    first = intersect(value_set(condition), value_set(then), schema.path, "then")
    failing = unevaluated(value_set(normal.terms.negate(condition)))
    return normal.algebra.union(first, intersect(failing, value_set(other), schema.path, "else"))


def _any_of(normal: Normalizer, schema: Schema, terms: list[Term]) -> ValueSet:
    """The union. Where marks of evaluation count, values of several branches have those of all of them."""
    union, intersect = normal.algebra.union, normal.algebra.intersect
    out = NO_VALUE
    for term in terms:
        out = union(out, normal.value_set(term))
    if not normal.tracking or len(terms) < 2:
        return out
    if len(terms) > _SUBSETS:
        normal.unchecked.add(schema.path, "anyOf")
        return fully_evaluated(out)
    for size in range(2, len(terms) + 1):
        for chosen in combinations(terms, size):
            both = normal.value_set(chosen[0])
            for term in chosen[1:]:
                both = intersect(both, normal.value_set(term), schema.path, "anyOf")
            out = union(out, both)
    return out


def _one_of(normal: Normalizer, schema: Schema, terms: list[Term]) -> ValueSet:
    """Each branch without its overlaps; where that grows too large, the plain union, and oneOf is unchecked."""
    branches = [normal.value_set(term) for term in terms]
    out = NO_VALUE
    for i, branch in enumerate(branches):
        for j, other in enumerate(branches):
            if i == j or branch is NO_VALUE or normal.disjointness.values(branch, other, _DEPTH):
                continue
            if terms[i] is terms[j]:
                branch = NO_VALUE
            elif normal.approximate:
                normal.unchecked.add(schema.path, "oneOf")
            else:
                branch = _without(normal, schema, branch, terms[j])
        out = normal.algebra.union(out, branch)
    return out


def _without(normal: Normalizer, schema: Schema, branch: ValueSet, other: Term) -> ValueSet:
    """A branch of oneOf without the values of another one."""
    outside = unevaluated(normal.value_set(normal.terms.negate(other)))
    if len(branch.objects) * len(outside.objects) > _OVERLAPS or len(branch.arrays) * len(outside.arrays) > _OVERLAPS:
        normal.unchecked.add(schema.path, "oneOf")
        outside = outside._replace(arrays=(ANY_ARRAY,), objects=(ANY_OBJECT,))
    return normal.algebra.intersect(branch, outside, schema.path, "oneOf")
