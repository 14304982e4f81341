"""The process that holds one model: receives jobs, runs the batch loop, sends what each step brought.

Started as `python -m server.engine.worker.worker FD`, FD being its end of the socket pair (see `protocol`). It imports
nothing of the web process, exits when the socket closes, and writes nothing to its standard streams.

Two threads, and a third that encodes images. The main thread runs steps; while llama.cpp decodes it does not hold the
GIL, and the reader thread takes in frames and, where a cancelled job has most of the step under way to itself, raises
the abort flag.
"""

from __future__ import annotations

import codecs
import os
import queue
import re
import select
import socket
import sys
import threading
import time
import traceback
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from server.engine import llama
from server.engine.memory import gguf
from server.engine.memory.device import cores, machine
from server.engine.memory.hparams import HParams
from server.engine.memory.plan import MemoryPlan, gpu_contended, plans
from server.engine.pixels import PixelReceiver
from server.engine.protocol import (
    AbortRequest,
    AddRequest,
    Check,
    Checked,
    Crashed,
    Decoder,
    Finish,
    LoadFailed,
    LoadModel,
    OutOfMemory,
    Ping,
    Pixels,
    Pong,
    Ready,
    StepOutput,
    encode,
)
from server.engine.sampling.grammar import ConstraintError, GrammarState
from server.engine.sampling.logprobs import Logprobs, certain
from server.engine.sampling.params import PENALTY_WINDOW
from server.engine.sampling.sampler import NothingAllowed, TokenSampler
from server.engine.sampling.stop import StopMatcher
from server.engine.scheduler.scheduler import (
    MIN_PREFIX,
    Admission,
    PrefixMatch,
    ScheduledBatch,
    Scheduler,
    Sequence,
    Slot,
    common_prefix,
)
from server.engine.speculative.base import MAX_DRAFT_TOKENS, DraftController, Drafter, DraftRequest, NgramDrafter
from server.engine.speculative.model import ModelDrafter
from server.engine.speculative.mtp import MtpDrafter
from server.engine.types import EngineConfig, EngineError, EngineRequest, Failed, Finished, ModelInfo
from server.engine.vision.encoder import EncoderResult, ImageEncoder
from server.engine.vision.placeholders import ImageSpan, PlaceholderExpander
from server.engine.vision.projector import ImageChunk, Projector, ProjectorError
from server.engine.vocab import Vocab
from server.engine.worker.prefix import PrefixCache, PrefixEntry
from server.engine.worker.threads import ThreadTuner

_NO_MEMORY = re.compile("alloc|out of memory", re.IGNORECASE)
"""In what llama.cpp says of a load that failed."""

_IMAGE_SHARE = 0.75
"""Of the context, that one image may take: larger ones are scaled down, as projectors do with what is too large for
them. Else no photograph could be asked about in a context of 4,096 tokens."""

_ABORT_FROM = 16
"""Aborting a smaller step saves less than its survivors lose by decoding their tokens again."""


class StepInFlight:
    """The step under way: how many of its tokens are whose."""

    def __init__(self, tokens: dict[int, int]) -> None:
        self._tokens = tokens
        self._total = sum(tokens.values())
        self._lost = 0

    def cancel(self, job_id: int) -> bool:
        """Note that a job is cancelled; whether the step is no longer worth finishing."""
        self._lost += self._tokens.pop(job_id, 0)
        return self._lost >= _ABORT_FROM and 2 * self._lost >= self._total


class DraftBatch(NamedTuple):
    """What a step is to confirm, by job; of which speculation that is, and the seconds it took to make."""

    tokens: dict[int, array[int]]
    controller: DraftController | None = None
    seconds: float = 0.0


_NO_DRAFTS = DraftBatch({})


class VisionState:
    """What a worker with a projector has beside: `batch` is how many embeddings one step takes at most, `images` are
    those of the jobs that wait in the queue."""

    def __init__(self, projector: Projector, encoder: ImageEncoder, batch: int) -> None:
        self.projector = projector
        self.encoder = encoder
        self.batch = batch
        self.images: dict[int, tuple[ImageSpan, ...]] = {}
        self._layouts = PlaceholderExpander(projector)

    def expand_images(self, job: EngineRequest, length: int) -> EngineRequest | Failed:
        """The job with its pictures as tokens, or why it cannot be done with so many tokens a sequence."""
        sizes = [(picture.width, picture.height) for _, picture in job.images]
        if (refusal := self.refusal(len(job.tokens), sizes, length)) is not None:
            return refusal
        tokens, self.images[job.id] = self._layouts.expand(job)
        return replace(job, tokens=tokens, images=())

    def refusal(self, tokens: int, sizes: Iterable[tuple[int, int]], length: int) -> Failed | None:
        """Why so many tokens of text and images of these sizes are no prompt for a sequence of `length` tokens."""
        for index, size in enumerate(sizes):
            told = {"reason": "image", "image": str(index)}
            try:
                parts = self.projector.layout(*size)
            except ProjectorError as error:
                return Failed("unsupported", str(error), told)
            for part in parts:
                count = part.tokens if isinstance(part, ImageChunk) else len(part)
                if isinstance(part, ImageChunk) and not self.projector.causal and count > self.batch:
                    return Failed("unsupported", "an image takes more tokens than fit one step", told)
                tokens += count
        if tokens >= length:
            return Failed("quota-exceeded", "the prompt does not fit the context", {"reason": "context"})
        return None


