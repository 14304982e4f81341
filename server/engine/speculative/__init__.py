"""Speculative decoding: sources of draft tokens, and the controller that measures whether drafting pays."""

from server.engine.speculative.base import DraftController, Drafter, DraftRequest
from server.engine.speculative.model import ModelDrafter
from server.engine.speculative.mtp import MtpDrafter
from server.engine.speculative.ngram import NgramDrafter

__all__ = ["DraftController", "DraftRequest", "Drafter", "ModelDrafter", "MtpDrafter", "NgramDrafter"]
