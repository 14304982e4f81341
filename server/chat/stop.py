"""Stop sequences of a request as the engine looks for them in a format's output."""

from __future__ import annotations

import json

from server.chat.formats.spec import ChatFormat
from server.engine.types import StopCriteria


def stop_criteria(format: ChatFormat, strings: tuple[str, ...], opening: str, *, calls: bool) -> StopCriteria:
    """Criteria by which these strings end the text of an answer: behind its tags, not in reasoning, not from a call on.

    `opening`: the part of the prompt's end that belongs to the output. `calls`: tools may be called.
    """
    quoted = format.grammar_only and calls  # such an answer is written as a JSON string
    tags = () if format.grammar_only and not calls else format.answer_tags
    ignored = [f'{each.open}"' if quoted else each.open for each in tags]
    ignored += [*(each.close for each in tags if not quoted), *format.ignored_markers, format.separator]
    thinking = format.reasoning_tags
    return StopCriteria(
        tuple(json.dumps(text, ensure_ascii=False)[1:-1] if quoted else text for text in strings),
        (thinking.open.strip(), thinking.close.strip()) if thinking else None,
        tuple(each.marker for each in format.calls if calls and not each.only_at_start),
        tuple(each.marker for each in format.calls if calls and each.only_at_start),
        tuple(dict.fromkeys(filter(None, map(str.strip, ignored)))),
        opening,
    )
