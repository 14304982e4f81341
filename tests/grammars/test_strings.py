from __future__ import annotations

import ast
import json
import random

import pytest

from grammars import compile_schema
from grammars.automata.chars import char_set
from grammars.automata.dfa import ALL, DFA, EMPTY
from grammars.automata.formats import format_dfa
from grammars.automata.operations import bounded, intersect, strings, up_to, without
from grammars.automata.regex_nfa import pattern_dfa
from grammars.limits import LimitExceeded
from grammars.rules.escapes import JSON, PYTHON_DOUBLE, RAW, StringEscapes
from grammars.rules.gbnf import gbnf
from grammars.rules.rules import Grammar, Lit, Ref, prune
from grammars.rules.strings import StringRules
from grammars.testing import Matcher, read
from tests.grammars.judge import Judge

PATTERNS = [
    "^a{3}$",
    "^[a-z]{1,255}$",
    "^x-",
    "^[^/]+$",
    ".",
    "^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
    "^(apple|apricot|ape|)$",
    '^a"b\\\\c\\nd\\x01$',
    '^[a"\\\\]*$',
    "(a|\\n)*x",
    '^[\\n"]a|^[\\\\]b$',
    "^[a-z]([a-z0-9-]*[a-z0-9])?$",
    "^[^é]*$",
    "^\\p{Lu}+$",
    "^(?:\\S+\\s+){0,9}\\S+$",
    "^(?!foo|bar)[\\s\\S]*$",
    "^[a-z]{0,3}$|^[a-z]{0,3}[0-9]{1,3}$",
    "^[a-z]?([0-9]([0-9][0-9]?)?)?$",
    "^(a(a(ab?)?)?)?$",
    "^[\\x00-\\x20]+$",
    "^[\\u{1F600}-\\u{1F64F}é]{2,3}$",
]


def grammar(dfa: DFA, spelling: StringEscapes = JSON, least: int = 0, most: int | None = None) -> Grammar:
    out = Grammar()
    out.define("root", (StringRules(out, spelling).write(dfa, least, most),))
    return out


def walk(dfa: DFA, rnd: random.Random) -> str:
    """A text of the language, or the beginning of one."""
    state, out = 0, ""
    for _ in range(rnd.randrange(1, 40)):
        row = dfa.transitions[state]
        if not row or (state in dfa.accepting and rnd.random() < 0.2):
            break
        lo, hi, state = rnd.choice(row)
        code = rnd.choice([lo, hi, rnd.randint(lo, hi), rnd.randint(lo, min(hi, lo + 40))])
        out += chr(lo if 0xD800 <= code <= 0xDFFF else code)
    return out


def neighbours(dfa: DFA, rnd: random.Random) -> set[str]:
    texts = {"", dfa.shortest() or ""}
    for _ in range(8):
        text = walk(dfa, rnd)
        at = rnd.randrange(len(text) + 1)
        texts |= {
            text,
            text[:at] + text[at + 1 :],
            text[:at] + rnd.choice('aZ0-_./ \n:é$"\\\t\x01\U0001f600') + text[at:],
        }
    return texts


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_grammar_accepts_the_json_of_exactly_the_language(pattern: str, judge: Judge) -> None:
    dfa = pattern_dfa(pattern)
    rules = grammar(dfa)
    texts = sorted(neighbours(dfa, random.Random(pattern)))
    spelled = [json.dumps(text, ensure_ascii=False) for text in texts]
    wanted = [dfa.accepts(text) for text in texts]
    assert judge.accepts(gbnf(rules.rules), *spelled) == wanted
    matcher = Matcher(rules.rules)
    for text, good in zip(spelled, wanted, strict=True):
        copy = matcher.copy()
        assert (copy.accept(text) and copy.accepting) == good, text


