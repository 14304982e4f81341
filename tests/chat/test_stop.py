"""Stop criteria of each kind of format, made from its description alone."""

from __future__ import annotations

import pytest

from server.chat.formats import FORMATS, GENERIC
from server.chat.formats.spec import ChatFormat
from server.chat.stop import stop_criteria


def test_strings_of_a_quoted_answer_are_looked_for_as_json_writes_them() -> None:
    quoted = stop_criteria(GENERIC, ('a"b\n', "é"), "", calls=True)
    assert quoted.strings == ('a\\"b\\n', "é")
    assert quoted.ignored_markers == ('{"response": "',)
    plain = stop_criteria(GENERIC, ('a"b\n',), "", calls=False)
    assert plain.strings == ('a"b\n',) and plain.ignored_markers == ()


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
def test_text_ends_before_calls_and_behind_tags(format: ChatFormat) -> None:
    with_calls, without = (stop_criteria(format, ("END",), "opening", calls=calls) for calls in (True, False))
    for criteria in (with_calls, without):
        assert criteria.strings == ("END",) and criteria.prompt_opening == "opening"
        assert criteria.ignored_markers.count("") == 0
        assert {tags.open.strip() for tags in format.answer_tags} <= set(criteria.ignored_markers)
        assert (criteria.reasoning_tags is None) == (format.reasoning_tags is None)
    markers = {*with_calls.calls, *with_calls.anchored}
    assert markers == {calls.marker for calls in format.calls}
    assert not without.calls and not without.anchored
