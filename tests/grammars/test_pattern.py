from __future__ import annotations

import contextlib
import random
import re
import time
import unicodedata

import pytest

from grammars import UnsupportedSchema, compile_schema
from grammars.automata.dfa import ALL
from grammars.automata.operations import any_string, strings
from grammars.automata.regex import InvalidPattern, UnsupportedPattern, is_pattern, parse_pattern
from grammars.automata.regex_nfa import pattern_accepts, pattern_dfa
from grammars.automata.unicode import property_set
from grammars.limits import LimitExceeded

CASES = [
    # pattern, texts in which it is found, texts in which it is not
    ("", ["", "x"], []),
    ("b", ["b", "abc"], ["", "ac"]),
    ("^b", ["bc"], ["ab", ""]),
    ("b$", ["ab"], ["ba", "b\n"]),
    ("^(?:a|bc)$", ["a", "bc"], ["", "abc", "b"]),
    ("^a|b$", ["ax", "xb", "a", "b"], ["xa", "bx"]),
    ("(^a|b)c", ["ac", "xbc", "bc"], ["xac", "a"]),
    ("a(b|$)", ["ab", "xa", "abx"], ["ac"]),
    ("^a{2,3}$", ["aa", "aaa"], ["a", "aaaa"]),
    ("^a{2,}$", ["aa", "aaaaaa"], ["a"]),
    ("^a{0}b?$", ["", "b"], ["a", "ab"]),
    ("^(?:ab){2}$", ["abab"], ["ab", "ababab"]),
    ("^a+?b*?$", ["a", "aab"], ["b", ""]),
    ("^.$", ["x", "\U0001f600", "é"], ["", "\n", "\r", "\u2028", "xx"]),
    ("^[^a-c]$", ["d", "\n", "é"], ["a", "b", ""]),
    (r"^[\]\\^-]$", ["]", "\\", "^", "-"], ["a"]),
    (r"^[\w-]+$", ["a-b_C9"], ["é", "a b", ""]),
    (r"^[a\-z]$", ["a", "-", "z"], ["b"]),
    ("^[]$", [], ["", "a"]),
    ("^[^]$", ["a", "\n"], [""]),
    (r"^\d\D\w\W\s\S$", ["1a_-\u00a0x"], ["12_- x", "\u0661a_- x"]),
    (r"^\s$", ["\ufeff", "\u2003", "\t", "\v"], ["\u180e", "\x85"]),
    (r"^\t\n\v\f\r\0$", ["\t\n\v\f\r\0"], []),
    (r"^\x41\u0042\u{1F600}\cA$", ["AB\U0001f600\x01"], []),
    (r"^\ud83d\ude00+$", ["\U0001f600\U0001f600"], []),
    (r"^[\b]$", ["\b"], ["b"]),
    (r"^\/\.\-\_\@$", ["/.-_@"], []),
    ("^a{,2}$", ["a{,2}"], ["a", "aa"]),
    ("^{a}]$", ["{a}]"], []),
    ("^x{$", ["x{"], []),
    (r"^(?<year>\d{4})(?:-(?P<month>\d\d))?$", ["2024", "2024-02"], ["2024-"]),
    ("^(?!foo)", ["", "fo", "xfoo"], ["foo", "foobar"]),
    ("^(?!foo$)", ["foobar", ""], ["foo"]),
    ("^(?=.*[0-9])(?=.*[a-z]).{3,5}$", ["a1b", "1234z"], ["abc", "123", "a1", "a12345"]),
    ("^((?!ab)[ab])*$", ["", "ba", "bba", "aab"[:1], "b"], ["ab", "bab", "aab"]),
    ("^a(?=b)", ["ab"], ["a", "ac"]),
    ("^a(?=$|-)[-a-z]*$", ["a", "a-b"], ["ab"]),
    ("foo(?!bar)", ["foo", "foobaz", "foobarfoo"], ["foobar", "fo"]),
    ("(?<=a)b", ["ab", "xab"], ["b", "cb"]),
    ("(?<!a)b", ["b", "cb", "abb"], ["ab", "a"]),
    ("^.*(?<!-)$", ["a", "-a", ""], ["a-", "-"]),
    ("^(?!.*--).*(?<!-)$", ["a-b", ""], ["a--b", "a-"]),
    (r"\bcat\b", ["cat", "a cat!", "cat-dog"], ["cats", "concat", "_cat"]),
    (r"^(?!.*\b(?:foo|bar)\b).*$", ["food", "a fob"], ["a foo", "bar", "x bar y"]),
    (r"a\Bb", ["ab"], ["a b", "a"]),
    (r"(?=\bx)x", ["x", "a x"], ["ax"]),
    ("x(?=^)|y", ["y"], ["x"]),
    ("^(?=^a)", ["ab"], ["ba"]),
    ("(?i)^straße$", ["STRAßE", "straße"], ["strasse"]),
    ("(?i)^[k-m]k$", ["Lk", "lK", "\u212ak"], ["nk"]),
    ("^(?i:a)b$", ["Ab", "ab"], ["aB"]),
    ("^(?s:.)$", ["\n"], []),
    ("(?m)^ab$", ["ab", "x\nab\ny", "x\u2028ab"], ["xab", "x\nabc"]),
    ("(?m)(?<=^a)b", ["ab", "x\nab"], ["xab"]),
    ("(?m:^a$)b|c", ["c"], ["a\nb", "ab"]),
    ("a\\n(?m:^b)", ["a\nb"], ["ab"]),
    (r"\Aab\Z", ["ab"], ["xab", "ab\n"]),
    (r"^\p{Lu}\p{L}+\P{L}$", ["Éa1"], ["éa1", "Éaa"]),
    (r"^[\p{Nd}\p{Greek}]+$", ["\u0663α5"], ["a"]),
    (r"^\p{Script=Cyrillic}+$", ["привет"], ["hi"]),
]