@pytest.mark.parametrize("name", ["date-time", "uri", "email", "ipv6", "hostname"])
def test_formats_load_and_agree(name: str, judge: Judge) -> None:
    dfa = format_dfa(name)
    assert dfa is not None
    texts = sorted(neighbours(dfa, random.Random(name)))
    spelled = [json.dumps(text, ensure_ascii=False) for text in texts]
    assert judge.accepts(gbnf(grammar(dfa).rules), *spelled) == [dfa.accepts(text) for text in texts]


def test_every_legal_escape_stands_where_anything_may(judge: Judge) -> None:
    text = gbnf(grammar(ALL).rules)
    good = ['"\\/"', '"\\u00e9\\u0041"', '"\\ud83d\\uDE00"', '"\\"\\\\\\b\\f\\n\\r\\t"', '"é\U0001f600"', '""']
    bad = ['"\\x41"', '"\\ud83d"', '"\\ude00\\ud83d"', '"a\nb"', '"', '"\\"', '"a"b"', '"\\u12"']
    assert judge.accepts(text, *good, *bad) == [True] * len(good) + [False] * len(bad)


@pytest.mark.parametrize(
    ("pattern", "least", "most"),
    [
        ("", 1, 255),
        ("^[a-z]*$", 3, 5),
        ("^x-", 4, 6),
        ("^[a-z]([a-z0-9-]*[a-z0-9])?$", 2, 6),
        ("", 0, 3000),
        (".", 0, 40),
    ],
)
def test_lengths_count_characters_however_they_are_spelled(pattern: str, least: int, most: int, judge: Judge) -> None:
    dfa = pattern_dfa(pattern)
    text = gbnf(grammar(dfa, JSON, least, most).rules)
    texts = ["x-" + "a" * n for n in (0, 1, 2, 3, 4, 5, 38, 39, 253, 254, 2997, 2998, 2999)]
    texts += ["x" * n for n in (0, 1, 2, 3, 5, 6, 7, 40, 255, 256, 3000, 3001)]
    texts += ['"' * n for n in (1, 40, 255, 256)] + ["\U0001f600" * n for n in (1, 40, 41)]
    wanted = [dfa.accepts(t) and least <= len(t) <= most for t in texts]
    assert judge.accepts(text, *[json.dumps(t, ensure_ascii=False) for t in texts]) == wanted


def test_straight_lines_are_literals_and_counts() -> None:
    uuid = format_dfa("uuid")
    assert uuid is not None
    text = gbnf(grammar(uuid).rules)
    assert text.count("::=") == 2 and '"-" [0-9A-Fa-f]{4} "-"' in text
    assert '"\\"apple\\""' in gbnf(grammar(strings(["apple"])).rules)
    assert "[a-z]{1,255}" in gbnf(grammar(pattern_dfa("^[a-z]{1,255}$")).rules)
    assert "[a-z]{2,99}" in gbnf(grammar(pattern_dfa("^[a-z]+$"), JSON, 2, 99).rules)


def test_one_stack_lives_after_every_character_of_a_deterministic_language() -> None:
    """No two alternatives of a state begin alike: what a character leaves open are only the next state's choices."""
    dfa = pattern_dfa('^(?:foo|fo"x|f\\nz|bar[0-9]+)$')
    matcher = Matcher(grammar(dfa).rules)
    for char in '"fo\\"x':
        assert matcher.accept(char)
        assert matcher.stacks <= 2
    assert matcher.forced_text() == '"'


def test_equal_languages_share_their_rules() -> None:
    out = Grammar()
    writer = StringRules(out)
    first = writer.write(pattern_dfa("^(a|b)+c?$"))
    count = len(out.rules)
    assert writer.write(pattern_dfa("^[ab][ab]*c?$")) == first and len(out.rules) == count


PYTHON_SINGLE = StringEscapes(
    "python", "'", char_set([(0, 31), (39, 39), (92, 92)]), ((39, "'"), *PYTHON_DOUBLE.short[1:]), "x"
)


