"""Heads that predict the token after the next (MTP), as llama.cpp runs them, and running states that are cut.

All models are random, with F32 weights: the same tokens give the same logits whatever is decoded beside them, but for
rounding, and other tokens or states give others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain, permutations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from server.engine import llama
from tests.engine.mtp import WIDTH, write_model

Row = tuple[int, int, int]
"""Sequence, position, token."""
Rows = NDArray[np.float32]

TOKENS = np.random.default_rng(7).integers(0, 256, (3, 64)).tolist()
"""What each of three sequences says."""


def said(sequence: int, start: int, end: int) -> list[Row]:
    return [(sequence, place, TOKENS[sequence][place]) for place in range(start, end)]


def decode(context: llama.Context, rows: list[Row], hidden: Rows | None = None) -> tuple[Rows, Rows]:
    """Logits and hidden states of all rows."""
    batch = llama.Batch(len(rows), hidden=WIDTH if hidden is not None else 0)
    batch.sequence[:], batch.position[:], batch.token[:] = np.array(rows).T
    batch.output[:] = 1
    if hidden is not None:
        batch.hidden[:] = hidden
    assert context.decode(batch, len(rows)) == llama.OK
    return context.logits(len(rows)).copy(), context.hidden(len(rows)).copy()


def alike(ours: Rows, theirs: Rows) -> bool:
    """But for rounding: the KV cache is of 16-bit numbers."""
    return bool(np.allclose(ours, theirs, atol=0.01))


@pytest.fixture(scope="module")
def written(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    directory = tmp_path_factory.mktemp("mtp")
    base = sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf"
    return lambda architecture, depth=1.0: write_model(
        directory / f"{architecture}-{depth}.gguf", base, architecture=architecture, depth=depth
    )


@pytest.fixture(scope="module", params=["glm4moe", "qwen35"])
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(written: Callable[..., Path], architecture: str) -> Iterator[llama.LlamaModel]:
    with closing(llama.LlamaModel(str(written(architecture)), mtp=True)) as made:
        yield made


@pytest.fixture(scope="module")
def hybrid(written: Callable[..., Path]) -> Iterator[llama.LlamaModel]:
    with closing(llama.LlamaModel(str(written("qwen35")))) as made:
        yield made


Make = Callable[..., llama.Context]


@pytest.fixture
def make() -> Iterator[Make]:
    """Contexts for three sequences; they close themselves."""
    made: list[llama.Context] = []

    def context(model: llama.LlamaModel, **options: bool | int) -> llama.Context:
        made.append(llama.Context(model, **{**SIZES, "hidden": True, **options}))  # type: ignore[arg-type]
        return made[-1]

    yield context
    for each in made:
        each.close()


SIZES = {"cells": 3 * 64, "sequences": 3, "batch": 64, "threads": 1, "outputs": 64}


def test_the_model_is_the_same_with_its_head_and_without(
    written: Callable[..., Path], architecture: str, model: llama.LlamaModel, make: Make
) -> None:
    assert llama.shows_hidden()
    with closing(llama.LlamaModel(str(written(architecture)))) as plain:
        assert [llama.C.llama_model_n_layer_nextn(each._p) for each in (plain, model)] == [1, 1]
        assert plain.hidden_width == model.hidden_width == WIDTH
        assert plain.recurrent == model.recurrent == (architecture == "qwen35")
        with closing(llama.Context(plain, **SIZES)) as context:  # type: ignore[arg-type]
            batch = llama.Batch(1)
            batch.token[0], batch.output[0] = TOKENS[0][0], 1
            assert context.decode(batch, 1) == llama.OK
            logits = context.logits(1).copy()
        assert np.array_equal(logits, decode(make(model), said(0, 0, 1))[0])


@pytest.mark.parametrize("split", [True, False], ids=["split", "pool"])
def test_hidden_states_are_those_of_all_tokens_in_the_order_of_the_batch(
    model: llama.LlamaModel, make: Make, split: bool
) -> None:
    alone = [decode(make(model, split=split), said(sequence, 0, 6 - sequence))[1] for sequence in range(3)]
    context = make(model, split=split)
    rows = [row for place in range(6) for sequence in range(3) for row in said(sequence, 0, 6 - sequence)[place:][:1]]
    batch = llama.Batch(len(rows))
    batch.sequence[:], batch.position[:], batch.token[:] = np.array(rows).T
    batch.output[-1] = 1  # of all, whoever is asked for logits
    assert context.decode(batch, len(rows)) == llama.OK
    hidden = context.hidden(len(rows))
    assert all(alike(hidden[at], alone[sequence][place]) for at, (sequence, place, _) in enumerate(rows))


def test_a_head_guesses_the_token_after_the_next(written: Callable[..., Path], architecture: str, make: Make) -> None:
    with closing(llama.LlamaModel(str(written(architecture, 0.0)), mtp=True)) as model:
        # Of this model a token alone determines the next, for the head as for the layers before it.
        context, head = make(model), make(model, mtp=True)
        logits, hidden = decode(context, said(0, 0, 8))
        shifted = np.concatenate([np.zeros((1, WIDTH), np.float32), hidden[:-1]])
        guesses, states = decode(head, said(0, 0, 8), shifted)
        assert np.array_equal(guesses.argmax(1), logits.argmax(1))
        drafted, place, state = [int(guesses[-1].argmax())], 8, states[-1:]
        for _ in range(4):
            more, state = decode(head, [(0, place, drafted[-1])], state)
            drafted.append(int(more.argmax()))
            place += 1
        confirmed, _ = decode(context, [(0, 8 + at, token) for at, token in enumerate(drafted)])
        assert confirmed.argmax(1).tolist()[:-1] == drafted[1:]
        context.close(), head.close()


def draft(head: llama.Context, sequence: int, place: int, token: int, state: Rows, count: int) -> tuple[Rows, Rows]:
    """Logits and hidden states of a chain of guesses."""
    logits, states = [], []
    for at in range(count):
        made, state = decode(head, [(sequence, place + at, token)], state)
        token = int(made.argmax())
        logits.append(made[0])
        states.append(state[0])
    return np.array(logits), np.array(states)


def test_guesses_that_were_cut_are_the_same_again(model: llama.LlamaModel, make: Make) -> None:
    hidden = decode(make(model), said(0, 0, 9))[1]
    head = make(model, mtp=True)
    decode(head, said(0, 1, 9), hidden[:-1])
    first = draft(head, 0, 9, TOKENS[0][9], hidden[-1:], 4)
    assert head.last_position(0) == 12
    assert head.seq_rm(0, 9)
    again = draft(head, 0, 9, TOKENS[0][9], hidden[-1:], 4)
    assert np.array_equal(first[0], again[0]) and np.array_equal(first[1], again[1])
    assert head.seq_rm(0, 5) and head.last_position(0) == 4  # a head attends: it is cut anywhere
    decode(head, said(0, 5, 9), hidden[4:-1])
    assert alike(first[0], draft(head, 0, 9, TOKENS[0][9], hidden[-1:], 4)[0])
    assert not alike(first[0], draft(make(model, mtp=True), 0, 9, TOKENS[0][9], hidden[-1:], 4)[0])


@pytest.mark.parametrize("split", [True, False], ids=["split", "pool"])
def test_guesses_for_one_do_not_depend_on_the_others(model: llama.LlamaModel, make: Make, split: bool) -> None:
    hidden = [decode(make(model), said(sequence, 0, 9 - sequence))[1] for sequence in range(3)]
    rows = [said(sequence, 1, 9 - sequence) for sequence in range(3)]
    alone = [decode(make(model, mtp=True, split=split), rows[at], hidden[at][:-1]) for at in range(3)]
    head = make(model, mtp=True, split=split)
    logits, states = decode(head, [*chain(*rows)], np.concatenate([each[:-1] for each in hidden]))
    assert alike(logits, np.concatenate([each[0] for each in alone]))
    assert alike(states, np.concatenate([each[1] for each in alone]))


@pytest.mark.parametrize("split", [True, False], ids=["split", "pool"])
def test_a_copied_head_guesses_as_its_source(model: llama.LlamaModel, make: Make, split: bool) -> None:
    hidden = decode(make(model), said(0, 0, 9))[1]
    head = make(model, mtp=True, split=split)
    decode(head, said(0, 1, 9), hidden[:-1])
    assert head.seq_cp(0, 2, 7)
    decode(head, [(2, *row[1:]) for row in said(0, 7, 9)], hidden[6:-1])
    ours, theirs = (draft(head, sequence, 9, TOKENS[0][9], hidden[-1:], 4)[0] for sequence in (0, 2))
    assert alike(ours, theirs)


def test_a_head_may_begin_anywhere_but_leave_no_gap(model: llama.LlamaModel, make: Make) -> None:
    hidden = decode(make(model), said(0, 0, 20))[1]
    head = make(model, mtp=True)
    logits, _ = decode(head, said(0, 13, 20), hidden[12:-1])  # the first twelve the model had from elsewhere
    assert np.isfinite(logits).all() and head.first_position(0) == 13
    late = llama.Batch(1, hidden=WIDTH)
    late.position[0], late.output[0] = 25, 1
    assert head.decode(late, 1) == (llama.OK if model.recurrent else -1)  # by the rules of M-RoPE there are gaps
    early = llama.Batch(1, hidden=WIDTH)
    early.position[0], early.output[0] = 18, 1
    assert head.decode(early, 1) == -1


@pytest.mark.parametrize("split", [True, False], ids=["split", "pool"])
@pytest.mark.parametrize("decoded", [1, 3, 5, 8])
def test_tokens_of_the_last_decode_can_be_cut_from_a_running_state(
    hybrid: llama.LlamaModel, make: Make, split: bool, decoded: int
) -> None:
    cut = []
    for count in range(1, decoded + 1):
        context = make(hybrid, split=split, snapshots=4)
        decode(context, said(0, 0, 10))
        decode(context, said(0, 10, 10 + decoded))
        if not context.seq_rm(0, 10 + decoded - count):
            continue
        cut.append(count)
        assert context.last_position(0) == 9 + decoded - count
        assert not context.seq_rm(0, 9), "once is all"
        kept = make(hybrid, split=split, snapshots=4)
        decode(kept, said(0, 0, 10))
        decode(kept, said(0, 10, 10 + decoded - count))
        other = [(0, 10 + decoded - count + at, token) for at, token in enumerate(TOKENS[1][:3])]
        ours, theirs = decode(context, other), decode(kept, other)
        assert alike(ours[0], theirs[0]) and alike(ours[1], theirs[1])
    assert cut == list(range(1, min(decoded - 1, 4) + 1)), "llama.cpp has no state from before the decode"


def test_without_snapshots_a_running_state_cannot_be_cut(hybrid: llama.LlamaModel, make: Make) -> None:
    context = make(hybrid)
    decode(context, said(0, 0, 10))
    assert not context.seq_rm(0, 9) and context.last_position(0) == 9
    assert context.seq_rm(0)


def test_what_can_be_cut_anywhere_needs_no_snapshots(written: Callable[..., Path], make: Make) -> None:
    with closing(llama.LlamaModel(str(written("glm4moe")))) as model:
        context = make(model, snapshots=4)
        assert context.snapshots == 0
        decode(context, said(0, 0, 10))
        assert context.seq_rm(0, 2) and context.seq_rm(0, 1)
        context.close()


@pytest.mark.parametrize("split", [True, False], ids=["split", "pool"])
@pytest.mark.parametrize("counts", [(5, 5, 5), (5, 1, 1), (2, 3, 5)], ids=str)
def test_a_state_is_cut_rightly_or_not_at_all(
    hybrid: llama.LlamaModel, make: Make, split: bool, counts: tuple[int, int, int]
) -> None:
    """In whichever order sequences began: states lie in this order, and are moved together for a decode."""
    following = TOKENS[0][::-1]
    expected = {}
    for order in permutations(range(3)):
        context = make(hybrid, split=split, snapshots=4)
        for sequence in order:
            decode(context, said(sequence, 0, 10))
        decode(context, [row for sequence in range(3) for row in said(sequence, 10, 10 + counts[sequence])])
        ends = [11 if context.seq_rm(sequence, 11) else 10 + counts[sequence] for sequence in range(3)]
        assert ends == ([11] * 3 if len(set(counts)) == 1 else [10 + count for count in counts])
        logits, _ = decode(context, [(sequence, ends[sequence], following[sequence]) for sequence in range(3)])
        for sequence, end in enumerate(ends):
            if (sequence, end) not in expected:
                alone = make(hybrid, split=split, snapshots=4)
                decode(alone, said(sequence, 0, end))
                expected[sequence, end] = decode(alone, [(sequence, end, following[sequence])])[0][0]
            assert alike(logits[sequence], expected[sequence, end])


@pytest.mark.parametrize("split", [True, False], ids=["split", "pool"])
def test_split_only_neighbours_can_be_cut(hybrid: llama.LlamaModel, make: Make, split: bool) -> None:
    context = make(hybrid, cells=4 * 64, sequences=4, split=split, snapshots=4)
    said_by = {0: TOKENS[0], 2: TOKENS[1], 3: TOKENS[2]}
    for sequence in (2, 0, 3):
        decode(context, [(sequence, place, said_by[sequence][place]) for place in range(10)])
    decode(
        context, [(sequence, place, tokens[place]) for sequence, tokens in said_by.items() for place in range(10, 15)]
    )
    assert context.seq_rm(0, 12) is not split
    end = context.last_position(0) + 1
    alone = make(hybrid, split=split, snapshots=4)
    decode(alone, said(0, 0, end))
    assert alike(decode(context, [(0, end, 5)])[0], decode(alone, [(0, end, 5)])[0])


@pytest.mark.parametrize("split", [True, False], ids=["split", "pool"])
def test_a_state_that_was_cut_survives_the_others_and_is_copied_so(
    hybrid: llama.LlamaModel, make: Make, split: bool
) -> None:
    context = make(hybrid, split=split, snapshots=4)
    for sequence in (1, 0):  # so that the first's state is moved for the others
        decode(context, said(sequence, 0, 10))
    decode(context, said(0, 10, 15))
    assert context.seq_rm(0, 12)
    assert context.seq_cp(0, 2, 12)
    decode(context, said(1, 10, 11))
    rows = [(sequence, 12 + at, token) for sequence in (0, 2) for at, token in enumerate(TOKENS[1][:3])]
    logits, _ = decode(context, rows)
    alone = make(hybrid, split=split, snapshots=4)
    decode(alone, said(0, 0, 12))
    expected, _ = decode(alone, rows[:3])
    assert alike(logits[:3], expected) and alike(logits[3:], expected)
