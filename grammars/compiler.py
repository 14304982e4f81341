"""`compile_schema`: schema → resolved → normal form → grammar → GBNF."""

from __future__ import annotations

import gc
import json
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from threading import Lock
from typing import Any, Literal, NamedTuple

from grammars import limits
from grammars.errors import InvalidSchema, UnsupportedSchema
from grammars.limits import LimitExceeded
from grammars.memo import memo, scope
from grammars.rules.builder import GrammarBuilder
from grammars.rules.gbnf import gbnf
from grammars.rules.rules import Rule, prune
from grammars.rules.syntax import TaggedSyntax, ValueSyntax
from grammars.rules.syntax import value_syntax as spelled
from grammars.schema.document import Document, vocabularies, without_validation
from grammars.schema.normalize import Normalizer
from grammars.schema.terms import Circular
from grammars.validation import Validation


class UncheckedKeyword(NamedTuple):
    """A keyword that the grammar is wider than: the JSON Pointer of its schema, and its name."""

    path: str
    keyword: str


_MARK = "\0"
"""Stands before the names of rules; literals and classes never hold it as it is."""


class Compiled:
    """The grammar of a schema, and what is left to validation of the completed value.

    `checks` is empty where the grammar accepts exactly the valid values in its spelling. `satisfiable` is False where
    no value is valid; the grammar then accepts nothing. No grammar keeps names that the schema does not declare from
    coming twice in one object: read the text with a reader that refuses duplicate names.
    """

    def __init__(
        self, rules: dict[str, Rule], checks: tuple[UncheckedKeyword, ...], satisfiable: bool, validation: Validation
    ) -> None:
        self.unchecked, self.satisfiable, self._validation = checks, satisfiable, validation
        # the text alone is kept: its rules are ten times as large, and objects that the cyclic collector walks
        self._marked = gbnf(rules, _MARK)
        self.gbnf = self._marked.replace(_MARK, "")

    def rules(self, prefix: str) -> str:
        """The same rules with every name prefixed, for embedding in a larger grammar; the entry is `{prefix}root`."""
        return self._marked.replace(_MARK, prefix)

    def validate(self, value: Any) -> None:
        """Raises `InvalidInstance` where the value violates the schema; every keyword counts, not `checks` alone."""
        self._validation.validate(value)


_CACHE_SIZE = 256
_CACHE_CHARACTERS = 8_000_000
"""Characters of the grammars that are kept."""
_cache: OrderedDict[Any, Compiled | Exception] = OrderedDict()
_lock = Lock()
_compiling = Lock()


def compile_schema(
    schema: Mapping[str, Any] | bool,
    *,
    formats: Literal["assert", "annotate"] = "assert",
    style: Literal["compact", "spaced"] = "compact",
    spelling: str | TaggedSyntax = "json",
    resources: Mapping[str, Any] | None = None,
) -> Compiled:
    """Compiles a JSON Schema (drafts 4 to 2020-12, as `$schema` says) into a grammar for llama.cpp.

    formats: whether `format` is asserted. style: white space of the JSON. spelling: the syntax of the value, by a name
    that `grammars.rules.syntax.spelling` knows, or as elements. resources: documents that `$ref` may refer
    to, by URI; the metaschemas are known, nothing is ever fetched. Results are kept by content, and found again
    in the same scope alone (`grammars.scoped`).

    Raises `InvalidSchema` for what is no schema, `UnsupportedSchema` for what no grammar can be made of, and for what
    exceeds a limit of `grammars.limits`.
    """
    text, given = _text(schema, ""), {uri: _text(document, "$ref") for uri, document in (resources or {}).items()}
    key = (scope(), text, formats, style, spelling, tuple(sorted(given.items())))
    with _lock:
        found = _cache.get(key)
        if found is not None:
            _cache.move_to_end(key)
    if found is None:
        try:
            with _compiling:
                found = _compile(text, formats, style, spelling, given)
        except (InvalidSchema, UnsupportedSchema) as error:
            found = error
        with _lock:
            _cache[key] = found
            while len(_cache) > 1 and (
                len(_cache) > _CACHE_SIZE or sum(map(_weight, _cache.values())) > _CACHE_CHARACTERS
            ):
                _cache.popitem(last=False)
    if isinstance(found, Exception):
        raise found.with_traceback(None)
    return found