class Worker:
    """One loaded model and its batch loop."""

    def __init__(
        self, connection: socket.socket, spec: EngineConfig, plan: MemoryPlan | None = None, *, repack: bool = True
    ) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._steps = 0
        self.inbox: queue.SimpleQueue[AddRequest | Finish | AbortRequest | Check | EncoderResult] = queue.SimpleQueue()
        plan = plan or best_plan(spec)
        slots = plan.slots
        self._memory = ExitStack()
        """What is given back after a load that failed, for the next to use."""
        guesses = plan.mtp and llama.shows_hidden()
        self._model = llama.LlamaModel(
            spec.path, gpu_layers=plan.gpu_layers, cpu_experts=plan.cpu_experts, repack=repack, mtp=guesses
        )
        self._memory.callback(self._model.close)
        if not self._model.decoder:
            raise llama.LoadError("the model is no causal language model")
        self._vocab = Vocab(self._model)
        self._pieces = self._vocab.pieces
        self._eog = self._vocab.eog
        backends = llama.backends()
        on_gpu = plan.gpu_layers > 0
        self._length, chunk = plan.context_length, plan.chunk
        # What is drafted must be cut off again where it was wrong: out of a running state as far as there are snapshots
        # of it. Cells that a window has left are given away by where its sequence stood before the step, so none that
        # is needed again.
        drafts = MAX_DRAFT_TOKENS if spec.speculation and (plan.rollback_tokens or not self._model.recurrent) else 0
        self._batch = llama.Batch(slots + max(chunk, drafts))
        threads = spec.threads or cores()
        self._vision: VisionState | None = None
        batch = self._batch.size
        # While an image is encoded on the CPU it gets half of the cores, and steps the others.
        half = max(1, threads // 2)
        if spec.mmproj_path is not None:
            room = int(_IMAGE_SHARE * self._length)
            projector = Projector.load(spec.mmproj_path, self._model, threads=half, gpu=on_gpu, room=room)
            if projector is not None:
                self._memory.callback(projector.close)
                if projector.scaled:
                    note = f"images take at most {projector.most} tokens of the context"
                    plan = replace(plan, notes=(*plan.notes, note))
                batch = batch if projector.causal else max(batch, projector.largest)
                self._vision = VisionState(projector, ImageEncoder(projector, self.inbox.put), batch)
        try:
            self._context = llama.Context(
                self._model,
                batch=batch,
                threads=threads,
                outputs=slots + drafts,
                hidden=guesses,
                snapshots=plan.rollback_tokens,
                **plan.layout,
            )
            self._memory.callback(self._context.close)
            if self._model.recurrent and not self._context.snapshots:
                drafts = 0
            self._model_drafter: ModelDrafter | MtpDrafter | None = None
            if spec.draft_model_path is not None and drafts:
                self._model_drafter = ModelDrafter(
                    spec.draft_model_path, self._vocab, plan, threads=threads, repack=repack
                )
            elif guesses and drafts:
                self._model_drafter = MtpDrafter(self._model, self._eog, plan, threads=threads)
            if self._model_drafter is not None:
                self._memory.callback(self._model_drafter.close)
        except llama.LoadError:
            self.close()
            raise
        self._mtp_drafter = self._model_drafter if isinstance(self._model_drafter, MtpDrafter) else None
        """Where it is the model itself that drafts: it is told of all that the KV cache gets."""
        sources: list[Drafter] = [NgramDrafter()] if drafts else []
        if self._model_drafter is not None:
            sources.append(self._model_drafter)
        self._draft_controllers = [DraftController(source) for source in sources]
        """The first that has something to say is heard."""
        # A configured count is kept; beside a GPU, CPU time says nothing about the cores.
        self._threads = ThreadTuner(threads) if not spec.threads and not on_gpu else None
        self._cores = threads, threads if on_gpu else max(1, threads - half)
        self._encoding = False
        self._stalled = False
        self._candidates = llama.CandidateArray(self._vocab.size)
        self._asked = llama.CandidateArray(self._vocab.size)
        self._scheduler = Scheduler(
            slots,
            chunk,
            # A running state cannot be cut; nor can what a copy of a window holds.
            can_copy_prefix=not self._model.recurrent and not (plan.kv_per_slot and self._model.window),
            prefer_adjacent=plan.kv_per_slot,
            # Where sequences have cells of their own, those of one micro-batch attend over as many each as the longest
            # of them has.
            separate_prefill=plan.kv_per_slot,
            max_decode_slowdown=spec.prefill_slowdown,
        )
        cuts = not self._model.recurrent and not self._model.window
        self._prefix_cache = PrefixCache() if plan.kv_per_slot and cuts and slots > 1 else None
        self._samplers: dict[int, tuple[TokenSampler, GrammarState | None]] = {}
        self._stops: dict[int, StopMatcher] = {}
        self._in_flight = StepInFlight({})
        self._logprobs: list[tuple[int, bytes, float, tuple[tuple[bytes, float], ...]]] = []
        self._output: list[tuple[int, bytes, int]] = []
        self._ended: list[tuple[int, Finished | Failed]] = []
        self._undraft = False
        """Whether the next step does without drafts."""
        self._load = 0, 0
        self.info = ModelInfo(
            architecture=self._vocab.metadata.get("general.architecture", ""),
            context_length=self._length,
            slots=slots,
            vocabulary=self._vocab.size,
            backends=backends,
            vision=self._vision is not None,
            notes=plan.notes,
        )
        try:
            self._warm_up()
        except llama.LoadError:
            self.close()
            raise

    def close(self) -> None:
        """Give all memory back."""
        self._memory.close()

    def _warm_up(self) -> None:
        """One full step: buffers are touched and kernels proven before the first job pays for it, or dies of it."""
        batch, count = self._batch, self._batch.size
        batch.token[:] = 0
        batch.position[:] = range(count)
        batch.sequence[:] = 0
        batch.output[:] = 0
        batch.output[-1] = 1
        if self._decode(count) != llama.OK or not self._context.seq_rm(0):
            raise llama.LoadError("the model's first step failed")

    # --- the reader thread

    def receive(self, decoder: Decoder) -> None:
        """Take in frames until the socket closes, which ends the process."""
        # Polled, because a thread that waits in recv() is woken for every frame the other side has read.
        readable = select.poll()
        readable.register(self._connection, select.POLLIN)
        arriving = PixelReceiver()
        while readable.poll() and (data := self._connection.recv(1 << 16)):
            for frame in decoder.feed(data):
                if isinstance(frame, Ping):
                    self._send(Pong(self._steps, time.process_time()))
                elif isinstance(frame, Pixels):
                    arriving.take(frame)
                elif isinstance(frame, AddRequest) and frame.job.images:
                    self.put(AddRequest(arriving.fill(frame.job)))
                else:
                    self.put(frame)
        os._exit(0)

    def _send(self, frame: StepOutput | Pong | Checked) -> None:
        with self._sending:  # both threads do
            self._connection.sendall(encode(frame))

    def put(self, frame: AddRequest | Finish | AbortRequest | Check) -> None:
        """Hand a frame to the main thread; stop the step under way where a cancel has made most of it idle."""
        # Put first, then look: the main thread announces a step first, then looks into the inbox.
        self.inbox.put(frame)
        if isinstance(frame, AbortRequest) and self._in_flight.cancel(frame.job_id) and not self._model.recurrent:
            self._context.abort()  # a running state would be left part-way

    # --- the main thread

    def run(self) -> None:
        while True:
            self.step()

    def step(self) -> None:
        """Take in what has come (wait for it, where there is nothing to do), run one step, say what it brought."""
        self._take_in()
        for sequence, prefix in self._scheduler.ready_followers():
            self._restore_prefix(sequence, prefix)
        while (admission := self._scheduler.admit()) is not None:
            self._start(admission)
        self._send_output()  # who runs, and what is forced, need not wait for a long prefill
        self._run_batch()
        self._send_output()

    def _take_in(self) -> None:
        inbox, scheduler = self.inbox, self._scheduler
        # Stalled, only what comes in changes anything: all that runs waits for images being encoded.
        idle = self._stalled or not (scheduler.running or scheduler.queue)
        while idle or not inbox.empty():
            frame = inbox.get()
            idle = False
            if isinstance(frame, AddRequest):
                self._submit(frame.job)
            elif isinstance(frame, EncoderResult):
                self._image_encoded(frame)
            elif isinstance(frame, Finish):
                for sequence in [each for each in scheduler.running if each.request.id == frame.job_id]:
                    self._finish(sequence, "stop")
            elif isinstance(frame, Check):
                assert self._vision is not None
                self._send(Checked(frame.id, self._vision.refusal(frame.tokens, frame.sizes, self._length)))
            else:
                self._drop(frame.job_id)

    def _drop(self, job_id: int) -> None:
        """A job is cancelled: it runs, waits, or is over already."""
        if (sequence := self._scheduler.abort(job_id)) is not None:
            self._release(sequence)
        elif self._vision is not None:
            self._vision.images.pop(job_id, None)

    def _submit(self, job: EngineRequest) -> None:
        if job.images:
            assert self._vision is not None
            laid = self._vision.expand_images(job, self._length)
            if isinstance(laid, Failed):
                self._ended.append((job.id, laid))
                return
            job = laid
        self._scheduler.submit(job)

    def _start(self, admission: Admission) -> None:
        """Prepare a new sequence: the memory of its slot, and its sampler."""
        sequence, rescue = admission.sequence, admission.relocate_to
        job = sequence.request
        if rescue is not None and not self._copied(sequence.slot, rescue, len(rescue.tokens) - rescue.mrope_offset):
            rescue.tokens = rescue.tokens[:0]
        if self._vision is not None:
            sequence.images = self._vision.images.pop(job.id, ())
        self._restore_prefix(sequence, admission.prefix)
        sampler = TokenSampler(job.sampling, job.suppress_tokens, self._candidates)
        if sampler.remembers:
            for token in job.tokens[-PENALTY_WINDOW:]:
                if token >= 0:  # of an image
                    sampler.accept(token)
        try:
            guard = GrammarState(job.constraint, self._model, self._vocab, self._asked) if job.constraint else None
        except ConstraintError as error:
            self._fail(sequence, "constraint", str(error))
            return
        self._samplers[job.id] = (sampler, guard)
        if job.stop is not None:
            self._stops[job.id] = StopMatcher(job.stop)
        if guard is not None and guard.active:
            self._commit_tokens(
                sequence, sampler, guard, [], b""
            )  # what is forced from the start is part of the prefill

    def _restore_prefix(self, sequence: Sequence, prefix: PrefixMatch) -> None:
        """Begin with what a slot holds of the sequence's first tokens, where that is provably right."""
        context, slot, donor = self._context, sequence.slot, prefix.slot
        # The last prompt token's logits are needed.
        keep = sequence.floor_to_image(min(prefix.count, len(sequence.tokens) - 1))
        place = sequence.position_of(keep)
        if self._model.recurrent:
            keep = keep if prefix.exact and keep == prefix.count else 0  # a running state cannot be cut
        elif (window := self._model.window) and context.first_position(donor.id) > max(0, place - window):
            keep = 0  # what the window needs has been overwritten
        if (head := self._head(sequence, keep, copied=donor is not slot)) is not None:
            keep = len(head.tokens) if context.load_state(slot.id, head.state, len(head.tokens)) else 0
            if self._mtp_drafter is not None:
                self._mtp_drafter.forget(slot.id)
        elif not keep:
            context.seq_rm(slot.id)
        elif donor is not slot:
            keep = self._copy(sequence, donor, keep)
        elif not (prefix.exact and keep == prefix.count) and not context.seq_rm(slot.id, place):
            context.seq_rm(slot.id)
            keep = 0
        sequence.set_computed(keep)
        sequence.num_cached_tokens = keep
        if sequence.images:
            self._request_images(sequence)

    def _head(self, sequence: Sequence, count: int, *, copied: bool) -> PrefixEntry | None:
        """A head to begin with, where it is more than the `count` tokens a slot would give, or as good as their
        copy."""
        if self._prefix_cache is None or sequence.prefix_owner is not None or sequence.images:
            return None
        head = self._prefix_cache.match(sequence.request.cache_salt, sequence.tokens)
        least = count - MIN_PREFIX if copied and count else count + MIN_PREFIX
        return head if head is not None and len(head.tokens) >= least else None

    def _copy(self, sequence: Sequence, donor: Slot, count: int) -> int:
        """Copy the first tokens of another slot; how many that was. What is a small part of that slot is a head."""
        context, target = self._context, sequence.slot.id
        if not self._copied(donor, sequence.slot, sequence.position_of(count)):
            return 0
        if self._prefix_cache is not None and not sequence.images and 2 * count < len(donor.tokens):
            self._prefix_cache.insert(
                PrefixEntry(sequence.request.cache_salt, sequence.tokens[:count], context.save_state(target))
            )
        return count

    def _copied(self, source: Slot, target: Slot, count: int) -> bool:
        """Give a slot the first `count` positions of another; False where that failed."""
        copied = self._context.seq_cp(source.id, target.id, count)
        if self._mtp_drafter is not None:
            self._mtp_drafter.copy(source.id, target.id, count if copied else 0)
        return copied

    def _release(self, sequence: Sequence) -> None:
        """A sequence leaves the batch; who waited for its prefill goes on with what there is."""
        self._samplers.pop(sequence.request.id, None)
        self._stops.pop(sequence.request.id, None)
        if sequence.images and self._vision is not None:
            self._vision.encoder.abort(sequence.request.id)
            if sequence.num_computed_tokens > sequence.next_image_start:
                self._rewind(sequence)
        if (follower := self._scheduler.finish(sequence)) is not None:
            self._restore_prefix(*follower)

    def _run_batch(self) -> None:
        turn = self._scheduler.schedule()
        self._stalled = turn is None
        if turn is None:
            return
        if turn.image:
            self._run_image_batch(turn)
            return
        # While an image is encoded there are fewer cores.
        drafts = self._draft(turn) if turn.may_speculate and not self._encoding else _NO_DRAFTS
        count, rows, due = self._build_batch(turn, drafts.tokens)
        if not self._begin_step({sequence.request.id: tokens for sequence, tokens in turn.entries}):
            return
        began = time.monotonic()
        result = self._decode(count)
        self._end_step()
        seconds = time.monotonic() - began
        self._scheduler.update(turn, seconds, done=result == llama.OK, tells=not (drafts.tokens or self._encoding))
        if result == llama.OK:
            if self._mtp_drafter is not None:
                self._mtp_drafter.observe(self._batch, count, self._context.hidden(count))
            decoding = turn.decoding
            for sequence, tokens in turn.entries:
                sequence.num_computed_tokens += tokens
            confirmed = 0
            logits = self._context.logits(rows) if due else None
            for sequence, row in due:
                assert logits is not None
                if (draft := drafts.tokens.get(sequence.request.id)) is None:
                    self._sample_next(sequence, logits[row])
                else:
                    confirmed += self._verify_draft(sequence, draft, logits[row:])
            if decoding == len(turn.entries) and not self._encoding:  # which makes steps slower
                drafted = sum(map(len, drafts.tokens.values()))
                for speculation in self._draft_controllers if drafts.controller is None else [drafts.controller]:
                    speculation.observe(decoding, drafted, confirmed, seconds + drafts.seconds)
        elif result == llama.NO_SLOT and drafts.tokens:
            self._undraft = True  # there may be room without them
        else:
            self._recover(result, [sequence for sequence, _ in turn.entries])

    def _begin_step(self, tokens: dict[int, int]) -> bool:
        """Announce a step of so many tokens of each job; False where there is something to take in first."""
        self._in_flight = StepInFlight(tokens)
        self._context.abort(False)
        # Perhaps a cancel, come before the reader thread could know of this step: plan again.
        return self.inbox.empty()

    def _end_step(self) -> None:
        self._steps += 1
        self._in_flight = StepInFlight({})

    def _recover(self, result: int, sequences: list[Sequence]) -> None:
        """A step has not been done."""
        if result == llama.NO_SLOT:
            self._free_cells(sequences)
        elif result == llama.ABORTED:  # the next step does it again
            for sequence in sequences:
                self._rewind(sequence)
        else:
            for sequence in sequences:
                self._context.seq_rm(sequence.slot.id)
                sequence.set_computed(0)
                self._fail(sequence, "decode", "llama.cpp could not decode the batch")

    def _rewind(self, sequence: Sequence) -> None:
        """Memory as far as the sequence has come; an image that is only in part there is taken out."""
        sequence.set_computed(min(sequence.num_computed_tokens, sequence.next_image_start))
        if not self._context.seq_rm(sequence.slot.id, sequence.position):
            self._context.seq_rm(sequence.slot.id)
            sequence.set_computed(0)

    # --- images

    def _request_images(self, sequence: Sequence) -> None:
        """Get the embeddings of the images still to come, but for those that the sequence waits for its leader with."""
        assert self._vision is not None
        job, encoder = sequence.request, self._vision.encoder
        first = sequence.num_computed_tokens if sequence.prefix_owner is None else sequence.num_shared_tokens
        for image in sequence.images:
            if (
                image.start >= first
                and image.embeddings is None
                and (found := encoder.request(job.id, job.cache_salt, image.image)) is not None
            ):
                image.embeddings = found[image.index]
        self._share_cores()

    def _image_encoded(self, encoded: EncoderResult) -> None:
        """An image has been encoded: give it to those that wait for it."""
        assert self._vision is not None
        self._steps += 1
        jobs = self._vision.encoder.complete(encoded)
        self._share_cores()
        for sequence in [each for each in self._scheduler.running if each.request.id in jobs]:
            if encoded.embeddings is None:
                self._fail(sequence, "encode", "an image cannot be encoded")
                continue
            for image in sequence.images:
                if image.image.digest == encoded.key.digest and image.start >= sequence.num_computed_tokens:
                    image.embeddings = encoded.embeddings[image.index]

    def _share_cores(self) -> None:
        assert self._vision is not None
        if self._encoding != self._vision.encoder.busy:
            self._encoding = not self._encoding
            most, beside = self._cores
            count = most if self._threads is None else self._threads.count
            self._use_threads(min(count, beside) if self._encoding else count)

    def _use_threads(self, count: int) -> None:
        self._context.use_threads(count)
        if self._model_drafter is not None:
            self._model_drafter.use_threads(count)

    def _run_image_batch(self, turn: ScheduledBatch) -> None:
        """One step with an image, or with as much of it as fits."""
        [(sequence, count)] = turn.entries
        image, sight = sequence.image, self._vision
        assert image is not None and image.embeddings is not None and sight is not None
        begin = sequence.num_computed_tokens - image.start
        end = begin + min(count, sight.batch) if sight.projector.causal else image.chunk.tokens
        positions = image.chunk.positions(sequence.position_of(image.start))
        if not self._begin_step({sequence.request.id: end - begin}):
            return
        began = time.monotonic()
        result = self._context.decode_embeddings(
            image.embeddings[begin:end],
            positions[:, begin:end],
            sequence.slot.id,
            causal=sight.projector.causal,
        )
        self._end_step()
        taken = replace(turn, entries=((sequence, end - begin),))
        self._scheduler.update(taken, time.monotonic() - began, cut=sight.projector.causal)
        if result != llama.OK:
            self._recover(result, [sequence])
            return
        sequence.set_computed(image.start + end)
        if sequence.num_computed_tokens == image.end:
            image.embeddings = None

    # --- tokens

    def _draft(self, turn: ScheduledBatch) -> DraftBatch:
        """What running answers may go on with, where there is nothing to prefill beside them."""
        undraft, self._undraft = self._undraft, False
        if undraft or any(sequence.num_new_tokens > 1 for sequence, _ in turn.entries):
            return _NO_DRAFTS
        asked = [
            DraftRequest(
                sequence.request.id,
                sequence.slot.id,
                sequence.request.cache_salt,
                sequence.tokens,
                room,
                bool(sequence.images),
            )
            for sequence, _ in turn.entries
            # Else an image comes next; or the token that is being decoded is the last but one.
            if sequence.num_computed_tokens + 1 == len(sequence.tokens)
            and (room := self._tokens_left(sequence) - 1) > 0
        ]
        together = len(turn.entries)
        even = self._context.snapshots
        if not asked or (even and not (len(asked) == together and self._context.can_rollback({a.slot for a in asked}))):
            return _NO_DRAFTS
        for speculation in self._draft_controllers:
            if most := speculation.draft_length(together):
                began = time.monotonic()
                drafts = speculation.drafter.propose(asked, min(most, even or most))
                if even:  # only what all have as many of can be taken back
                    shortest = min(map(len, drafts.values())) if len(drafts) == together else 0
                    drafts = {job: draft[:shortest] for job, draft in drafts.items() if shortest}
                if drafts:
                    return DraftBatch(drafts, speculation, time.monotonic() - began)
        return _NO_DRAFTS

    def _tokens_left(self, sequence: Sequence) -> int:
        """How many more tokens it may have."""
        room, most = self._length - len(sequence.tokens), sequence.request.max_tokens
        return room if most is None else min(room, most - sequence.num_output_tokens)

    def _decode(self, count: int) -> int:
        threads = self._threads
        if threads is None or self._encoding:
            return self._context.decode(self._batch, count)
        wall, cpu = time.monotonic(), time.process_time()
        result = self._context.decode(self._batch, count)
        now = time.monotonic()
        if threads.note(now - wall, time.process_time() - cpu, now):
            self._use_threads(threads.count)
        return result

    def _build_batch(
        self, turn: ScheduledBatch, drafts: dict[int, array[int]]
    ) -> tuple[int, int, list[tuple[Sequence, int]]]:
        """Write the batch; its size, its rows of logits, and the sequences that get some, each with its first row.

        A sequence with a draft gets a row for each token of it and one more.
        """
        batch = self._batch
        token, position, ids, output = batch.token, batch.position, batch.sequence, batch.output
        due = []
        at = rows = 0
        for sequence, count in turn.entries:
            past, place = sequence.num_computed_tokens, sequence.position
            draft = drafts.get(sequence.request.id)
            if count == 1:
                token[at], position[at] = sequence.tokens[past], place
                ids[at], output[at] = sequence.slot.id, 0
            else:
                end = at + count
                token[at:end] = sequence.tokens[past : past + count]
                position[at:end] = range(place, place + count)
                ids[at:end], output[at:end] = sequence.slot.id, 0
            at += count
            if past + count == len(sequence.tokens):
                output[at - 1] = 1
                due.append((sequence, rows))
                rows += 1
            if draft is not None:
                end = at + len(draft)
                token[at:end], position[at:end] = draft, range(place + 1, place + 1 + len(draft))
                ids[at:end], output[at:end] = sequence.slot.id, 1
                at, rows = end, rows + len(draft)
        return at, rows, due

    def _verify_draft(self, sequence: Sequence, draft: array[int], logits: NDArray[np.float32]) -> int:
        """Advance by as much of a draft as comes by itself, and one step more; how much that was.

        The draft stands in the KV cache behind `past`: what is confirmed belongs to the past, the rest is cut off.
        """
        slot, before, first = sequence.slot, 0, sequence.num_computed_tokens
        sequence.pending_draft = draft
        sequence.num_draft_tokens += len(draft)
        while slot.sequence is sequence and before < len(sequence.tokens) == sequence.num_computed_tokens:
            before = sequence.num_computed_tokens
            self._sample_next(sequence, logits[before - first])
        sequence.pending_draft = draft[:0]
        confirmed, going = sequence.num_computed_tokens - first, slot.sequence is sequence
        if not self._context.seq_rm(slot.id, sequence.position if going else len(slot.tokens) - slot.mrope_offset):
            self._context.seq_rm(slot.id)
            if going:
                sequence.set_computed(0)
            else:
                slot.tokens, slot.mrope_offset = slot.tokens[:0], 0
        return confirmed

    def _sample_next(self, sequence: Sequence, logits: NDArray[np.float32]) -> None:
        """Sample a sequence's next token and settle it where it ends."""
        job = sequence.request
        sampler, guard = self._samplers[job.id]
        scores = Logprobs(logits, job.logprobs) if job.logprobs is not None else None
        try:
            token = sampler.choose(logits, guard if guard is not None and guard.active else None)
            if token in self._eog:
                self._finish(sequence, "stop")
                return
            piece = self._pieces[token]
            tokens = [token]
            if guard is not None:
                if guard.active:
                    guard.accept(token)
                elif (kept := guard.feed_trigger(piece)) < len(piece):
                    piece = piece[:kept]
                    tokens = self._vocab.encode_bytes(piece)
        except NothingAllowed:
            self._fail(sequence, "constraint", "the constraint leaves no token")
            return
        except ConstraintError as error:
            self._fail(sequence, "constraint", str(error))
            return
        if scores is not None:
            self._logprobs.append((job.id, *scores.of(token, piece, self._pieces)))
        self._commit_tokens(sequence, sampler, guard, tokens, piece)

    def _commit_tokens(
        self, sequence: Sequence, sampler: TokenSampler, guard: GrammarState | None, tokens: list[int], piece: bytes
    ) -> None:
        """Append sampled tokens and those the grammar forces behind them; settle the sequence where it ends."""
        job, room = sequence.request, self._tokens_left(sequence)
        if (
            guard is not None
            and guard.active
            and (forced := guard.jump_forward(room - len(tokens), job.suppress_tokens))
        ):
            tokens = tokens + forced
            piece += b"".join(self._pieces[token] for token in forced)
            sequence.num_jump_forward += len(forced)
            if job.logprobs is not None:
                self._logprobs += [(job.id, *certain(self._pieces[token])) for token in forced]
        for token in tokens:
            sampler.accept(token)
        sequence.tokens.extend(tokens)
        sequence.num_output_tokens += len(tokens)
        if sequence.pending_draft:
            agreed = common_prefix(array("i", tokens), sequence.pending_draft)
            sequence.pending_draft = sequence.pending_draft[agreed:]
            sequence.num_computed_tokens += agreed
            sequence.num_accepted_tokens += agreed
        search = self._stops.get(job.id)
        if search is not None:
            piece = search.feed(piece)
        if tokens:
            self._output.append((job.id, piece, len(tokens)))
        if (search is not None and search.found) or (guard is not None and guard.complete):
            self._finish(sequence, "stop")
        elif len(tokens) >= room:
            self._finish(sequence, "length")

    def _free_cells(self, waiting: Iterable[Sequence]) -> None:
        """The KV cache is full: forget an idle slot, else let the newest sequence step aside, else give up on those
        that wait for room."""
        scheduler = self._scheduler
        if (slot := scheduler.evict()) is not None:
            self._context.seq_rm(slot.id)
            slot.tokens = slot.tokens[:0]
        elif (sequence := scheduler.preempt()) is not None:
            self._context.seq_rm(sequence.slot.id)
            if sequence.images:
                self._request_images(sequence)
        else:
            for sequence in waiting:
                self._context.seq_rm(sequence.slot.id)
                sequence.set_computed(0)
                self._fail(sequence, "memory", "the KV cache is full")

    def _finish(self, sequence: Sequence, finish: Literal["stop", "length"]) -> None:
        prompt, stopped = len(sequence.request.tokens), False
        if (search := self._stops.get(sequence.request.id)) is not None:
            if rest := search.finish():
                self._output.append((sequence.request.id, rest, 0))
            stopped = search.found
            finish = "stop" if stopped else finish
        output = sequence.tokens[prompt:]
        self._settle(
            sequence,
            Finished(
                finish,
                prompt,
                sequence.num_output_tokens,
                sequence.num_cached_tokens,
                sequence.num_jump_forward,
                output,
                self._ends(output),
                stopped,
                sequence.num_draft_tokens,
                sequence.num_accepted_tokens,
            ),
        )

    def _ends(self, output: Iterable[int]) -> array[int]:
        """How many characters there are to the end of each token, decoded as whoever reads the output decodes it."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return array("i", accumulate(len(decoder.decode(self._pieces[token])) for token in output))

    def _fail(self, sequence: Sequence, kind: Literal["constraint", "decode", "encode", "memory"], reason: str) -> None:
        self._settle(sequence, Failed("provider-error", reason, {"reason": kind}))

    def _settle(self, sequence: Sequence, end: Finished | Failed) -> None:
        self._release(sequence)
        self._ended.append((sequence.request.id, end))

    def _send_output(self) -> None:
        load = len(self._scheduler.running), len(self._scheduler.queue)
        if self._output or self._ended or load != self._load:
            self._load = load
            self._send(StepOutput(self._output, self._ended, *load, self._logprobs))
            self._output, self._ended, self._logprobs = [], [], []


def best_plan(spec: EngineConfig) -> MemoryPlan:
    """The best plan for the machine as it is. Raises EngineError where the file is damaged."""
    return next(plans(HParams.of(gguf.read(spec.path)), machine(), spec))


class ModelLoader:
    """The way to a loaded model: by the best plan that memory is there for.

    Some backends end the process where memory runs out, so the engine is told as soon as llama.cpp says so: if the
    process dies then, the next begins with a smaller plan.
    """

    def __init__(self, connection: socket.socket, frame: LoadModel, kind: type[Worker] = Worker) -> None:
        self._connection = connection
        self._frame = frame
        self._kind = kind
        self._plan = 0
        self._said: list[str] = []
        self._speaking = threading.Lock()

    def say(self, frame: object) -> None:
        """Two threads speak while a model is loaded."""
        with self._speaking:
            self._connection.sendall(encode(frame))

    def outcome(self) -> Worker | LoadFailed:
        llama.log_to(self._hear)
        try:
            return self._worker()
        except EngineError as error:
            return LoadFailed(error.reason, error.reason)
        except llama.LoadError as error:
            return LoadFailed(str(error), " ".join(self._said[-3:]))
        finally:
            llama.log_to(None)

    def _hear(self, level: int, text: str) -> None:
        if level >= llama.LOG_WARN:
            self._said.append(text.strip())
            if _NO_MEMORY.search(text):
                self.say(OutOfMemory(self._plan))

    def _worker(self) -> Worker:
        spec = self._frame.spec
        shape = HParams.of(gguf.read(spec.path))
        llama.attach(spec.rpc)
        here = machine()
        for number, plan in enumerate(plans(shape, here, spec)):
            if number < self._frame.smaller:
                continue
            if number:
                plan = replace(plan, notes=(*plan.notes, "loading it with more ran out of memory"))
            self._plan = number
            self._said.clear()
            try:
                worker = self._kind(self._connection, spec, plan, repack=self._frame.repack)
            except llama.LoadError:
                if not any(_NO_MEMORY.search(line) for line in self._said):
                    raise
            else:
                worker.info = replace(worker.info, gpu_contended=gpu_contended(shape, here, spec))
                return worker
        raise llama.LoadError("there is not enough memory for the model as it is configured")


@contextmanager
def answer_pings(connection: socket.socket, decoder: Decoder, say: Callable[[object], None]) -> Iterator[None]:
    """Meanwhile a thread answers whether this process lives; nothing else is asked before the model is loaded. A socket
    that closes ends the process."""
    over = threading.Event()
    readable = select.poll()
    readable.register(connection, select.POLLIN)

    def answer() -> None:
        while not over.is_set():
            if readable.poll(20):
                data = connection.recv(1 << 16)
                if not data:
                    os._exit(0)
                for _ in decoder.feed(data):
                    say(Pong(0, time.process_time()))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def main(kind: type[Worker] = Worker) -> None:
    """Serve one model, as this kind of worker does, on the socket whose file descriptor is the last argument."""
    connection = socket.socket(fileno=int(sys.argv[-1]))
    decoder = Decoder()
    frames: list[LoadModel] = []
    while not frames:
        data = connection.recv(1 << 16)
        if not data:
            return
        frames = decoder.feed(data)
    loading = ModelLoader(connection, frames[0], kind)
    with answer_pings(connection, decoder, loading.say):
        loaded = loading.outcome()
    if isinstance(loaded, LoadFailed):
        connection.sendall(encode(loaded))
        return
    worker = loaded
    connection.sendall(encode(Ready(worker.info)))
    threading.Thread(target=worker.receive, args=(decoder,), daemon=True).start()
    try:
        worker.run()
    except Exception as error:
        trace = "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__
        connection.sendall(encode(Crashed(trace)))
        raise


if __name__ == "__main__":
    main()