@pytest.mark.parametrize(("pattern", "found", "missing"), CASES, ids=[case[0] or "empty" for case in CASES])
def test_texts_in_which_a_pattern_is_found(pattern: str, found: list[str], missing: list[str]) -> None:
    dfa = pattern_dfa(pattern)
    for text in found:
        assert dfa.accepts(text), text
        assert pattern_accepts(pattern, text)
    for text in missing:
        assert not dfa.accepts(text), text
        assert not pattern_accepts(pattern, text)


def test_equal_patterns_are_equal_languages() -> None:
    assert pattern_dfa("^(a|b|cd)$") == strings(["a", "b", "cd"])
    assert pattern_dfa("") == pattern_dfa(".*") == pattern_dfa("^") == ALL
    assert pattern_dfa(r"^[\s\S]{1,4}$") == any_string(1, 4)
    assert pattern_dfa("^(?!a$).*$") == pattern_dfa("^(|[^a\n\r\u2028\u2029].*|a.+)$")


def random_pattern(rnd: random.Random, depth: int) -> str:
    kind = rnd.randrange(14) if depth else rnd.randrange(5)
    if kind < 3:
        return rnd.choice("abc")
    if kind == 3:
        return rnd.choice([".", "[ab]", "[^a]", r"\w", r"\W", "[b-]", " "])
    if kind == 4:
        return rnd.choice(["^", "$", r"\b", r"\B", ""])
    inner = random_pattern(rnd, depth - 1)
    if kind < 7:
        return inner + random_pattern(rnd, depth - 1)
    if kind == 7:
        return f"(?:{inner}|{random_pattern(rnd, depth - 1)})"
    if kind < 10:
        return f"(?:{inner})" + rnd.choice(["*", "+", "?", "{2}", "{1,2}", "{0,2}", "*?"])
    if kind < 12:
        return rnd.choice(["(?=", "(?!"]) + inner + ")" + random_pattern(rnd, depth - 1)
    if kind == 12:
        fixed = "".join(rnd.choice(["a", "b", "[ab]", ".", "[^c]"]) for _ in range(rnd.randrange(1, 3)))
        return rnd.choice(["(?<=", "(?<!"]) + fixed + ")" + inner
    return f"({inner})" + random_pattern(rnd, depth - 1)


@pytest.mark.parametrize("seed", range(40))
def test_random_patterns_agree_with_a_backtracking_engine(seed: int) -> None:
    rnd = random.Random(seed)
    texts = ["".join(rnd.choice("abc -") for _ in range(rnd.randrange(7))) for _ in range(40)]
    for _ in range(25):
        pattern = random_pattern(rnd, 3)
        theirs = re.compile(pattern.replace("$", r"\Z"))
        try:
            ours = pattern_dfa(pattern)
        except UnsupportedPattern:
            continue
        for text in texts:
            if re.search(r"\\B", pattern) and not text:
                continue  # Python's \B is false in the empty text
            assert ours.accepts(text) == bool(theirs.search(text)), (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "position"),
    [("(", 1), ("a)", 1), ("[a", 0), ("*a", 0), ("a**", 2), ("a{3,2}", 1), ("[z-a]", 0), ("(?i)a)", 5), ("a++", 2)],
)
def test_faults_are_located(pattern: str, position: int) -> None:
    with pytest.raises(InvalidPattern) as caught:
        pattern_dfa(pattern)
    assert caught.value.position == position


