"""Which of an output's tokens its answer is made of: log probabilities are told of the answer's text alone."""

from __future__ import annotations

from collections.abc import Iterable

from server.chat.events import BlockDelta, BlockEvent, BlockKind, BlockStart
from server.engine.types import Logprob


class AnswerLogprobs:
    """Finds the text that a parser makes certain again in the tokens it came from.

    Text and thinking stand in the output as they come from the parser, in the same order, with markers and white space
    between them. Only where a format writes text in another notation does it not stand there; what has come up to then
    is counted to it.
    """

    def __init__(self) -> None:
        self._tokens: list[Logprob] = []
        self._output = b""
        self._kinds: dict[int, BlockKind] = {}

    def of(self, tokens: Iterable[Logprob], events: Iterable[BlockEvent]) -> list[Logprob]:
        """Given further tokens and what the parser has found in them: those that belong to the answer's text."""
        for token in tokens:
            self._tokens.append(token)
            self._output += token.piece
        found: list[Logprob] = []
        for event in events:
            if isinstance(event, BlockStart):
                self._kinds[event.index] = event.block
            elif isinstance(event, BlockDelta) and self._kinds[event.index] != "toolCall":
                belonging = self._behind(event.text.encode("utf-8", "surrogatepass"))
                found += belonging if self._kinds[event.index] == "text" else ()
        return found

    def _behind(self, text: bytes) -> list[Logprob]:
        """Takes the tokens up to the text's end; those that hold some of it."""
        begin = self._output.find(text)
        if begin < 0:
            taken, self._tokens, self._output = self._tokens, [], b""
            return taken
        found, at, end = [], 0, begin + len(text)
        while self._tokens and at < end:
            token = self._tokens.pop(0)
            at += len(token.piece)
            if at > begin:
                found.append(token)
        self._output = self._output[at:]
        return found