def check_schema(schema: Mapping[str, Any] | bool) -> None:
    """Whether a schema is well-formed, without compiling it: for one that nothing is going to be written by.

    Raises `InvalidSchema` as `compile_schema` does, and `UnsupportedSchema` where the document exceeds the limits of
    depth and size.
    """
    fault = _fault(_text(schema, ""))
    if fault is not None:
        raise fault.with_traceback(None)


@memo
def _fault(text: str) -> InvalidSchema | UnsupportedSchema | None:
    try:
        with _compiling, compile_limits():
            Document(_load(text), {})
    except LimitExceeded as error:
        return UnsupportedSchema("", "", "exceeds a limit", error.limit)
    except RecursionError:
        return UnsupportedSchema("", "", "is nested too deeply", "depth")
    except InvalidSchema as error:
        return error
    return None


def _weight(entry: Compiled | Exception) -> int:
    return len(entry.gbnf) if isinstance(entry, Compiled) else 0


def _text(document: Any, keyword: str) -> str:
    try:
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError) as error:
        raise InvalidSchema("", keyword, f"is not JSON: {type(error).__name__}") from None
    except RecursionError:
        raise UnsupportedSchema("", keyword, "is nested too deeply", "depth") from None
    return text


def _compile(text: str, formats: str, style: str, spelling: str | TaggedSyntax, given: Mapping[str, str]) -> Compiled:
    """The exact grammar or, where that takes too long or grows too large, a coarse one with more checks."""
    if formats not in ("assert", "annotate") or style not in ("compact", "spaced"):
        raise ValueError("unknown formats or style")
    try:
        with compile_limits():
            known = vocabularies(json.loads(text), given) if given else None
            if known is not None and "validation" not in known:
                text = json.dumps(without_validation(json.loads(text)), ensure_ascii=False)
            if known is not None and "format-assertion" in known:
                formats = "assert"
            request = _Request(text, formats, spelled(spelling, style), given)
            try:
                return request.compile(coarse=False)
            except LimitExceeded as error:
                if error.limit in ("depth", "subschemas"):
                    raise
            return request.compile(coarse=True)
    except Circular as error:
        raise InvalidSchema(error.path, "$ref", "leads back to itself") from None
    except LimitExceeded as error:
        raise UnsupportedSchema("", "", "exceeds a limit", error.limit) from None
    except RecursionError:
        raise UnsupportedSchema("", "", "is nested too deeply", "depth") from None
    finally:
        limits.stop()


class _Request(NamedTuple):
    text: str
    formats: str
    spelling: ValueSyntax
    given: Mapping[str, str]

    def compile(self, coarse: bool) -> Compiled:
        limits.start(limits.SECONDS / 2)
        texts = (self.text, *self.given.values())
        document = Document(_load(self.text), {uri: _load(other) for uri, other in self.given.items()})
        tracking = any('"unevaluated' in text for text in texts)
        normal = Normalizer(document, formats=self.formats, tracking=tracking, coarse=coarse)
        grammar = GrammarBuilder(normal, self.spelling).write(normal.terms.root())
        rules, satisfiable = prune(grammar.rules)
        checks = tuple(UncheckedKeyword(*check) for check in normal.unchecked)
        validation = Validation(self.text, dict(self.given), document.dialect, self.formats == "assert")
        return Compiled(rules, checks, satisfiable, validation)


def _load(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


@contextmanager
def compile_limits() -> Iterator[None]:
    """Room for the mutual recursion of terms and shapes (`limits.DEPTH` bounds documents, not chains of references),
    and no search for cyclic garbage: a compilation makes many small objects and no garbage worth collecting."""
    before, collecting = sys.getrecursionlimit(), gc.isenabled()
    sys.setrecursionlimit(max(before, 10_000))
    gc.disable()
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
        if collecting:
            gc.enable()
