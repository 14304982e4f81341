"""How well schemas become grammars, and what the grammars cost.

    python benchmarks/schemas.py score RECORDS.jsonl.gz --vocab VOCABULARY.gguf [--engine ours --engine llguidance …]
    python benchmarks/schemas.py masks RECORDS.jsonl.gz --vocab VOCABULARY.gguf
    python benchmarks/schemas.py suite JSON-SCHEMA-TEST-SUITE
    python benchmarks/schemas.py report [SCORE.json …] [--times SCORE.json …] [--suite SUITE.json] [--masks MASKS.json]

Each of the first three writes its results to `--json FILE`. `report` makes tables of the files it is given and, with
`--readme docs/grammars.md`, replaces these tables there and no others: counts may thus be taken on a busy machine, and
times later on a quiet one. Several files of `score` are merged, engine by engine and schema by schema.

RECORDS are MaskBench's: one JSON object a line with `id`, `split`, `schema` and `tests`, each test a value and whether
it is valid. `score` judges as MaskBench does: a schema passes when every valid value is accepted in compact JSON or in
the usual spaced form, and every invalid one rejected. Grammars are judged by llama.cpp's own sampler, token by token,
over a real vocabulary; each engine works in a process of its own under a watchdog, so that a crash or a hang is counted
and not suffered. Engines: `ours`, `llguidance`, `llamacpp` (the converter of llama-cpp-python), where installed.

`masks` times the sampler over the whole vocabulary, at the start, inside a string, between members and inside a number,
on schemas that both `ours` and `llamacpp` can write. `suite` judges the JSON Schema Test Suite (draft 2020-12; formats
are annotations in its required files and asserted in the optional ones about formats) by the rules themselves.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Record = dict[str, Any]


def records(path: Path, every: int = 1) -> Iterator[Record]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number % every == 0:
                yield json.loads(line)


def spellings(value: Any) -> list[str]:
    """Compact and spaced JSON."""
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return list(dict.fromkeys([compact, json.dumps(value, ensure_ascii=False)]))


# Engines


class Engine(Protocol):
    def compile(self, schema: Any) -> Any: ...

    def accepts(self, compiled: Any, text: str) -> bool: ...

    def violated(self, compiled: Any, value: Any) -> str | None:
        """The keyword by which the engine's checks on a completed value, beside the grammar, refuse it."""
        ...

    def reason(self, compiled: Any, value: Any) -> str:
        """Why the grammar rejects a valid value, as far as that can be told."""
        ...


class Sampler:
    """llama.cpp's grammar sampler over a vocabulary."""

    def __init__(self, vocabulary: str) -> None:
        from server.engine import llama
        from server.engine.vocab import Vocab

        llama.log_to(None)
        self.llama = llama
        self.model = llama.LlamaModel(vocabulary, vocab_only=True)
        self.vocab = Vocab(self.model)
        self.candidates = llama.CandidateArray(self.vocab.size)
        self.end = self.model.eos
        self.tokens, self.seconds = 0, 0.0

    def load(self, grammar: str) -> Any:
        sampler = self.llama.grammar_sampler(self.model, grammar)
        if sampler is None:
            raise ValueError("llama.cpp refuses the grammar")
        return sampler

    def allows(self, sampler: Any, token: int) -> bool:
        self.candidates.set_some([token], 0.0)
        sampler.apply(self.candidates)
        return bool(np.isfinite(self.candidates.view()["logit"][0]))

    def reads(self, sampler: Any, text: str) -> bool:
        """Moves on by a text; False where it may not come."""
        for token in self.model.tokenize(text, parse_special=False):
            self.tokens += 1
            began = time.process_time()
            if not self.allows(sampler, token):
                return False
            sampler.accept(token)
            self.seconds += time.process_time() - began
        return True


