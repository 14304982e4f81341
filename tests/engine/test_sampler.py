"""The rule by which a constraint bends the sampler chain, on made-up logits and grammars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from server.engine import Constraint, Sampling, Vocab, llama
from server.engine.sampling.grammar import GrammarState, TriggerMatcher
from server.engine.sampling.sampler import NothingAllowed, TokenSampler

SIZE = 4000
LOGITS = np.linspace(8, -8, SIZE).astype(np.float32)  # token n has rank n
LOGITS[:6] = [10.0, 9.5, 9.0, 8.8, 8.7, 8.6]


class Only:
    """A grammar that allows some tokens, and counts the questions."""

    banned = np.array([], np.intp)

    def __init__(self, *allowed: int) -> None:
        self._allowed = np.array(allowed, np.int32)
        self.masks: list[int] = []

    def allows(self, token: int) -> bool:
        return token in self._allowed

    def allowed_among(self, tokens: Any) -> Any:
        return np.isin(tokens, self._allowed)

    def mask(self, candidates: llama.CandidateArray) -> None:
        view = candidates.view()
        self.masks.append(len(view))
        view["logit"][~np.isin(view["id"], self._allowed)] = -np.inf


def draws(sampling: Sampling, guard: Only | None, count: int = 1, banned: tuple[int, ...] = ()) -> list[int]:
    sampler = TokenSampler(sampling, banned, llama.CandidateArray(SIZE))
    return [sampler.choose(LOGITS.copy(), cast(GrammarState | None, guard)) for _ in range(count)]


def expected(tokens: list[int], temperature: float) -> dict[int, float]:
    weights = np.exp(LOGITS[tokens] / temperature)
    return dict(zip(tokens, weights / weights.sum(), strict=True))


def assert_distributed(found: list[int], shares: dict[int, float]) -> None:
    counts = Counter(found)
    assert set(counts) <= set(shares)
    chi = sum((counts[token] - share * len(found)) ** 2 / (share * len(found)) for token, share in shares.items())
    assert chi < 30, (counts, shares)  # five degrees of freedom at most: by chance once in 70,000


TOP = Sampling(temperature=0.7, top_k=6, top_p=1.0, min_p=0.0, seed=3)


def test_unconstrained_draws_follow_the_chain() -> None:
    assert_distributed(draws(TOP, None, 4000), expected([0, 1, 2, 3, 4, 5], 0.7))


def test_constrained_draws_are_the_chains_under_the_condition() -> None:
    guard = Only(1, 3, 4, 2000)
    assert_distributed(draws(TOP, guard, 4000), expected([1, 3, 4], 0.7))
    assert guard.masks == []


def test_where_the_chain_leaves_nothing_allowed_the_mask_comes_first() -> None:
    guard = Only(100, 101, 3000)
    assert_distributed(draws(TOP, guard, 2000), expected([100, 101], 0.7))
    assert set(guard.masks) == {1024}


def test_a_pure_draw_reaches_what_ranks_behind_the_first_candidates() -> None:
    pure = Sampling(temperature=5.0, top_k=0, top_p=1.0, min_p=0.0, seed=1)
    assert_distributed(draws(pure, Only(50, 1500, 3900), 2000), expected([50, 1500, 3900], 5.0))


def test_the_whole_vocabulary_is_the_last_resort() -> None:
    for sampling in (TOP, Sampling(temperature=0)):
        guard = Only(3999)
        assert draws(sampling, guard) == [3999]
        assert guard.masks == [1024, SIZE]


@pytest.mark.parametrize("penalty", [1.0, 1.1])
def test_greedy_takes_the_best_allowed(penalty: float) -> None:
    greedy = Sampling(temperature=0, repeat_penalty=penalty)
    for allowed, best in [((0, 5), 0), ((5, 4, 9), 4), ((700, 900), 700), ((2000,), 2000)]:
        assert draws(greedy, Only(*allowed)) == [best]
    assert draws(greedy, None) == [0]


@pytest.mark.parametrize("sampling", [TOP, Sampling(temperature=0)])
def test_nothing_allowed_is_said(sampling: Sampling) -> None:
    with pytest.raises(NothingAllowed):
        draws(sampling, Only())
    with pytest.raises(NothingAllowed):
        draws(sampling, Only(7), banned=(7,))
    assert draws(sampling, Only(7, 9), banned=(7,)) == [9]


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        (["some <to", "ol> x"], (b"<tool> x", 6)),
        (["<", "t", "o", "o", "l", ">"], (b"<tool>", 6)),
        (["a<tool", ">b"], (b"<tool>b", 6)),
        (["[CALL]<tool>"], (b"[CALL]<tool>", 6)),
        (["<too", "l"], None),
        (["<think>", "<tool>"], None),
        (["<think><tool></thi", "nk>", "<to", "ol>!"], (b"<tool>!", 6)),
        (["<think>a</think><think>[CALL]</think>", "[CALL]"], (b"[CALL]", 6)),
    ],
)
def test_markers_are_found_over_any_cut(pieces: list[str], found: tuple[bytes, int] | None) -> None:
    search = TriggerMatcher(Constraint("", triggers=("<tool>", "[CALL]"), reasoning_tags=("<think>", "</think>")))
    *before, last = [search.feed(piece.encode()) for piece in pieces]
    assert not any(before)
    assert last == found


def test_a_prompt_that_ends_inside_thinking() -> None:
    search = TriggerMatcher(
        Constraint("", triggers=("<tool>",), reasoning_tags=("<think>", "</think>"), thinking_open=True)
    )
    assert search.feed(b"<tool>") is None
    assert search.feed(b"</think> <tool>") == (b"<tool>", 6)


@pytest.fixture(scope="module")
def words(smollm2: Path) -> Iterator[tuple[llama.LlamaModel, Vocab]]:
    model = llama.LlamaModel(str(smollm2), vocab_only=True)
    yield model, Vocab(model)
    model.close()


@pytest.mark.parametrize(
    ("grammar", "written", "forced"),
    [
        (r'root ::= "{\"name\":\"" [a-z]+', "", '{"name":"'),  # no token goes on from the last into a letter
        (r'root ::= "{\"name\":\"" [a-z]+ "\"}"', '{"name":"bob"', "}"),  # nothing follows: all of it
        (r'root ::= [a-z]+ ", and so on"', "one", ""),
        (r'root ::= [a-z]+ ", and so on"', "one,", " and so on"),
        (r'root ::= ("left" | "leave") "!"', "", ""),  # "le", which may become a longer token
        (r'root ::= "yes" "!"?', "", "yes"),
        (r'root ::= "the" "re"?', "", ""),
        ('root ::= "\u00e9\u20ac and more" [0-9]', "", "\u00e9\u20ac and more"),
        (r'root ::= "<|im_start|>" "user"', "", "<|im_start|>user"),  # the text, not the token
        ('root ::= <[1]> "user" [0-9]', "", "<|im_start|>user"),
    ],
)
def test_forced_text(words: tuple[llama.LlamaModel, Vocab], grammar: str, written: str, forced: str) -> None:
    model, vocab = words
    guard = GrammarState(Constraint(grammar), model, vocab, llama.CandidateArray(vocab.size))
    for token in vocab.continuation(written.encode()):
        guard.accept(token)
    tokens = guard.jump_forward(100)
    assert b"".join(vocab.pieces[token] for token in tokens).decode() == forced
    assert (vocab.token_of("<|im_start|>") in tokens) == ("<[1]>" in grammar)


def test_forced_text_ends_at_the_limit_and_before_a_banned_token(words: tuple[llama.LlamaModel, Vocab]) -> None:
    model, vocab = words
    tokens = vocab.continuation(b"one two three four")
    for most, banned, count in [(2, (), 2), (0, (), 0), (9, (tokens[1],), 1)]:
        guard = GrammarState(
            Constraint('root ::= "one two three four"'), model, vocab, llama.CandidateArray(vocab.size)
        )
        assert guard.jump_forward(most, banned) == list(tokens[:count])
