"""JSON Schema documents: reading, checking the form of every keyword, and resolving references. Never the network.

The form is checked here, keyword by keyword, instead of validating against the metaschema (which alone costs
milliseconds). References follow the JSON Schema core specification, sections 8.2 ($id, $anchor, $ref, $dynamicRef),
and the older drafts' rules where `$schema` names one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from . import limits
from .errors import InvalidSchema, UnsupportedSchema
from .limits import LimitExceeded

TYPES = ("null", "boolean", "number", "integer", "string", "array", "object")

_DRAFTS = {
    "http://json-schema.org/draft-03/schema": 3,
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
}
LATEST = 2020

_SINCE = {
    **dict.fromkeys(("const", "contains", "propertyNames"), 6),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "maxContains", "minContains", "$recursiveRef"), 2019),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), 2019),
    **dict.fromkeys(("prefixItems", "$dynamicRef"), 2020),
}
"""The first draft that knows a keyword, where that is not the first of all."""
_UNKNOWN = {draft: frozenset(key for key, first in _SINCE.items() if draft < first) for draft in _DRAFTS.values()}


class Resource:
    """A document or an embedded schema with its own `$id`: what `#…` fragments refer to."""

    __slots__ = ("anchors", "draft", "dynamic", "path", "root", "uri")

    def __init__(self, uri: str, root: Any, draft: int, path: str) -> None:
        self.uri, self.root, self.draft, self.path = uri, root, draft, path
        self.anchors: dict[str, Any] = {}
        self.dynamic: set[str] = set()


class Schema:
    """One schema object in its place, without what its draft does not know as a keyword.

    Compared by identity; `Document.at` never makes two for one place.
    """

    __slots__ = ("draft", "node", "path", "resource")

    def __init__(self, node: dict[str, Any], path: str, resource: Resource) -> None:
        self.path, self.resource, self.draft = path, resource, resource.draft
        unknown = _UNKNOWN[self.draft] & node.keys()
        self.node = {key: value for key, value in node.items() if key not in unknown} if unknown else node

    def invalid(self, keyword: str, reason: str) -> InvalidSchema:
        return InvalidSchema(self.path, keyword, reason)

    def unsupported(self, keyword: str, reason: str = "unsupported", limit: str | None = None) -> UnsupportedSchema:
        return UnsupportedSchema(self.path, keyword, reason, limit)


def escape(token: str) -> str:
    """One token of a JSON Pointer (RFC 6901, section 3)."""
    return token.replace("~", "~0").replace("/", "~1") if "~" in token or "/" in token else token


_SCHEMA = frozenset(
    (
        *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"),
        *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
    )
)
_SCHEMAS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_SCHEMA_MAPS = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))
_COUNTS = frozenset(
    (
        *("maxContains", "maxItems", "maxLength", "maxProperties"),
        *("minContains", "minItems", "minLength", "minProperties"),
    )
)
_NUMBERS = frozenset(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"))
_STRINGS = frozenset(("$anchor", "$dynamicAnchor", "$dynamicRef", "$id", "$ref", "$schema", "format", "pattern"))


def is_number(value: Any) -> bool:
    return isinstance(value, (int, Decimal, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return is_number(value) and value >= 0 and value == int(value)


def _form(key: str, value: Any) -> str | None:
    """What is wrong with the value of a keyword that holds no schemas, if anything."""
    if key == "type":
        names = value if isinstance(value, list) else [value]
        return None if names and all(isinstance(n, str) for n in names) else "must be a type name or a list of them"
    if key in _COUNTS:
        return None if _is_count(value) else "must be a non-negative integer"
    if key in _NUMBERS:
        if isinstance(value, bool) and key.startswith("exclusive"):
            return None
        if not is_number(value):
            return "must be a number"
        return "must be positive" if key == "multipleOf" and value <= 0 else None
    if key in _STRINGS:
        return None if isinstance(value, str) else "must be a string"
    if key == "enum":
        return None if isinstance(value, list) else "must be an array"
    if key == "required":
        ok = isinstance(value, bool) or (isinstance(value, list) and all(isinstance(n, str) for n in value))
        return None if ok else "must be an array of strings"
    if key == "uniqueItems":
        return None if isinstance(value, bool) else "must be a boolean"
    if key == "dependentRequired":
        ok = isinstance(value, dict) and all(
            isinstance(v, list) and all(isinstance(n, str) for n in v) for v in value.values()
        )
        return None if ok else "must be an object of arrays of strings"
    return None


_PLAIN = _COUNTS | _NUMBERS | _STRINGS | {"type", "enum", "required", "uniqueItems", "dependentRequired"}
_IGNORED_BESIDE_REF = 7  # the last draft in which the siblings of $ref do not count


class Document:
    """All resources that one compilation may refer to, the schema's own document first."""

    def __init__(self, schema: Any, resources: Mapping[str, Any]) -> None:
        self.given = resources
        self.resources: dict[str, Resource] = {}
        self.schemas: dict[int, Schema] = {}
        self.keep: list[Any] = []  # documents whose nodes are keys (by identity) of `schemas`
        self.scoped = False
        self.count = 0
        self.listed_items = False
        self.main = self._load("", schema, LATEST)

    @property
    def dialect(self) -> int:
        """The draft whose reading of keywords the document follows: `items` as a list is older than 2020-12."""
        return 2019 if self.listed_items and self.main.draft == LATEST else self.main.draft

    def _load(self, uri: str, node: Any, draft: int) -> Resource:
        self.keep.append(node)
        draft = self._draft(node, draft)
        root = Resource(uri, node, draft, "")
        self.resources[uri] = root
        self._scan(node, "", root)
        return root

    def _draft(self, node: Any, draft: int) -> int:
        if isinstance(node, dict) and isinstance(node.get("$schema"), str):
            name = node["$schema"].rstrip("#")
            found = _DRAFTS.get(name) or _DRAFTS.get(
                name.replace("https://json-schema.org/draft-", "http://json-schema.org/draft-")
            )
            if found:
                return found
            meta = self.given.get(name)
            if isinstance(meta, dict) and meta.get("$schema") != node["$schema"]:
                return self._draft(meta, draft)
        return draft

    def _scan(self, node: Any, path: str, resource: Resource) -> None:
        """Walks every place of a document that holds a schema: checks forms, finds identifiers and anchors."""
        stack = [(node, path, resource, 0)]
        schemas = self.schemas
        while stack:
            node, path, resource, depth = stack.pop()
            if node is True or node is False:
                continue
            if not isinstance(node, dict):
                raise InvalidSchema(
                    path.rpartition("/")[0], path.rpartition("/")[2], "must be a schema (an object or a boolean)"
                )
            self.count += 1
            if self.count > limits.SUBSCHEMAS:
                raise LimitExceeded("subschemas")
            if depth > limits.DEPTH:
                raise LimitExceeded("depth")
            draft = resource.draft
            identifier = node.get("id" if draft <= 4 else "$id")
            if draft <= 4 and identifier is not None and not isinstance(identifier, str):
                raise InvalidSchema(path, "id", "must be a string")
            if isinstance(identifier, str) and not (draft <= _IGNORED_BESIDE_REF and "$ref" in node):
                resource = self._identify(node, identifier, path, resource)
            schemas[id(node)] = Schema(node, path, resource)
            for key, value in node.items():
                if key in _PLAIN:
                    wrong = _form(key, value)
                    if wrong:
                        raise InvalidSchema(path, key, wrong)
                    if key == "$anchor" or key == "$dynamicAnchor":
                        resource.anchors[value] = node
                        if key == "$dynamicAnchor":
                            resource.dynamic.add(value)
                            self.scoped = True
                elif key in _SCHEMA_MAPS:
                    if not isinstance(value, dict):
                        raise InvalidSchema(path, key, "must be an object of schemas")
                    for name, child in value.items():
                        if type(child) is not bool:
                            stack.append((child, f"{path}/{key}/{escape(name)}", resource, depth + 1))
                elif key in _SCHEMA:
                    if key == "items" and isinstance(value, list):
                        self.listed_items = True
                        for i, child in enumerate(value):
                            stack.append((child, f"{path}/{key}/{i}", resource, depth + 1))
                    elif type(value) is not bool:
                        stack.append((value, f"{path}/{key}", resource, depth + 1))
                elif key in _SCHEMAS:
                    if not isinstance(value, list) or (not value and key != "prefixItems"):
                        raise InvalidSchema(path, key, "must be a non-empty array of schemas")
                    for i, child in enumerate(value):
                        stack.append((child, f"{path}/{key}/{i}", resource, depth + 1))
                elif key == "dependencies":
                    if not isinstance(value, dict):
                        raise InvalidSchema(path, key, "must be an object")
                    for name, child in value.items():
                        if isinstance(child, dict):
                            stack.append((child, f"{path}/{key}/{escape(name)}", resource, depth + 1))
                        elif not isinstance(child, (bool, str)) and not (
                            isinstance(child, list) and all(isinstance(n, str) for n in child)
                        ):
                            raise InvalidSchema(path, key, "must hold schemas or arrays of strings")
                elif key == "$recursiveAnchor" and value is True:
                    resource.dynamic.add("")
                    self.scoped = True

    def _identify(self, node: dict[str, Any], identifier: str, path: str, resource: Resource) -> Resource:
        if identifier.startswith("#"):  # drafts 4 to 7 write anchors so
            resource.anchors[identifier[1:]] = node
            return resource
        uri = urldefrag(urljoin(resource.uri, identifier)).url
        draft = self._draft(node, resource.draft)
        if node is resource.root:
            resource.uri, resource.draft = uri, draft
        else:
            resource = Resource(uri, node, draft, path)
        self.resources.setdefault(uri, resource)
        return resource

    def at(self, node: Any, path: str, resource: Resource) -> Schema:
        """The schema object `node`, which may lie where no keyword expects a schema."""
        known = self.schemas.get(id(node))
        if known is None:
            if not isinstance(node, dict):
                raise InvalidSchema(path, "$ref", "leads to something that is no schema")
            self._scan(node, path, resource)
            known = self.schemas[id(node)]
        return known

    def resolve(self, schema: Schema, reference: str, keyword: str = "$ref") -> bool | Schema:
        """What a `$ref` in `schema` refers to."""
        uri, fragment = urldefrag(reference)
        base = schema.resource
        if uri:
            target = urljoin(base.uri, uri)
            resource = self.resources.get(target) or self._fetch(schema, target, keyword)
        else:
            resource = base
        return self._within(schema, resource, fragment, keyword)

    def _fetch(self, schema: Schema, uri: str, keyword: str) -> Resource:
        for name in (uri, uri.rstrip("#"), uri + "#"):
            if name in self.given:
                return self._load(uri, self.given[name], schema.draft)
        built_in = metaschema(uri)
        if built_in is not None:
            return self._load(uri, built_in, schema.draft)
        raise schema.unsupported(keyword, "refers to a document that was not given")

    def _within(self, schema: Schema, resource: Resource, fragment: str, keyword: str) -> bool | Schema:
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            node = resource.anchors.get(fragment)
            if node is None:
                raise schema.invalid(keyword, "refers to an anchor that does not exist")
            return self.at(node, resource.path, resource)
        node, path = resource.root, resource.path
        for token in fragment.split("/")[1:]:
            token = token.replace("~1", "/").replace("~0", "~")
            known = self.schemas.get(id(node))
            if known is not None:
                resource = known.resource
            if isinstance(node, dict) and token in node:
                node = node[token]
            elif isinstance(node, list) and token.isdecimal() and int(token) < len(node):
                node = node[int(token)]
            else:
                raise schema.invalid(keyword, "refers to a place that does not exist")
            path = f"{path}/{escape(token)}"
        if isinstance(node, bool):
            return node
        return self.at(node, path, resource)


