"""What jobs get from a live engine."""

from __future__ import annotations

import asyncio
import json
import re
import time
from array import array
from itertools import accumulate
from pathlib import Path

import pytest

from server.engine import Constraint, Failed, Finished, Sampling, TextChunk, llama
from server.engine.process import WorkerProcess
from server.engine.types import StopCriteria
from tests.engine.conftest import Model, collect

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.slow]

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
MOON = CHAT.format("Tell me about the moon.")
LETTERS = "The letters are " + "a b c d " * 12 + "a b"
"""A prompt whose greedy continuation no numerical noise changes: a quantized model's logits depend on the batch."""
NEXT = " c d a b"
LONG = CHAT.format("Here is a list of words: " + "river stone cloud " * 500)


def greedy_loop(path: Path, tokens: array[int], count: int) -> list[int]:
    """The plainest use of llama.cpp: one sequence, the prompt at once, then token by token."""
    model = llama.LlamaModel(str(path), repack=WorkerProcess.repack)
    context = llama.Context(model, cells=2048, sequences=1, batch=len(tokens), threads=1)
    batch = llama.Batch(len(tokens))
    batch.token[:], batch.position[:] = tokens, range(len(tokens))
    batch.output[-1] = 1
    assert context.decode(batch, len(tokens)) == llama.OK
    found: list[int] = []
    while len(found) < count:
        found.append(int(context.logits(1)[0].argmax()))
        batch.token[0], batch.position[0], batch.output[0] = found[-1], len(tokens) + len(found) - 1, 1
        assert context.decode(batch, 1) == llama.OK
    context.close()
    model.close()
    return found


async def test_greedy_output_is_llama_cpps_own(model: Model, smollm2: Path) -> None:
    job = model.job(MOON, max_tokens=16)
    expected = greedy_loop(smollm2, job.tokens, 16)
    outcome = await model.run(job)
    pieces = [model.vocab.piece(token).decode() for token in expected]
    assert outcome.text == "".join(pieces)
    assert outcome.done == Finished(
        "length",
        prompt_tokens=len(job.tokens),
        output_tokens=16,
        cache_read_tokens=0,
        tokens=array("i", expected),
        ends=array("i", accumulate(map(len, pieces))),
    )
    assert sum(text.tokens for text in outcome.texts) == 16


async def test_text_arrives_while_it_is_generated(model: Model) -> None:
    outcome = await model.run(model.job(MOON, max_tokens=12))
    assert len(outcome.texts) > 6
    assert outcome.times[-1] > outcome.times[0]


async def test_eight_jobs_stream_together(model: Model) -> None:
    outcomes = await asyncio.gather(*(model.run(model.job(LETTERS, max_tokens=48)) for _ in range(8)))
    assert all(outcome.text.startswith(NEXT) for outcome in outcomes)
    # each has its first text before any has its last
    assert max(o.times[0] for o in outcomes) < min(o.times[-1] for o in outcomes)


async def test_end_of_generation_stops(model: Model) -> None:
    outcome = await model.run(model.job(CHAT.format("Say only: yes"), max_tokens=200))
    assert outcome.done.finish_reason == "stop"
    assert "<|im_end|>" not in outcome.text


async def test_sampling_repeats_with_its_seed(model: Model) -> None:
    warm = Sampling(temperature=1.0, seed=7)
    one, same, other = [
        (await model.run(model.job(MOON, max_tokens=12, sampling=sampling))).text
        for sampling in (warm, warm, Sampling(temperature=1.0, seed=8))
    ]
    assert one == same != other


async def test_repetition_penalty_bends_a_greedy_loop(model: Model) -> None:
    plain = await model.run(model.job(LETTERS, max_tokens=8))
    bent = await model.run(model.job(LETTERS, max_tokens=8, sampling=Sampling(temperature=0, repeat_penalty=1.8)))
    assert plain.text.startswith(NEXT)
    assert not bent.text.startswith(NEXT)


async def test_banned_tokens_are_never_sampled(model: Model) -> None:
    first = await model.run(model.job(MOON, max_tokens=1))
    job = model.job(MOON, max_tokens=1)
    [token] = [t for t in range(model.vocab.size) if model.vocab.piece(t).decode("utf-8", "replace") == first.text]
    banned = await model.run(model.job(MOON, max_tokens=4, banned=(token,)))
    assert job.tokens and first.text not in banned.text.split(" ")[0]
    for sampling in (Sampling(temperature=0, repeat_penalty=1.1), Sampling(temperature=1.0, seed=1)):
        outcome = await model.run(model.job(MOON, max_tokens=1, banned=(token,), sampling=sampling))
        assert outcome.text != first.text


# --- limits


