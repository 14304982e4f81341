"""A worker without its process, turned by hand."""

from __future__ import annotations

import socket
import threading
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from server.engine import EngineConfig, EngineRequest, Failed, Finished, Sampling
from server.engine.protocol import AddRequest, Decoder, StepOutput
from server.engine.worker.channel import Channel
from server.engine.worker.loader import LoadedModel
from server.engine.worker.worker import Worker


class Bench:
    """Jobs in, outputs out."""

    def __init__(self, path: Path, **spec: Any) -> None:
        self._ours, theirs = socket.socketpair()
        config = EngineConfig(str(path), **{"slots": 3, "threads": 1, **spec})
        loaded = LoadedModel.load(config, repack=False)
        self.worker = Worker(loaded, Channel(theirs, loaded))
        self._decoder = Decoder()
        self.outputs: dict[int, bytes] = {}
        self.ends: dict[int, Finished | Failed] = {}
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while data := self._ours.recv(1 << 16):
            for step in self._decoder.feed(data):
                assert isinstance(step, StepOutput)
                for job, piece, _ in step.output:
                    self.outputs[job] = self.outputs.get(job, b"") + piece
                with self._news:
                    self.ends.update(step.ended)
                    self._news.notify_all()

    def await_ends(self, numbers: Iterable[int]) -> None:
        """Until these jobs' ends are read, and so all they gave."""
        with self._news:
            assert self._news.wait_for(lambda: self.ends.keys() >= set(numbers), 60)

    def submit(self, number: int, tokens: array[int], max_tokens: int) -> None:
        greedy = Sampling(temperature=0)
        self.worker.channel.put(
            AddRequest(EngineRequest(number, tokens, greedy, f"scope {number}", deadline=0, max_tokens=max_tokens))
        )

    def run(self) -> None:
        self.worker.step()
        while self.worker.scheduler.running or self.worker.scheduler.queue:
            self.worker.step()
        self.close()

    def close(self) -> None:
        """Everything said is read."""
        self.worker.channel.close()
        self._reader.join(10)
        self._ours.close()
        self.worker.loaded.close()
