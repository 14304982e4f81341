"""Speculative decoding: who proposes draft tokens, and whether drafting pays."""
