"""Loading a model by the best memory plan that there is memory for."""

from __future__ import annotations

import re
import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace

from server.engine import llama
from server.engine.memory import gguf
from server.engine.memory.device import cores, machine
from server.engine.memory.hparams import HParams
from server.engine.memory.plan import MemoryPlan, gpu_contended, plans
from server.engine.protocol import LoadFailed, LoadModel, OutOfMemory, encode
from server.engine.speculative.base import MAX_DRAFT_TOKENS
from server.engine.speculative.model import ModelDrafter
from server.engine.speculative.mtp import MtpDrafter
from server.engine.types import EngineConfig, EngineError, ModelInfo
from server.engine.vision.projector import Projector
from server.engine.vocab import Vocab
from server.engine.worker.threads import ThreadTuner

_NO_MEMORY = re.compile("alloc|out of memory", re.IGNORECASE)
"""In llama.cpp's log of a load that failed."""

_IMAGE_SHARE = 0.75
"""Share of the context that one image may take: larger ones are scaled down, as projectors do with those that are too
large for them. Else no photograph could be asked about in a context of 4,096 tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model in memory, with its context, its projector and its drafter, proven by a first step."""

    config: EngineConfig
    plan: MemoryPlan
    """The plan that it was loaded by."""
    info: ModelInfo
    model: llama.LlamaModel
    vocab: Vocab
    context: llama.Context
    batch: llama.Batch
    projector: Projector | None
    image_batch: int
    """Image embeddings that one step takes at most."""
    drafter: ModelDrafter | MtpDrafter | None
    draft_tokens: int
    """Tokens that one step may draft; 0 where nothing is speculated."""
    threads: int
    image_threads: int
    """Threads that encode an image on the CPU, while steps use the others."""
    tuner: ThreadTuner | None
    memory: ExitStack
    """Gives all memory back."""

    @classmethod
    def load(cls, config: EngineConfig, plan: MemoryPlan | None = None, *, repack: bool = True) -> LoadedModel:
        """Load by a plan, by default the best for the machine. `repack`: let llama.cpp lay weights out anew for the
        processor. Where that fails all memory is given back. Raises LoadError; EngineError where the file is damaged.
        """
        plan = plan or best_plan(config)
        threads = config.threads or cores()
        image_threads = max(1, threads // 2)
        with ExitStack() as memory:
            mtp = plan.mtp and llama.shows_hidden()
            model = llama.LlamaModel(
                config.path, gpu_layers=plan.gpu_layers, cpu_experts=plan.cpu_experts, repack=repack, mtp=mtp
            )
            memory.callback(model.close)
            if not model.decoder:
                raise llama.LoadError("the model is no causal language model")
            vocab = Vocab(model)
            drafts = _draft_tokens(config, plan, model)
            batch = llama.Batch(plan.slots + max(plan.chunk, drafts))
            image_batch = batch.size
            projector = _load_projector(config, plan, model, image_threads)
            if projector is not None:
                memory.callback(projector.close)
                if projector.scaled:
                    plan = _noted(plan, f"images take at most {projector.most} tokens of the context")
                image_batch = batch.size if projector.causal else max(batch.size, projector.largest)
            context = llama.Context(
                model,
                batch=image_batch,
                threads=threads,
                outputs=plan.slots + drafts,
                hidden=mtp,
                snapshots=plan.rollback_tokens,
                **plan.layout,
            )
            memory.callback(context.close)
            if model.recurrent and not context.snapshots:
                drafts = 0
            drafter = _load_drafter(config, plan, model, vocab, threads, repack, mtp=mtp) if drafts else None
            if drafter is not None:
                memory.callback(drafter.close)
            loaded = cls(
                config=config,
                plan=plan,
                info=_describe(plan, vocab, vision=projector is not None),
                model=model,
                vocab=vocab,
                context=context,
                batch=batch,
                projector=projector,
                image_batch=image_batch,
                drafter=drafter,
                draft_tokens=drafts,
                threads=threads,
                image_threads=image_threads,
                # A configured count is kept; beside a GPU, CPU time says nothing about the cores.
                tuner=ThreadTuner(threads) if not config.threads and plan.gpu_layers <= 0 else None,
                memory=memory,
            )
            loaded._warm_up()
            return replace(loaded, memory=memory.pop_all())

    @property
    def on_gpu(self) -> bool:
        return self.plan.gpu_layers > 0

    @property
    def mtp_drafter(self) -> MtpDrafter | None:
        """The drafter where it is a layer of the model itself, which follows all that the KV cache gets."""
        return self.drafter if isinstance(self.drafter, MtpDrafter) else None

    def decode(self, count: int) -> int:
        """Run the batch's first `count` tokens (see `Context.decode`), by as many threads as there are cores for."""
        tuner = self.tuner
        if tuner is None:
            return self.context.decode(self.batch, count)
        wall, cpu = time.monotonic(), time.process_time()
        status = self.context.decode(self.batch, count)
        now = time.monotonic()
        if tuner.note(now - wall, time.process_time() - cpu, now):
            self.use_threads(tuner.count)
        return status

    def use_threads(self, count: int) -> None:
        """From the next decode on."""
        self.context.use_threads(count)
        if self.drafter is not None:
            self.drafter.use_threads(count)

    def _warm_up(self) -> None:
        """One full step: buffers are touched and kernels proven before the first request pays for it, or dies of it;
        and on a busy machine the threads are fewer by then."""
        batch = self.batch
        batch.token[:] = 0
        batch.position[:] = range(batch.size)
        batch.sequence[:] = 0
        batch.output[:] = 0
        batch.output[-1] = 1
        if self.decode(batch.size) != llama.OK or not self.context.seq_rm(0):
            raise llama.LoadError("the model's first step failed")

    def close(self) -> None:
        """Give all memory back."""
        self.memory.close()


def _noted(plan: MemoryPlan, note: str) -> MemoryPlan:
    return replace(plan, notes=(*plan.notes, note))


def _draft_tokens(config: EngineConfig, plan: MemoryPlan, model: llama.LlamaModel) -> int:
    """Tokens that one step may draft.

    Rejected ones must be cut off again: out of a running state as far as there are snapshots of it. Cells that a window
    has left are given away by where its sequence stood before the step, so none that is needed again.
    """
    return MAX_DRAFT_TOKENS if config.speculation and (plan.rollback_tokens or not model.recurrent) else 0


def _load_projector(config: EngineConfig, plan: MemoryPlan, model: llama.LlamaModel, threads: int) -> Projector | None:
    if config.mmproj_path is None:
        return None
    room = int(_IMAGE_SHARE * plan.context_length)
    return Projector.load(config.mmproj_path, model, threads=threads, gpu=plan.gpu_layers > 0, room=room)


def _load_drafter(
    config: EngineConfig,
    plan: MemoryPlan,
    model: llama.LlamaModel,
    vocab: Vocab,
    threads: int,
    repack: bool,
    *,
    mtp: bool,
) -> ModelDrafter | MtpDrafter | None:
    """A smaller model where one is configured, else the model's own layer where it was loaded (`mtp`)."""
    if config.draft_model_path is not None:
        return ModelDrafter(config.draft_model_path, vocab, plan, threads=threads, repack=repack)
    return MtpDrafter(model, vocab.eog, plan, threads=threads) if mtp else None


def _describe(plan: MemoryPlan, vocab: Vocab, *, vision: bool) -> ModelInfo:
    return ModelInfo(
        architecture=vocab.metadata.get("general.architecture", ""),
        context_length=plan.context_length,
        slots=plan.slots,
        vocabulary=vocab.size,
        backends=llama.backends(),
        vision=vision,
        notes=plan.notes,
    )


def best_plan(config: EngineConfig) -> MemoryPlan:
    """The best plan for the machine as it is. Raises EngineError where the file is damaged."""
    return next(plans(HParams.of(gguf.read(config.path)), machine(), config))


class ModelLoader:
    """Loads a model by the best plan that there is memory for.

    Some backends end the process where memory runs out, so the engine is told as soon as llama.cpp says so: if the
    process dies then, the next begins with a smaller plan.
    """

    def __init__(self, connection: socket.socket, frame: LoadModel) -> None:
        self._connection = connection
        self._frame = frame
        self._number = 0
        """The plan being tried, the best being 0."""
        self._log: list[str] = []
        self._sending = threading.Lock()

    def send(self, frame: object) -> None:
        """Send a frame. Two threads do while a model is loaded."""
        with self._sending:
            self._connection.sendall(encode(frame))

    def load(self) -> LoadedModel | LoadFailed:
        llama.log_to(self._on_log)
        try:
            return self._load()
        except EngineError as error:
            return LoadFailed(error.reason, error.reason)
        except llama.LoadError as error:
            return LoadFailed(str(error), " ".join(self._log[-3:]))
        finally:
            llama.log_to(None)

    def _on_log(self, level: int, text: str) -> None:
        if level >= llama.LOG_WARN:
            self._log.append(text.strip())
            if _NO_MEMORY.search(text):
                self.send(OutOfMemory(self._number))

    def _load(self) -> LoadedModel:
        config = self._frame.spec
        hparams = HParams.of(gguf.read(config.path))
        llama.attach(config.rpc)
        here = machine()
        for number, plan in enumerate(plans(hparams, here, config)):
            if number < self._frame.smaller:
                continue
            if number:
                plan = _noted(plan, "loading it with more ran out of memory")
            self._number = number
            self._log.clear()
            try:
                loaded = LoadedModel.load(config, plan, repack=self._frame.repack)
            except llama.LoadError:
                if not any(_NO_MEMORY.search(line) for line in self._log):
                    raise
            else:
                contended = gpu_contended(hparams, here, config)
                return replace(loaded, info=replace(loaded.info, gpu_contended=contended))
        raise llama.LoadError("there is not enough memory for the model as it is configured")