class Grammars:
    """An engine that writes GBNF: a text, or an object that has it as `gbnf`."""

    def __init__(self, vocabulary: str, write: Callable[[Any], Any]) -> None:
        self.sampler, self.write = Sampler(vocabulary), write

    def compile(self, schema: Any) -> Any:
        written = self.write(schema)
        text = written if isinstance(written, str) else written.gbnf
        began = time.process_time()
        loaded = self.sampler.load(text)
        load = time.process_time() - began
        return {"sampler": loaded, "written": written, "size": len(text), "load": load}

    def accepts(self, compiled: Any, text: str) -> bool:
        sampler = compiled["sampler"].clone()
        return self.sampler.reads(sampler, text) and self.sampler.allows(sampler, self.sampler.end)

    def violated(self, compiled: Any, value: Any) -> str | None:
        written = compiled["written"]
        return None if isinstance(written, str) else violated(written, value)

    def reason(self, compiled: Any, value: Any) -> str:
        written = compiled["written"]
        return "" if isinstance(written, str) else reason(written, value)


def ours(schema: Any) -> Any:
    from grammars import compile_schema

    return compile_schema(schema)


def violated(compiled: Any, value: Any) -> str | None:
    from grammars import InvalidInstance

    try:
        compiled.validate(value)
    except InvalidInstance as error:
        return error.keyword
    return None


def converter(schema: Any) -> str:
    from llama_cpp.llama_grammar import json_schema_to_gbnf

    return str(json_schema_to_gbnf(json.dumps(schema)))


def reason(compiled: Any, value: Any) -> str:
    """`label`: our validation finds the value invalid (and by which keyword). `order`, `numbers`: the grammar accepts
    it with its properties in another order, with numbers spelled otherwise (1 for 1.0). Else `other`."""
    from grammars.testing import Matcher, read

    keyword = violated(compiled, value)
    if keyword is not None:
        return f"label: {keyword}"
    start = Matcher(read(compiled.gbnf))
    plain = respelled(value)
    by_name = json.loads(json.dumps(value, sort_keys=True))  # another chance for the search
    if reads(start, value) or reads(start, by_name):
        return "order"
    if plain != value or json.dumps(plain) != json.dumps(value):
        return "numbers" if start.copy().accept(spellings(plain)[0]) else "order" if reads(start, plain) else "other"
    return "other"


