"""llama.cpp's own grammar matcher over a real vocabulary: what it accepts, and random walks through what it allows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from server.engine import llama
from server.engine.vocab import Vocab


class Matcher:
    def __init__(self, model: Path) -> None:
        self.model = llama.LlamaModel(str(model), vocab_only=True)
        self.vocab = Vocab(self.model)
        self._candidates = llama.CandidateArray(self.vocab.size)
        self._eog = min(self.vocab.eog)

    def start(self, grammar: str) -> Walk:
        sampler = llama.grammar_sampler(self.model, grammar)
        assert sampler is not None, "llama.cpp cannot read the grammar"
        return Walk(self, sampler)

    def accepts(self, grammar: str, text: str, *, special: bool = False) -> bool:
        """Whether the grammar accepts exactly this text; `special`: control tokens in it as such."""
        walk = self.start(grammar)
        tokens = self.model.tokenize(text, parse_special=special)
        return all(walk.step(token) for token in tokens) and walk.may_end()


class Walk:
    """One output, token by token."""

    def __init__(self, matcher: Matcher, sampler: llama.Sampler) -> None:
        self._matcher = matcher
        self._sampler = sampler

    def allowed(self, tokens: Sequence[int]) -> list[int]:
        candidates = self._matcher._candidates
        candidates.set_some(list(tokens), 0.0)
        self._sampler.apply(candidates)
        view = candidates.view()
        return [int(token) for token, logit in zip(view["id"], view["logit"], strict=True) if np.isfinite(logit)]

    def step(self, token: int) -> bool:
        if not self.allowed([token]):
            return False
        self._sampler.accept(token)
        return True

    def may_end(self) -> bool:
        return bool(self.allowed([self._matcher._eog]))

    def random(self, choose: random.Random, tokens: Sequence[int], most: int = 400) -> str | None:
        """Goes on at random by these tokens until the grammar ends; None where it does not within `most` steps."""
        vocab = self._matcher.vocab
        written = b""
        for _ in range(most):
            if self.may_end():
                return written.decode()
            token = choose.choice(self.allowed(tokens))
            self._sampler.accept(token)
            written += vocab.piece(token)
        return None
