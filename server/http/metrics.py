"""`GET /metrics`: the server's numbers for Prometheus (text exposition format, version 0.0.4).

For the owner alone, as the owner's API is: how many tokens are generated from one moment to the next would let one
shell time another's work. No label names a shell, a napplet, an account or an id.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Literal

from starlette.routing import Route

from server.engine.histogram import Histogram
from server.engine.memory.device import Gpu, gpus
from server.http.api import Api
from server.http.asgi import Asgi, Receive, Scope, Send, respond
from server.http.owner import OwnerApi
from server.http.owner_state import resident
from server.runtime import Runtime
from server.runtime.served_model import ServedModel

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_STARTED = time.time()

Labels = dict[str, str]
Sample = tuple[Labels, float]


class MetricsEndpoint(Api):
    """The page of one runtime's metrics."""

    prefixes = ("/metrics",)
    cors = False
    quiet = True

    def __init__(self, runtime: Runtime, owner: OwnerApi) -> None:
        self._runtime = runtime
        self._owner = owner

    def routes(self) -> list[Route]:
        return [Route("/metrics", Asgi(self.show), methods=["GET"])]

    async def show(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._owner.authenticate(scope)
        page = exposition(self._runtime, await asyncio.to_thread(gpus))
        await respond(send, 200, page.encode(), [(b"content-type", CONTENT_TYPE)])


def exposition(runtime: Runtime, devices: Iterable[Gpu]) -> str:
    """All families, each with its help and type, in a fixed order."""
    page = _Page()
    page.add("nap_llm_info", "gauge", "The server's version", [({"version": version("nap-llm")}, 1)])
    page.add("nap_llm_draining", "gauge", "1 while the server takes no more work, about to end", runtime.draining)
    page.add(
        "nap_llm_decisions_waiting", "gauge", "Questions that wait for the owner", len(runtime.decisions.waiting())
    )
    _add_generations(page, runtime)
    _add_connections(page, runtime.connections)
    sizes = [({"gpu": str(number), "name": gpu.name}, gpu) for number, gpu in enumerate(devices)]
    page.add("nap_llm_gpu_memory_bytes", "gauge", "Memory of the GPU", [(at, gpu.memory) for at, gpu in sizes])
    page.add("nap_llm_gpu_memory_free_bytes", "gauge", "Memory of it not in use", [(at, gpu.free) for at, gpu in sizes])
    page.add("process_cpu_seconds_total", "counter", "CPU time of the web process", time.process_time())
    page.add("process_start_time_seconds", "gauge", "Start of it, since the epoch", _STARTED)
    page.add("process_resident_memory_bytes", "gauge", "Memory of it", resident(os.getpid()) or 0)
    return page.text


def _add_generations(page: _Page, runtime: Runtime) -> None:
    metrics = runtime.metrics
    stages = Counter((live.connection or "", live.stage) for live in runtime.live())
    page.add(
        "nap_llm_generations_live",
        "gauge",
        "Generations that have not ended, by stage",
        [({"connection": key, "stage": stage}, count) for (key, stage), count in stages.items()],
    )
    page.add(
        "nap_llm_generations_total",
        "counter",
        "Generations that have ended: by what finished them or their error's code; why cancelled, or which limit",
        [
            ({"connection": key, "outcome": outcome, "reason": reason}, count)
            for (key, outcome, reason), count in metrics.endings.items()
        ],
    )
    page.histograms(
        "nap_llm_time_to_first_token_seconds",
        "From arrival to the first text, without what the owner took to decide",
        metrics.first_tokens.items(),
    )
    page.histograms(
        "nap_llm_generation_seconds",
        "From arrival to the answer, without what the owner took to decide",
        metrics.durations.items(),
    )


def _add_connections(page: _Page, connections: Iterable[ServedModel]) -> None:
    keyed = [({"connection": each.key}, each) for each in connections]
    loaded = [(at, each.loaded, each.loaded.stats()) for at, each in keyed if each.loaded is not None]
    counts = [(at, each.counts()) for at, each in keyed]

    def gauge(name: str, words: str, samples: Iterable[Sample]) -> None:
        page.add(f"nap_llm_{name}", "gauge", words, samples)

    def counter(name: str, words: str, samples: Iterable[Sample]) -> None:
        page.add(f"nap_llm_{name}_total", "counter", words, samples)

    gauge("connection_enabled", "0 where the owner has disabled it", [(at, each.enabled) for at, each in keyed])
    gauge("model_loaded", "1 while the model is in memory", [(at, each.loaded is not None) for at, each in keyed])
    gauge("worker_up", "1 while the loaded model's worker answers", [(at, engine.alive) for at, engine, _ in loaded])
    gauge("slots", "Sequences the model decodes together", [(at, engine.info.slots) for at, engine, _ in loaded])
    gauge("sequences_active", "Sequences in the batch", [(at, stats.active) for at, _, stats in loaded])
    gauge("sequences_queued", "Jobs that wait for a slot", [(at, stats.queued) for at, _, stats in loaded])
    memory = [(at, resident(engine.pid)) for at, engine, _ in loaded]
    gauge(
        "worker_resident_memory_bytes",
        "Memory of the worker, the model's file as far as it is read included",
        [(at, size) for at, size in memory if size is not None],
    )
    counter("jobs_finished", "Jobs of the engine that came to their end", [(at, c.finished) for at, c in counts])
    counter("prompt_tokens", "Prompt tokens of finished jobs", [(at, c.prompt_tokens) for at, c in counts])
    counter("cached_prompt_tokens", "Those of them found in cache", [(at, c.cache_read_tokens) for at, c in counts])
    counter("cache_hits", "Finished jobs that found any there", [(at, c.cache_hits) for at, c in counts])
    counter("output_tokens", "Tokens generated, for whatever came of them", [(at, c.output_tokens) for at, c in counts])
    counter(
        "forced_tokens", "Of finished jobs: forced by the grammar", [(at, c.jump_forward_tokens) for at, c in counts]
    )
    counter("drafted_tokens", "Of finished jobs: decoded ahead", [(at, c.draft_tokens) for at, c in counts])
    counter("confirmed_tokens", "Those of them that the output has", [(at, c.accepted_tokens) for at, c in counts])
    counter("worker_restarts", "Attempts to start a worker again", [(at, c.restarts) for at, c in counts])
    counter("worker_hangs", "Workers killed for want of progress", [(at, c.hangs) for at, c in counts])
    counter("load_failures", "Loads of a model that failed", [(at, each.lease.failed_loads) for at, each in keyed])
    page.histograms("nap_llm_load_seconds", "Loading a model", [(each.key, each.lease.loads) for _, each in keyed])
    page.histograms(
        "nap_llm_inter_token_seconds",
        "Between two outputs of one generation",
        [(each.key, c.gaps) for (_, each), (_, c) in zip(keyed, counts, strict=True)],
    )


class _Page:
    """The exposition as it is written."""

    def __init__(self) -> None:
        self.text = ""

    def add(self, name: str, kind: Literal["gauge", "counter"], words: str, samples: float | Iterable[Sample]) -> None:
        """One family. A number is its only sample, without labels."""
        self._begin(name, kind, words)
        for labels, value in [({}, samples)] if isinstance(samples, int | float) else samples:
            self._sample(name, labels, value)

    def histograms(self, name: str, words: str, samples: Iterable[tuple[str, Histogram]]) -> None:
        """One family of histograms by connection."""
        self._begin(name, "histogram", words)
        for key, histogram in samples:
            at = {"connection": key}
            for bound, count in histogram.cumulative():
                self._sample(f"{name}_bucket", {**at, "le": _number(bound)}, count)
            self._sample(f"{name}_sum", at, histogram.sum)
            self._sample(f"{name}_count", at, histogram.count)

    def _begin(self, name: str, kind: str, words: str) -> None:
        self.text += f"# HELP {name} {words}.\n# TYPE {name} {kind}\n"

    def _sample(self, name: str, labels: Labels, value: float) -> None:
        self.text += f"{name}{{{','.join(_written(labels))}}} {_number(value)}\n"


def _written(labels: Labels) -> Iterator[str]:
    for key, value in labels.items():
        escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        yield f'{key}="{escaped}"'


def _number(value: float) -> str:
    return "+Inf" if value == float("inf") else f"{float(value):.15g}"