_VALIDATION = _PLAIN - _STRINGS | {
    "const",
    "maxContains",
    "minContains",
    "contentEncoding",
    "contentMediaType",
    "pattern",
}


def without_validation(node: Any) -> Any:
    """A schema whose metaschema leaves the validation vocabulary out: its keywords mean nothing there."""
    if not isinstance(node, dict):
        return node
    out: dict[str, Any] = {}
    for key, value in node.items():
        if key in _VALIDATION:
            continue
        if key in _SCHEMA_MAPS and isinstance(value, dict):
            value = {name: without_validation(child) for name, child in value.items()}
        elif key in _SCHEMAS or (key in _SCHEMA and isinstance(value, list)):
            value = [without_validation(child) for child in value]
        elif key in _SCHEMA:
            value = without_validation(value)
        out[key] = value
    return out


def vocabularies(schema: Any, resources: Mapping[str, str]) -> frozenset[str] | None:
    """The vocabularies that a metaschema among the resources lists, by their last names; None where it does not."""
    if not isinstance(schema, dict) or not isinstance(schema.get("$schema"), str):
        return None
    meta = resources.get(schema["$schema"].rstrip("#"))
    listed = json.loads(meta).get("$vocabulary") if meta is not None and '"$vocabulary"' in meta else None
    return frozenset(uri.rpartition("/")[2] for uri in listed) if isinstance(listed, dict) else None


def metaschema(uri: str) -> Any | None:
    """A metaschema of the JSON Schema organisation, from the copies that jsonschema brings along."""
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    for name in (uri, uri + "#"):
        resource = REGISTRY.get(name)
        if resource is not None:
            return resource.contents
    return None
