"""A model's vocabulary: text to tokens, tokens to bytes, and which of them mean more than their text."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from server.engine.llama import LlamaModel, LoadError
from server.engine.memory import gguf
from server.engine.types import EngineError, Segment

# enum llama_token_attr
_UNKNOWN, _CONTROL, _USER_DEFINED = 1 << 0, 1 << 3, 1 << 4


_NEVER = frozenset([0xC0, 0xC1, *range(0xF5, 0x100)])
"""Bytes that no UTF-8 holds (RFC 3629, section 3)."""


class Vocab:
    """The vocabulary of a GGUF file. Loading it touches no weights and is safe in any process.

    `metadata`: the GGUF's scalar key/value pairs as text; `tokenizer.chat_template` is the default template,
    `tokenizer.chat_template.NAME` a named one.
    """

    @classmethod
    def load(cls, path: str) -> Vocab:
        """Read the vocabulary of the file at `path`. Raises EngineError where it cannot be read."""
        gguf.read(path)  # llama.cpp ends the process over some files
        try:
            return cls(LlamaModel(path, vocab_only=True))
        except LoadError as error:
            raise EngineError(str(error)) from error

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self.metadata: Mapping[str, str] = model.metadata()
        self.size = model.vocabulary
        self.bos: int | None = model.bos if model.bos >= 0 else None
        self.eos: int | None = model.eos if model.eos >= 0 else None
        self.add_bos = model.add_bos and self.bos is not None
        self._attributes = model.attributes()
        # Tokens that llama.cpp finds in text by their spelling, before it tokenizes the rest.
        self._spelled = {
            model.text(token): token
            for token, attribute in enumerate(self._attributes)
            if attribute & (_CONTROL | _USER_DEFINED | _UNKNOWN)
        }
        self._spelled.pop("", None)
        markers = [text for text, token in self._spelled.items() if self._means(text, token)]
        self._markers = frozenset(markers)
        self._first = frozenset(text[0] for text in markers)
        self._lengths = sorted({len(text) for text in markers}, reverse=True)

    def _means(self, text: str, token: int) -> bool:
        """Whether a spelling may stand in for the template. White space, words and single characters that a vocabulary
        defines as tokens (GPT-NeoX's indentation, Gemma's new lines, DeepSeek's accents) are text like any other."""
        attribute = self._attributes[token]
        if attribute & (_CONTROL | _UNKNOWN):
            return True
        return not (len(text) == 1 or text.isalnum() or text.replace("▁", " ").isspace())

    def text(self, token: int) -> str:
        """The text of a token; of a control token, as templates write it."""
        if self._attributes[token] & (_CONTROL | _USER_DEFINED | _UNKNOWN):
            return self._model.text(token)
        return self.piece(token).decode("utf-8", "replace")

    def piece(self, token: int) -> bytes:
        """The bytes a token adds to the output: often no whole character. Control tokens by their text."""
        return self.pieces[token]

    @cached_property
    def pieces(self) -> list[bytes]:
        """The piece of every token."""
        return self._model.pieces()

    @cached_property
    def eog(self) -> frozenset[int]:
        """The tokens that end a generation."""
        return frozenset(token for token in range(self.size) if self._model.is_eog(token))

    @cached_property
    def controls(self) -> frozenset[int]:
        """The control tokens that do not end a generation."""
        return frozenset(t for t in range(self.size) if self.is_control(t)) - self.eog

    @cached_property
    def invalid_utf8(self) -> frozenset[int]:
        """Tokens with a byte that stands in no UTF-8: llama.cpp's grammars would take it for a character."""
        return frozenset(token for token, piece in enumerate(self.pieces) if not _NEVER.isdisjoint(piece))

    @cached_property
    def byte_tokens(self) -> dict[int, int]:
        """For each byte, a token that stands for just this byte (rare bytes may be missing)."""
        return {piece[0]: token for piece, token in self._plain.items() if len(piece) == 1}

    @cached_property
    def first_tokens(self) -> list[int]:
        """Plain-text tokens that tell whether any text may follow: if none of these may, nothing may.

        Whatever follows begins with some byte; where a byte has no token of its own, its longer tokens stand in.
        """
        longer = [token for piece, token in self._plain.items() if piece[0] not in self.byte_tokens]
        return [*self.byte_tokens.values(), *longer]

    def continuation(self, data: bytes) -> array[int]:
        """Tokens of a text that goes on from other text: as the tokenizer has them, never control tokens."""
        try:
            tokens = self._part(data.decode(), first=False, parse_special=False)
        except UnicodeDecodeError:
            tokens = array("i")
        if b"".join(self.pieces[token] for token in tokens) == data:
            return tokens
        return array("i", self.encode_bytes(data))

    def extensions_of(self, token: int) -> list[int]:
        """The plain-text tokens that begin with this one's piece and go on."""
        piece, ordered = self.pieces[token], self._ordered
        first = bisect_right(ordered, (piece, self.size))
        end = bisect_left(ordered, (piece + b"\xff" * self._longest, 0))
        return [other for _, other in ordered[first:end]]

    def encode_bytes(self, data: bytes) -> list[int]:
        """Plain-text tokens whose pieces concatenate to `data`: the longest first, never control tokens."""
        found = []
        while data:
            length = next(n for n in range(min(len(data), self._longest), 0, -1) if data[:n] in self._plain)
            found.append(self._plain[data[:length]])
            data = data[length:]
        return found

    @cached_property
    def _plain(self) -> dict[bytes, int]:
        special = _CONTROL | _UNKNOWN
        table = {p: t for t, p in enumerate(self.pieces) if p and not self._attributes[t] & special}
        return {piece: token for piece, token in table.items() if token not in self.eog}

    @cached_property
    def _ordered(self) -> list[tuple[bytes, int]]:
        return sorted(self._plain.items())

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._plain))

    def is_eog(self, token: int) -> bool:
        return self._model.is_eog(token)

    def is_control(self, token: int) -> bool:
        return bool(self._attributes[token] & _CONTROL)

    def token_of(self, text: str) -> int | None:
        """The one control or user-defined token spelled exactly so."""
        return self._spelled.get(text)

    # --- text to tokens

    def tokenize(self, segments: Sequence[Segment], *, begins: bool = True, follows: bool = False) -> array[int]:
        """Tokens of the segments as one text; where it `begins` the prompt, with BOS once if the vocabulary wants it.
        Where it `follows` other text, it goes on from that.

        Without control spellings in content this is exactly how llama.cpp tokenizes the whole text. Where content
        spells a control token, alone or together with its neighbours, the text is cut inside that spelling and
        the parts are tokenized apart, so that it comes out as plain text.
        """
        text = "".join(segment.text for segment in segments)
        tokens: array[int] = array("i")
        start = 0
        for cut in (*self._cuts(text, segments), len(text)):
            tokens += self._part(text[start:cut], first=start == 0 and not follows)
            start = cut
        if begins and self.add_bos and (not tokens or tokens[0] != self.bos):
            assert self.bos is not None
            tokens.insert(0, self.bos)
        return tokens

    def _cuts(self, text: str, segments: Sequence[Segment]) -> Iterator[int]:
        """Where to cut: behind the first character of each control spelling that content has a part in."""
        reach = self._lengths[0] - 1 if self._lengths else 0
        start, done = 0, 0
        for segment in segments:
            end = start + len(segment.text)
            if not segment.control and end > start:
                for at in range(max(done, start - reach), end):
                    if text[at] in self._first and any(
                        at + length > start and text[at : at + length] in self._markers for length in self._lengths
                    ):
                        yield at + 1
                done = max(done, end)
            start = end

    def _part(self, text: str, *, first: bool, parse_special: bool = True) -> array[int]:
        if first or not self._prefixes_space:
            return self._model.tokenize(text, parse_special=parse_special)
        # This vocabulary puts a space before every text it tokenizes; a new line in front takes it, and goes again.
        lead = self._model.tokenize("\n", parse_special=parse_special)
        tokens = self._model.tokenize("\n" + text, parse_special=parse_special)
        if tokens[: len(lead)] == lead:
            return tokens[len(lead) :]
        return self._model.tokenize(text, parse_special=parse_special)

    @cached_property
    def _prefixes_space(self) -> bool:
        tokens = self._model.tokenize("a", parse_special=False)
        return bool(tokens) and self._model.text(tokens[0]).startswith("▁")
