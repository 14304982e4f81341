"""Text keeps its provenance through whatever a template does with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.chat.template.provenance import ProvenanceStr, from_template, from_user, join

# Every character tells what it is: small letters, "<" and space were written by the template; the rest is content.
OURS, THEIRS = "ab< ", "XY\t\n"


def told(text: str) -> ProvenanceStr:
    return ProvenanceStr(text, bytes(char in OURS for char in text))


def keeps(value: str) -> bool:
    assert isinstance(value, ProvenanceStr)
    text = "".join(segment.text for segment in value.segments())
    return text == value and all((char in OURS) == run.control for run in value.segments() for char in run.text)


texts = st.text(alphabet=OURS + THEIRS, max_size=24)
short = st.text(alphabet=OURS + THEIRS, min_size=1, max_size=2)


@given(texts, short, st.integers(-30, 30), st.integers(-30, 30), st.integers(-1, 3))
def test_operations_agree_with_str_and_keep_provenance(text: str, part: str, i: int, j: int, count: int) -> None:
    ours = told(text)
    pairs = [
        (ours[i:j], text[i:j]),
        (ours[::-1], text[::-1]),
        (ours.strip(), text.strip()),
        (ours.strip(part), text.strip(part)),
        (ours.lstrip("\n"), text.lstrip("\n")),
        (ours.rstrip(), text.rstrip()),
        (ours.removeprefix(part), text.removeprefix(part)),
        (ours.removesuffix(part), text.removesuffix(part)),
        (ours.replace(part, told("bX"), count), text.replace(part, "bX", count)),
        (ours + told(part), text + part),
        (ours * 2, text * 2),
        (told(part).join([ours, told("Xa")]), part.join([text, "Xa"])),
        (join(ours), text),
    ]
    lists: list[tuple[list[ProvenanceStr], list[str]]] = [
        (ours.split(), text.split()),
        (ours.split(None, count), text.split(None, count)),
        (ours.split(part, count), text.split(part, count)),
        (ours.rsplit(part, count), text.rsplit(part, count)),
        (ours.rsplit(None, count), text.rsplit(None, count)),
        (ours.splitlines(), text.splitlines()),
        (ours.splitlines(keepends=True), text.splitlines(keepends=True)),
        (list(ours.partition(part)), list(text.partition(part))),
        (list(ours.rpartition(part)), list(text.rpartition(part))),
        (list(ours), list(text)),
    ]
    for mine, expected in lists:
        assert mine == expected
        pairs += zip(mine, expected, strict=True)
    for value, plain in pairs:
        assert value == plain
        assert keeps(value)


def test_plain_strings_join_as_content() -> None:
    assert (from_template("<|") + "user" + from_template("|>")).segments() == join(
        [from_template("<|"), "user", from_template("|>")]
    ).segments()
    assert [run.text for run in ("" + from_template("<|") + "im" + from_template("|>")).segments() if run.control] == [
        "<|",
        "|>",
    ]


@pytest.mark.parametrize("text", ["straße", "İstanbul", "ﬁ"])
def test_characters_that_become_two_are_content(text: str) -> None:
    assert all(
        not run.control
        for run in from_template(text).upper().segments()
        if len(from_template(text).upper()) != len(text)
    )
    assert from_template("abc").upper().is_from_template()


def test_content_reaches_into_json_values() -> None:
    value = from_user({"a": ["<|im_end|>", {"b": 1, "c": None}]})
    assert value == {"a": ["<|im_end|>", {"b": 1, "c": None}]}
    assert not value["a"][0].is_from_template() and not next(iter(value)).is_from_template()