def respelled(value: Any) -> Any:
    """Floats that are whole as integers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [respelled(item) for item in value]
    return {name: respelled(item) for name, item in value.items()} if isinstance(value, dict) else value


def reads(start: Any, value: Any, seconds: float = 5.0) -> bool:
    """Whether a matcher accepts a value with the properties of its objects in some order; gives up after a time.

    Of the properties that may come next, the one behind which most of the others may come is tried first: where a
    grammar has an order, that is the earliest.
    """
    end_of_search = time.process_time() + seconds
    known: dict[tuple[Any, ...], Any] = {}

    def step(here: Any, text: str) -> Any:
        there = here.copy()
        return there if time.process_time() < end_of_search and there.accept(text) else None

    def after(here: Any, value: Any) -> Any:
        key = (here.position, id(value))
        if key not in known:
            known[key] = reading(here, value)
        return known[key]

    def reading(here: Any, value: Any) -> Any:
        if isinstance(value, dict) and value:
            return members(here, value, "{")
        if not isinstance(value, list) or not value:
            return step(here, spellings(value)[0])
        for number, item in enumerate(value):
            here = step(here, "," if number else "[")
            here = here and after(here, item)
            if here is None:
                return None
        return step(here, "]")

    def follows(here: Any, name: str) -> bool:
        key = (here.position, name, "follows")
        if key not in known:
            known[key] = step(here, f",{spellings(name)[0]}:") is not None
        return bool(known[key])

    def members(here: Any, value: dict[str, Any], before: str) -> Any:
        if not value:
            return step(here, "}")
        dead = (here.position, *((name, id(item)) for name, item in value.items()))
        if dead in known:
            return None
        found = {}
        for name, item in value.items():
            there = step(here, before + spellings(name)[0] + ":")
            behind = there and after(there, item)
            if behind is not None:
                found[name] = behind

        def later(name: str) -> int:
            return sum(follows(found[name], other) for other in found if other != name)

        for name in sorted(found, key=later, reverse=True):
            end = members(found[name], {other: value[other] for other in value if other != name}, ",")
            if end is not None:
                return end
        known[dead] = None
        return None

    end = after(start.copy(), value)
    return end is not None and bool(end.accepting)


class Guidance:
    def __init__(self) -> None:
        import llguidance

        self.library, self.tokenizer = llguidance, llguidance.LLTokenizer("byte")

    def compile(self, schema: Any) -> Any:
        grammar = self.library.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        matcher = self.library.LLMatcher(self.tokenizer, grammar)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def accepts(self, compiled: Any, text: str) -> bool:
        matcher = compiled.deep_copy()
        tokens = self.tokenizer.tokenize_bytes(text.encode())
        return all(matcher.try_consume_tokens([token]) == 1 for token in tokens) and matcher.is_accepting()

    def violated(self, compiled: Any, value: Any) -> str | None:
        return None

    def reason(self, compiled: Any, value: Any) -> str:
        return ""


ENGINES: dict[str, Callable[[str], Engine]] = {
    "ours": lambda vocabulary: Grammars(vocabulary, ours),
    "llguidance": lambda vocabulary: Guidance(),
    "llamacpp": lambda vocabulary: Grammars(vocabulary, converter),
}


# Judging


def judge(engine: Engine, record: Record) -> Record:
    out: Record = {"id": record["id"], "split": record["split"]}
    began = time.process_time()  # what neighbours burn does not count
    try:
        compiled = engine.compile(record["schema"])
    except Exception as error:
        return out | {"status": "refused", "why": f"{type(error).__name__}: {error}"[:200]}
    out["seconds"] = time.process_time() - began
    if isinstance(compiled, dict):
        out |= {"size": compiled["size"], "load": compiled["load"]}
        out["seconds"] -= compiled["load"]
    counts = dict.fromkeys(COUNTS, 0)
    causes: dict[str, list[str]] = {"rejected": [], "accepted": []}
    for test in record["tests"]:
        value, valid = test["data"], test["valid"]
        by_grammar = any(engine.accepts(compiled, text) for text in spellings(value))
        fault = engine.violated(compiled, value) if by_grammar else None
        checked = by_grammar and fault is None
        for key, verdict in (("", by_grammar), ("_checked", checked)):
            counts[f"rejected{key}"] += valid and not verdict
            counts[f"accepted{key}"] += verdict and not valid
        if valid and not by_grammar:
            causes["rejected"].append(engine.reason(compiled, value))
        elif valid and fault:
            causes["rejected"].append(f"label: {fault}")
        elif by_grammar and not valid:
            causes["accepted"].append(fault or "")
    return out | {"status": "judged", "causes": causes} | counts


COUNTS = ("rejected", "accepted", "rejected_checked", "accepted_checked")


def quiet() -> None:
    """The converter prints whole grammars that llama.cpp refuses."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def serve(name: str, vocabulary: str, pipe: Connection) -> None:
    quiet()
    engine = ENGINES[name](vocabulary)
    pipe.send(None)
    while (record := pipe.recv()) is not None:
        result = judge(engine, record)
        sampler = getattr(engine, "sampler", None)
        pipe.send(result | ({"tokens": sampler.tokens, "token_seconds": sampler.seconds} if sampler else {}))


class Worker:
    """One engine in a process that may die."""

    def __init__(self, name: str, vocabulary: str) -> None:
        self.name, self.vocabulary = name, vocabulary
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(self.name, self.vocabulary, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.pipe.recv()

    def judge(self, record: Record, timeout: float) -> Record:
        self.pipe.send(record)
        failed = {"id": record["id"], "split": record["split"]}
        try:
            if self.pipe.poll(timeout):
                result: Record = self.pipe.recv()
                return result
            failed["status"] = "timeout"
        except EOFError:
            failed["status"] = "crash"
        self.close()
        self.start()
        return failed

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {}
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: ordered[min(len(ordered) - 1, int(part * len(ordered)))] for name, part in at.items()}


