"""What the sampler must obey: a grammar, from the start or from the first marker on.

llama.cpp's grammar sampler is a matcher over bytes that can be asked (apply it to candidates) and moved on (accept). It
ends the process when it is moved on by what it does not allow, so everything here asks before it accepts.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Container, Sequence

import numpy as np
from numpy.typing import NDArray

from server.engine import llama
from server.engine.types import Constraint
from server.engine.vocab import Vocab

_USUAL = b'e0"} <'
"""Bytes of which free text or a choice mostly allows two: a cheap question that spares most positions the full one."""

_FORESIGHT = 512
"""Bytes of forced text looked for at a time."""


class ConstraintError(Exception):
    """The constraint cannot be kept. The text is safe to show."""


class GrammarState:
    """The constraint of one sequence. Raises ConstraintError where llama.cpp cannot read it.

    `active`: the grammar holds for the next token. `banned`: tokens that may not be sampled while it does: control
    tokens match a grammar by their text, inside a JSON string for example, and mean something else there; and those
    with bytes that belong to no character.
    `complete`: the grammar allows nothing more.
    """

    def __init__(
        self, constraint: Constraint, model: llama.LlamaModel, vocab: Vocab, candidates: llama.CandidateArray
    ) -> None:
        grammar = llama.grammar_sampler(model, constraint.grammar) if constraint.grammar.strip() else None
        if grammar is None:
            raise ConstraintError("llama.cpp cannot read the grammar")
        self._grammar = grammar
        self._vocab = vocab
        self._candidates = candidates
        self._candidate = llama.SingleCandidate()
        self._search = TriggerMatcher(constraint) if constraint.triggers else None
        self._after_trigger = self._states_after_triggers(constraint.triggers)
        self.active = self._search is None
        self.complete = False
        named = _named_tokens(constraint.grammar, vocab)
        markers = {vocab.token_of(marker) for marker in constraint.triggers}
        self.banned = np.array(sorted((vocab.controls - named - markers) | vocab.invalid_utf8), np.intp)
        self._eog = next(iter(vocab.eog), None)
        self._probes = np.array([*vocab.first_tokens, *named], np.int32)
        self._anything = llama.CandidateMask(self._probes)
        self._usual = np.array([vocab.byte_tokens[byte] for byte in _USUAL if byte in vocab.byte_tokens], np.int32)

    def allows(self, token: int) -> bool:
        return self._candidate.allowed(self._grammar, token)

    def allowed_among(self, tokens: list[int] | NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which of these tokens the grammar allows next."""
        return _allowed(self._grammar, self._candidates, tokens)

    def mask(self, candidates: llama.CandidateArray) -> None:
        """Set the logits of refused candidates to minus infinity."""
        self._grammar.apply(candidates)

    def accept(self, token: int) -> None:
        """Move on by a token that the active grammar allows (and that does not end the generation)."""
        self._grammar.accept(token)
        self._look_ahead()

    def jump_forward(self, most: int, banned: Container[int] = ()) -> list[int]:
        """Tokens that must come next (at most `most`, up to a banned one), which are then accepted: no need to sample.

        The text that has only one continuation, tokenized as the model would write it. Its last token is left to the
        model where that may write a longer one, which goes on into what is not forced.
        """
        if most < 1 or self.complete or np.count_nonzero(self.allowed_among(self._usual)) > 1:
            return []
        grammar, tokens, text = self._grammar, array("i"), b""
        while True:
            allowed = self._probes[_allowed(grammar, self._candidates, self._probes)]
            if len(allowed) != 1 or len(text) >= _FORESIGHT or self._may_end(grammar):
                break
            only = int(allowed[0])
            grammar = grammar.clone() if grammar is self._grammar else grammar
            grammar.accept(only)
            if only in self._vocab.controls:
                tokens, text = tokens + self._vocab.continuation(text) + array("i", [only]), b""
            else:
                text += self._vocab.pieces[only]
        rest = self._vocab.continuation(text)
        tokens += rest
        boundary = len(tokens) - 1 if rest and len(allowed) else -1
        found: list[int] = []
        for place, token in enumerate(tokens[:most]):
            if token in banned or not self.allows(token) or (place == boundary and self._may_be_longer(token)):
                break
            self.accept(token)
            found.append(token)
        return found

    def _may_be_longer(self, token: int) -> bool:
        """Whether a token that begins like this one and goes on is allowed too."""
        longer = self._vocab.extensions_of(token)
        return bool(longer) and bool(self.allowed_among(longer).any())

    def feed_trigger(self, piece: bytes) -> int:
        """Look for a marker while the grammar is not active yet; how many bytes of the piece to keep.

        Where the piece completes a marker, the grammar starts with the marker's text. A piece that runs on
        behind the marker with what the grammar does not allow there is cut, and the rest is sampled anew.
        Raises ConstraintError where the grammar does not begin with its marker.
        """
        assert self._search is not None
        found = self._search.feed(piece)
        if found is None:
            return len(piece)
        text, marker = found
        behind = self._after_trigger[text[:marker]]
        if behind is None:
            raise ConstraintError("the grammar does not allow its own marker")
        rest, kept = text[marker:], 0
        trial = behind.clone() if rest else behind
        for place, byte in enumerate(rest):
            token = self._vocab.byte_tokens.get(byte)
            if token is None or not self._candidate.allowed(trial, token):
                break
            trial.accept(token)
            if place + 1 == len(rest) or rest[place + 1] & 0xC0 != 0x80:  # never cut inside a character
                kept = place + 1
        if kept < len(rest):
            trial = behind.clone()
            for byte in rest[:kept]:
                trial.accept(self._vocab.byte_tokens[byte])
        self._grammar = trial
        self.active = True
        self._look_ahead()
        return len(piece) - (len(rest) - kept)

    def _states_after_triggers(self, markers: Sequence[str]) -> dict[bytes, llama.Sampler | None]:
        """The grammar behind each marker, made while the prompt is prefilled; the last takes the grammar itself."""
        return {
            marker.encode(): self._after(self._grammar.clone() if left else self._grammar, marker.encode())
            for left, marker in zip(reversed(range(len(markers))), markers, strict=True)
        }

    def _after(self, grammar: llama.Sampler, text: bytes) -> llama.Sampler | None:
        """The grammar moved on behind a text, None where it does not begin with it."""
        for byte in text:
            token = self._vocab.byte_tokens.get(byte)
            if token is None or not self._candidate.allowed(grammar, token):
                return None
            grammar.accept(token)
        return grammar

    def _look_ahead(self) -> None:
        # Whether the grammar may end is one cheap question; only then is it worth asking whether it must.
        if self._may_end(self._grammar):
            self.complete = not self._anything.any_allowed(self._grammar)

    def _may_end(self, grammar: llama.Sampler) -> bool:
        return self._eog is None or self._candidate.allowed(grammar, self._eog)


