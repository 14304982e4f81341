"""Terms: formulas over schemas, which stand for the values of properties and items until the grammar reaches them.

A recursive schema has finitely many terms, and each is normalised once.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from grammars.schema.document import Document, Resource, Schema, json_pointer_escape

Scope: TypeAlias = tuple[Resource, ...]
"""The dynamic scope: resources entered on the way to a schema, outermost first (core specification, section 7.1)."""


class Term:
    """A formula over schemas; interned by `Terms`, so compared by identity.

    kind and args: "true", "false"; "leaf": (Schema, holds: bool, dynamic scope); "all" and "any": a tuple of terms;
    "const": (frozen value, value, holds: bool).
    """

    __slots__ = ("args", "kind")

    def __init__(self, kind: str, args: tuple[Any, ...] = ()) -> None:
        self.kind, self.args = kind, args

    def __repr__(self) -> str:
        if self.kind == "leaf":
            return f"{'' if self.args[1] else '!'}<{self.args[0].path}>"
        return f"{self.kind}{self.args if self.args else ''}"


class Circular(Exception):
    """A term whose value set depends on itself."""

    def __init__(self, term: Term) -> None:
        self.path = term.args[0].path if term.kind == "leaf" else ""
        super().__init__(self.path)


TRUE = Term("true")
FALSE = Term("false")


def freeze(value: Any) -> Any:
    """A hashable key under which equal JSON values (1 and 1.0, but not 1 and true) are equal."""
    if isinstance(value, bool):
        return ("b", value)
    if isinstance(value, list):
        return ("l", tuple(freeze(v) for v in value))
    if isinstance(value, dict):
        return ("o", frozenset((k, freeze(v)) for k, v in value.items()))
    return value


class Terms:
    """Factory of terms; equal formulas are the same object."""

    def __init__(self) -> None:
        self._known: dict[Any, Term] = {}

    def _intern(self, kind: str, key: Any, args: tuple[Any, ...]) -> Term:
        term = self._known.get(key)
        if term is None:
            term = self._known[key] = Term(kind, args)
        return term

    def leaf(self, schema: Schema, holds: bool, scope: Scope) -> Term:
        return self._intern("leaf", (schema, holds, scope), (schema, holds, scope))

    def const(self, value: Any, holds: bool = True) -> Term:
        key = freeze(value)
        return self._intern("const", ("const", key, holds), (key, value, holds))

    def all(self, *terms: Term) -> Term:
        return self._combine("all", TRUE, FALSE, terms)

    def any(self, *terms: Term) -> Term:
        return self._combine("any", FALSE, TRUE, terms)

    def _combine(self, kind: str, neutral: Term, absorbing: Term, terms: tuple[Term, ...]) -> Term:
        parts: dict[Term, None] = {}
        for term in terms:
            if term is absorbing:
                return absorbing
            if term.kind == kind:
                parts.update(dict.fromkeys(term.args))
            elif term is not neutral:
                parts[term] = None
        if not parts:
            return neutral
        if len(parts) == 1:
            return next(iter(parts))
        if kind == "all":
            for part in parts:
                if part.kind in ("leaf", "const") and self.negate(part) in parts:
                    return absorbing
        return self._intern(kind, (kind, frozenset(parts)), tuple(parts))

    def negate(self, term: Term) -> Term:
        if term is TRUE:
            return FALSE
        if term is FALSE:
            return TRUE
        if term.kind == "leaf":
            schema, holds, scope = term.args
            return self.leaf(schema, not holds, scope)
        if term.kind == "const":
            key, value, holds = term.args
            return self._intern("const", ("const", key, not holds), (key, value, not holds))
        parts = [self.negate(part) for part in term.args]
        return self.any(*parts) if term.kind == "all" else self.all(*parts)


class SchemaTerms(Terms):
    """Factory of the terms of one document: schemas by place, by keyword and by reference."""

    def __init__(self, document: Document) -> None:
        super().__init__()
        self.document = document

    def root(self) -> Term:
        main = self.document.main
        return self.child_at(main.root, "", main, ())

    def of(self, schema: bool | Schema, scope: Scope) -> Term:
        """The term of a schema in a dynamic scope."""
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
        return self.leaf(schema, True, scope)

    def child_at(self, node: Any, path: str, resource: Resource, scope: Scope) -> Term:
        if node is True:
            return TRUE
        if node is False:
            return FALSE
        return self.of(self.document.at(node, path, resource), scope)

    def child(self, parent: Schema, node: Any, scope: Scope, keyword: str) -> Term:
        """The term of a schema that stands under a keyword of `parent`."""
        return self.child_at(node, f"{parent.path}/{keyword}", parent.resource, scope)

    def named_child(self, parent: Schema, node: Any, scope: Scope, keyword: str, name: str) -> Term:
        """The term of a schema that stands under a name in a keyword of `parent`."""
        known = self.document.schemas.get(id(node))  # saves most paths from being written
        if known is not None:
            return self.of(known, scope)
        return self.child(parent, node, scope, f"{keyword}/{json_pointer_escape(name)}")

    def reference(self, schema: Schema, keyword: str, scope: Scope) -> Term:
        """The term that `$ref`, `$dynamicRef` or `$recursiveRef` leads to (core specification, section 8.2.3)."""
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
        return self.of(target, scope)