def summary(results: list[Record]) -> Record:
    count = len(results) or 1
    states = Counter(result["status"] for result in results)
    judged = [result for result in results if result["status"] == "judged"]

    def share(test: Callable[[Record], bool]) -> float:
        return round(100 * sum(1 for result in judged if test(result)) / count, 2)

    last = next((result for result in reversed(judged) if result.get("tokens")), None)
    return {
        "schemas": len(results),
        "passing": share(lambda r: not r["rejected"] and not r["accepted"]),
        "passing_checked": share(lambda r: not r["rejected_checked"] and not r["accepted_checked"]),
        "refused": round(100 * states["refused"] / count, 2),
        "crashes": states["crash"],
        "timeouts": states["timeout"],
        "wrongly_rejecting": share(lambda r: r["rejected"] > 0),
        "wrongly_accepting": share(lambda r: r["accepted"] > 0),
        "wrongly_accepting_checked": share(lambda r: r["accepted_checked"] > 0),
        "compile_ms": {k: round(v * 1000, 2) for k, v in percentiles([r["seconds"] for r in judged]).items()},
        "grammar_bytes": percentiles([r["size"] for r in judged if "size" in r]),
        "load_ms": {k: round(v * 1000, 2) for k, v in percentiles([r["load"] for r in judged if "load" in r]).items()},
        "check_us_per_token": round(1e6 * last["token_seconds"] / last["tokens"], 2) if last else None,
    }


def score(arguments: argparse.Namespace) -> Record:
    out: Record = {}
    for name in arguments.engine or ["ours"]:
        worker = Worker(name, str(arguments.vocab))
        results = []
        for record in records(arguments.records, arguments.every):
            results.append(worker.judge(record, arguments.timeout) | {"keywords": sorted(keywords(record["schema"]))})
            if sys.stderr.isatty():
                print(f"\r{name}: {len(results)}", end="", file=sys.stderr)
        worker.close()
        if sys.stderr.isatty():
            print(file=sys.stderr)
        out[name] = {"summary": summary(results), "results": results}
        print(json.dumps({"engine": name, **out[name]["summary"]}, indent=1))
        for result in results:
            if arguments.verbose and result["status"] != "judged":
                print(result["status"], result["id"], result.get("why", ""))
            elif arguments.verbose and (result["rejected_checked"] or result["accepted"] or result["rejected"]):
                print("wrong", result["id"], {key: result[key] for key in COUNTS}, result["causes"])
    return out


# Keywords

