"""The process that holds one model: receives jobs, runs the batch loop, sends what each step brought.

Started as `python -m server.engine.worker FD`, FD being its end of the socket pair (see `protocol`). It imports nothing
of the web process, exits when the socket closes, and writes nothing to its standard streams.

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

from server.engine import gguf, llama
from server.engine.constraint import ConstraintError, Guard
from server.engine.device import cores, machine
from server.engine.drafter import Drafter
from server.engine.encoder import Encoded, Encoder
from server.engine.heads import Head, Heads
from server.engine.logprobs import Logprobs, certain
from server.engine.messages import Done, EngineError, Failed, Job, ModelInfo, ModelSpec
from server.engine.mtp import Mtp
from server.engine.params import PENALTY_WINDOW
from server.engine.pixels import Arriving
from server.engine.plan import Plan, crowded, plans
from server.engine.projector import Patch, Projector, ProjectorError
from server.engine.prompt import Image, Layouts
from server.engine.protocol import (
    Cancel,
    Check,
    Checked,
    Crashed,
    Decoder,
    Finish,
    Load,
    Ping,
    Pixels,
    Pong,
    Ready,
    Refused,
    Short,
    Step,
    Submit,
    encode,
)
from server.engine.sampler import NothingAllowed, TokenSampler
from server.engine.scheduler import FEW, Admission, Prefix, Scheduler, Sequence, Slot, Turn, common_prefix
from server.engine.shape import Shape
from server.engine.speculation import MOST, Asked, Lookup, Source, Speculation
from server.engine.stop import StopSearch
from server.engine.threads import Threads
from server.engine.vocab import Vocab

_NO_MEMORY = re.compile("alloc|out of memory", re.IGNORECASE)
"""In what llama.cpp says of a load that failed."""

_IMAGE_SHARE = 0.75
"""Of the context, that one image may take: larger ones are scaled down, as projectors do with what is too large for
them. Else no photograph could be asked about in a context of 4,096 tokens."""

_ABORT_FROM = 16
"""Aborting a smaller step saves less than its survivors lose by decoding their tokens again."""


class Flight:
    """The step under way: how many of its tokens are whose."""

    def __init__(self, tokens: dict[int, int]) -> None:
        self._tokens = tokens
        self._total = sum(tokens.values())
        self._lost = 0

    def cancel(self, job_id: int) -> bool:
        """Note that a job is cancelled; whether the step is no longer worth finishing."""
        self._lost += self._tokens.pop(job_id, 0)
        return self._lost >= _ABORT_FROM and 2 * self._lost >= self._total


class Drafts(NamedTuple):
    """What a step is to confirm, by job; of which speculation that is, and the seconds it took to make."""

    tokens: dict[int, array[int]]
    of: Speculation | None = None
    seconds: float = 0.0


_NO_DRAFTS = Drafts({})


class Sight:
    """What a worker with a projector has beside: `batch` is how many embeddings one step takes at most, `images` are
    those of the jobs that wait in the queue."""

    def __init__(self, projector: Projector, encoder: Encoder, batch: int) -> None:
        self.projector = projector
        self.encoder = encoder
        self.batch = batch
        self.images: dict[int, tuple[Image, ...]] = {}
        self._layouts = Layouts(projector)

    def lay_out(self, job: Job, length: int) -> Job | Failed:
        """The job with its pictures as tokens, or why it cannot be done with so many tokens a sequence."""
        sizes = [(picture.width, picture.height) for _, picture in job.pictures]
        if (refusal := self.refusal(len(job.tokens), sizes, length)) is not None:
            return refusal
        tokens, self.images[job.id] = self._layouts.lay_out(job)
        return replace(job, tokens=tokens, pictures=())

    def refusal(self, tokens: int, sizes: Iterable[tuple[int, int]], length: int) -> Failed | None:
        """Why so many tokens of text and images of these sizes are no prompt for a sequence of `length` tokens."""
        for index, size in enumerate(sizes):
            told = {"reason": "image", "image": str(index)}
            try:
                parts = self.projector.layout(*size)
            except ProjectorError as error:
                return Failed("unsupported", str(error), told)
            for part in parts:
                count = part.tokens if isinstance(part, Patch) else len(part)
                if isinstance(part, Patch) and not self.projector.causal and count > self.batch:
                    return Failed("unsupported", "an image takes more tokens than fit one step", told)
                tokens += count
        if tokens >= length:
            return Failed("quota-exceeded", "the prompt does not fit the context", {"reason": "context"})
        return None


class Worker:
    """One loaded model and its batch loop."""

    def __init__(
        self, connection: socket.socket, spec: ModelSpec, plan: Plan | None = None, *, repack: bool = True
    ) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._steps = 0
        self.inbox: queue.SimpleQueue[Submit | Finish | Cancel | Check | Encoded] = queue.SimpleQueue()
        plan = plan or best(spec)
        slots = plan.slots
        self._memory = ExitStack()
        """What is given back after a load that failed, for the next to use."""
        guesses = plan.mtp and llama.shows_hidden()
        self._model = llama.Model(
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
        drafts = MOST if spec.speculation and (plan.snapshots or not self._model.recurrent) else 0
        self._batch = llama.Batch(slots + max(chunk, drafts))
        threads = spec.threads or cores()
        self._sight: Sight | None = None
        batch = self._batch.size
        # While an image is encoded on the CPU it gets half of the cores, and steps the others.
        half = max(1, threads // 2)
        if spec.projector is not None:
            room = int(_IMAGE_SHARE * self._length)
            projector = Projector.load(spec.projector, self._model, threads=half, gpu=on_gpu, room=room)
            if projector is not None:
                self._memory.callback(projector.close)
                if projector.scaled:
                    note = f"images take at most {projector.most} tokens of the context"
                    plan = replace(plan, notes=(*plan.notes, note))
                batch = batch if projector.causal else max(batch, projector.largest)
                self._sight = Sight(projector, Encoder(projector, self.inbox.put), batch)
        try:
            self._context = llama.Context(
                self._model,
                batch=batch,
                threads=threads,
                outputs=slots + drafts,
                hidden=guesses,
                snapshots=plan.snapshots,
                **plan.layout,
            )
            self._memory.callback(self._context.close)
            if self._model.recurrent and not self._context.snapshots:
                drafts = 0
            self._drafter: Drafter | Mtp | None = None
            if spec.draft is not None and drafts:
                self._drafter = Drafter(spec.draft, self._vocab, plan, threads=threads, repack=repack)
            elif guesses and drafts:
                self._drafter = Mtp(self._model, self._eog, plan, threads=threads)
            if self._drafter is not None:
                self._memory.callback(self._drafter.close)
        except llama.LoadError:
            self.close()
            raise
        self._mtp = self._drafter if isinstance(self._drafter, Mtp) else None
        """Where it is the model itself that drafts: it is told of all that the KV cache gets."""
        sources: list[Source] = [Lookup()] if drafts else []
        if self._drafter is not None:
            sources.append(self._drafter)
        self._speculations = [Speculation(source) for source in sources]
        """The first that has something to say is heard."""
        # A configured count is kept; beside a GPU, CPU time says nothing about the cores.
        self._threads = Threads(threads) if not spec.threads and not on_gpu else None
        self._cores = threads, threads if on_gpu else max(1, threads - half)
        self._encoding = False
        self._stalled = False
        self._candidates = llama.Candidates(self._vocab.size)
        self._asked = llama.Candidates(self._vocab.size)
        self._scheduler = Scheduler(
            slots,
            chunk,
            # A running state cannot be cut; nor can what a copy of a window holds.
            copies=not self._model.recurrent and not (plan.split and self._model.window),
            adjoining=plan.split,
            # Where sequences have cells of their own, those of one micro-batch attend over as many each as the longest
            # of them has.
            apart=plan.split,
            slowdown=spec.prefill_slowdown,
        )
        cuts = not self._model.recurrent and not self._model.window
        self._heads = Heads() if plan.split and cuts and slots > 1 else None
        self._samplers: dict[int, tuple[TokenSampler, Guard | None]] = {}
        self._stops: dict[int, StopSearch] = {}
        self._flight = Flight({})
        self._logprobs: list[tuple[int, bytes, float, tuple[tuple[bytes, float], ...]]] = []
        self._output: list[tuple[int, bytes, int]] = []
        self._ended: list[tuple[int, Done | Failed]] = []
        self._undraft = False
        """Whether the next step does without drafts."""
        self._load = 0, 0
        self.info = ModelInfo(
            architecture=self._vocab.metadata.get("general.architecture", ""),
            context_length=self._length,
            slots=slots,
            vocabulary=self._vocab.size,
            backends=backends,
            vision=self._sight is not None,
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
        if self._decode(count) != llama.OK or not self._context.remove(0):
            raise llama.LoadError("the model's first step failed")

    # --- the reader thread

    def receive(self, decoder: Decoder) -> None:
        """Take in frames until the socket closes, which ends the process."""
        # Polled, because a thread that waits in recv() is woken for every frame the other side has read.
        readable = select.poll()
        readable.register(self._connection, select.POLLIN)
        arriving = Arriving()
        while readable.poll() and (data := self._connection.recv(1 << 16)):
            for frame in decoder.feed(data):
                if isinstance(frame, Ping):
                    self._send(Pong(self._steps, time.process_time()))
                elif isinstance(frame, Pixels):
                    arriving.take(frame)
                elif isinstance(frame, Submit) and frame.job.pictures:
                    self.put(Submit(arriving.fill(frame.job)))
                else:
                    self.put(frame)
        os._exit(0)

    def _send(self, frame: Step | Pong | Checked) -> None:
        with self._sending:  # both threads do
            self._connection.sendall(encode(frame))

    def put(self, frame: Submit | Finish | Cancel | Check) -> None:
        """Hand a frame to the main thread; stop the step under way where a cancel has made most of it idle."""
        # Put first, then look: the main thread announces a step first, then looks into the inbox.
        self.inbox.put(frame)
        if isinstance(frame, Cancel) and self._flight.cancel(frame.job_id) and not self._model.recurrent:
            self._context.abort()  # a running state would be left part-way

    # --- the main thread

    def run(self) -> None:
        while True:
            self.turn()

    def turn(self) -> None:
        """Take in what has come (wait for it, where there is nothing to do), run one step, say what it brought."""
        self._take_in()
        for sequence, prefix in self._scheduler.awaited():
            self._adopt(sequence, prefix)
        while (admission := self._scheduler.admit()) is not None:
            self._start(admission)
        self._report()  # who runs, and what is forced, need not wait for a long prefill
        self._step()
        self._report()

    def _take_in(self) -> None:
        inbox, scheduler = self.inbox, self._scheduler
        # Stalled, only what comes in changes anything: all that runs waits for images being encoded.
        idle = self._stalled or not (scheduler.running or scheduler.queue)
        while idle or not inbox.empty():
            frame = inbox.get()
            idle = False
            if isinstance(frame, Submit):
                self._submit(frame.job)
            elif isinstance(frame, Encoded):
                self._show(frame)
            elif isinstance(frame, Finish):
                for sequence in [each for each in scheduler.running if each.job.id == frame.job_id]:
                    self._finish(sequence, "stop")
            elif isinstance(frame, Check):
                assert self._sight is not None
                self._send(Checked(frame.id, self._sight.refusal(frame.tokens, frame.sizes, self._length)))
            else:
                self._drop(frame.job_id)

    def _drop(self, job_id: int) -> None:
        """A job is cancelled: it runs, waits, or is over already."""
        if (sequence := self._scheduler.drop(job_id)) is not None:
            self._release(sequence)
        elif self._sight is not None:
            self._sight.images.pop(job_id, None)

    def _submit(self, job: Job) -> None:
        if job.pictures:
            assert self._sight is not None
            laid = self._sight.lay_out(job, self._length)
            if isinstance(laid, Failed):
                self._ended.append((job.id, laid))
                return
            job = laid
        self._scheduler.submit(job)

    def _start(self, admission: Admission) -> None:
        """Prepare a new sequence: the memory of its slot, and its sampler."""
        sequence, rescue = admission.sequence, admission.rescue
        job = sequence.job
        if rescue is not None and not self._copied(sequence.slot, rescue, len(rescue.tokens) - rescue.lag):
            rescue.tokens = rescue.tokens[:0]
        if self._sight is not None:
            sequence.images = self._sight.images.pop(job.id, ())
        self._adopt(sequence, admission.prefix)
        sampler = TokenSampler(job.sampling, job.banned, self._candidates)
        if sampler.remembers:
            for token in job.tokens[-PENALTY_WINDOW:]:
                if token >= 0:  # of an image
                    sampler.accept(token)
        try:
            guard = Guard(job.constraint, self._model, self._vocab, self._asked) if job.constraint else None
        except ConstraintError as error:
            self._fail(sequence, "constraint", str(error))
            return
        self._samplers[job.id] = (sampler, guard)
        if job.stop is not None:
            self._stops[job.id] = StopSearch(job.stop)
        if guard is not None and guard.active:
            self._append(sequence, sampler, guard, [], b"")  # what is forced from the start is part of the prefill

    def _adopt(self, sequence: Sequence, prefix: Prefix) -> None:
        """Begin with what a slot holds of the sequence's first tokens, where that is provably right."""
        context, slot, donor = self._context, sequence.slot, prefix.slot
        # The last prompt token's logits are needed.
        keep = sequence.whole(min(prefix.count, len(sequence.tokens) - 1))
        place = sequence.place(keep)
        if self._model.recurrent:
            keep = keep if prefix.whole and keep == prefix.count else 0  # a running state cannot be cut
        elif (window := self._model.window) and context.first_position(donor.id) > max(0, place - window):
            keep = 0  # what the window needs has been overwritten
        if (head := self._head(sequence, keep, copied=donor is not slot)) is not None:
            keep = len(head.tokens) if context.write(slot.id, head.state, len(head.tokens)) else 0
            if self._mtp is not None:
                self._mtp.forget(slot.id)
        elif not keep:
            context.remove(slot.id)
        elif donor is not slot:
            keep = self._copy(sequence, donor, keep)
        elif not (prefix.whole and keep == prefix.count) and not context.remove(slot.id, place):
            context.remove(slot.id)
            keep = 0
        sequence.seek(keep)
        sequence.cache_read = keep
        if sequence.images:
            self._look(sequence)

    def _head(self, sequence: Sequence, count: int, *, copied: bool) -> Head | None:
        """A head to begin with, where it is more than the `count` tokens a slot would give, or as good as their
        copy."""
        if self._heads is None or sequence.leader is not None or sequence.images:
            return None
        head = self._heads.find(sequence.job.scope, sequence.tokens)
        least = count - FEW if copied and count else count + FEW
        return head if head is not None and len(head.tokens) >= least else None

    def _copy(self, sequence: Sequence, donor: Slot, count: int) -> int:
        """Copy the first tokens of another slot; how many that was. What is a small part of that slot is a head."""
        context, target = self._context, sequence.slot.id
        if not self._copied(donor, sequence.slot, sequence.place(count)):
            return 0
        if self._heads is not None and not sequence.images and 2 * count < len(donor.tokens):
            self._heads.keep(Head(sequence.job.scope, sequence.tokens[:count], context.read(target)))
        return count

    def _copied(self, source: Slot, target: Slot, count: int) -> bool:
        """Give a slot the first `count` positions of another; False where that failed."""
        copied = self._context.copy(source.id, target.id, count)
        if self._mtp is not None:
            self._mtp.copy(source.id, target.id, count if copied else 0)
        return copied

    def _release(self, sequence: Sequence) -> None:
        """A sequence leaves the batch; who waited for its prefill goes on with what there is."""
        self._samplers.pop(sequence.job.id, None)
        self._stops.pop(sequence.job.id, None)
        if sequence.images and self._sight is not None:
            self._sight.encoder.forget(sequence.job.id)
            if sequence.past > sequence.edge:
                self._rewind(sequence)
        if (follower := self._scheduler.release(sequence)) is not None:
            self._adopt(*follower)

    def _step(self) -> None:
        turn = self._scheduler.turn()
        self._stalled = turn is None
        if turn is None:
            return
        if turn.image:
            self._view(turn)
            return
        # While an image is encoded there are fewer cores.
        drafts = self._draft(turn) if turn.free and not self._encoding else _NO_DRAFTS
        count, rows, due = self._fill(turn, drafts.tokens)
        if not self._take_off({sequence.job.id: tokens for sequence, tokens in turn.entries}):
            return
        began = time.monotonic()
        result = self._decode(count)
        self._land()
        seconds = time.monotonic() - began
        self._scheduler.settle(turn, seconds, done=result == llama.OK, tells=not (drafts.tokens or self._encoding))
        if result == llama.OK:
            if self._mtp is not None:
                self._mtp.observe(self._batch, count, self._context.hidden(count))
            decoding = turn.decoding
            for sequence, tokens in turn.entries:
                sequence.past += tokens
            confirmed = 0
            logits = self._context.logits(rows) if due else None
            for sequence, row in due:
                assert logits is not None
                if (draft := drafts.tokens.get(sequence.job.id)) is None:
                    self._advance(sequence, logits[row])
                else:
                    confirmed += self._verify(sequence, draft, logits[row:])
            if decoding == len(turn.entries) and not self._encoding:  # which makes steps slower
                drafted = sum(map(len, drafts.tokens.values()))
                for speculation in self._speculations if drafts.of is None else [drafts.of]:
                    speculation.note(decoding, drafted, confirmed, seconds + drafts.seconds)
        elif result == llama.NO_SLOT and drafts.tokens:
            self._undraft = True  # there may be room without them
        else:
            self._recover(result, [sequence for sequence, _ in turn.entries])

    def _take_off(self, tokens: dict[int, int]) -> bool:
        """Announce a step of so many tokens of each job; False where there is something to take in first."""
        self._flight = Flight(tokens)
        self._context.abort(False)
        # Perhaps a cancel, come before the reader thread could know of this step: plan again.
        return self.inbox.empty()

    def _land(self) -> None:
        self._steps += 1
        self._flight = Flight({})

    def _recover(self, result: int, sequences: list[Sequence]) -> None:
        """A step has not been done."""
        if result == llama.NO_SLOT:
            self._make_room(sequences)
        elif result == llama.ABORTED:  # the next step does it again
            for sequence in sequences:
                self._rewind(sequence)
        else:
            for sequence in sequences:
                self._context.remove(sequence.slot.id)
                sequence.seek(0)
                self._fail(sequence, "decode", "llama.cpp could not decode the batch")

    def _rewind(self, sequence: Sequence) -> None:
        """Memory as far as the sequence has come; an image that is only in part there is taken out."""
        sequence.seek(min(sequence.past, sequence.edge))
        if not self._context.remove(sequence.slot.id, sequence.position):
            self._context.remove(sequence.slot.id)
            sequence.seek(0)

    # --- images

    def _look(self, sequence: Sequence) -> None:
        """Get the embeddings of the images still to come, but for those that the sequence waits for its leader with."""
        assert self._sight is not None
        job, encoder = sequence.job, self._sight.encoder
        first = sequence.past if sequence.leader is None else sequence.shared
        for image in sequence.images:
            if (
                image.start >= first
                and image.embeddings is None
                and (found := encoder.want(job.id, job.scope, image.picture)) is not None
            ):
                image.embeddings = found[image.index]
        self._share_cores()

    def _show(self, encoded: Encoded) -> None:
        """An image has been encoded: give it to those that wait for it."""
        assert self._sight is not None
        self._steps += 1
        jobs = self._sight.encoder.settle(encoded)
        self._share_cores()
        for sequence in [each for each in self._scheduler.running if each.job.id in jobs]:
            if encoded.embeddings is None:
                self._fail(sequence, "encode", "an image cannot be encoded")
                continue
            for image in sequence.images:
                if image.picture.digest == encoded.key.digest and image.start >= sequence.past:
                    image.embeddings = encoded.embeddings[image.index]

    def _share_cores(self) -> None:
        assert self._sight is not None
        if self._encoding != self._sight.encoder.busy:
            self._encoding = not self._encoding
            most, beside = self._cores
            count = most if self._threads is None else self._threads.count
            self._use_threads(min(count, beside) if self._encoding else count)

    def _use_threads(self, count: int) -> None:
        self._context.use_threads(count)
        if self._drafter is not None:
            self._drafter.use_threads(count)

    def _view(self, turn: Turn) -> None:
        """One step with an image, or with as much of it as fits."""
        [(sequence, count)] = turn.entries
        image, sight = sequence.image, self._sight
        assert image is not None and image.embeddings is not None and sight is not None
        begin = sequence.past - image.start
        end = begin + min(count, sight.batch) if sight.projector.causal else image.patch.tokens
        positions = image.patch.positions(sequence.place(image.start))
        if not self._take_off({sequence.job.id: end - begin}):
            return
        began = time.monotonic()
        result = self._context.decode_embeddings(
            image.embeddings[begin:end],
            positions[:, begin:end],
            sequence.slot.id,
            causal=sight.projector.causal,
        )
        self._land()
        taken = replace(turn, entries=((sequence, end - begin),))
        self._scheduler.settle(taken, time.monotonic() - began, cut=sight.projector.causal)
        if result != llama.OK:
            self._recover(result, [sequence])
            return
        sequence.seek(image.start + end)
        if sequence.past == image.end:
            image.embeddings = None

    # --- tokens

    def _draft(self, turn: Turn) -> Drafts:
        """What running answers may go on with, where there is nothing to prefill beside them."""
        undraft, self._undraft = self._undraft, False
        if undraft or any(sequence.remaining > 1 for sequence, _ in turn.entries):
            return _NO_DRAFTS
        asked = [
            Asked(sequence.job.id, sequence.slot.id, sequence.job.scope, sequence.tokens, room, bool(sequence.images))
            for sequence, _ in turn.entries
            # Else an image comes next; or the token that is being decoded is the last but one.
            if sequence.past + 1 == len(sequence.tokens) and (room := self._room(sequence) - 1) > 0
        ]
        together = len(turn.entries)
        even = self._context.snapshots
        if not asked or (even and not (len(asked) == together and self._context.takes_back({a.slot for a in asked}))):
            return _NO_DRAFTS
        for speculation in self._speculations:
            if most := speculation.most(together):
                began = time.monotonic()
                drafts = speculation.source.propose(asked, min(most, even or most))
                if even:  # only what all have as many of can be taken back
                    shortest = min(map(len, drafts.values())) if len(drafts) == together else 0
                    drafts = {job: draft[:shortest] for job, draft in drafts.items() if shortest}
                if drafts:
                    return Drafts(drafts, speculation, time.monotonic() - began)
        return _NO_DRAFTS

    def _room(self, sequence: Sequence) -> int:
        """How many more tokens it may have."""
        room, most = self._length - len(sequence.tokens), sequence.job.max_tokens
        return room if most is None else min(room, most - sequence.output)

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

    def _fill(self, turn: Turn, drafts: dict[int, array[int]]) -> tuple[int, int, list[tuple[Sequence, int]]]:
        """Write the batch; its size, its rows of logits, and the sequences that get some, each with its first row.

        A sequence with a draft gets a row for each token of it and one more.
        """
        batch = self._batch
        token, position, ids, output = batch.token, batch.position, batch.sequence, batch.output
        due = []
        at = rows = 0
        for sequence, count in turn.entries:
            past, place = sequence.past, sequence.position
            draft = drafts.get(sequence.job.id)
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

    def _verify(self, sequence: Sequence, draft: array[int], logits: NDArray[np.float32]) -> int:
        """Advance by as much of a draft as comes by itself, and one step more; how much that was.

        The draft stands in the KV cache behind `past`: what is confirmed belongs to the past, the rest is cut off.
        """
        slot, before, first = sequence.slot, 0, sequence.past
        sequence.ahead = draft
        sequence.drafted += len(draft)
        while slot.runner is sequence and before < len(sequence.tokens) == sequence.past:
            before = sequence.past
            self._advance(sequence, logits[before - first])
        sequence.ahead = draft[:0]
        confirmed, going = sequence.past - first, slot.runner is sequence
        if not self._context.remove(slot.id, sequence.position if going else len(slot.tokens) - slot.lag):
            self._context.remove(slot.id)
            if going:
                sequence.seek(0)
            else:
                slot.tokens, slot.lag = slot.tokens[:0], 0
        return confirmed

    def _advance(self, sequence: Sequence, logits: NDArray[np.float32]) -> None:
        """Sample a sequence's next token and settle it where it ends."""
        job = sequence.job
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
                elif (kept := guard.watch(piece)) < len(piece):
                    piece = piece[:kept]
                    tokens = self._vocab.spell(piece)
        except NothingAllowed:
            self._fail(sequence, "constraint", "the constraint leaves no token")
            return
        except ConstraintError as error:
            self._fail(sequence, "constraint", str(error))
            return
        if scores is not None:
            self._logprobs.append((job.id, *scores.of(token, piece, self._pieces)))
        self._append(sequence, sampler, guard, tokens, piece)

    def _append(
        self, sequence: Sequence, sampler: TokenSampler, guard: Guard | None, tokens: list[int], piece: bytes
    ) -> None:
        """Append sampled tokens and those the grammar forces behind them; settle the sequence where it ends."""
        job, room = sequence.job, self._room(sequence)
        if guard is not None and guard.active and (forced := guard.forced(room - len(tokens), job.banned)):
            tokens = tokens + forced
            piece += b"".join(self._pieces[token] for token in forced)
            sequence.forced += len(forced)
            if job.logprobs is not None:
                self._logprobs += [(job.id, *certain(self._pieces[token])) for token in forced]
        for token in tokens:
            sampler.accept(token)
        sequence.tokens.extend(tokens)
        sequence.output += len(tokens)
        if sequence.ahead:
            agreed = common_prefix(array("i", tokens), sequence.ahead)
            sequence.ahead = sequence.ahead[agreed:]
            sequence.past += agreed
            sequence.confirmed += agreed
        search = self._stops.get(job.id)
        if search is not None:
            piece = search.feed(piece)
        if tokens:
            self._output.append((job.id, piece, len(tokens)))
        if (search is not None and search.found) or (guard is not None and guard.complete):
            self._finish(sequence, "stop")
        elif len(tokens) >= room:
            self._finish(sequence, "length")

    def _make_room(self, waiting: Iterable[Sequence]) -> None:
        """The KV cache is full: forget an idle slot, else let the newest sequence step aside, else give up on those
        that wait for room."""
        scheduler = self._scheduler
        if (slot := scheduler.evict()) is not None:
            self._context.remove(slot.id)
            slot.tokens = slot.tokens[:0]
        elif (sequence := scheduler.park()) is not None:
            self._context.remove(sequence.slot.id)
            if sequence.images:
                self._look(sequence)
        else:
            for sequence in waiting:
                self._context.remove(sequence.slot.id)
                sequence.seek(0)
                self._fail(sequence, "memory", "the KV cache is full")

    def _finish(self, sequence: Sequence, finish: Literal["stop", "length"]) -> None:
        prompt, stopped = len(sequence.job.tokens), False
        if (search := self._stops.get(sequence.job.id)) is not None:
            if rest := search.finish():
                self._output.append((sequence.job.id, rest, 0))
            stopped = search.found
            finish = "stop" if stopped else finish
        output = sequence.tokens[prompt:]
        self._settle(
            sequence,
            Done(
                finish,
                prompt,
                sequence.output,
                sequence.cache_read,
                sequence.forced,
                output,
                self._ends(output),
                stopped,
                sequence.drafted,
                sequence.confirmed,
            ),
        )

    def _ends(self, output: Iterable[int]) -> array[int]:
        """How many characters there are to the end of each token, decoded as whoever reads the output decodes it."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return array("i", accumulate(len(decoder.decode(self._pieces[token])) for token in output))

    def _fail(self, sequence: Sequence, kind: Literal["constraint", "decode", "encode", "memory"], reason: str) -> None:
        self._settle(sequence, Failed("provider-error", reason, {"reason": kind}))

    def _settle(self, sequence: Sequence, end: Done | Failed) -> None:
        self._release(sequence)
        self._ended.append((sequence.job.id, end))

    def _report(self) -> None:
        load = len(self._scheduler.running), len(self._scheduler.queue)
        if self._output or self._ended or load != self._load:
            self._load = load
            self._send(Step(self._output, self._ended, *load, self._logprobs))
            self._output, self._ended, self._logprobs = [], [], []


def best(spec: ModelSpec) -> Plan:
    """The best plan for the machine as it is. Raises EngineError where the file is damaged."""
    return next(plans(Shape.of(gguf.read(spec.path)), machine(), spec))


class Loading:
    """The way to a loaded model: by the best plan that memory is there for.

    Some backends end the process where memory runs out, so the engine is told as soon as llama.cpp says so: if the
    process dies then, the next begins with a smaller plan.
    """

    def __init__(self, connection: socket.socket, frame: Load, kind: type[Worker] = Worker) -> None:
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

    def outcome(self) -> Worker | Refused:
        llama.log_to(self._hear)
        try:
            return self._worker()
        except EngineError as error:
            return Refused(error.reason, error.reason)
        except llama.LoadError as error:
            return Refused(str(error), " ".join(self._said[-3:]))
        finally:
            llama.log_to(None)

    def _hear(self, level: int, text: str) -> None:
        if level >= llama.LOG_WARN:
            self._said.append(text.strip())
            if _NO_MEMORY.search(text):
                self.say(Short(self._plan))

    def _worker(self) -> Worker:
        spec = self._frame.spec
        shape = Shape.of(gguf.read(spec.path))
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
                worker.info = replace(worker.info, crowded=crowded(shape, here, spec))
                return worker
        raise llama.LoadError("there is not enough memory for the model as it is configured")


@contextmanager
def answering(connection: socket.socket, decoder: Decoder, say: Callable[[object], None]) -> Iterator[None]:
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
    frames: list[Load] = []
    while not frames:
        data = connection.recv(1 << 16)
        if not data:
            return
        frames = decoder.feed(data)
    loading = Loading(connection, frames[0], kind)
    with answering(connection, decoder, loading.say):
        loaded = loading.outcome()
    if isinstance(loaded, Refused):
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
