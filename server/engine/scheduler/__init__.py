"""Scheduling: which sequences the next step takes, and how much of each prompt; policy alone, without llama.cpp."""

from server.engine.scheduler.budget import PrefillBudget
from server.engine.scheduler.prefix import MIN_PREFIX, CachedTokens, common_prefix, match_length
from server.engine.scheduler.scheduler import Scheduler
from server.engine.scheduler.sequence import Admission, PrefixMatch, ScheduledBatch, Sequence, Slot

__all__ = [
    "MIN_PREFIX",
    "Admission",
    "CachedTokens",
    "PrefillBudget",
    "PrefixMatch",
    "ScheduledBatch",
    "Scheduler",
    "Sequence",
    "Slot",
    "common_prefix",
    "match_length",
]
