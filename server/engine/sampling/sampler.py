"""Choosing the next token of one sequence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from server.engine import llama
from server.engine.llama import C
from server.engine.sampling.grammar import GrammarState
from server.engine.sampling.params import PARAMS, Sampling

_RANKS = 32
"""Candidates asked about together after the first refusal: 8 µs."""

_BROAD = 1024
"""Likeliest tokens masked before all are: 0.2 ms against 5 ms for a vocabulary of 49,000. What ranks below has no share
worth the difference, as long as any of these is allowed."""

_COLD = 1e-8
"""Temperatures below are greedy. Logits differ by their last place at least, 1e-6, which makes e^-100 there; divided by
ever less they overflow, and what is not a number has no order."""


class NothingAllowed(Exception):
    """The constraint and the bans together leave no token."""


class TokenSampler:
    """The sampler chain of one sequence, and the rule by which a constraint bends it.

    Greedy without penalties is `argmax` over the logits: the same token as llama.cpp's greedy sampler, 20 times
    quicker. Else a llama.cpp chain: the steps of `PARAMS` that change anything, then the draw.

    Under a constraint the chain chooses first and the grammar is asked about that one token. On refusal the next
    token is drawn from the chain's other candidates, so that the result is distributed as the chain's own
    distribution under the condition that the grammar allows the token. Only where it allows none of them are
    the logits masked, first those of the likeliest tokens, and the chain runs again on what is left.
    """

    def __init__(self, sampling: Sampling, banned: tuple[int, ...], candidates: llama.CandidateArray) -> None:
        self._candidates = candidates
        self._banned = np.array(banned, np.intp)
        self._greedy = sampling.temperature < _COLD
        entropy = None if sampling.seed is None else sampling.seed % 2**64
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        self._random = np.random.default_rng(seed)
        self._chain: llama.Sampler | None = None
        given = {param: getattr(sampling, name) for name, param in PARAMS.items()}
        used = {param: value for param, value in given.items() if value != param.off}
        self.remembers = any(param.penalty for param in used)
        steps = [
            param.build(C, value, len(candidates.data))
            for param, value in used.items()
            if param.build is not None and (param.penalty or not self._greedy)
        ]
        if steps:
            steps.append(C.llama_sampler_init_greedy() if self._greedy else C.llama_sampler_init_dist(seed))
            self._chain = llama.sampler_chain(*steps)

    def accept(self, token: int) -> None:
        """Tell the penalties about a token of the sequence."""
        if self.remembers and self._chain is not None:
            self._chain.accept(token)

    def choose(self, logits: NDArray[np.float32], guard: GrammarState | None) -> int:
        """The next token, from one row of logits (which it may change). `guard`: the constraint, where active.

        Raises NothingAllowed.
        """
        if len(self._banned):
            logits[self._banned] = -np.inf
        if guard is None:
            return self._draw(logits)
        logits[guard.banned] = -np.inf
        token = self._draw(logits)
        if guard.allows(token) and logits[token] > -np.inf:
            return token
        return self._draw_again(logits, guard, token)

    def _draw(self, logits: NDArray[np.float32]) -> int:
        if self._chain is None:
            return int(logits.argmax())
        candidates = self._candidates
        candidates.set_all(logits)
        self._chain.apply(candidates)
        return int(candidates.data["id"][candidates.selected])

    def _draw_again(self, logits: NDArray[np.float32], guard: GrammarState, refused: int) -> int:
        if self._chain is None:
            ids = np.argpartition(logits, -_RANKS)[-_RANKS:].astype(np.int32)
            scores = logits[ids]
        else:
            left = self._candidates.view()
            ids, scores = left["id"].copy(), left["logit"].copy()
        if not self._greedy:
            # Gumbel-max: the order of scores + noise is a draw without replacement from softmax(scores), and its first
            # allowed member one from the softmax over the allowed alone (Gumbel 1954; Maddison et al. 2014).
            scores = scores + self._random.gumbel(size=len(scores)).astype(np.float32)
        scores[ids == refused] = -np.inf
        order = np.argsort(-scores)[: int(np.isfinite(scores).sum())]
        for ranked in (ids[order[:_RANKS]], ids[order[_RANKS:]]):
            if len(ranked) and (allowed := guard.allowed_among(ranked)).any():
                return int(ranked[allowed.argmax()])
        return self._draw_masked(logits, guard)

    def _draw_masked(self, logits: NDArray[np.float32], guard: GrammarState) -> int:
        candidates = self._candidates
        broad = np.argpartition(logits, -_BROAD)[-_BROAD:].astype(np.int32) if len(logits) > _BROAD else None
        for ids in (broad, None):
            if ids is None:
                candidates.set_all(logits)
            else:
                candidates.set_some(ids, logits[ids])
            guard.mask(candidates)
            left = candidates.view()
            if not np.isfinite(left["logit"]).any():
                continue
            if self._chain is None:
                return int(left["id"][left["logit"].argmax()])
            self._chain.apply(candidates)
            chosen = left[candidates.selected]
            if np.isfinite(chosen["logit"]):
                return int(chosen["id"])
        raise NothingAllowed
