"""Scripted workers (`tests.scripted`) are workers in all but what their models say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from server.chat.template.provenance import ProvenanceStr, from_template, join
from server.engine import Constraint, EngineConfig, StopCriteria, Vocab
from tests.chat.standin import write_model
from tests.engine.conftest import Model, Outcome, collect
from tests.scripted import Director, directing

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Stage(Model):
    """A scripted engine, and who directs it."""

    director: Director

    def __init__(self, engine: object, vocab: Vocab, director: Director) -> None:
        super().__init__(engine, vocab)  # type: ignore[arg-type]
        self.director = director

    def start(self, **fields: object) -> asyncio.Task[Outcome]:
        job = self.job("Once", **{"max_tokens": None, **fields})  # type: ignore[arg-type]
        return asyncio.create_task(collect(self.engine.generate(job)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whole_stage(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    path = tmp_path_factory.mktemp("scripted") / "model.gguf"
    write_model(path, sdist / "vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf", ["<call>", "</call>"], size=2000)
    async with directing() as director:
        engine = await director.start_engine(EngineConfig(str(path), context_length=512, slots=2, threads=1))
        yield Stage(engine, Vocab.load(str(path)), director)
        await engine.close()


@pytest.fixture
def stage(whole_stage: Stage) -> Stage:
    whole_stage.director.reset()
    return whole_stage


async def test_it_says_what_it_is_told_to(stage: Stage) -> None:
    task = stage.start()
    run = await stage.director.run()
    euro = "€".encode()
    run.say("Grüße ", euro[:2], euro[2:], " 奥斯陆", join([from_template("<call>"), ProvenanceStr("<call>")]))
    run.done()
    outcome = await task
    assert outcome.text == "Grüße € 奥斯陆<call><call>" and outcome.done.finish_reason == "stop"
    token = stage.vocab.token_of("<call>")
    assert token is not None and outcome.done.tokens.count(token) == 1
    assert outcome.done.tokens == (await run.over).end.tokens  # type: ignore[union-attr]


async def test_the_jobs_own_limits_hold(stage: Stage) -> None:
    task = stage.start(max_tokens=3)
    (await stage.director.run()).say("one two three four five")
    assert ((await task).done.finish_reason, (await task).done.output_tokens) == ("length", 3)
    task = stage.start(stop=StopCriteria(("three",)))
    (await stage.director.run(1)).say("one two three four five")
    assert ((await task).text, (await task).done.stopped) == ("one two ", True)


async def test_the_constraint_holds(stage: Stage) -> None:
    grammar = Constraint('root ::= "<call>" ("yes" | "no") " or not" "</call>"?', triggers=("<call>",))
    task = stage.start(constraint=grammar)
    run = await stage.director.run()
    run.say("Well <call>yes or not", " at all")
    run.done()
    outcome = await task
    # What was forced the script would have said; what follows it may not, and the output may end.
    assert outcome.text == "Well <call>yes or not" and outcome.done.jump_forward_tokens > 0
    assert (await run.over).unsaid == " at all"
    task = stage.start(constraint=grammar)
    run = await stage.director.run(1)
    run.say("<call>maybe")
    assert (await task).failed.reason == "the constraint leaves no token"
    assert (await run.over).unsaid == "maybe"


async def test_what_is_forced_must_be_what_the_script_has(stage: Stage) -> None:
    task = stage.start(constraint=Constraint('root ::= "yes or not" ("!" | "?")'))
    run = await stage.director.run()
    run.say("yes, sir!")
    assert (await task).failed.code == "provider-error"
    assert (await run.over).astray


async def test_a_disobedient_one_overlooks_the_constraint(stage: Stage) -> None:
    stage.director.obedient = False
    task = stage.start(constraint=Constraint('root ::= "yes"'))
    run = await stage.director.run()
    run.say("no")
    run.done()
    assert (await task).text == "no"


async def test_one_that_rests_keeps_nobody_waiting(stage: Stage) -> None:
    tasks = [stage.start() for _ in range(2)]
    first, second = await stage.director.run(0), await stage.director.run(1)
    first.say("one")
    second.say("all")
    second.done()
    assert (await tasks[1]).text == "all" and not tasks[0].done()
    first.say(" and only")
    first.done("length")
    outcome = await tasks[0]
    assert (outcome.text, outcome.done.finish_reason) == ("one and only", "length")


async def test_cancels_failures_and_death(stage: Stage) -> None:
    task = stage.start()
    run = await stage.director.run()
    run.say("so")
    stage.engine.cancel(run.job.id)
    assert (await task).failed.code == "cancelled"
    assert await run.ended() is None and run.cancelled

    task = stage.start()
    (await stage.director.run(1)).fail("quota-exceeded", "enough", reason="context")
    outcome = await task
    assert (outcome.failed.code, outcome.failed.extra) == ("quota-exceeded", {"reason": "context"})

    task = stage.start()
    run = await stage.director.run(2)
    run.say("half")
    run.die()
    outcome = await task
    assert outcome.failed.code == "provider-error" and outcome.text in ("", "half")
    task = stage.start()  # to the next worker
    run = await stage.director.run(3)
    run.done()
    assert (await task).done.finish_reason == "stop"
