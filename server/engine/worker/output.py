"""Logits to output: sampling, grammars, stop strings, verification of drafts, log probabilities."""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Iterable
from itertools import accumulate
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from server.engine import llama
from server.engine.sampling.grammar import ConstraintError, GrammarState
from server.engine.sampling.logprobs import Logprobs, certain
from server.engine.sampling.params import PENALTY_WINDOW
from server.engine.sampling.sampler import NothingAllowed, TokenSampler
from server.engine.sampling.stop import StopMatcher
from server.engine.scheduler.scheduler import Sequence, common_prefix
from server.engine.types import Failed, Finished
from server.engine.worker.loader import LoadedModel


def tokens_left(sequence: Sequence, context_length: int) -> int:
    """Tokens that a sequence may still be given, by its request and by the context."""
    room, most = context_length - len(sequence.tokens), sequence.request.max_tokens
    return room if most is None else min(room, most - sequence.num_output_tokens)


def failed(kind: Literal["constraint", "decode", "encode", "memory"], reason: str) -> Failed:
    return Failed("provider-error", reason, {"reason": kind})


class OutputProcessor:
    """Samplers of the running sequences, and their output since it was last sent.

    Methods that go on with a sequence return its end where it has come to one; it is the caller's to settle.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._model = loaded.model
        self._vocab = loaded.vocab
        self._context_length = loaded.plan.context_length
        self._pieces = loaded.vocab.pieces
        self._eog = loaded.vocab.eog
        self._candidates = llama.CandidateArray(loaded.vocab.size)
        self._grammar_candidates = llama.CandidateArray(loaded.vocab.size)
        self.samplers: dict[int, tuple[TokenSampler, GrammarState | None]] = {}
        self._stop_matchers: dict[int, StopMatcher] = {}
        self.pieces: list[tuple[int, bytes, int]] = []
        """New output: (request, bytes, tokens)."""
        self.logprobs: list[tuple[int, bytes, float, tuple[tuple[bytes, float], ...]]] = []
        """Of the tokens of requests that ask: (request, *`Logprob`)."""

    def take(
        self,
    ) -> tuple[list[tuple[int, bytes, int]], list[tuple[int, bytes, float, tuple[tuple[bytes, float], ...]]]]:
        """`pieces` and `logprobs`, which begin anew."""
        taken = self.pieces, self.logprobs
        self.pieces, self.logprobs = [], []
        return taken

    def start(self, sequence: Sequence) -> Finished | Failed | None:
        """Make the sampler of a new sequence. Tokens that its grammar forces from the start are part of the prefill."""
        request = sequence.request
        sampler = TokenSampler(request.sampling, request.suppress_tokens, self._candidates)
        if sampler.remembers:
            for token in request.tokens[-PENALTY_WINDOW:]:
                if token >= 0:  # negative: of an image
                    sampler.accept(token)
        grammar: GrammarState | None = None
        if request.constraint is not None:
            try:
                grammar = GrammarState(request.constraint, self._model, self._vocab, self._grammar_candidates)
            except ConstraintError as error:
                return failed("constraint", str(error))
        self.samplers[request.id] = (sampler, grammar)
        if request.stop is not None:
            self._stop_matchers[request.id] = StopMatcher(request.stop)
        if grammar is not None and grammar.active:
            return self._commit_tokens(sequence, sampler, grammar, [], b"")
        return None

    def release(self, request_id: int) -> None:
        self.samplers.pop(request_id, None)
        self._stop_matchers.pop(request_id, None)

    def verify_draft(
        self, sequence: Sequence, draft: array[int], logits: NDArray[np.float32]
    ) -> Finished | Failed | None:
        """Go on by as much of a draft as is sampled, and one token more.

        The draft stands in the KV cache behind the computed tokens: its accepted tokens count as computed then, the
        others are to be cut off.
        """
        end, before, first = None, 0, sequence.num_computed_tokens
        sequence.pending_draft = draft
        sequence.num_draft_tokens += len(draft)
        while end is None and before < len(sequence.tokens) == sequence.num_computed_tokens:
            before = sequence.num_computed_tokens
            end = self.sample_next(sequence, logits[before - first])
        sequence.pending_draft = draft[:0]
        return end

    def sample_next(self, sequence: Sequence, logits: NDArray[np.float32]) -> Finished | Failed | None:
        """Sample a sequence's next token from a row of logits."""
        request = sequence.request
        sampler, grammar = self.samplers[request.id]
        scores = Logprobs(logits, request.logprobs) if request.logprobs is not None else None
        try:
            token = sampler.choose(logits, grammar if grammar is not None and grammar.active else None)
            if token in self._eog:
                return self.finish(sequence, "stop")
            piece = self._pieces[token]
            tokens = [token]
            if grammar is not None:
                if grammar.active:
                    grammar.accept(token)
                elif (kept := grammar.feed_trigger(piece)) < len(piece):
                    piece = piece[:kept]
                    tokens = self._vocab.encode_bytes(piece)
        except NothingAllowed:
            return failed("constraint", "the constraint leaves no token")
        except ConstraintError as error:
            return failed("constraint", str(error))
        if scores is not None:
            self.logprobs.append((request.id, *scores.of(token, piece, self._pieces)))
        return self._commit_tokens(sequence, sampler, grammar, tokens, piece)

    def _commit_tokens(
        self, sequence: Sequence, sampler: TokenSampler, grammar: GrammarState | None, tokens: list[int], piece: bytes
    ) -> Finished | Failed | None:
        """Append sampled tokens and those the grammar forces behind them."""
        request, room = sequence.request, tokens_left(sequence, self._context_length)
        if (
            grammar is not None
            and grammar.active
            and (forced := grammar.jump_forward(room - len(tokens), request.suppress_tokens))
        ):
            tokens = tokens + forced
            piece += b"".join(self._pieces[token] for token in forced)
            sequence.num_jump_forward += len(forced)
            if request.logprobs is not None:
                self.logprobs += [(request.id, *certain(self._pieces[token])) for token in forced]
        for token in tokens:
            sampler.accept(token)
        sequence.tokens.extend(tokens)
        sequence.num_output_tokens += len(tokens)
        if sequence.pending_draft:
            agreed = common_prefix(array("i", tokens), sequence.pending_draft)
            sequence.pending_draft = sequence.pending_draft[agreed:]
            sequence.num_computed_tokens += agreed
            sequence.num_accepted_tokens += agreed
        stop = self._stop_matchers.get(request.id)
        if stop is not None:
            piece = stop.feed(piece)
        if tokens:
            self.pieces.append((request.id, piece, len(tokens)))
        if (stop is not None and stop.found) or (grammar is not None and grammar.complete):
            return self.finish(sequence, "stop")
        if len(tokens) >= room:
            return self.finish(sequence, "length")
        return None

    def finish(self, sequence: Sequence, reason: Literal["stop", "length"]) -> Finished:
        """The end of an output as it is, with the text that was held back for a stop string."""
        request_id, prompt, stopped = sequence.request.id, len(sequence.request.tokens), False
        if (stop := self._stop_matchers.get(request_id)) is not None:
            if rest := stop.finish():
                self.pieces.append((request_id, rest, 0))
            stopped = stop.found
            reason = "stop" if stopped else reason
        output = sequence.tokens[prompt:]
        return Finished(
            reason,
            prompt,
            sequence.num_output_tokens,
            sequence.num_cached_tokens,
            sequence.num_jump_forward,
            output,
            self._ends(output),
            stopped,
            sequence.num_draft_tokens,
            sequence.num_accepted_tokens,
        )

    def _ends(self, output: Iterable[int]) -> array[int]:
        """Characters to the end of each token, decoded as whoever reads the output decodes it."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return array("i", accumulate(len(decoder.decode(self._pieces[token])) for token in output))
