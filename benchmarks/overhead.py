"""Where a step of the engine spends its time: the worker's own loop, in this process, without the web process.

    python benchmarks/overhead.py model.gguf

Jobs decode together until one ends or the steps are enough; prefill is left out. Each part's time is its own, without
the parts it calls: `fill` writes the batch, `decode` is llama_decode, `logits` the wait for its result (on a GPU most
of the step), `sampling` the choice of a token, `grammar` what the constraint adds, `append` the bookkeeping behind it,
`frame` the message to the web process, `rest` scheduling and the loop. `clock_us` is what taking the time adds to each
call of a part.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drive import Workload, machine, save
from rich.console import Console
from rich.table import Table

from grammars import compile_schema
from server.engine.hugepages import huge_pages
from server.engine.protocol import AddRequest, Decoder, StepOutput
from server.engine.sampling.grammar import GrammarState
from server.engine.sampling.params import Sampling
from server.engine.sampling.sampler import TokenSampler
from server.engine.types import Constraint, EngineConfig, EngineRequest, Segment
from server.engine.vocab import Vocab
from server.engine.worker.channel import Channel
from server.engine.worker.loader import LoadedModel
from server.engine.worker.worker import Worker

MODEL_PARTS = ("decode", "logits")
SAMPLER_PARTS = ("sampling", "grammar")
"""Together with the model's parts what nobody can spare a server; the others are the loop's own cost."""
GRAMMAR = ("allows", "allowed_among", "mask", "accept", "jump_forward", "feed_trigger")
"""Methods of `GrammarState` that steps call."""
PARTS = (*MODEL_PARTS, *SAMPLER_PARTS, "fill", "append", "frame", "rest")


class Clock:
    """Adds up what the parts of a program take, each without the timed parts inside it."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._inner: list[float] = []

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            self._inner.append(0.0)
            began = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                took = time.perf_counter() - began
                self.spent[part] += took - self._inner.pop()
                if self._inner:
                    self._inner[-1] += took

        return run


def clock_cost(calls: int = 10_000) -> float:
    """Microseconds that timing adds to a call."""
    clock = Clock()
    nothing = clock.timed("nothing", lambda: None)
    began = time.perf_counter()
    for _ in range(calls):
        nothing()
    return round((time.perf_counter() - began) / calls * 1e6, 2)


@contextmanager
def timing(clock: Clock, worker: Worker) -> Iterator[None]:
    """The clock runs in the worker, and in its samplers and constraints, while this is open."""
    timed: list[tuple[Any, str, str]] = [
        (worker, "step", "rest"),
        (worker.runner, "build_batch", "fill"),
        (worker.loaded.context, "decode", "decode"),
        (worker.loaded.context, "logits", "logits"),
        (worker.output, "sample_next", "append"),
        (worker, "_send_output", "frame"),
        (TokenSampler, "choose", "sampling"),
        *((GrammarState, name, "grammar") for name in GRAMMAR),
    ]
    # What an object finds in its class is covered, and uncovered again.
    before = [(owner, name, vars(owner).get(name)) for owner, name, _ in timed]
    for owner, name, part in timed:
        setattr(owner, name, clock.timed(part, getattr(owner, name)))
    try:
        yield
    finally:
        for owner, name, own in before:
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


