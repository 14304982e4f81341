"""From logits to a token: sampler chain, grammar, stop strings, log probabilities."""