async def test_a_prompt_that_does_not_fit_is_refused_at_once(model: Model) -> None:
    outcome = await model.run(model.job("word " * 2100))
    assert outcome.failed.code == "quota-exceeded"
    assert outcome.failed.extra == {"reason": "context"}


async def test_the_contexts_end_is_length(small: Model) -> None:
    full = small.job("The letters are " + "a b c d " * 29, max_tokens=None)
    outcome, other = await asyncio.gather(small.run(full), small.run(small.job(LETTERS)))
    assert outcome.done.finish_reason == "length"
    assert 0 < outcome.done.output_tokens == 128 - len(full.tokens)
    assert other.done.output_tokens == 8


@pytest.mark.parametrize("tokens", [[], [-1], [49152]])
async def test_foreign_tokens_are_refused(model: Model, tokens: list[int]) -> None:
    job = model.job("x")
    bad = type(job)(**{name: getattr(job, name) for name in job.__slots__} | {"tokens": array("i", tokens)})
    assert (await model.run(bad)).failed.code == "provider-error"


async def test_a_full_queue_refuses_and_a_cancel_makes_room(model: Model) -> None:
    running = [model.engine.generate(model.job(LETTERS, max_tokens=None)) for _ in range(8 + 4)]
    refused = await model.run(model.job(MOON))
    assert (refused.failed.code, refused.failed.extra) == ("quota-exceeded", {"reason": "queue"})
    for generation in running:
        model.engine.cancel(generation.request.id)
    ends = [await collect(generation) for generation in running]
    assert all(end.failed.code == "cancelled" for end in ends)
    assert (await model.run(model.job(MOON, max_tokens=2))).done.output_tokens == 2


async def test_queued_jobs_run_when_slots_become_free(model: Model) -> None:
    outcomes = await asyncio.gather(*(model.run(model.job(LETTERS, max_tokens=4)) for _ in range(12)))
    assert {outcome.done.output_tokens for outcome in outcomes} == {4}


# --- giving up


async def test_cancel_settles_at_once(model: Model) -> None:
    generation = model.engine.generate(model.job(LONG, max_tokens=4))
    reader = asyncio.create_task(collect(generation))
    await model.run(model.job(MOON, max_tokens=1))  # the long prefill is under way now
    model.engine.cancel(generation.request.id)
    assert generation.settled, "nobody waits for the worker"
    outcome = await reader
    assert outcome.failed.code == "cancelled"


async def test_a_job_that_is_told_to_end_ends_as_done(model: Model) -> None:
    generation = model.engine.generate(model.job(LETTERS, max_tokens=None))
    assert isinstance(await anext(generation), TextChunk)
    model.engine.finish(generation.request.id)
    outcome = await collect(generation)
    assert outcome.done.finish_reason == "stop" and outcome.done.output_tokens == len(outcome.done.tokens) > 0
    model.engine.finish(generation.request.id)  # over: left alone


async def test_survivors_of_a_cancelled_prefill_are_unchanged(model: Model) -> None:
    alone = await model.run(model.job(LETTERS, max_tokens=24))
    survivors = [model.engine.generate(model.job(LETTERS, max_tokens=24)) for _ in range(2)]
    readers = [asyncio.create_task(collect(survivor)) for survivor in survivors]
    for _ in range(3):
        doomed = model.engine.generate(model.job(LONG, max_tokens=4))
        await model.run(model.job("a short one", max_tokens=1))
        model.engine.cancel(doomed.request.id)
    assert [(await reader).text for reader in readers] == [alone.text, alone.text]


async def test_a_short_prompt_does_not_wait_behind_a_long_prefill(model: Model) -> None:
    long = model.engine.generate(model.job(LONG, max_tokens=1))
    long_reader = asyncio.create_task(collect(long))
    await model.run(model.job(MOON, max_tokens=1))
    assert not long_reader.done()
    model.engine.cancel(long.request.id)
    await long_reader


async def test_closing_the_iterator_cancels(model: Model) -> None:
    generation = model.engine.generate(model.job(MOON, max_tokens=None))
    assert isinstance(await anext(generation), TextChunk)
    await generation.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(generation)
    assert model.engine.stats().active + model.engine.stats().queued == 0


async def test_a_cancelled_reader_cancels(model: Model) -> None:
    generation = model.engine.generate(model.job(LONG))
    reader = asyncio.create_task(collect(generation))
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert generation.settled


async def test_the_deadline_is_a_timeout(model: Model) -> None:
    started = time.monotonic()
    outcome = await model.run(model.job(LONG, seconds=0.3))
    assert outcome.failed.code == "timeout"
    assert time.monotonic() - started > 0.25