class Bench:
    """A worker without its process: jobs go in, frames come out, one turn at a time."""

    def __init__(self, spec: EngineConfig) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._decoder = Decoder()
        loaded = LoadedModel.load(spec)
        self.worker = Worker(loaded, Channel(self._theirs, loaded))
        self._vocab = Vocab.load(spec.path)
        self._endings = tuple(token for token in range(self._vocab.size) if self._vocab.is_eog(token))
        self._count = 0

    def job(self, question: str, max_tokens: int, constraint: Constraint | None) -> EngineRequest:
        """Greedy, of a scope of its own; one without a constraint never ends early."""
        self._count += 1
        return EngineRequest(
            id=self._count,
            tokens=array("i", self._vocab.tokenize([Segment(question, control=False)])),
            sampling=Sampling(temperature=0),
            cache_salt=str(self._count),
            deadline=0,
            max_tokens=max_tokens,
            constraint=constraint,
            suppress_tokens=() if constraint else self._endings,
        )

    def turn(self) -> list[StepOutput]:
        """One step, and what the worker said of it."""
        self.worker.step()
        try:
            return self._decoder.feed(self._ours.recv(1 << 20))
        except BlockingIOError:
            return []

    def measure(self, jobs: list[EngineRequest], steps: int) -> dict[str, Any]:
        """Decode the jobs together for so many steps, or until one ends. Figures in microseconds a step."""
        for job in jobs:
            self.worker.channel.put(AddRequest(job))
        waiting = {job.id for job in jobs}
        unfinished = set(waiting)

        def see(said: list[StepOutput]) -> int:
            for step in said:
                waiting.difference_update(id for id, _, _ in step.output)
                unfinished.difference_update(id for id, _ in step.ended)
            return sum(tokens for step in said for _, _, tokens in step.output)

        running = self.worker.scheduler.running
        # What a grammar forces at the beginning is said before the prompt is prefilled.
        while (waiting or any(each.num_computed_tokens < len(each.request.tokens) for each in running)) and len(
            unfinished
        ) == len(jobs):
            see(self.turn())
        clock, done, tokens = Clock(), 0, 0
        with timing(clock, self.worker):
            while done < steps and len(unfinished) == len(jobs):
                spent = clock.spent.copy()
                tokens += see(self.turn())
                if len(unfinished) == len(jobs):
                    done += 1
                else:
                    clock.spent = spent  # the step that settles a job is another kind
        while unfinished:
            see(self.turn())
        if not done:
            raise RuntimeError("a job ended before anything could be measured")
        total = sum(clock.spent.values())
        own = sum(took for part, took in clock.spent.items() if part not in (*MODEL_PARTS, *SAMPLER_PARTS))
        return {
            "steps": done,
            "tokens_per_step": round(tokens / done, 2),
            "step_us": round(total / done * 1e6, 1),
            "own_us": round(own / done * 1e6, 1),
            "own_share": round(own / total, 4),
            "own_share_of_10_ms": round(own / done / 0.01, 4),
            "parts_us": {part: round(clock.spent[part] / done * 1e6, 2) for part in PARTS},
            "parts_share": {part: round(clock.spent[part] / total, 5) for part in PARTS},
        }


def measure(model: Path, concurrency: list[int], steps: int, gpu_layers: int = -1) -> dict[str, Any]:
    slots = max(8, *concurrency)
    bench = Bench(EngineConfig(str(model), slots=slots, context_length=steps + 1024, gpu_layers=gpu_layers))
    found: dict[str, Any] = {"machine": machine(), "clock_us": clock_cost(), "answers": {}}
    for name in ("chat", "forced"):
        workload = Workload(name)
        tool = workload.request(0, 0).tool
        constraint = Constraint(compile_schema(tool["parameters"]).gbnf) if name == "forced" else None
        found["answers"][name] = {}
        for count in concurrency:
            questions = [workload.request(0, index).user for index in range(count)]
            jobs = [bench.job(question, steps + 16, constraint) for question in questions]
            found["answers"][name][str(count)] = bench.measure(jobs, steps)
    return found


def show(found: dict[str, Any]) -> None:
    table = Table(title="One step: µs (share). own: all but the model and the choice of tokens")
    for heading in ("answer", "at once", "step", "own", *PARTS):
        table.add_column(heading, justify="right")
    for name, entries in found["answers"].items():
        for count, figures in entries.items():
            cells = [f"{figures['parts_us'][part]:.1f} ({figures['parts_share'][part] * 100:.2f} %)" for part in PARTS]
            own = f"{figures['own_us']:.1f} ({figures['own_share'] * 100:.2f} %)"
            table.add_row(name, count, f"{figures['step_us']:.0f}", own, *cells)
    console = Console()
    console.width = console.width if console.is_terminal else 200
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--steps", type=int, default=200, help="at most (default: %(default)s)")
    parser.add_argument("--gpu-layers", type=int, default=-1, help="-1: all (default)")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    if "hugetlb" not in os.environ.get("GLIBC_TUNABLES", ""):
        # As the server starts its workers.
        os.execve(sys.executable, [sys.executable, *sys.argv], huge_pages(os.environ))
    found = measure(options.model, options.concurrency, options.steps, options.gpu_layers)
    show(found)
    save(found, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
