"""Batch loop of one model: schedule, run, process the output, send it (as `step` of vLLM's engine core).

The main thread runs steps; while llama.cpp decodes it does not hold the GIL, and the reader thread takes in frames
(`Channel.receive`). A third thread encodes images.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from server.engine import llama
from server.engine.protocol import AddRequest, Check, Checked, Finish, StepOutput
from server.engine.scheduler.scheduler import Admission, PrefixMatch, ScheduledBatch, Scheduler, Sequence
from server.engine.types import EngineRequest, Failed, Finished
from server.engine.vision.encoder import EncoderResult, ImageEncoder
from server.engine.worker.channel import Channel
from server.engine.worker.loader import LoadedModel
from server.engine.worker.output import OutputProcessor, failed
from server.engine.worker.runner import ModelRunner, StepResult
from server.engine.worker.slot_memory import SlotMemory
from server.engine.worker.speculator import NO_DRAFTS, DraftBatch, Speculator
from server.engine.worker.vision import VisionState


class Worker:
    """The requests of one loaded model, from the channel's inbox to their last output."""

    def __init__(self, loaded: LoadedModel, channel: Channel) -> None:
        self.loaded = loaded
        self.channel = channel
        self.scheduler = _scheduler(loaded)
        self.memory = SlotMemory(loaded)
        self.runner = ModelRunner(loaded, channel)
        self.output = OutputProcessor(loaded)
        self.speculator = Speculator(loaded)
        self.vision: VisionState | None = None
        if (projector := loaded.projector) is not None:
            encoder, length = ImageEncoder(projector, channel.inbox.put), loaded.plan.context_length
            self.vision = VisionState(projector, encoder, batch=loaded.image_batch, context_length=length)
        self._ended: list[tuple[int, Finished | Failed]] = []
        self._stalled = False
        """All that runs waits for images being encoded: only a frame changes anything."""
        self._load = 0, 0
        """Running and queued requests as last sent."""

    def run(self) -> None:
        while True:
            self.step()

    def step(self) -> None:
        """Take in frames (wait for one where there is nothing to do), run one batch, send its output."""
        self._take_in()
        for sequence, prefix in self.scheduler.ready_followers():
            self._restore_prefix(sequence, prefix)
        while (admission := self.scheduler.admit()) is not None:
            self._start(admission)
        self._send_output()  # the load, and forced tokens, need not wait for a long prefill
        self._run_batch()
        self._send_output()

    # --- requests

    def _take_in(self) -> None:
        inbox, scheduler = self.channel.inbox, self.scheduler
        idle = self._stalled or not (scheduler.running or scheduler.queue)
        while idle or not inbox.empty():
            frame = inbox.get()
            idle = False
            if isinstance(frame, AddRequest):
                self._submit(frame.request)
            elif isinstance(frame, EncoderResult):
                self._image_encoded(frame)
            elif isinstance(frame, Finish):
                for sequence in [each for each in scheduler.running if each.request.id == frame.request_id]:
                    self._settle(sequence, self.output.finish(sequence, "stop"))
            elif isinstance(frame, Check):
                assert self.vision is not None
                self.channel.send(Checked(frame.id, self.vision.refusal(frame.tokens, frame.sizes)))
            else:
                self._abort(frame.request_id)

    def _submit(self, request: EngineRequest) -> None:
        if request.images:
            assert self.vision is not None
            expanded = self.vision.expand_images(request)
            if isinstance(expanded, Failed):
                self._ended.append((request.id, expanded))
                return
            request = expanded
        self.scheduler.submit(request)

    def _abort(self, request_id: int) -> None:
        """Drop a request, which runs, waits, or is over already."""
        if (sequence := self.scheduler.abort(request_id)) is not None:
            self._release(sequence)
        elif self.vision is not None:
            self.vision.images.pop(request_id, None)

    def _start(self, admission: Admission) -> None:
        """Prepare a new sequence: the memory of its slot, and its sampler."""
        sequence = admission.sequence
        if admission.relocate_to is not None:
            self.memory.relocate(sequence.slot, admission.relocate_to)
        if self.vision is not None:
            sequence.images = self.vision.images.pop(sequence.request.id, ())
        self._restore_prefix(sequence, admission.prefix)
        if (end := self.output.start(sequence)) is not None:
            self._settle(sequence, end)

    def _restore_prefix(self, sequence: Sequence, prefix: PrefixMatch) -> None:
        self.memory.restore_prefix(sequence, prefix)
        if sequence.images:
            self._request_images(sequence)

    def _settle(self, sequence: Sequence, end: Finished | Failed) -> None:
        self._release(sequence)
        self._ended.append((sequence.request.id, end))

    def _release(self, sequence: Sequence) -> None:
        """A sequence leaves the batch; a follower that waited for its prefill goes on with what there is."""
        self.output.release(sequence.request.id)
        if sequence.images and self.vision is not None:
            self.vision.encoder.abort(sequence.request.id)
            if sequence.num_computed_tokens > sequence.next_image_start:
                self.memory.rewind(sequence)
        if (follower := self.scheduler.finish(sequence)) is not None:
            self._restore_prefix(*follower)

    def _send_output(self) -> None:
        output, load = self.output, (len(self.scheduler.running), len(self.scheduler.queue))
        if output.pieces or self._ended or load != self._load:
            self._load = load
            pieces, logprobs = output.take()
            self.channel.send(StepOutput(pieces, self._ended, *load, logprobs))
            self._ended = []

    # --- steps

    def _run_batch(self) -> None:
        batch = self.scheduler.schedule()
        self._stalled = batch is None
        if batch is None:
            return
        if batch.image:
            self._run_image_batch(batch)
            return
        encoding = self.runner.encoding  # which makes steps slower, and leaves no cores for drafts
        drafts = self.speculator.draft(batch) if batch.may_speculate and not encoding else NO_DRAFTS
        result = self.runner.run(batch, drafts.tokens)
        if result is None:
            return
        done = result.status == llama.OK
        self.scheduler.update(batch, result.seconds, done=done, tells=not (drafts.tokens or encoding))
        if done:
            self._process_output(batch, drafts, result)
        elif result.status == llama.NO_SLOT and drafts.tokens:
            self.speculator.skip_next()  # there may be room without them
        else:
            self._recover(result.status, [sequence for sequence, _ in batch.entries])

    def _process_output(self, batch: ScheduledBatch, drafts: DraftBatch, result: StepResult) -> None:
        """Go on with the sequences of a batch that has been decoded."""
        decoding = batch.decoding
        comparable = decoding == len(batch.entries) and not self.runner.encoding
        for sequence, count in batch.entries:
            sequence.num_computed_tokens += count
        accepted = self._sample(drafts, result) if result.due else 0
        if comparable:
            self.speculator.observe(decoding, drafts, accepted, result.seconds)

    def _sample(self, drafts: DraftBatch, result: StepResult) -> int:
        """Give the next token, or tokens, to all sequences that have logits; returns how many drafted ones."""
        output, logits, accepted = self.output, self.loaded.context.logits(result.rows), 0
        for sequence, row in result.due:
            if (draft := drafts.tokens.get(sequence.request.id)) is None:
                end = output.sample_next(sequence, logits[row])
            else:
                first = sequence.num_computed_tokens
                end = output.verify_draft(sequence, draft, logits[row:])
                accepted += sequence.num_computed_tokens - first
                self.memory.rewind(sequence)
            if end is not None:
                self._settle(sequence, end)
        return accepted

    def _recover(self, status: int, sequences: list[Sequence]) -> None:
        """A batch could not be decoded."""
        if status == llama.NO_SLOT:
            self._free_cells(sequences)
        elif status == llama.ABORTED:  # the next step does it again
            for sequence in sequences:
                self.memory.rewind(sequence)
        else:
            for sequence in sequences:
                self.memory.clear(sequence)
                self._settle(sequence, failed("decode", "llama.cpp could not decode the batch"))

    def _free_cells(self, waiting: Iterable[Sequence]) -> None:
        """The KV cache is full: evict an idle slot, else preempt the newest sequence, else fail those that wait for
        room."""
        if (slot := self.scheduler.evict()) is not None:
            self.memory.evict(slot)
        elif (preempted := self.scheduler.preempt()) is not None:
            self.memory.clear(preempted)
            if preempted.images:
                self._request_images(preempted)
        else:
            for sequence in waiting:
                self.memory.clear(sequence)
                self._settle(sequence, failed("memory", "the KV cache is full"))

    # --- images

    def _run_image_batch(self, batch: ScheduledBatch) -> None:
        """One step with an image, or with as much of it as fits."""
        [(sequence, count)] = batch.entries
        image, vision = sequence.image, self.vision
        assert image is not None and image.embeddings is not None and vision is not None
        causal = vision.projector.causal
        begin = sequence.num_computed_tokens - image.start
        end = begin + min(count, vision.batch) if causal else image.chunk.tokens
        positions = image.chunk.positions(sequence.position_of(image.start))[:, begin:end]
        result = self.runner.run_image(sequence, image.embeddings[begin:end], positions, causal=causal)
        if result is None:
            return
        self.scheduler.update(replace(batch, entries=((sequence, end - begin),)), result.seconds, cut=causal)
        if result.status != llama.OK:
            self._recover(result.status, [sequence])
            return
        sequence.set_computed(image.start + end)
        if sequence.num_computed_tokens == image.end:
            image.embeddings = None

    def _request_images(self, sequence: Sequence) -> None:
        assert self.vision is not None
        self.vision.request_images(sequence)
        self.runner.share_cores(self.vision.encoder.busy)

    def _image_encoded(self, result: EncoderResult) -> None:
        assert self.vision is not None
        self.channel.steps += 1  # progress
        unencoded = self.vision.complete(result, self.scheduler.running)
        self.runner.share_cores(self.vision.encoder.busy)
        for sequence in unencoded:
            self._settle(sequence, failed("encode", "an image cannot be encoded"))


def _scheduler(loaded: LoadedModel) -> Scheduler:
    plan, model = loaded.plan, loaded.model
    return Scheduler(
        plan.slots,
        plan.chunk,
        # A running state cannot be cut; nor can the copy of a window.
        can_copy_prefix=not model.recurrent and not (plan.kv_per_slot and model.window),
        prefer_adjacent=plan.kv_per_slot,
        # Where sequences have cells of their own, those of one micro-batch attend over as many each as the longest
        # of them has.
        separate_prefill=plan.kv_per_slot,
        max_decode_slowdown=loaded.config.prefill_slowdown,
    )