async def test_an_id_is_used_once_at_a_time(model: Model) -> None:
    job = model.job(MOON, max_tokens=1)
    generation = model.engine.generate(job)
    with pytest.raises(ValueError, match="id"):
        model.engine.generate(job)
    await collect(generation)
    await model.run(job)


# --- prefixes


async def test_a_prefix_is_reused_within_its_scope_only(model: Model) -> None:
    first = await model.run(model.job(MOON, max_tokens=6, scope="here"))
    again = await model.run(model.job(MOON, max_tokens=6, scope="here"))
    other = await model.run(model.job(MOON, max_tokens=6, scope="there"))
    longer = await model.run(model.job(MOON + first.text, max_tokens=2, scope="here"))
    assert first.done.cache_read_tokens == 0
    assert again.done.cache_read_tokens == again.done.prompt_tokens - 1
    assert other.done.cache_read_tokens == 0
    assert longer.done.cache_read_tokens >= first.done.prompt_tokens
    assert first.text == again.text == other.text


async def test_a_cached_prefix_gives_the_same_answer(model: Model) -> None:
    cold = await model.run(model.job(LETTERS, max_tokens=8, scope="cold"))
    await model.run(model.job(LETTERS[:-24], max_tokens=8, scope="warm"))
    warm = await model.run(model.job(LETTERS, max_tokens=8, scope="warm"))
    assert warm.done.cache_read_tokens > 20
    assert warm.text == cold.text == NEXT * 2


# --- constraints

OBJECT = r"""
root ::= "{\"name\":" string ",\"age\":" [1-9] [0-9]? ",\"tags\":[" (string ("," string){0,2})? "]}"
string ::= "\"" char{1,12} "\""
char ::= [^"\\\x00-\x1f]
"""


async def test_a_grammar_is_obeyed_at_temperature_one(model: Model) -> None:
    jobs = [
        model.job(MOON, max_tokens=200, sampling=Sampling(temperature=1.0, seed=seed), constraint=Constraint(OBJECT))
        for seed in range(20)
    ]
    outcomes = [
        outcome
        for start in range(0, 20, 4)
        for outcome in await asyncio.gather(*map(model.run, jobs[start : start + 4]))
    ]
    for outcome in outcomes:
        assert outcome.done.finish_reason == "stop"
        value = json.loads(outcome.text)
        assert list(value) == ["name", "age", "tags"]
        assert 1 <= len(value["name"]) <= 12
    assert len({outcome.text for outcome in outcomes}) > 10


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(temperature=0.9, top_k=0, min_p=0, top_p=1)])
async def test_a_grammar_far_from_what_the_model_says_is_obeyed(model: Model, sampling: Sampling) -> None:
    constraint = Constraint('root ::= "zqx " [A-F]{4} " \u00e9\u20ac"')
    outcome = await model.run(model.job(MOON, max_tokens=64, sampling=sampling, constraint=constraint))
    assert outcome.done.finish_reason == "stop"
    assert outcome.text.startswith("zqx ") and outcome.text.endswith(" \u00e9\u20ac")


CALL = r'''root ::= "{\"name\":\"book_a_table\",\"arguments\":{\"town\":\"" [a-z]{1,8} "\",\"guests\":" [1-9] "}}"'''


async def test_what_the_grammar_forces_is_appended(model: Model) -> None:
    outcome = await model.run(model.job(MOON, max_tokens=64, constraint=Constraint(CALL)))
    assert re.fullmatch(r'\{"name":"book_a_table","arguments":\{"town":"[a-z]{1,8}","guests":[1-9]}}', outcome.text)
    done = outcome.done
    assert done.finish_reason == "stop" and done.output_tokens == sum(text.tokens for text in outcome.texts)
    assert done.jump_forward_tokens > done.output_tokens / 2
    assert b"".join(map(model.vocab.piece, done.tokens)).decode() == outcome.text
    whole = model.vocab.continuation(outcome.text.encode())
    assert abs(done.output_tokens - len(whole)) <= 3, "tokenized much as the model itself would have written it"


@pytest.mark.parametrize(
    ("grammar", "stop"),
    [
        ('root ::= "Zu \U0001f9a9 und \U0001f9a9: <think>" [a-z]{8} "</think> é"', ()),
        ("", ("zz",)),
    ],
)
async def test_each_token_tells_where_in_the_output_it_ends(model: Model, grammar: str, stop: tuple[str, ...]) -> None:
    """Sampled ones, forced ones and drafted ones, also where one ends within a character."""
    constraint = Constraint(grammar) if grammar else None
    job = model.job(LETTERS, max_tokens=48, constraint=constraint, stop=StopCriteria(stop) if stop else None)
    outcome = await model.run(job)
    done = outcome.done
    pieces = list(map(model.vocab.piece, done.tokens))
    assert b"".join(pieces).decode() == outcome.text
    assert not grammar or done.jump_forward_tokens > 10
    assert list(done.ends) == [len(whole.decode(errors="ignore")) for whole in accumulate(pieces)]