def _allowed(
    grammar: llama.Sampler, candidates: llama.CandidateArray, tokens: list[int] | NDArray[np.int32]
) -> NDArray[np.bool_]:
    candidates.set_some(tokens, 0.0)
    grammar.apply(candidates)
    allowed: NDArray[np.bool_] = np.isfinite(candidates.view()["logit"])
    return allowed


class TriggerMatcher:
    """Finds the first marker outside thinking in a byte stream, looking at each byte a bounded number of times."""

    def __init__(self, constraint: Constraint) -> None:
        self._markers = [marker.encode() for marker in constraint.triggers]
        opening, closing = constraint.reasoning_tags or ("", "")
        self._opening, self._closing = opening.encode(), closing.encode()
        self._thinking = constraint.thinking_open and bool(closing)
        self._reach = max(map(len, (*self._markers, self._opening, self._closing))) - 1
        self._tail = b""

    def feed(self, piece: bytes) -> tuple[bytes, int] | None:
        """Read on; on the first marker, the bytes from its beginning to the end of the piece, and its length."""
        data = self._tail + piece
        while True:
            wanted = [self._closing] if self._thinking else [*self._markers, *filter(None, [self._opening])]
            # The first to be complete; of those that end together, the longest.
            hits = [(at + len(text), at, text) for text in wanted if (at := data.find(text)) >= 0]
            if not hits:
                self._tail = data[-self._reach :] if self._reach else b""
                return None
            end, at, text = min(hits)
            if not self._thinking and text in self._markers:
                return data[at:], len(text)
            self._thinking = not self._thinking
            data = data[end:]


_SYNTAX = re.compile(r'"(?:\\.|[^"\\])*"|#[^\n]*|<\[(\d+)\]>|<([^<>\s\[\]]+)>|\[(?:\\.|[^\]\\])*\]')


def _named_tokens(grammar: str, vocab: Vocab) -> frozenset[int]:
    """The tokens a grammar matches as such: `<[id]>` and `<text>` outside of literals."""
    found = set()
    for match in _SYNTAX.finditer(grammar):
        if match[1]:
            found.add(int(match[1]))
        elif match[2] and (token := vocab.token_of(f"<{match[2]}>")) is not None:
            found.add(token)
    return frozenset(found)
