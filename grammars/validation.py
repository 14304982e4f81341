"""Judging a completed value: jsonschema, with the same patterns, formats and exact numbers as the grammar."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from grammars import limits
from grammars.automata.formats import BASE64, format_accepts
from grammars.automata.regex import InvalidPattern, UnsupportedPattern
from grammars.automata.regex_nfa import pattern_accepts
from grammars.errors import InvalidInstance, UnsupportedSchema
from grammars.limits import LimitExceeded
from grammars.schema.document import json_pointer_escape
from grammars.schema.forms import is_number
from grammars.schema.terms import freeze

_SECONDS = 2.0


class Validation:
    """A schema ready to judge values; the validator is built when it is first used."""

    def __init__(self, text: str, resources: Mapping[str, str], dialect: int, formats: bool) -> None:
        self.text, self.resources, self.dialect, self.formats = text, resources, dialect, formats
        self._built: tuple[Any, list[Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_built": None}

    def validate(self, value: Any) -> None:
        """Raises `InvalidInstance` naming the part of the value and the keyword."""
        from jsonschema.exceptions import UnknownType

        if self._built is None:
            self._built = _validator(self)
        validator, clock = self._built
        clock[0] = limits.Deadline(_SECONDS)
        try:
            error = next(validator.iter_errors(_exact(value)), None)
        except LimitExceeded as limit:
            raise UnsupportedSchema("", "", "takes too long to validate", limit.limit) from None
        except UnknownType:  # where the compiler never came, since no value reaches it
            raise UnsupportedSchema("", "type", "names an unknown type") from None
        except (InvalidPattern, UnsupportedPattern) as fault:
            raise UnsupportedSchema("", "pattern", str(fault)) from None
        except RecursionError:
            raise InvalidInstance("", "depth") from None
        if error is not None:
            path = "".join(f"/{json_pointer_escape(str(token))}" for token in error.absolute_path)
            raise InvalidInstance(path, str(error.validator or "false"))


def _exact(value: Any) -> Any:
    """Floats as the decimals that they are printed as."""
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, Mapping):
        return {key: _exact(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_exact(item) for item in value]
    return value


def _validator(validation: Validation) -> tuple[Any, list[Any]]:
    """The validator, and the cell that holds its deadline."""
    from jsonschema import validators
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT4, DRAFT6, DRAFT7, DRAFT201909, DRAFT202012

    classes = {
        3: (validators.Draft3Validator, DRAFT4),
        4: (validators.Draft4Validator, DRAFT4),
        6: (validators.Draft6Validator, DRAFT6),
        7: (validators.Draft7Validator, DRAFT7),
        2019: (validators.Draft201909Validator, DRAFT201909),
        2020: (validators.Draft202012Validator, DRAFT202012),
    }
    base, specification = classes[validation.dialect]
    clock: list[Any] = [None]
    ours: dict[str, Any] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "multipleOf": _multiple_of,
        "required": _required,
        "uniqueItems": _unique_items,
        "minimum": _minimum,
        "maximum": _maximum,
        "exclusiveMinimum": _exclusive_minimum,
        "exclusiveMaximum": _exclusive_maximum,
        "enum": _enum,
        "format": _format if validation.formats else _annotation,
    }
    if validation.formats and validation.dialect >= 7:
        ours["contentEncoding"] = _content_encoding
    if validation.dialect <= 3:
        del ours["required"]
    if validation.dialect >= 6:
        ours["const"] = _const
    if validation.dialect >= 2019:
        ours["unevaluatedProperties"] = _unevaluated_properties
        ours["dependencies"] = _dependencies
    for keyword in ("$ref", "properties", "items", "anyOf", "oneOf", "allOf"):
        inner = ours.get(keyword) or base.VALIDATORS.get(keyword)
        if inner is not None:
            ours[keyword] = _timed(inner, clock)
    checker = base.TYPE_CHECKER.redefine("number", lambda _, v: is_number(v)).redefine(
        "integer",
        lambda _, v: (
            (isinstance(v, int) and not isinstance(v, bool)) or (isinstance(v, Decimal) and v == v.to_integral_value())
        ),
    )
    extend: Any = validators.extend
    extended = extend(base, ours, type_checker=checker)

    def load(text: str) -> Any:
        return json.loads(text, parse_float=Decimal)

    registry: Any = Registry().combine(REGISTRY)
    for uri, text in validation.resources.items():
        registry = registry.with_resource(uri, Resource.from_contents(load(text), default_specification=specification))
    return extended(load(validation.text), registry=registry), clock


def _timed(inner: Callable[..., Any], clock: list[Any]) -> Callable[..., Any]:
    def keyword(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        if clock[0] is not None:
            clock[0].check()
        return inner(validator, value, instance, schema)

    return keyword


def _error(message: str) -> Any:
    from jsonschema import ValidationError

    return ValidationError(message)


Errors = Iterator[Any]


def _annotation(validator: Any, value: Any, instance: Any, schema: Any) -> Errors:
    return iter(())


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, str) and not pattern_accepts(pattern, instance):
        yield _error("pattern")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, dict):
        for pattern, subschema in patterns.items():
            for name, value in instance.items():
                if pattern_accepts(pattern, name):
                    yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _is_additional(name: str, schema: Any) -> bool:
    return name not in schema.get("properties", {}) and not any(
        pattern_accepts(pattern, name) for pattern in schema.get("patternProperties", {})
    )


def _additional_properties(validator: Any, subschema: Any, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, dict):
        for name, value in instance.items():
            if _is_additional(name, schema):
                if subschema is False:
                    yield _error("additionalProperties")
                else:
                    yield from validator.descend(value, subschema, path=name)


def _multiple_of(validator: Any, divisor: Any, instance: Any, schema: Any) -> Errors:
    if is_number(instance) and (Fraction(instance) / Fraction(divisor)).denominator != 1:
        yield _error("multipleOf")


def _required(validator: Any, names: Any, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, dict):
        for name in names:
            if name not in instance:
                yield _error("required")


def _unique_items(validator: Any, unique: Any, instance: Any, schema: Any) -> Errors:
    if unique and isinstance(instance, list) and len({freeze(item) for item in instance}) != len(instance):
        yield _error("uniqueItems")


def _minimum(validator: Any, bound: Any, instance: Any, schema: Any) -> Errors:
    if is_number(instance) and (instance <= bound if schema.get("exclusiveMinimum") is True else instance < bound):
        yield _error("minimum")


def _maximum(validator: Any, bound: Any, instance: Any, schema: Any) -> Errors:
    if is_number(instance) and (instance >= bound if schema.get("exclusiveMaximum") is True else instance > bound):
        yield _error("maximum")


def _exclusive_minimum(validator: Any, bound: Any, instance: Any, schema: Any) -> Errors:
    if is_number(instance) and not isinstance(bound, bool) and instance <= bound:
        yield _error("exclusiveMinimum")


def _exclusive_maximum(validator: Any, bound: Any, instance: Any, schema: Any) -> Errors:
    if is_number(instance) and not isinstance(bound, bool) and instance >= bound:
        yield _error("exclusiveMaximum")


def _enum(validator: Any, values: Any, instance: Any, schema: Any) -> Errors:
    key = freeze(instance)
    if all(freeze(value) != key for value in values):
        yield _error("enum")


def _const(validator: Any, value: Any, instance: Any, schema: Any) -> Errors:
    if freeze(value) != freeze(instance):
        yield _error("const")


def _format(validator: Any, name: str, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, str) and not format_accepts(name, instance):
        yield _error("format")


def _content_encoding(validator: Any, encoding: str, instance: Any, schema: Any) -> Errors:
    if encoding == "base64" and isinstance(instance, str) and not pattern_accepts(BASE64, instance):
        yield _error("contentEncoding")


def _dependencies(validator: Any, dependencies: Any, instance: Any, schema: Any) -> Errors:
    """Drafts 3 to 7 have it; later ones keep it for compatibility."""
    if not isinstance(instance, dict):
        return
    for name, dependency in dependencies.items():
        if name not in instance:
            continue
        if isinstance(dependency, (list, str)):
            if any(other not in instance for other in ([dependency] if isinstance(dependency, str) else dependency)):
                yield _error("dependencies")
        else:
            yield from validator.descend(instance, dependency, schema_path=name)


def _unevaluated_properties(validator: Any, subschema: Any, instance: Any, schema: Any) -> Errors:
    if not isinstance(instance, dict):
        return
    beside = {keyword: value for keyword, value in schema.items() if keyword != "unevaluatedProperties"}
    seen = _evaluated_names(validator, instance, beside)
    for name, value in instance.items():
        if name not in seen:
            for _ in validator.descend(value, subschema, path=name):
                yield _error("unevaluatedProperties")
                return


def _evaluated_names(validator: Any, instance: Any, schema: Any) -> set[str]:
    """The names that keywords beside and below have looked at (JSON Schema core, 11.3)."""
    if not isinstance(schema, dict):
        return set()
    seen: set[str] = set()
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        if keyword in schema:
            seen |= _behind_reference(validator, instance, schema, keyword)
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if keyword in schema and validator.evolve(schema={keyword: schema[keyword], **_beside(schema)}).is_valid(
            instance
        ):
            if keyword == "unevaluatedProperties":
                return set(instance)
            seen |= {name for name in instance if _is_additional(name, schema)}
    seen |= {name for name in instance if name in schema.get("properties", {})}
    seen |= {
        name
        for name in instance
        if any(pattern_accepts(pattern, name) for pattern in schema.get("patternProperties", {}))
    }
    branches = [branch for keyword in ("allOf", "anyOf", "oneOf") for branch in schema.get(keyword, ())]
    branches += [branch for name, branch in schema.get("dependentSchemas", {}).items() if name in instance]
    if "if" in schema:
        holds = validator.evolve(schema=schema["if"]).is_valid(instance)
        branches += [schema["if"]] if holds else []
        branches += [schema[k] for k in (("then",) if holds else ("else",)) if k in schema]
    for branch in branches:
        if validator.evolve(schema=branch).is_valid(instance):
            seen |= _evaluated_names(validator, instance, branch)
    return seen


def _beside(schema: Any) -> dict[str, Any]:
    return {k: schema[k] for k in ("properties", "patternProperties") if k in schema}


def _behind_reference(validator: Any, instance: Any, schema: Any, keyword: str) -> set[str]:
    resolver = validator._resolver
    if keyword == "$recursiveRef":
        from referencing.jsonschema import lookup_recursive_ref

        resolved = lookup_recursive_ref(resolver)
    else:
        resolved = resolver.lookup(schema[keyword])
    inner = validator.evolve(schema=resolved.contents, _resolver=resolved.resolver)
    return _evaluated_names(inner, instance, resolved.contents)