ONE = {
    "additionalProperties",
    "additionalItems",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
}
ONE |= {"then", "unevaluatedItems", "unevaluatedProperties"}
MANY = {"allOf", "anyOf", "items", "oneOf", "prefixItems"}
NAMED = {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
SILENT = {"$comment", "$id", "$schema", "default", "deprecated", "description", "examples", "id", "readOnly", "title"}
SILENT |= {"writeOnly", "$defs", "definitions", "$anchor", "$vocabulary"}
KEYWORDS = [
    "type",
    "enum",
    "const",
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedProperties",
    "items",
    "prefixItems",
    "additionalItems",
    "contains",
    "minContains",
    "maxContains",
    "minItems",
    "maxItems",
    "uniqueItems",
    "unevaluatedItems",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "contentEncoding",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
]


def keywords(schema: Any) -> set[str]:
    """The keywords that stand anywhere in a schema where a keyword may stand."""
    found: set[str] = set()
    todo = [schema]
    while todo:
        here = todo.pop()
        if not isinstance(here, dict):
            continue
        for key, value in here.items():
            found.add(key)
            if key in NAMED and isinstance(value, dict):
                todo.extend(value.values())
            if key in MANY and isinstance(value, list):
                todo.extend(value)
            if key in ONE:
                todo.append(value)
    return found - SILENT


Results = dict[str, list[Record]]
"""What `score` found, schema by schema, of each engine."""


def merged(paths: list[Path]) -> Results:
    found: dict[str, dict[str, Record]] = {}
    for path in paths:
        for name, part in json.loads(path.read_text()).items():
            found.setdefault(name, {}).update((result["id"], result) for result in part["results"])
    return {name: list(found[name].values()) for name in ENGINES if name in found}


def table(results: Results) -> str:
    """Keyword by keyword: of the schemas that use it, how many pass, in percent."""
    names = list(results)
    head = ["keyword", "schemas"]
    for name in names:
        head += ["grammar alone", "with checks", "refused"] if name == "ours" else [name]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)]

    def row(title: str, test: Callable[[Record], bool]) -> None:
        cells = [title]
        for name in names:
            chosen = [result for result in results[name] if test(result)]
            judged = [result for result in chosen if result["status"] == "judged"]
            if len(cells) == 1:
                cells.append(f"{len(chosen):,}")
            if not chosen:
                return

            def share(count: int, of: int = len(chosen)) -> str:
                return f"{100 * count / of:.1f}"

            cells.append(share(sum(not r["rejected"] and not r["accepted"] for r in judged)))
            if name == "ours":
                cells.append(share(sum(not r["rejected_checked"] and not r["accepted_checked"] for r in judged)))
                cells.append(share(sum(r["status"] == "refused" for r in chosen)))
        lines.append(cells)

    row("all schemas", lambda result: True)
    for keyword in KEYWORDS:
        row(f"`{keyword}`", lambda result, keyword=keyword: keyword in result["keywords"])  # type: ignore[misc]
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    notes = ["MaskBench's development set; percent of the schemas that use a keyword.\n"]
    for name in names:
        s = summary(results[name])
        notes.append(
            f"- {name}: {s['schemas']:,} schemas, {s['passing']} % passing, {s['refused']} % refused, "
            f"{s['wrongly_rejecting']} % reject a valid value, {s['wrongly_accepting']} % accept an invalid one; "
            f"{s['crashes']} crashes, {s['timeouts']} timeouts."
        )
        if name == "ours":
            notes.append(
                f"- ours with checks: {s['passing_checked']} % passing, {s['wrongly_accepting_checked']} % accept an "
                "invalid value."
            )
    return text + "\n\n" + "\n".join(notes) + "\n" + causes_table(results.get("ours", []))


ORDER = "a valid value comes with its properties in another order than the grammar's"
CAUSES = {
    "order": ORDER,
    "numbers": "a whole number is written with a fraction or an exponent (`1.0` for `1`)",
    "other": "another reason, or an order that was not found in time",
}


def cause(name: str, kind: str) -> str:
    """A cause in words: why valid values are rejected, or which keyword the grammar is wider than."""
    if kind == "accepted":
        return f"an invalid value is accepted, and refused by the check of `{name}`" if name else "accepted unchecked"
    label, _, keyword = name.partition(": ")
    return f"a value that the records call valid violates `{keyword}`" if label == "label" else CAUSES[name]


def causes_table(results: list[Record]) -> str:
    """Why schemas do not pass by the grammar alone, in schemas; one may have several reasons."""
    counts: Counter[str] = Counter()
    unexplained = []
    for result in results:
        if result["status"] != "judged":
            counts["refused, crashed or too slow"] += 1
            unexplained.append(f"`{result['id']}` ({result.get('why', result['status'])})")
            continue
        why = {cause(name, kind) for kind, names in result["causes"].items() for name in names}
        counts.update(why)
        if CAUSES["other"] in why:
            unexplained.append(f"`{result['id']}`")
    if not counts:
        return ""
    lines = [["why a schema does not pass by the grammar alone", "schemas", "%"], ["---", "---:", "---:"]]
    lines += [[why, str(count), f"{100 * count / len(results):.2f}"] for why, count in counts.most_common()]
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return f"\n{text}\n" + (f"\nNamed: {', '.join(sorted(unexplained))}.\n" if unexplained else "")


