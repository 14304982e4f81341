"""Where our check of a schema's form differs from the metaschemas, class by class.

    python benchmarks/forms.py RECORDS.jsonl.gz … [--suite JSON-SCHEMA-TEST-SUITE]

RECORDS are MaskBench's, as `schemas.py` takes them. Every schema is judged by `grammars.check_schema` and by the
metaschema of its draft (2020-12 where `$schema` names none), formats included, as `jsonschema` has it. Each class of
difference that occurs is printed with its number and one example; a schema whose difference is of no class in `CLASSES`
is named, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

from schemas import records

CLASSES = {
    "old bounds": ("`exclusiveMinimum`, `exclusiveMaximum`: a boolean beside its bound, no draft named", "read"),
    "old items": ("`items`: a list, no draft named, and nothing of 2020-12 alone in the document", "read"),
    "new bounds": ("`exclusiveMinimum`, `exclusiveMaximum`: a number in draft 4", "read"),
    "boolean schema": ("a boolean in place of a schema in draft 4", "read"),
    "empty list": ("`required`, `dependencies`: an empty list in draft 4", "read"),
    "value twice": ("`enum`: a value twice in draft 4", "read"),
    "whole number": ("a count with a fraction of zero (`2.0`) in draft 4", "read"),
    "pattern": ("`pattern`, `patternProperties`: a regular expression", "by ECMA-262"),
    "reference": ("`$ref`, `$dynamicRef`: no string, or to a place within the document that is none", "refused"),
    "place": ("a place that no keyword but a `$ref` makes a schema", "checked"),
    "$defs": ("`$defs` before 2019-09", "checked"),
    "writeOnly": ("`writeOnly` in draft 7", "checked"),
}
"""What differs, and what becomes of it here. The reasons are in `docs/grammars.md`."""


def _draft(validator: type[Any]) -> int:
    return {"Draft4Validator": 4, "Draft6Validator": 6, "Draft7Validator": 7}.get(validator.__name__, 2020)


@cache
def _meta(validator: type[Any]) -> Any:
    return validator(validator.META_SCHEMA, format_checker=validator.FORMAT_CHECKER)


def difference(schema: Any) -> str | None:
    """The class of a schema's difference from its metaschema, "" where it is of none; None where they agree."""
    from jsonschema.validators import Draft202012Validator, validator_for

    from grammars import InvalidSchema, check_schema

    validator = validator_for(schema, default=Draft202012Validator)
    errors = list(_meta(validator).iter_errors(schema))
    try:
        check_schema(schema)
    except InvalidSchema as error:
        return None if errors else _stricter(error, _draft(validator))
    found = [_wider(error, _draft(validator), isinstance(schema, dict) and "$schema" in schema) for error in errors]
    return ("" if "" in found else found[0]) if found else None


def _stricter(error: Any, draft: int) -> str:
    """The class of what we refuse alone."""
    place = f"{error.path}/{error.keyword}"
    if error.keyword in ("$ref", "$dynamicRef"):
        return "reference"
    if error.keyword in ("pattern", "patternProperties"):
        return "pattern"
    if draft < 2019 and "/$defs" in place:
        return "$defs"
    if draft == 7 and error.keyword == "writeOnly":
        return "writeOnly"
    return "place"


def _wider(error: Any, draft: int, named: bool) -> str:
    """The class of what the metaschema refuses alone."""
    if error.context:  # one of several forms: what stands in the way of the nearest
        ways = defaultdict(list)
        for each in error.context:
            ways[each.schema_path[0]].append(_wider(each, draft, named))
        return next((found[0] for found in ways.values() if "" not in found), "")
    keyword = next((part for part in reversed(error.absolute_path) if isinstance(part, str)), "")
    value = error.instance
    if error.validator == "format" and error.validator_value == "regex":
        return "pattern"
    if not named and isinstance(value, bool) and keyword.startswith("exclusive"):
        return "old bounds"
    if not named and isinstance(value, list) and keyword == "items":
        return "old items"
    if draft != 4:
        return ""
    if keyword.startswith("exclusive") or error.validator == "dependencies":
        return "new bounds"
    if isinstance(value, bool):
        return "boolean schema"
    if isinstance(value, float):
        return "whole number"
    return {"minItems": "empty list", "uniqueItems": "value twice"}.get(error.validator, "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="*")
    parser.add_argument("--suite", type=Path, help="the suite's directory")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # of Python's regular expressions
    given = [(record["id"], record["schema"]) for path in arguments.records for record in records(path)]
    for path in sorted((arguments.suite / "tests").rglob("*.json")) if arguments.suite else ():
        given += [(f"{path.stem}: {group['description']}", group["schema"]) for group in json.loads(path.read_text())]
    found: dict[str, list[str]] = defaultdict(list)
    for name, schema in given:
        kind = difference(schema)
        if kind is not None:
            found[kind].append(name)
    print(f"{len(given)} schemas, {sum(map(len, found.values()))} differ from their metaschemas")
    for kind, names in sorted(found.items()):
        print(f"{len(names):6} {kind or 'of no class'}: {', '.join(names if not kind else names[:1])}")
    sys.exit(1 if "" in found else 0)


if __name__ == "__main__":
    main()
