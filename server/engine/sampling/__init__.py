"""Sampling: from logits to a token. `sampling.sampler` and `sampling.grammar` alone load llama.cpp."""

from server.engine.sampling.params import PARAMS, Param, Sampling

__all__ = ["PARAMS", "Param", "Sampling"]
