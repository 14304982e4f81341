"""JSON Schema (draft 2020-12) of a Python function's parameters, from its signature and docstring."""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    list: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
    object: {},
}

_SECTION = re.compile(r"(Args|Arguments|Parameters|Returns|Yields|Raises|Examples?|Notes?):\s*$")
_GOOGLE = re.compile(r"(\*{0,2}\w+)(?:\s*\([^)]*\))?:\s*(.*)$")
_SPHINX = re.compile(r":(\w+)(?:\s+([^:]+))?:\s*(.*)$")


def parameters_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The schema of the object whose members are the function's keyword arguments.

    Raises TypeError naming the parameter whose annotation JSON Schema cannot say, or that no keyword can fill.
    """
    hints = get_type_hints(_hinted(function), include_extras=True)
    _, described = read_docstring(inspect.getdoc(function) or "")
    schema: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    required: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints.get(name, Any)
        try:
            value = schema_of(hint)
        except TypeError as error:
            raise TypeError(f"parameter {name}: {error}") from None
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            schema["additionalProperties"] = value or True
            continue
        if parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
            raise TypeError(f"parameter {name}: a tool's arguments come by name")
        if name in described:
            value.setdefault("description", described[name])
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
        elif _is_json(parameter.default):
            value["default"] = parameter.default
        schema["properties"][name] = value
    if required:
        schema["required"] = required
    return schema


def schema_of(hint: Any) -> dict[str, Any]:
    """The schema of one annotation: the plain JSON types, lists, string-keyed dicts, Literal, unions, TypedDict,
    and Annotated with a description (a string) or with keywords (a mapping). Raises TypeError for any other."""
    origin, arguments = get_origin(hint), get_args(hint)
    if (hint is Any or isinstance(hint, type)) and hint in _PLAIN:
        return dict(_PLAIN[hint])
    if origin is Annotated:
        schema = schema_of(arguments[0])
        for note in arguments[1:]:
            if isinstance(note, str):
                schema["description"] = note
            elif isinstance(note, Mapping):
                schema.update(note)
        return schema
    if origin is Literal:
        if not all(_is_json(value) for value in arguments):
            raise TypeError("a Literal of a tool holds strings, numbers, booleans and None")
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(each) for each in arguments]}
    if origin in (list, Sequence):
        return {"type": "array", "items": schema_of(arguments[0])}
    if origin in (dict, Mapping) and arguments[0] is str:
        return {"type": "object", "additionalProperties": schema_of(arguments[1]) or True}
    if typing.is_typeddict(hint):
        return _typed_dict(hint)
    raise TypeError(f"JSON Schema cannot say {hint!r}; give the tool's parameters yourself")


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Descriptions of a function and of each parameter in a docstring (Google's `Args:` or Sphinx's `:param name:`)."""
    told: list[str] = []
    parameters: dict[str, list[str]] = {}
    section, current, margin = "", "", 0
    for line in text.splitlines():
        words = line.strip()
        indent = len(line) - len(line.lstrip())
        if match := _SPHINX.match(words):
            section, margin = "field", indent
            current = match[2].split()[-1] if match[1] == "param" and match[2] else ""
            if current:
                parameters[current] = [match[3]]
        elif indent == 0 and (match := _SECTION.match(words)):
            section, current, margin = match[1], "", 0
        elif not section:
            told.append(line)
        elif section in ("Args", "Arguments", "Parameters") and words:
            margin = margin or indent
            if indent <= margin and (match := _GOOGLE.match(words)):
                current = match[1].lstrip("*")
                parameters[current] = [match[2]]
            elif current:
                parameters[current].append(words)
        elif section == "field" and current and indent > margin:
            parameters[current].append(words)
    return "\n".join(told).strip(), {name: " ".join(filter(None, lines)) for name, lines in parameters.items()}


def _hinted(function: Callable[..., Any]) -> Any:
    """The object that has the annotations: of a callable object, its method."""
    return function if inspect.isroutine(function) else type(function).__call__


def _typed_dict(hint: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    required: list[str] = []
    for name, member in get_type_hints(hint, include_extras=True).items():
        origin = get_origin(member)
        marked = origin in (typing.Required, typing.NotRequired)
        schema["properties"][name] = schema_of(get_args(member)[0] if marked else member)
        # `__required_keys__` does not see marks in annotations that were strings.
        if origin is typing.Required or (not marked and name in hint.__required_keys__):
            required.append(name)
    return {**schema, "required": required} if required else schema


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