def times_table(results: Results) -> str:
    lines = [["engine", "schemas", "p50", "p90", "p99", "maximum"], ["---"] + ["---:"] * 5]
    for name, found in results.items():
        s = summary(found)
        lines.append(
            [name, f"{s['schemas']:,}", *(str(s["compile_ms"].get(k, "")) for k in ("p50", "p90", "p99", "max"))]
        )
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return f"Milliseconds of CPU time to compile a schema of MaskBench, without llama.cpp's load:\n\n{text}\n"


def suite_table(results: list[Record]) -> str:
    heads = ["schemas", "exact by grammar alone", "refused", "wrongly rejected", "wrongly accepted"]
    heads += ["wrongly rejected with checks", "wrongly accepted with checks"]
    lines = [["file", *heads], ["---", *["---:"] * len(heads)]]
    groups: dict[str, list[Record]] = {"all required files": [r for r in results if not r["optional"]]}
    groups["all optional files"] = [r for r in results if r["optional"]]
    for result in results:
        groups.setdefault(result["file"], []).append(result)
    for title, group in groups.items():
        cells = [
            title,
            str(len(group)),
            str(sum(r["status"] == "judged" and not r["rejected"] + r["accepted"] for r in group)),
        ]
        cells.append(str(sum(r["status"] != "judged" for r in group)))
        for key in ("rejected", "accepted", "rejected_checked", "accepted_checked"):
            cells.append(str(sum(r.get(key, 0) for r in group)))
        if title.startswith("all ") or cells[3:] != ["0"] * 5:
            lines.append(cells)
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    listed = [["schema that is not exact by the grammar alone", "why"], ["---", "---"]]
    for result in results:
        causes = result.get("causes") or {"refused": ["other"]}
        why = {cause(name, kind) for kind, names in causes.items() for name in names}
        if result["file"] in NOTES and CAUSES["other"] in why:
            why = why - {CAUSES["other"]} | {NOTES[result["file"]]}
        if why:
            listed.append([f"{result['file']}: {result['id']}".replace("|", "\\|"), "; ".join(sorted(why))])
    reasons = "\n".join("| " + " | ".join(cells) + " |" for cells in listed)
    return (
        "JSON Schema Test Suite, draft 2020-12 (files that are exact in every test are left out):"
        f"\n\n{text}\n\n{reasons}\n"
    )


NOTES = {
    "optional/format/time": "leap seconds are offered in UTC alone",
    "optional/format/date-time": "leap seconds are offered in UTC alone",
}


def masks_table(results: Record) -> str:
    lines = [
        ["place", "ours p50", "p99", "llama.cpp's converter p50", "p99", "live stacks p50", "p99"],
        ["---"] + ["---:"] * 6,
    ]
    for place in ("start", "string", "members", "number"):
        if place in results:
            mine, theirs, stacks = (results[place][key] for key in ("ours", "llamacpp", "stacks"))
            cells = [mine["p50"], mine["p99"], theirs["p50"], theirs["p99"], stacks["p50"], stacks["p99"]]
            lines.append([place, *map(str, cells)])
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    title = f"Milliseconds of one mask over the whole vocabulary, on {results['schemas']} schemas that both can write:"
    return f"{title}\n\n{text}\n"


def report(arguments: argparse.Namespace) -> None:
    sections: dict[str, str] = {}
    if arguments.results:
        sections["schemas"] = table(merged(arguments.results))
    if arguments.times:
        sections["times"] = times_table(merged(arguments.times))
    if arguments.suite:
        sections["suite"] = suite_table(json.loads(arguments.suite.read_text()))
    if arguments.masks:
        sections["masks"] = masks_table(json.loads(arguments.masks.read_text()))
    if arguments.readme is None:
        print("\n".join(sections.values()))
        return
    readme = arguments.readme.read_text()
    for name, text in sections.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->\n"
        before, rest = readme.split(begin)
        readme = before + begin + text + end + rest.split(end)[1]
    arguments.readme.write_text(readme)


# The test suite


