"""Whether a long answer costs more at its end than at its beginning.

    python benchmarks/replay.py [--tokens 6000] [--passes 21] [--answer FILE] [--templates NAME …]

Replays an answer that ends in a call through all that looks at every token but the model: the search for the marker or
the grammar (what the engine does), and the parser (what the web process does). Prints the CPU time a token, the median
of several passes, over the first and the last 500 tokens, over the 500 before the call, and over the same last 500 at
the end of an answer of 1,000: a token under a grammar costs more than one of free text wherever it stands, and `grown`
leaves that out. Fails where `ratio` (last to first) is over 1.2.

The answer is FILE's text or, without one, that of this repository's own pages; its tokens are those of SmolLM2's
vocabulary, in the native formats of templates/ and in the generic one, which has its grammar from the first token on.
"""

from __future__ import annotations

import argparse
import codecs
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from server.chat import make_parser
from server.chat.formats.render import render_tool_calls
from server.chat.prompt_builder import PromptBuilder
from server.chat.types import PreparedPrompt, PromptRequest
from server.config import load_config
from server.engine import Vocab, llama
from server.engine.hugepages import huge_pages
from server.engine.sampling.grammar import GrammarState
from server.weights import fetch
from server.wire.records import Message, TextPart, Tool

HERE = Path(__file__).parent
ROOT = HERE.parent
WINDOW = 500
TEMPLATES: dict[str, Path | None] = {
    "hermes": HERE / "templates/hermes.jinja",
    "lfm2": HERE / "templates/lfm2.jinja",
    "generic": None,
}
TOOL = Tool(
    "get_weather",
    "Tell the weather of a city",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
ARGUMENTS = {"city": "Paris", "days": 2}


def prose(tokens: int) -> str:
    """Text of at least so many tokens: pages with code, braces and angle brackets in them."""
    pages = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in pages)
    return text * (1 + 5 * tokens // len(text))


class Replay:
    """One answer in one format."""

    def __init__(self, model: llama.LlamaModel, vocab: Vocab, template: str | None, text: str, size: int) -> None:
        self._model, self._vocab = model, vocab
        self._candidates = llama.CandidateArray(vocab.size)  # one for all answers, as the engine has it
        chat = PromptBuilder(vocab, template)
        question = Message("user", (TextPart("What do you know of Paris, and how is the weather there?"),))
        self.prepared: PreparedPrompt = chat.prepare(PromptRequest((question,), (TOOL,), "auto"))
        format = self.prepared.parser.format
        for marker in sorted(format.markers, key=len, reverse=True):
            text = text.replace(marker, "")
        said = model.tokenize(text, parse_special=False)
        if format.grammar_only:  # an answer is a call or text: here all of the text is the call's
            while len(called := self._called({**ARGUMENTS, "city": text})) > size:
                text = text[: len(text) * size // len(called) - 1]
            self.call = len(called)
            self.tokens = called
        else:
            called = self._called(ARGUMENTS)
            self.call = len(called)
            self.tokens = [*said[: size - len(called)], *called]

    def _called(self, arguments: dict[str, Any]) -> list[int]:
        call = str.__str__(render_tool_calls(self.prepared.parser.format.calls[0], [(TOOL.name, "0", arguments)]))
        return list(self._model.tokenize(call, parse_special=False))

    def run(self) -> list[int]:
        """CPU time in nanoseconds: of each whole window, of the window before the call, and of the last."""
        guard, feed, finish = self._start()
        pieces = [self._vocab.piece(token) for token in self.tokens]
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        size = len(self.tokens)
        text = max(WINDOW, size - self.call)
        spans = [(at, at + WINDOW) for at in range(0, size - WINDOW + 1, WINDOW)]
        spans += [(text - WINDOW, text), (size - WINDOW, size)]
        edges = {edge for span in spans for edge in span}
        marks: dict[int, int] = {}
        gc.collect()
        for index, (token, piece) in enumerate(zip(self.tokens, pieces, strict=True)):
            if index in edges:
                marks[index] = time.process_time_ns()
            if guard.active:
                if not guard.allows(token):
                    raise SystemExit(f"the grammar refuses token {index} of the answer")
                guard.accept(token)
            else:
                guard.feed_trigger(piece)
            feed(decode(piece))
        called = finish()
        marks[size] = time.process_time_ns()
        if not called:
            raise SystemExit("the answer did not end in a call")
        return [marks[end] - marks[start] for start, end in spans]

    def _start(self) -> tuple[GrammarState, Callable[[str], object], Callable[[], bool]]:
        assert self.prepared.constraint is not None
        guard = GrammarState(self.prepared.constraint, self._model, self._vocab, self._candidates)
        parser = make_parser(self.prepared.parser)
        names: list[str] = []

        def feed(text: str) -> None:
            names.extend(event.name for event in parser.feed(text) if getattr(event, "name", None))

        def finish() -> bool:
            parser.finish("stop")
            return names == [TOOL.name] and guard.active

        return guard, feed, finish


def measured(replay: Replay, passes: int) -> list[float]:
    """Microseconds a token of each span: the median of the passes, after one to warm up."""
    replay.run()
    return [
        statistics.median(span) / WINDOW / 1000 for span in zip(*(replay.run() for _ in range(passes)), strict=True)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--passes", type=int, default=21)
    parser.add_argument("--answer", type=Path, help="a file of text")
    parser.add_argument("--templates", nargs="+", choices=TEMPLATES, default=list(TEMPLATES))
    options = parser.parse_args()
    if "PYTHONMALLOC" not in os.environ:  # memory as the server's processes have it
        os.execve(sys.executable, [sys.executable, *sys.argv], huge_pages(os.environ))
    model = llama.LlamaModel(str(fetch(load_config(ROOT / "models.toml").connections[0].source)), vocab_only=True)
    vocab = Vocab(model)
    text = options.answer.read_text(encoding="utf-8") if options.answer else prose(options.tokens)
    worst = 0.0
    for name in options.templates:
        path = TEMPLATES[name]
        template = path.read_text(encoding="utf-8") if path else None
        long, short = (Replay(model, vocab, template, text, size) for size in (options.tokens, 2 * WINDOW))
        *windows, before, last = measured(long, options.passes)
        *_, early = measured(short, options.passes)
        worst = max(worst, last / windows[0])
        report = {
            "template": name,
            "tokens": len(long.tokens),
            "call_tokens": long.call,
            "first_us": round(windows[0], 2),
            "last_us": round(last, 2),
            "ratio": round(last / windows[0], 3),
            "before_call_us": round(before, 2),
            "last_of_1000_us": round(early, 2),
            "grown": round(last / early, 3),
            "windows_us": [round(window, 2) for window in windows],
        }
        print(json.dumps(report), flush=True)
    return 0 if worst <= 1.2 else 1


if __name__ == "__main__":
    sys.exit(main())