@pytest.mark.parametrize("pattern", [r"(a)\1", r"(?<n>a)\k<n>", "(?>a)", r"\p{Nonsense}", r"(?<=a\b)b"])
def test_what_is_no_regular_language_is_named(pattern: str) -> None:
    with pytest.raises(UnsupportedPattern) as caught:
        pattern_dfa(pattern)
    assert caught.value.construct


def test_the_format_regex_judges_by_the_standard_alone() -> None:
    for pattern in ["a+", "[]", "[^]", r"\cA", "(?<n>a)\\k<n>", "(?<=a+)b", r"\p{L}", "(?i:a)"]:
        assert is_pattern(pattern), pattern
    for pattern in [r"\a", r"\Z", "(?P<n>a)", "(?P=n)", "(?#x)", "(?i)a", "^(a]", "(?=a)*"]:
        assert not is_pattern(pattern), pattern


def test_a_pattern_too_large_for_an_automaton_still_judges_texts() -> None:
    pattern = "^(?:.{1,63}x){1,127}(?=y).{1,255}$"
    with pytest.raises(LimitExceeded) as caught:
        pattern_dfa(pattern)
    assert caught.value.limit == "states"
    assert pattern_accepts(pattern, "axbxyz") and not pattern_accepts(pattern, "axbxz")


def test_nothing_backtracks() -> None:
    began = time.process_time()
    assert not pattern_accepts(r"^(a+)+$", "a" * 20_000 + "b")
    assert not pattern_accepts(r"^(?:a|a)*(?:a|aa)*c$", "a" * 20_000)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "pattern", ["(" * 1000 + ")" * 1000, "(?:" * 300 + "a" + ")*" * 300, "((a{0,99}){0,99}){0,99}"]
)
def test_hostile_patterns_end_in_a_typed_error_or_an_automaton(pattern: str) -> None:
    began = time.process_time()
    with contextlib.suppress(UnsupportedPattern, LimitExceeded):
        assert pattern_dfa(pattern).accepts("")
    assert time.process_time() - began < 5


def test_noise_never_escapes_the_typed_errors() -> None:
    rnd = random.Random(7)
    for _ in range(1500):
        pattern = "".join(rnd.choice(r"ab\()[]{}^$*+?|.-,:=!<>dwpxu01é") for _ in range(rnd.randrange(1, 12)))
        try:
            tree = parse_pattern(pattern)
        except (InvalidPattern, UnsupportedPattern):
            continue
        assert tree is not None
        try:
            dfa = pattern_dfa(pattern)
        except (UnsupportedPattern, LimitExceeded):
            continue
        shortest = dfa.shortest()
        assert shortest is None or pattern_accepts(pattern, shortest)


@pytest.mark.parametrize("name", ["L", "Lu", "Nd", "P", "Cn", "Co", "S", "Zs", "Cc"])
def test_categories_are_those_of_unicodedata(name: str) -> None:
    wanted = {
        code
        for code in (*range(0x3000), *range(0x1F000, 0x20000), 0x2FFFF, 0x50000, 0xE0001, 0xF0000, 0x10FFFF)
        if unicodedata.category(chr(code)).startswith(name)
    }
    ranges = property_set(name)
    for code in (*range(0x3000), *range(0x1F000, 0x20000), 0x2FFFF, 0x50000, 0xE0001, 0xF0000, 0x10FFFF):
        assert any(lo <= code <= hi for lo, hi in ranges) == (code in wanted), hex(code)


@pytest.mark.parametrize("pattern", [r"^(a)\1$", r"^\p{Emoji}$", "(?>a)"])
def test_what_no_automaton_and_no_validation_can_judge_is_refused_by_name(pattern: str) -> None:
    for schema, path in [
        ({"properties": {"a": {"pattern": pattern}}}, "/properties/a"),
        ({"patternProperties": {pattern: True}}, ""),
        ({"enum": ["aa"], "pattern": pattern}, ""),
    ]:
        with pytest.raises(UnsupportedSchema) as caught:
            compile_schema(schema)
        assert caught.value.path == path and "attern" in caught.value.keyword


@pytest.mark.parametrize("name", ["Emoji", "Script=Klingon", "Line_Break=Glue"])
def test_names_of_unknown_properties_are_refused_and_not_kept(name: str) -> None:
    kept = property_set.cache_info().currsize
    with pytest.raises(UnsupportedPattern):
        parse_pattern(rf"\p{{{name}}}")
    assert property_set.cache_info().currsize == kept
