"""Engines whose models say what a test tells them to, everything else being real (see `fixtures/scripted_worker.py`).

`Director` starts such engines and meets their jobs; a `Run` is one job that has reached a worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

from server.chat import HelperPool, make_parser
from server.chat.template.provenance import ProvenanceStr
from server.config import Config
from server.engine import Engine, EngineConfig, Vocab
from server.engine.protocol import Decoder, encode
from server.engine.types import EngineRequest, Failed, Finished
from server.runtime import Runtime
from server.runtime.clock import Clock
from tests.fixtures.script import Arrived, Begin, Cue, Die, End, Fail, Over, Say


class Run:
    """One job in a worker. What its model does comes in the order it is told."""

    def __init__(self, job: EngineRequest, writer: asyncio.StreamWriter) -> None:
        self.job = job
        self.over: asyncio.Future[Over] = asyncio.get_running_loop().create_future()
        """Once the worker has done with it."""
        self._writer = writer

    def say(self, *texts: str | bytes) -> None:
        """Write these texts: control tokens where they are spelled, though of a chat `Text` only in what is control,
        and of bytes, which need not be whole characters, none."""
        for text in texts:
            if isinstance(text, bytes):
                self._cue(Say(self.job.id, text, control=False))
                continue
            for segment in text.segments() if isinstance(text, ProvenanceStr) else [None]:
                data = text if segment is None else segment.text
                self._cue(Say(self.job.id, data.encode(), control=segment is None or segment.control))

    def done(self, finish: Literal["stop", "length"] = "stop") -> None:
        """End the output; "length": as where the context is full."""
        self._cue(End(self.job.id, finish))

    def fail(self, code: str = "provider-error", words: str = "died", **extra: str) -> None:
        self._cue(Fail(self.job.id, Failed(code, words, extra)))  # type: ignore[arg-type]

    def die(self) -> None:
        """End the worker's process, and so every job in it."""
        self._cue(Die(self.job.id))

    def _cue(self, cue: Cue) -> None:
        self._writer.write(encode(cue))

    @property
    def cancelled(self) -> bool:
        """Whether it was given up from outside."""
        return self.over.done() and self.over.result().end is None

    async def ended(self) -> Finished | Failed | None:
        """How the worker has ended it; None: it was cancelled."""
        return (await self.over).end


class Director:
    """Where scripted workers report their jobs.

    `obedient`: whether workers keep to the constraints of the jobs that come. `runs`: the jobs that have reached any of
    them; that is all a model was given. `starts`: the models that were loaded.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.runs: list[Run] = []
        self.starts: list[EngineConfig] = []
        self.obedient = True
        self._news = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._connected: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._meet, self._path)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._connected:
            writer.close()

    async def start_engine(self, spec: EngineConfig) -> Engine:
        """An engine with such a worker, in the place of `Engine.start`."""
        self.starts.append(spec)
        return await Engine.start(spec, worker=("tests.fixtures.scripted_worker", str(self._path)))

    def reset(self) -> None:
        """Forget the jobs so far, and be obedient."""
        self.runs.clear()
        self.obedient = True

    async def run(self, number: int = 0) -> Run:
        """The job that reached a worker as the `number`th, once it has."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.runs) > number)
        return self.runs[number]

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connected.add(writer)
        decoder = Decoder()
        own: dict[int, Run] = {}
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                for frame in decoder.feed(data):
                    if isinstance(frame, Over):
                        own.pop(frame.job_id).over.set_result(frame)
                        continue
                    assert isinstance(frame, Arrived)
                    run = own[frame.job.id] = Run(frame.job, writer)
                    self.runs.append(run)
                    writer.write(encode(Begin(frame.job.id, self.obedient)))
                    async with self._news:
                        self._news.notify_all()
        for run in own.values():
            run.over.set_result(Over(run.job.id, Failed("provider-error", "the worker died"), "", ""))
        self._connected.discard(writer)
        writer.close()


@contextlib.asynccontextmanager
async def directing() -> AsyncIterator[Director]:
    # Not in pytest's directory: the path of a socket is bounded to about a hundred characters.
    with tempfile.TemporaryDirectory(prefix="scripted") as directory:
        director = Director(Path(directory) / "s")
        await director.open()
        try:
            yield director
        finally:
            await director.close()


def scripted_runtime(config: Config, director: Director, pool: HelperPool, clock: Clock | None = None) -> Runtime:
    """The runtime as the server makes it, but for its workers, and for a clock of the test's where one is given."""
    return Runtime(
        config,
        chat=pool,
        start_engine=director.start_engine,
        make_parser=make_parser,
        fetch_file=_given,
        clock=clock,
    )


def _given(source: Any) -> Path:
    assert source.path is not None
    return Path(source.path)


def prompt_of(vocab: Vocab, tokens: Any) -> str:
    """What tokens of a prompt say."""
    return b"".join(vocab.piece(each) or vocab.text(each).encode() for each in tokens).decode()