@pytest.mark.parametrize("spelling", [PYTHON_SINGLE, PYTHON_DOUBLE], ids=["single", "double"])
def test_python_literals_evaluate_to_the_texts(spelling: StringEscapes, judge: Judge) -> None:
    dfa = pattern_dfa("^[^x]{1,9}$")
    text = gbnf(grammar(dfa, spelling).rules)
    for value, good in [('it\'s "q"', True), ("a\\b\n\t\x00é", True), ("x", False), ("", False)]:
        inner = value.replace("\\", "\\\\").replace(spelling.quote, "\\" + spelling.quote)
        inner = inner.replace("\n", "\\n").replace("\t", "\\t").replace("\0", "\\x00")
        literal = spelling.quote + inner + spelling.quote
        assert ast.literal_eval(literal) == value
        assert judge.accepts(text, literal) == [good]


@pytest.mark.parametrize("marker", ["</p>", "aab", "aa", "<|x|>", "abab"])
def test_raw_text_ends_at_the_first_marker(marker: str, judge: Judge) -> None:
    dfa = up_to(ALL, marker)
    rnd = random.Random(marker)
    texts = ["".join(rnd.choice(marker + "z\n") for _ in range(rnd.randrange(9))) for _ in range(150)]
    whole = [text + marker for text in texts]
    wanted = [text.index(marker) == len(text) - len(marker) for text in whole]
    assert [dfa.accepts(text) for text in whole] == wanted
    assert judge.accepts(gbnf(grammar(dfa, RAW).rules), *whole[:40]) == wanted[:40]


def test_every_text_but_some_names(judge: Judge) -> None:
    names = frozenset(["id", "name", 'na"me', "", "é"])
    text = gbnf(grammar(without(names)).rules)
    others = ["i", "idx", "nam", "names", 'na"m', "x", 'na"', "è", "\n", "i\\d"]
    spelled = [json.dumps(name, ensure_ascii=False) for name in (*sorted(names), *others)]
    assert (
        judge.accepts(text, *spelled, '"\\u0069d"', '"n\\u0061me"')
        == [False] * len(names) + [True] * len(others) + [False] * 2
    )


@pytest.mark.parametrize(
    ("pattern", "least", "most"), [("^abc[a-z]*$", 0, 2), ("^(abc|abd)x?$", 0, 2), ("^a?$", 2, None), ("^a$", 3, 2)]
)
def test_no_text_at_all_makes_an_unsatisfiable_grammar(pattern: str, least: int, most: int | None) -> None:
    assert not prune(grammar(pattern_dfa(pattern), JSON, least, most).rules)[1]
    schema = {"type": "string", "pattern": pattern, "minLength": least} | ({} if most is None else {"maxLength": most})
    assert not compile_schema(schema).satisfiable
    open_ = compile_schema({"type": "object", "properties": {"a": schema}, "additionalProperties": False})
    assert open_.satisfiable
    matcher = Matcher(read(open_.gbnf))
    assert not matcher.copy().accept('{"a') and matcher.accept("{}")


def test_what_cannot_be_written_is_said() -> None:
    assert not prune(grammar(EMPTY).rules)[1]
    with pytest.raises(LimitExceeded) as caught:
        bounded(pattern_dfa("^(?:ab|c)*$"), 0, 30_000)
    assert caught.value.limit == "states"
    assert bounded(pattern_dfa("^a{2,3}$"), 1, 9) == pattern_dfa("^a{2,3}$")
    assert intersect(pattern_dfa("^a"), pattern_dfa("^b")).is_empty()


def test_a_literal_that_spells_the_name_of_a_rule_is_not_that_rule() -> None:
    rules = {"root": ((Lit("q1"),), (Ref("q1"),)), "q1": ((Lit("z"),),)}
    for text in ("q1", "z"):
        matcher = Matcher(rules)
        assert matcher.accept(text) and matcher.accepting