async def test_forced_tokens_count_toward_the_limit(model: Model) -> None:
    outcome = await model.run(model.job(MOON, max_tokens=5, constraint=Constraint(CALL)))
    assert (
        outcome.done.finish_reason == "length" and outcome.done.output_tokens == outcome.done.jump_forward_tokens == 5
    )
    assert '{"name":"book_a_table"'.startswith(outcome.text[:10])
    constant = await model.run(model.job(MOON, max_tokens=5, constraint=Constraint('root ::= "yes"')))
    assert (constant.text, constant.done.finish_reason) == ("yes", "stop")


async def test_an_unreadable_grammar_fails_its_job_alone(model: Model) -> None:
    bad, empty, good = await asyncio.gather(
        model.run(model.job(MOON, constraint=Constraint("root ::= ((("))),
        model.run(model.job(MOON, constraint=Constraint(""))),
        model.run(model.job(LETTERS, max_tokens=4)),
    )
    assert bad.failed.code == empty.failed.code == "provider-error"
    assert good.done.output_tokens == 4


async def test_a_grammar_that_leaves_no_token_fails_its_job_alone(model: Model) -> None:
    banned = tuple(token for token in range(model.vocab.size) if model.vocab.piece(token).startswith(b"7"))
    dead, good = await asyncio.gather(
        model.run(model.job(MOON, constraint=Constraint('root ::= "7"'), banned=banned)),
        model.run(model.job(LETTERS, max_tokens=4)),
    )
    assert dead.failed.code == "provider-error"
    assert good.done.output_tokens == 4


async def test_control_tokens_do_not_pass_for_their_text(model: Model) -> None:
    constraint = Constraint('root ::= "<|im_start|>" | "<|im_end|>!"')
    outcome = await model.run(model.job(MOON, max_tokens=16, constraint=constraint))
    assert outcome.text in ("<|im_start|>", "<|im_end|>!")
    assert outcome.done.output_tokens > 2  # spelled out


async def test_a_token_named_by_the_grammar_is_allowed(model: Model) -> None:
    token = model.vocab.token_of("<|im_start|>")
    outcome = await model.run(model.job(MOON, max_tokens=16, constraint=Constraint(f'root ::= <[{token}]> "ok"')))
    assert outcome.text == "<|im_start|>ok"
    assert outcome.done.output_tokens <= 3


async def test_the_grammar_starts_at_its_marker(model: Model) -> None:
    constraint = Constraint('root ::= " a" "!" [0-9]{3}', triggers=(" up", " a"))
    outcome = await model.run(model.job(LETTERS, max_tokens=24, constraint=constraint))
    assert outcome.text.startswith(" c d a!") and outcome.text[7:].isdigit() and len(outcome.text) == 10
    assert outcome.done.finish_reason == "stop"


@pytest.mark.parametrize("marker", ["d a", "c d a", "c ", " c d a "])
async def test_a_marker_may_straddle_tokens(model: Model, marker: str) -> None:
    """Also where its end lies inside a token whose rest the grammar refuses."""
    constraint = Constraint(f'root ::= "{marker}" [XY] "."', triggers=(marker,))
    outcome = await model.run(model.job(LETTERS, max_tokens=24, constraint=constraint))
    before, found, after = outcome.text.partition(marker)
    assert before in (" c ", " ", "") and found == marker and after in ("X.", "Y.")
    assert b"".join(map(model.vocab.piece, outcome.done.tokens)).decode() == outcome.text
    assert outcome.done.output_tokens == sum(text.tokens for text in outcome.texts)


async def test_markers_inside_thinking_are_text(model: Model) -> None:
    bracketed = Constraint('root ::= " a" "!"', triggers=(" a",), reasoning_tags=(" c", " b"))
    outcome = await model.run(model.job(LETTERS, max_tokens=12, constraint=bracketed))
    assert outcome.text == NEXT * 3
    opened = Constraint('root ::= " a" "!"', triggers=(" a",), reasoning_tags=("<t>", " b"), thinking_open=True)
    outcome = await model.run(model.job(LETTERS, max_tokens=24, constraint=opened))
    assert outcome.text == NEXT + " c d a!"


async def test_a_grammar_that_refuses_its_own_marker_fails(model: Model) -> None:
    constraint = Constraint('root ::= "x"', triggers=(" d",))
    outcome = await model.run(model.job(LETTERS, max_tokens=24, constraint=constraint))
    assert outcome.failed == Failed(
        "provider-error", "the grammar does not allow its own marker", {"reason": "constraint"}
    )
