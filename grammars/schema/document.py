"""JSON Schema documents: reading, checking the form of every keyword, and resolving references. Never the network.

The form is checked keyword by keyword (`grammars.schema.forms`) instead of validating against the metaschema, which
alone costs milliseconds. References follow the JSON Schema core specification, sections 8.2 ($id, $anchor, $ref,
$dynamicRef), and the older drafts' rules where `$schema` names one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from grammars import limits
from grammars.errors import InvalidSchema, UnsupportedSchema
from grammars.limits import LimitExceeded
from grammars.schema.forms import BESIDE, DRAFTS, LATEST, NEWEST, UNKNOWN, are_names, forms, pattern


class Resource:
    """A document or an embedded schema with its own `$id`: what `#…` fragments refer to.

    `named`: a `$schema` says which draft it is; else it is taken for the latest.
    """

    __slots__ = ("anchors", "draft", "dynamic", "named", "path", "root", "uri")

    def __init__(self, uri: str, root: Any, draft: int, named: bool, path: str) -> None:
        self.uri, self.root, self.draft, self.named, self.path = uri, root, draft, named, path
        self.anchors: dict[str, Any] = {}
        self.dynamic: set[str] = set()


class Schema:
    """One schema object in its place, without what its draft does not know as a keyword.

    Compared by identity; `Document.at` never makes two for one place.
    """

    __slots__ = ("node", "path", "resource")

    def __init__(self, node: dict[str, Any], path: str, resource: Resource) -> None:
        self.path, self.resource = path, resource
        unknown = UNKNOWN[resource.draft] & node.keys()
        self.node = {key: value for key, value in node.items() if key not in unknown} if unknown else node

    @property
    def draft(self) -> int:
        return self.resource.draft

    def invalid(self, keyword: str, reason: str) -> InvalidSchema:
        return InvalidSchema(self.path, keyword, reason)

    def unsupported(self, keyword: str, reason: str = "unsupported", limit: str | None = None) -> UnsupportedSchema:
        return UnsupportedSchema(self.path, keyword, reason, limit)


def json_pointer_escape(token: str) -> str:
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
_IGNORED_BESIDE_REF = 7  # the last draft in which the siblings of $ref do not count


class Document:
    """All resources that one compilation may refer to, the schema's own document first.

    Raises `InvalidSchema` where a keyword's value has the wrong form (`grammars.schema.forms`) or a reference within
    the document leads nowhere, whether or not anything can ever come there.
    """

    def __init__(self, schema: Any, resources: Mapping[str, Any]) -> None:
        self.given = resources
        self.resources: dict[str, Resource] = {}
        self.schemas: dict[int, Schema] = {}
        self.keep: list[Any] = []  # documents whose nodes are keys (by identity) of `schemas`
        self.scoped = False
        self.count = 0
        self._listed: str | None = None  # where `items` is a list though no draft is named
        self._newest = False  # no draft is named, and a keyword of the latest alone occurs
        self.main = self._load("", schema, LATEST, False)
        self._check_references()

    @property
    def dialect(self) -> int:
        """The draft whose reading of keywords the document follows."""
        return 2019 if self._listed is not None and self.main.draft == LATEST else self.main.draft

    def _load(self, uri: str, node: Any, draft: int, named: bool) -> Resource:
        self.keep.append(node)
        draft, named = self._draft(node, draft, named)
        root = Resource(uri, node, draft, named, "")
        self.resources[uri] = root
        self._scan(node, "", root)
        self._settle_lists()
        return root

    def _draft(self, node: Any, draft: int, named: bool) -> tuple[int, bool]:
        if isinstance(node, dict) and isinstance(node.get("$schema"), str):
            name = node["$schema"].rstrip("#")
            found = DRAFTS.get(name) or DRAFTS.get(
                name.replace("https://json-schema.org/draft-", "http://json-schema.org/draft-")
            )
            if found:
                return found, True
            meta = self.given.get(name)
            if isinstance(meta, dict) and meta.get("$schema") != node["$schema"]:
                return self._draft(meta, draft, named)
        return draft, named

    def _settle_lists(self) -> None:
        """`items` as a list means one thing where no draft is named: what 2019-09 and its elders mean by it. Beside
        what 2020-12 alone knows it could be either."""
        if self._listed is None:
            return
        if self._newest:
            raise InvalidSchema(self._listed, "items", "must be a schema beside what draft 2020-12 alone knows")
        for schema in self.schemas.values():
            if not schema.resource.named:
                schema.resource.draft = 2019

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
            identifier = node.get("id" if resource.draft <= 4 else "$id")
            if isinstance(identifier, str) and not (resource.draft <= _IGNORED_BESIDE_REF and "$ref" in node):
                resource = self._identify(node, identifier, path, resource)
            schemas[id(node)] = Schema(node, path, resource)
            self._check_forms(node, path, resource)
            for place, child in self._places(node, path, resource):
                if type(child) is not bool:
                    stack.append((child, place, resource, depth + 1))

    def _check_forms(self, node: dict[str, Any], path: str, resource: Resource) -> None:
        """The keywords of one schema that hold no schemas. Notes anchors."""
        known = forms(resource.draft, resource.named)
        for key, value in node.items():
            form = known.get(key)
            if form is None:
                continue
            wrong = form(value)
            if wrong:
                raise InvalidSchema(path, key, wrong)
            if key in BESIDE and type(value) is bool and BESIDE[key] not in node:
                raise InvalidSchema(path, key, f"must be a number where there is no {BESIDE[key]}")
            if key == "$anchor" or key == "$dynamicAnchor":
                resource.anchors[value] = node
            if key == "$dynamicAnchor" or (key == "$recursiveAnchor" and value is True):
                resource.dynamic.add(value if key == "$dynamicAnchor" else "")
                self.scoped = True

    def _places(self, node: dict[str, Any], path: str, resource: Resource) -> Iterator[tuple[str, Any]]:
        """Every place in one schema that must hold a schema, with what is there."""
        unknown = UNKNOWN[resource.draft]
        for key, value in node.items():
            if key in unknown:
                continue
            if key in _SCHEMA_MAPS:
                if not isinstance(value, dict):
                    raise InvalidSchema(path, key, "must be an object of schemas")
                for name, child in value.items():
                    if key == "patternProperties" and (wrong := pattern(name)):
                        raise InvalidSchema(path, key, wrong)
                    yield f"{path}/{key}/{json_pointer_escape(name)}", child
            elif key == "items" and isinstance(value, list):
                self._check_list(value, path, resource)
                for i, child in enumerate(value):
                    yield f"{path}/{key}/{i}", child
            elif key in _SCHEMA:
                # 2020-12 has no `additionalItems`; beside a list it is read as older drafts have it.
                if key != "additionalItems" or resource.draft != LATEST or isinstance(node.get("items"), list):
                    yield f"{path}/{key}", value
            elif key in _SCHEMAS:
                if not isinstance(value, list) or not value:
                    raise InvalidSchema(path, key, "must be a non-empty array of schemas")
                for i, child in enumerate(value):
                    yield f"{path}/{key}/{i}", child
            elif key == "dependencies":
                if not isinstance(value, dict):
                    raise InvalidSchema(path, key, "must be an object")
                for name, child in value.items():
                    if isinstance(child, (dict, bool)):
                        yield f"{path}/{key}/{json_pointer_escape(name)}", child
                    elif not are_names(child) and not (isinstance(child, str) and resource.draft <= 3):
                        raise InvalidSchema(path, key, "must hold schemas or arrays of distinct strings")
            if key in NEWEST and not resource.named:
                self._newest = True

    def _check_list(self, items: list[Any], path: str, resource: Resource) -> None:
        if resource.draft == LATEST:
            if resource.named:
                raise InvalidSchema(path, "items", "must be a schema (an object or a boolean)")
            self._listed = path
        if not items:
            raise InvalidSchema(path, "items", "must be a schema or a non-empty array of schemas")

    def _check_references(self) -> None:
        """Raises `InvalidSchema` where a reference within what is loaded leads nowhere.

        One that leads elsewhere is looked at when a value may come there: it says nothing about the form.
        """
        checked = 0
        while checked < len(self.schemas):  # what lies where no keyword expects a schema is found by references
            found = list(self.schemas.values())[checked:]
            checked += len(found)
            for schema in found:
                for keyword in ("$ref", "$dynamicRef"):
                    if keyword in schema.node:
                        uri, fragment = urldefrag(schema.node[keyword])
                        base = schema.resource
                        target = self.resources.get(urljoin(base.uri, uri)) if uri else base
                        if target is not None:
                            self._within(schema, target, fragment, keyword)

    def _identify(self, node: dict[str, Any], identifier: str, path: str, resource: Resource) -> Resource:
        if identifier.startswith("#"):  # drafts 4 to 7 write anchors so
            resource.anchors[identifier[1:]] = node
            return resource
        uri = urldefrag(urljoin(resource.uri, identifier)).url
        draft, named = self._draft(node, resource.draft, resource.named)
        if node is resource.root:
            resource.uri, resource.draft, resource.named = uri, draft, named
        else:
            resource = Resource(uri, node, draft, named, path)
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
                return self._load(uri, self.given[name], schema.draft, schema.resource.named)
        built_in = metaschema(uri)
        if built_in is not None:
            return self._load(uri, built_in, schema.draft, schema.resource.named)
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
            path = f"{path}/{json_pointer_escape(token)}"
        if isinstance(node, bool):
            return node
        return self.at(node, path, resource)


_VALIDATION = frozenset(
    (
        *("const", "contentEncoding", "contentMediaType", "dependentRequired", "enum", "exclusiveMaximum"),
        *("exclusiveMinimum", "maxContains", "maxItems", "maxLength", "maxProperties", "maximum", "minContains"),
        *("minItems", "minLength", "minProperties", "minimum", "multipleOf", "pattern", "required", "type"),
        "uniqueItems",
    )
)


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