def suite(arguments: argparse.Namespace) -> list[Record]:
    from grammars import compile_schema
    from grammars.testing import Matcher, read

    remotes = arguments.directory / "remotes"
    resources = {
        f"http://localhost:1234/{path.relative_to(remotes).as_posix()}": json.loads(path.read_text())
        for path in sorted(remotes.rglob("*.json"))
    }

    class Rules:
        def __init__(self, formats: str) -> None:
            self.formats = formats

        def compile(self, schema: Any) -> Any:
            compiled = compile_schema(schema, formats=self.formats, resources=resources)  # type: ignore[arg-type]
            return compiled, Matcher(read(compiled.gbnf))

        def accepts(self, compiled: Any, text: str) -> bool:
            matcher = compiled[1].copy()
            return bool(matcher.accept(text) and matcher.accepting)

        def violated(self, compiled: Any, value: Any) -> str | None:
            return violated(compiled[0], value)

        def reason(self, compiled: Any, value: Any) -> str:
            return reason(compiled[0], value)

    tests = arguments.directory / "tests" / "draft2020-12"
    out = []
    for path in sorted(tests.rglob("*.json")):
        name = path.relative_to(tests).with_suffix("").as_posix()
        engine = Rules("assert" if "/format/" in path.as_posix() else "annotate")
        for group in json.loads(path.read_text()):
            record = {"id": group["description"], "split": name, "schema": group["schema"], "tests": group["tests"]}
            result = judge(engine, record) | {"file": name, "optional": name.startswith("optional/")}
            out.append(result)
            wrong = (
                {key: result[key] for key in COUNTS if result.get(key)}
                if result["status"] == "judged"
                else result["why"]
            )
            if arguments.verbose and wrong:
                print(name, "|", group["description"], "|", wrong)
    print(suite_table(out))
    return out


# Masks


