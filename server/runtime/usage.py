"""Reasoning tokens of a generation's usage, which the engine cannot count itself (NAP-LLM, "Usage")."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence


def count_reasoning(ends: Sequence[int], thoughts: Iterable[tuple[int, int | None]]) -> int:
    """The tokens that hold some of a model's thinking. The brackets around it are none, as vLLM counts; a token that
    holds the end of one and the beginning of the other is.

    `ends`: for each token, the characters of the output to its end (`Finished.ends`). `thoughts`: where thinking
    begins and ends in those characters, in their order; without an end it goes on to that of the output.
    """
    edges = [0, *ends]
    count = counted = 0
    for begin, end in thoughts:
        if end is not None and end <= begin:
            continue
        first = bisect_left(edges, begin)
        # The token before that edge reaches into the thinking where the edge is not where it begins.
        first -= first < len(edges) and edges[first] > begin
        last = len(ends) if end is None else min(bisect_left(edges, end), len(ends))
        first = max(first, counted)
        if last > first:
            count, counted = count + last - first, last
    return count
