"""Stop sequences: where an output ends, whatever it is cut into, and what a live engine makes of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine import Sampling, StopCriteria
from server.engine.sampling.stop import StopMatcher
from tests.engine.conftest import Model
from tests.engine.test_generate import LETTERS, MOON, NEXT

THINK = ("<think>", "</think>")
CALLS = ("<tool_call>", "[TOOL")


def shown(stop: StopCriteria, *pieces: str) -> tuple[str, bool]:
    """What is shown of an output that comes in these pieces, and whether a stop sequence ended it."""
    search = StopMatcher(stop)
    out = b"".join(search.feed(piece.encode()) for piece in pieces) + search.finish()
    return out.decode(), search.found


@pytest.mark.parametrize(
    ("stop", "output", "expected"),
    [
        (StopCriteria(("END",)), "a bENDc", "a b"),
        (StopCriteria(("END",)), "a b EN", None),
        (StopCriteria(("b", "abc")), "xab", "xa"),
        (StopCriteria(("b", "abc")), "xabc", "x"),
        (StopCriteria(("\n\n",)), "one\ntwo\n\nthree", "one\ntwo"),
        (StopCriteria(("é",)), "caf\u00e9 au lait", "caf"),
        (StopCriteria(("aab",)), "aaab", "a"),
        # Thinking is no answer, whether it opens in the output or in the prompt.
        (StopCriteria(("x",), THINK), "<think>x</think>ab", None),
        (StopCriteria(("x",), THINK), "<think>x</think>axb", "<think>x</think>a"),
        (StopCriteria(("x",), THINK, prompt_opening="<think>"), "x</think>axb", "x</think>a"),
        (StopCriteria(("think",), THINK), "a<think>think</think>b think", "a<think>think</think>b "),
        (StopCriteria(("<",), THINK), "a<think>b<c</think>d<", "a<think>b<c</think>d"),
        # Nor is a call, from its marker on.
        (StopCriteria(("}", "<"), None, CALLS), "text<tool_call>{}</tool_call>", None),
        (StopCriteria(("}", "<"), None, CALLS), "te}xt<tool_call>{}</tool_call>", "te"),
        (StopCriteria(("<tool",), None, CALLS), "a <tool> b", "a "),
        # An anchored marker is one only where the answer begins.
        (StopCriteria(("b",), anchored=("{",)), ' {"a": "b"}', None),
        (StopCriteria(("b",), anchored=("{",)), 'a {"a": "b"}', 'a {"a": "'),
        (StopCriteria(("b",), THINK, anchored=("{",)), '<think>b</think>\n{"a": "b"}', None),
        # Nor are the markers of frames, in a prompt's end begun perhaps.
        (StopCriteria(("final", "x"), ignored_markers=("<final>",)), "<final>axb", "<final>a"),
        (
            StopCriteria(("final", "<"), ("<plan>", "<end>"), ignored_markers=("<final>",)),
            "<plan>x<end><final>a<",
            "<plan>x<end><final>a",
        ),
        (
            StopCriteria(("a",), None, (">>>",), ignored_markers=(">>>all\n",), prompt_opening=">>>"),
            "all\nbac",
            "all\nb",
        ),
        (StopCriteria(("a",), None, (">>>",), ignored_markers=(">>>all\n",), prompt_opening=">>>"), "look\nbac", None),
        (StopCriteria(("a",), ignored_markers=(">>>all\n",), prompt_opening=">>>"), "al", ""),
    ],
)
def test_the_output_ends_before_the_sequence(stop: StopCriteria, output: str, expected: str | None) -> None:
    wanted = (output, False) if expected is None else (expected, True)
    assert shown(stop, output) == wanted
    assert shown(stop, *output) == wanted


ALPHABET = st.text("ab<>", max_size=12)


@given(
    texts=st.lists(st.text("ab<", min_size=1, max_size=3), min_size=1, max_size=3),
    pieces=st.lists(ALPHABET, max_size=6),
    thinking=st.sampled_from([None, ("<a>", "<b>")]),
    calls=st.sampled_from([(), ("<<",), ("ab<", "<")]),
    anchored=st.sampled_from([(), ("a>",)]),
    skip=st.sampled_from([(), ("b>", "<<a")]),
    lead=st.sampled_from(["", "<", "<a>"]),
)
def test_the_cut_into_pieces_changes_nothing(
    texts: list[str],
    pieces: list[str],
    thinking: tuple[str, str] | None,
    calls: tuple[str, ...],
    anchored: tuple[str, ...],
    skip: tuple[str, ...],
    lead: str,
) -> None:
    stop = StopCriteria(tuple(texts), thinking, calls, anchored, skip, lead)
    whole = "".join(pieces)
    assert shown(stop, *pieces) == shown(stop, *whole) == shown(stop, whole)


@given(
    texts=st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3), output=st.text("abc", max_size=20)
)
def test_plain_text_is_cut_at_the_first_of_them(texts: list[str], output: str) -> None:
    first = min((at for text in texts if (at := output.find(text)) >= 0), default=None)
    text, found = shown(StopCriteria(tuple(texts)), *output)
    assert found == (first is not None)
    # Whichever is whole first has ended it: one that begins before that can only have been on its way.
    assert output.startswith(text) and not any(each in text for each in texts)
    if first is not None:
        assert text == output[:first]


live = pytest.mark.asyncio(loop_scope="package")


@live
async def test_a_stop_sequence_across_tokens_ends_the_job_and_is_never_shown(model: Model) -> None:
    plain = await model.run(model.job(LETTERS, max_tokens=12))
    assert plain.text.startswith(NEXT)
    outcome = await model.run(model.job(LETTERS, max_tokens=12, stop=StopCriteria(("d a b c",))))
    assert outcome.text == " c "
    assert all("d" not in text.text for text in outcome.texts)
    # " c d a b c": the five tokens up to the one that completed the sequence, and no more.
    assert (outcome.done.finish_reason, outcome.done.stopped, outcome.done.output_tokens) == ("stop", True, 5)
    assert b"".join(map(model.vocab.piece, outcome.done.tokens)) == b" c d a b c"
    assert sum(text.tokens for text in outcome.texts) <= 5


@live
async def test_what_might_have_become_a_stop_sequence_is_shown_at_the_end(model: Model) -> None:
    outcome = await model.run(model.job(LETTERS, max_tokens=4, stop=StopCriteria(("b never",))))
    assert (outcome.text, outcome.done.finish_reason, outcome.done.stopped) == (" c d a b", "length", False)


@live
async def test_log_probabilities_come_with_their_tokens(model: Model) -> None:
    plain = await model.run(model.job(MOON, max_tokens=8))
    assert all(text.logprobs == () for text in plain.texts)
    outcome = await model.run(model.job(MOON, max_tokens=8, logprobs=3))
    found = [each for text in outcome.texts for each in text.logprobs]
    assert len(found) == 8 == outcome.done.output_tokens
    assert b"".join(each.piece for each in found).decode() == outcome.text
    for each in found:
        # Greedy: the chosen token is the likeliest, and the three stand in order.
        assert each.top[0] == (each.piece, each.logprob)
        assert [value for _, value in each.top] == sorted((value for _, value in each.top), reverse=True)
        assert -20 < each.logprob < 0
    alone = await model.run(model.job(MOON, max_tokens=2, logprobs=0))
    assert all(each.top == () for text in alone.texts for each in text.logprobs)


@live
async def test_log_probabilities_are_the_models_own_whatever_bends_the_choice(model: Model) -> None:
    job = model.job(LETTERS, max_tokens=1, logprobs=2)
    (likeliest,) = (await model.run(job)).texts[0].logprobs
    first = next(t for t in range(model.vocab.size) if model.vocab.piece(t) == likeliest.piece)
    warm = Sampling(temperature=1.5, seed=1)
    banned = await model.run(model.job(LETTERS, max_tokens=1, logprobs=2, banned=(first,), sampling=warm))
    (chosen,) = banned.texts[0].logprobs
    assert chosen.piece != likeliest.piece and chosen.logprob < likeliest.logprob
    assert chosen.top[0][0] == likeliest.piece
    assert chosen.top[0][1] == pytest.approx(likeliest.logprob, abs=0.2)
