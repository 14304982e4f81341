"""Blocks to text and back, for every format: whole, in random pieces and byte by byte.

`NAP_LLM_MANY=1` takes 10,000 random outputs a format.
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from server.chat.formats import FORMATS, GENERIC
from server.chat.formats.spec import THINK, ChatFormat
from tests.chat.blocks import Reading, read
from tests.chat.writing import Author

COUNT = 10_000 if os.environ.get("NAP_LLM_MANY") == "1" else 25
THINKING_GENERIC = replace(GENERIC, name="generic-thinking", reasoning_tags=THINK)
ALL = {**FORMATS, GENERIC.name: GENERIC, THINKING_GENERIC.name: THINKING_GENERIC}


def byte_by_byte(text: str) -> Iterator[str]:
    """As an engine hands it on that decodes one byte at a time."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    return (decoder.decode(bytes([byte])) for byte in text.encode())


def told(reading: Reading) -> list[tuple[str, Any]]:
    """The blocks as plain values; arguments as text, so that 1, 1.0 and True differ."""
    assert all(block.ended for block in reading.blocks)
    return [
        (block.kind, (block.name, json.dumps(block.arguments)) if block.kind == "toolCall" else block.text)
        for block in reading.blocks
    ]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("format", ALL.values(), ids=ALL)
def test_blocks_come_back(format: ChatFormat) -> None:
    kinds: set[str] = set()
    for seed in range(COUNT):
        author = Author(format, seed)
        output = author.output()
        expected = [
            (kind, (given[0], json.dumps(given[1])) if kind == "toolCall" else given) for kind, given in output.blocks
        ]
        whole = read(output.spec, [output.text])
        assert told(whole) == expected, (seed, output.text)
        assert read(output.spec, author.pieces(output.text)) == whole, (seed, output.text)
        assert read(output.spec, byte_by_byte(output.text)) == whole, (seed, output.text)
        kinds.update(kind for kind, _ in expected)
    print(f"{format.name}: {COUNT} outputs read alike, whole, in pieces and byte by byte")
    assert kinds >= {"text", "toolCall", *(["thinking"] if format.reasoning_tags else [])}