def places(text: str) -> dict[str, int]:
    """Offsets into compact JSON: the start, inside a string, behind a comma between members, inside a number."""
    found = {"start": 0}
    for match in re.finditer(r'"(?:\\.|[^"\\])*"|,|-?[0-9][0-9.eE+-]*', text):
        token = match.group()
        if token[0] == '"':
            key = text[match.end() : match.end() + 1] == ":"
            if not key and len(token) > 4:
                found.setdefault("string", match.start() + 1 + (len(token) - 2) // 2)
        elif token == ",":
            found.setdefault("members", match.end())
        elif len(token) > 1 or "number" not in found:
            found.setdefault("number", match.start() + 1)
    return found


def mask_times(sampler: Sampler, grammar: str, prefix: str, runs: int = 3) -> float | None:
    """Seconds of one pass over the whole vocabulary behind a text; None where the grammar does not allow the text."""
    loaded = sampler.load(grammar)
    if not sampler.reads(loaded, prefix):
        return None
    zeros = np.zeros(sampler.vocab.size, np.float32)
    best = float("inf")
    for _ in range(runs):
        sampler.candidates.set_all(zeros)
        began = time.process_time()  # one thread: what neighbours burn does not count
        loaded.apply(sampler.candidates)
        best = min(best, time.process_time() - began)
    return best


def mask_worker(name: str, vocabulary: str, pipe: Connection) -> None:
    quiet()
    sampler = Sampler(vocabulary)
    write = {"ours": ours, "llamacpp": converter}[name]
    pipe.send(None)
    while (task := pipe.recv()) is not None:
        schema, prefixes = task
        out: Record = {}
        try:
            written = write(schema)
            grammar = written if isinstance(written, str) else written.gbnf
            out = {place: mask_times(sampler, grammar, prefix) for place, prefix in prefixes.items()}
            if name == "ours":
                out = {"seconds": out, "stacks": {place: live(schema, prefix) for place, prefix in prefixes.items()}}
            else:
                out = {"seconds": out}
        except Exception as error:
            out = {"error": f"{type(error).__name__}: {error}"[:200]}
        pipe.send(out)


def live(schema: Any, prefix: str) -> int | None:
    """How many stacks of our grammar are alive behind a text."""
    from grammars import compile_schema
    from grammars.testing import Matcher, read

    matcher = Matcher(read(compile_schema(schema).gbnf))
    return matcher.stacks if matcher.accept(prefix) else None


class MaskWorker(Worker):
    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=mask_worker, args=(self.name, self.vocabulary, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.pipe.recv()

    def ask(self, schema: Any, prefixes: dict[str, str]) -> Record:
        self.pipe.send((schema, prefixes))
        try:
            if self.pipe.poll(60):
                out: Record = self.pipe.recv()
                return out
        except EOFError:
            pass
        self.close()
        self.start()
        return {"error": "crash or timeout"}


def masks(arguments: argparse.Namespace) -> Record:
    chosen = [record for record in records(arguments.records) if any(test["valid"] for test in record["tests"])]
    random.Random(arguments.seed).shuffle(chosen)
    workers = {name: MaskWorker(name, str(arguments.vocab)) for name in ("ours", "llamacpp")}
    times: dict[str, dict[str, list[float]]] = {}
    stacks: dict[str, list[float]] = {}
    used = 0
    for record in chosen:
        if used == arguments.schemas:
            break
        value = next(test["data"] for test in record["tests"] if test["valid"])
        text = spellings(value)[0]
        prefixes = {place: text[:at] for place, at in places(text).items()}
        answers = {name: worker.ask(record["schema"], prefixes) for name, worker in workers.items()}
        if any("error" in answer or None in answer["seconds"].values() for answer in answers.values()):
            continue  # one of the two cannot write this schema, or writes one that refuses this value
        used += 1
        for place in prefixes:
            for name, answer in answers.items():
                times.setdefault(place, {}).setdefault(name, []).append(answer["seconds"][place])
            stacks.setdefault(place, []).append(answers["ours"]["stacks"][place])
    for worker in workers.values():
        worker.close()
    out: Record = {"schemas": used}
    for place, by_engine in times.items():
        out[place] = {
            name: {k: round(v * 1000, 2) for k, v in percentiles(values).items()} for name, values in by_engine.items()
        } | {"count": len(by_engine["ours"]), "stacks": percentiles(stacks[place])}
    everything = {name: [t for place in times.values() for t in place[name]] for name in workers}
    out["all"] = {name: {k: round(v * 1000, 2) for k, v in percentiles(t).items()} for name, t in everything.items()}
    print(json.dumps(out, indent=1))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    scoring = commands.add_parser("score")
    scoring.add_argument("--engine", action="append", choices=ENGINES)
    scoring.add_argument("--every", type=int, default=1, help="judge every N-th record")
    scoring.add_argument("--timeout", type=float, default=60.0, help="seconds a schema may take, explained")
    scoring.add_argument("--verbose", action="store_true", help="name every schema that does not pass")
    scoring.set_defaults(run=score)
    masking = commands.add_parser("masks")
    masking.add_argument("--schemas", type=int, default=200)
    masking.add_argument("--seed", type=int, default=1)
    masking.set_defaults(run=masks)
    for command in (scoring, masking):
        command.add_argument("records", type=Path)
        command.add_argument("--vocab", type=Path, required=True, help="a GGUF with a vocabulary")
        command.add_argument("--json", type=Path, help="where to write the results")
    suiting = commands.add_parser("suite")
    suiting.add_argument("directory", type=Path)
    suiting.add_argument("--json", type=Path, help="where to write the results")
    suiting.add_argument("--verbose", action="store_true", help="name every schema that is not exact")
    suiting.set_defaults(run=suite)
    reporting = commands.add_parser("report")
    reporting.add_argument("results", type=Path, nargs="*")
    reporting.add_argument("--times", type=Path, nargs="+")
    for option in ("--suite", "--masks", "--readme"):
        reporting.add_argument(option, type=Path)
    reporting.set_defaults(run=report)
    arguments = parser.parse_args()
    out = arguments.run(arguments)
    if out is not None and arguments.json:
        arguments.json.write_text(json.dumps(out))


if __name__ == "__main__":
    main()
