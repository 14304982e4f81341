"""The tokens of thinking: every one that holds some of it, and no bracket's."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.chat.formats import FORMATS
from server.chat.formats.generic import FORMAT
from server.chat.formats.hermes import FORMATS as HERMES
from server.chat.parser import OutputParser, ParserSpec
from server.runtime.usage import count_reasoning

QWEN = HERMES[0]


def counted(tokens: list[str], *, lead: str = "", finish: str = "stop", spec: ParserSpec | None = None) -> int:
    parser = OutputParser(spec or ParserSpec(QWEN, prompt_opening=lead))
    for token in tokens:
        parser.feed(token)
    parser.finish(finish)  # type: ignore[arg-type]
    return count_reasoning([*accumulate(map(len, tokens))], parser.thoughts)


@pytest.mark.parametrize(
    ("tokens", "count"),
    [
        (["Hello", "."], 0),
        (["<think>", "Hm", ".", "</think>", "So"], 2),
        (["<think>", "\n", "Hm", "\n\n", "</think>", "\n\n", "So"], 3),
        (["<", "think", ">", "Hm", "</", "think", ">", "So"], 1),
        (["<think>Hm", ".</think>So", "."], 2),
        (["<think>Hm.</think>So"], 1),
        (["<think>", "Hm", " </", "think>"], 2),
        (["<think>", "</think>", "So"], 0),
        (["<think></think>So"], 0),
        # Without text, or with a part of a character, a token belongs to what follows.
        (["", "<think>", "", "Hm", "", "</think>", ""], 2),
        (["A", "<think>", "Hm", "</think>", "B", "<think>", "So", "</think>", "C"], 2),
        (["<think>Hm</think><think>So</think>"], 1),
        (["<think>", "a </thin", "k", " b", "</think>"], 3),
    ],
)
def test_what_stands_between_the_brackets_counts(tokens: list[str], count: int) -> None:
    assert counted(tokens) == count


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_thinking_that_is_never_closed_goes_on_to_the_end(finish: str) -> None:
    assert counted(["<think>", "Hm", ".", ""], finish=finish) == 3
    assert counted(["Hm", ".", " </", "thi"], lead="<think>", finish=finish) == 4


def test_thinking_that_the_prompt_has_opened_begins_with_the_output() -> None:
    assert counted(["Hm", ".", "</think>", "So"], lead="<think>") == 2
    assert counted(["</think>", "So"], lead="<think>") == 0
    assert counted(["", "Hm", "</think>So"], lead="<think>") == 2


def test_brackets_in_an_answer_of_json_or_in_a_call_are_its_text() -> None:
    answer = ['{"response": "', "<think>", "no", "</think>", '"}']
    assert counted(answer, spec=ParserSpec(FORMAT, "allowed", {"look": {}})) == 0
    call = ["<tool_call>", '{"name": "look", "arguments": {"at": "', "<think>", "no", "</think>", '"}}', "</tool_call>"]
    assert counted(["<think>", "Hm", "</think>", *call], spec=ParserSpec(QWEN, "allowed", {"look": {}})) == 1


@pytest.mark.parametrize("name", sorted(name for name, format in FORMATS.items() if format.reasoning_tags))
def test_every_format_counts_between_its_own_brackets(name: str) -> None:
    format = FORMATS[name]
    assert format.reasoning_tags is not None
    spec = ParserSpec(format)
    opening, closing = format.reasoning_tags.open.strip(), format.reasoning_tags.close.strip()
    body = [format.separator, format.answer_tags[0].open if format.answer_tags else "", "So"]
    assert counted([opening, "One", " two", " three", closing, *body], spec=spec) == 3
    assert counted([*opening, "One", " two", " three", *closing, *body], spec=spec) == 3


texts = st.text(alphabet="ab<>", max_size=6)


@given(st.lists(texts, min_size=1, max_size=12), st.lists(st.integers(0, 60), max_size=6), st.booleans())
def test_counting_is_looking_at_each_token(tokens: list[str], places: list[int], closed: bool) -> None:
    size = sum(map(len, tokens))
    edges = sorted(min(place, size) for place in places)
    thoughts: list[tuple[int, int | None]] = [*zip(edges[::2], edges[1::2], strict=False)]
    if not closed:
        thoughts.append((edges[-1] if edges else 0, None))
    expected = at = 0
    for token in tokens:
        end = at + len(token)
        expected += any(
            (close is None or (begin < close and at < close)) and (begin < end or begin <= at)
            for begin, close in thoughts
        )
        at = end
    assert count_reasoning([*accumulate(map(len, tokens))], thoughts) == expected
